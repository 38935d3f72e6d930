//! Comparing switches with the desired state.

use futures_util::future::join_all;

use super::changes::Changes;
use super::controller::Controller;
use super::error::BringUpError;
use super::switch::ManagedSwitch;
use crate::fabric::SwitchId;
use crate::reconcile::Diff;

/// The drift of each switch, or why it could not be read.
pub type Audited = Vec<(SwitchId, Result<Diff, String>)>;

impl Controller {
    /// Compares all switches with the desired state; with `mend` it also reconciles them.
    #[tracing::instrument(name = "sync", skip_all, fields(mend = mend))]
    pub async fn audit(&self, mend: bool) -> Audited {
        if !mend && self.open().is_ok() {
            // Without the change lock at first. Only drift is checked again with it, because a
            // change in progress looks like drift.
            let audited = self.audit_all(None, mend).await;
            let differs =
                |(_, diff): &(_, Result<Diff, _>)| diff.as_ref().is_ok_and(|diff| !diff.is_empty());
            if !audited.iter().any(differs) {
                return self.counted(audited);
            }
        }
        let changes = self.changes.take().await;
        match self.open() {
            Ok(()) => self.counted(self.audit_all(Some(&changes), mend).await),
            Err(error) => {
                let ids = self.fabric.switch_ids();
                ids.map(|id| (id, Err(error.to_string()))).collect()
            }
        }
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

    async fn audit_all(&self, changes: Option<&Changes<'_>>, mend: bool) -> Audited {
        let desired = &self.desired();
        let audited = self.switches.iter().map(|switch| async move {
            let audited = async {
                let client = switch.client()?;
                let client = changes.map_or(client.clone(), |changes| changes.client(&client));
                let program = switch.has_program(&client, self.program()).await;
                program.map_err(|error| error.to_string())?;
                let diff = match mend {
                    true => switch.reconcile(&client, desired).await,
                    false => switch.diff(&client, desired).await,
                };
                diff.map_err(|error| error.to_string())
            };
            (switch.id, audited.await)
        });
        let audited = join_all(audited).await;
        if mend {
            self.retry_waiting();
        }
        audited
    }

    /// The periodic comparison of one switch.
    #[tracing::instrument(name = "audit", skip_all, fields(switch = switch.name()))]
    pub(super) async fn audit_one(&self, switch: &ManagedSwitch) {
        let Ok(client) = switch.client() else { return };
        let looked = async {
            // A slow switch without drift delays no other request.
            switch.has_program(&client, self.program()).await?;
            let diff = switch.diff(&client, &self.desired()).await?;
            if diff.is_empty() && !switch.is_dirty() {
                return Ok(());
            }
            let changes = self.changes.take().await;
            let client = changes.client(&client);
            switch.look(&client, &self.desired()).await?;
            self.retry_waiting();
            Ok::<_, BringUpError>(())
        };
        if let Err(error) = looked.await {
            self.metrics.failed_to_audit(switch.name());
            tracing::warn!(switch = switch.name(), %error, "resync failed");
        }
    }
}
