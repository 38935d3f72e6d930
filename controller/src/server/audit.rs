//! Whether switches hold what they should.

use futures_util::future::join_all;

use super::changes::Changes;
use super::controller::Controller;
use super::error::BringUpError;
use super::switch::ManagedSwitch;
use crate::fabric::SwitchId;
use crate::reconcile::Diff;

/// In what each switch is not as it should be, or why that cannot be said.
pub type Audited = Vec<(SwitchId, Result<Diff, String>)>;

impl Controller {
    /// In what each switch is not as it should be, or why that cannot be said. With `mend` it is put right.
    #[tracing::instrument(name = "sync", skip_all, fields(mend = mend))]
    pub async fn audit(&self, mend: bool) -> Audited {
        if !mend && self.open().is_ok() {
            // Nobody waits for who only looks, unless it finds something: that may be a change that is under way.
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

    /// Counts what has failed at switches that are connected.
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
            self.try_again();
        }
        audited
    }

    /// Looks at one switch, as the time for it has come.
    #[tracing::instrument(name = "audit", skip_all, fields(switch = switch.name()))]
    pub(super) async fn audit_one(&self, switch: &ManagedSwitch) {
        let Ok(client) = switch.client() else { return };
        let looked = async {
            // A switch that answers slowly keeps nobody from anything, as long as it is as it should be.
            switch.has_program(&client, self.program()).await?;
            let diff = switch.diff(&client, &self.desired()).await?;
            if diff.is_empty() && !switch.is_in_doubt() {
                return Ok(());
            }
            let changes = self.changes.take().await;
            let client = changes.client(&client);
            switch.look(&client, &self.desired()).await?;
            self.try_again();
            Ok::<_, BringUpError>(())
        };
        if let Err(error) = looked.await {
            self.metrics.failed_to_audit(switch.name());
            tracing::warn!(switch = switch.name(), %error, "not put right");
        }
    }
}
