//! Comparing switches with the desired state. The task of each switch does it: periodically, and for requests.

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};
use ultima_planner::fabric::SwitchId;
use ultima_planner::reconcile::Diff;

use super::controller::Controller;
use super::error::{BringUpError, JobRequestError};
use super::switch::{Audit, ManagedSwitch};
use crate::p4rt::SwitchClient;

/// The drift of each switch, or why it could not be read.
pub type Audited = Vec<(SwitchId, Result<Diff, String>)>;

/// The purpose of a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Repairs the switch unless repairs are disabled.
    Periodic,
    /// Reports drift.
    Report,
    /// Reconciles the switch.
    Mend,
}

impl Controller {
    /// Compares all switches with the desired state; with `mend` their tasks also reconcile them.
    #[tracing::instrument(name = "sync", skip_all, fields(mend = mend))]
    pub async fn audit(&self, mend: bool) -> Audited {
        let audited = self.switches.iter().map(|switch| async move {
            let audited = async {
                self.open().map_err(|error| error.to_string())?;
                let (answer, audited) = oneshot::channel();
                let span = Span::current();
                switch.ask_audit(Audit { mend, span, answer })?;
                tokio::select! {
                    audited = audited => audited.unwrap_or_else(|_| switch.client().and(Err("interrupted".into()))),
                    () = self.stopped() => Err(JobRequestError::Stopping.to_string()),
                }
            };
            (switch.id, audited.await)
        });
        join_all(audited).await
    }

    /// Compares a switch once for all these requests. Returns false if it fails.
    pub(super) async fn answer_audits(&self, switch: &ManagedSwitch, requests: Vec<Audit>) -> bool {
        let Some(first) = requests.first() else {
            return true;
        };
        let purpose = match requests.iter().any(|it| it.mend) {
            true => Purpose::Mend,
            false => Purpose::Report,
        };
        let audited = self.audit_one(switch, purpose);
        let audited = audited.instrument(first.span.clone()).await;
        let is_done = audited.is_ok();
        for request in requests {
            // The client may have gone.
            let _ = request.answer.send(audited.clone());
        }
        is_done
    }

    /// Compares a switch with the desired state.
    #[tracing::instrument(name = "audit", skip_all, fields(switch = switch.name()))]
    pub(super) async fn audit_one(
        &self,
        switch: &ManagedSwitch,
        purpose: Purpose,
    ) -> Result<Diff, String> {
        let client = switch.client()?;
        let audited = self.audit_switch(switch, &client, purpose).await;
        if let Err(error) = &audited {
            self.metrics.failed_to_audit(switch.name());
            tracing::warn!(switch = switch.name(), %error, "resync failed");
        }
        audited.map_err(|error| error.to_string())
    }

    /// The drift of a switch. Unless the switch is to be reconciled, it is first read without the right to write: a slow switch
    /// without drift delays no reroute. Drift is checked again with that right, because a change in progress looks like drift.
    async fn audit_switch(
        &self,
        switch: &ManagedSwitch,
        client: &SwitchClient,
        purpose: Purpose,
    ) -> Result<Diff, BringUpError> {
        switch.has_program(client, self.program()).await?;
        if purpose != Purpose::Mend {
            let diff = switch.diff(client, &self.desired()).await?;
            if diff.is_empty() && (purpose == Purpose::Report || !switch.is_dirty()) {
                return Ok(diff);
            }
        }
        let writing = self.changes.write_to(&switch.writer).await;
        let (client, desired) = (writing.client(client), self.desired());
        if purpose != Purpose::Mend && !switch.is_dirty() {
            switch.catch_up(&client, &desired).await?;
        }
        let diff = match purpose {
            Purpose::Report => return switch.diff(&client, &desired).await,
            Purpose::Mend => switch.reconcile(&client, &desired).await?,
            Purpose::Periodic => switch.look(&client, &desired).await?,
        };
        self.note_ready();
        self.retry_waiting();
        Ok(diff)
    }
}
