//! Comparing switches with the desired state.

use futures_util::future::join_all;
use ultima_planner::fabric::SwitchId;
use ultima_planner::reconcile::Diff;

use super::controller::Controller;
use super::error::BringUpError;
use super::switch::ManagedSwitch;
use crate::p4rt::SwitchClient;

/// The drift of each switch, or why it could not be read.
pub type Audited = Vec<(SwitchId, Result<Diff, String>)>;

impl Controller {
    /// Compares all switches with the desired state; with `mend` it also reconciles them.
    #[tracing::instrument(name = "sync", skip_all, fields(mend = mend))]
    pub async fn audit(&self, mend: bool) -> Audited {
        let audited = self.switches.iter().map(|switch| async move {
            let audited = async {
                self.open().map_err(|error| error.to_string())?;
                let client = switch.client()?;
                let audited = self.audit_switch(switch, &client, mend).await;
                audited.map_err(|error| error.to_string())
            };
            (switch.id, audited.await)
        });
        let audited = join_all(audited).await;
        if mend {
            self.note_ready();
            self.retry_waiting();
        }
        self.counted(audited)
    }

    /// The drift of a switch. Without `mend` it is first read without the right to write: only drift
    /// is checked again with it, because a change in progress looks like drift.
    async fn audit_switch(
        &self,
        switch: &ManagedSwitch,
        client: &SwitchClient,
        mend: bool,
    ) -> Result<Diff, BringUpError> {
        switch.has_program(client, self.program()).await?;
        if !mend {
            let diff = switch.diff(client, &self.desired()).await?;
            if diff.is_empty() {
                return Ok(diff);
            }
        }
        let writing = self.changes.write_to(&switch.writer).await;
        let (client, desired) = (writing.client(client), self.desired());
        if mend {
            return switch.reconcile(&client, &desired).await;
        }
        if !switch.is_dirty() {
            switch.catch_up(&client, &desired).await?;
        }
        switch.diff(&client, &desired).await
    }

    /// Counts failures at connected switches.
    fn counted(&self, audited: Audited) -> Audited {
        for (id, diff) in &audited {
            let switch = &self.switches[id.0];
            if diff.is_err() && switch.client().is_ok() {
                self.metrics.failed_to_audit(switch.name());
            }
        }
        audited
    }

    /// The periodic comparison of one switch. Returns false if it fails.
    #[tracing::instrument(name = "audit", skip_all, fields(switch = switch.name()))]
    pub(super) async fn audit_one(&self, switch: &ManagedSwitch) -> bool {
        let Ok(client) = switch.client() else {
            return true;
        };
        let looked = async {
            // A slow switch without drift delays no other request.
            switch.has_program(&client, self.program()).await?;
            let diff = switch.diff(&client, &self.desired()).await?;
            if diff.is_empty() && !switch.is_dirty() {
                return Ok(());
            }
            let writing = self.changes.write_to(&switch.writer).await;
            let (client, desired) = (writing.client(&client), self.desired());
            if !switch.is_dirty() {
                switch.catch_up(&client, &desired).await?;
            }
            switch.look(&client, &desired).await?;
            self.note_ready();
            self.retry_waiting();
            Ok::<_, BringUpError>(())
        };
        let looked = looked.await;
        if let Err(error) = &looked {
            self.metrics.failed_to_audit(switch.name());
            tracing::warn!(switch = switch.name(), %error, "resync failed");
        }
        looked.is_ok()
    }
}
