//! Reconciling a switch: reading its entries, comparing them with the desired state, and writing
//! the differences.

use std::collections::BTreeSet;

use tokio::time::Instant;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{TableEntry, Update};

use super::{Desired, ManagedSwitch};
use crate::p4rt::{BATCH, ConnectError, Order, SwitchClient};
use crate::plan::Division;
use crate::program::Program;
use crate::reconcile::{self, Diff, Held, Room};
use crate::server::error::BringUpError;

impl ManagedSwitch {
    /// Checks that the switch still has this controller's program. If not, the connection counts as
    /// lost, and the switch is brought up again with the next one.
    ///
    /// # Errors
    /// It has another program, or does not answer.
    pub async fn has_program(
        &self,
        client: &SwitchClient,
        program: &Program,
    ) -> Result<(), BringUpError> {
        let cookie = client.pipeline_cookie().await;
        let cookie = cookie.map_err(|error| self.unreadable(error))?;
        if cookie == Some(program.cookie()) {
            return Ok(());
        }
        let error = BringUpError::OtherProgram {
            switch: self.name().to_owned(),
        };
        client.give_up(error.to_string());
        Err(error)
    }

    /// Compares the switch with the desired state and logs new drift. Repairs it if the controller
    /// may have caused it, or if repairs are enabled.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn look(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let (diff, message) = match desired.repair || self.may_differ() {
            true => (self.reconcile(client, desired).await?, "drift repaired"),
            false => (self.diff(client, desired).await?, "drift found"),
        };
        self.metrics.differed(self.name(), diff.differences().len());
        let names = desired.program.names();
        let found = diff.differences().iter();
        let found = found.map(|it| it.describe(names).to_string()).collect();
        for what in self.with_state(|state| new_drift(&mut state.known_drift, found)) {
            tracing::warn!(switch = self.name(), %what, "{message}");
        }
        Ok(())
    }

    /// The drift of the switch.
    pub async fn diff(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let (wanted, _) = desired.on(self.id)?;
        let asked = Instant::now();
        let held = self.read(client, desired.program.names()).await?;
        let diff = Diff::between(&held, &wanted, self.target);
        if diff.is_empty() {
            self.unanswered.read_matched(asked);
        }
        Ok(diff)
    }

    /// Resyncs the switch. Returns the drift.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn reconcile(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let wanted = desired.on(self.id)?;
        self.hold(client, desired.program.names(), wanted).await
    }

    /// Makes the switch have exactly these entries. Returns the drift. Tries once more if an
    /// earlier write took effect between the read and the repair.
    pub async fn hold(
        &self,
        client: &SwitchClient,
        names: &Names,
        wanted: (Held, Division),
    ) -> Result<Diff, BringUpError> {
        match self.look_and_make(client, names, &wanted).await {
            Err(error) if error.is_outdated() => self.look_and_make(client, names, &wanted).await,
            held => held,
        }
    }

    async fn look_and_make(
        &self,
        client: &SwitchClient,
        names: &Names,
        wanted: &(Held, Division),
    ) -> Result<Diff, BringUpError> {
        let asked = Instant::now();
        let mut held = self.read(client, names).await?;
        self.keep_foreign(client, names, &mut held).await?;
        let diff = self.make(client, names, &held, wanted).await?;
        self.unanswered.read_matched(asked);
        Ok(diff)
    }

    /// Checks that no job belongs to another store, or removes these jobs.
    async fn keep_foreign(
        &self,
        client: &SwitchClient,
        names: &Names,
        held: &mut Held,
    ) -> Result<(), BringUpError> {
        let Some(owner) = self.owner else {
            return Ok(());
        };
        let rows = held.iter().filter_map(|(_, it)| owner.foreign(&it.entity));
        let key = |row: &TableEntry| TableEntry {
            action: None,
            metadata: Vec::new(),
            ..row.clone()
        };
        let rows: Vec<TableEntry> = rows.map(key).collect();
        if rows.is_empty() {
            return Ok(());
        }
        if !owner.takes_over {
            return Err(ConnectError::foreign(&self.device, rows.len()).into());
        }
        let jobs = rows.len();
        tracing::warn!(switch = self.name(), jobs, "removing another store's jobs");
        rows.iter().for_each(|row| held.remove(&row.clone().into()));
        let removals = rows.into_iter().map(Update::delete).collect();
        self.change(client, names, removals, Order::Any).await
    }

    async fn read(&self, client: &SwitchClient, names: &Names) -> Result<Held, BringUpError> {
        let held = reconcile::read(client, names).await;
        held.map_err(|error| self.unreadable(error))
    }

    /// Writes the differences between `held` and the desired entries. Returns them.
    pub(super) async fn make(
        &self,
        client: &SwitchClient,
        names: &Names,
        held: &Held,
        (wanted, division): &(Held, Division),
    ) -> Result<Diff, BringUpError> {
        let diff = Diff::between(held, wanted, self.target);
        self.mark_dirty();
        let limits = self.limits;
        let rounds = diff.updates(held, Room { names, limits });
        match rounds.iter().map(Vec::len).sum::<usize>() {
            // Together they take one call.
            ..=BATCH => {
                self.change(client, names, rounds.concat(), Order::AsGiven)
                    .await?
            }
            _ => {
                for round in rounds {
                    self.change(client, names, round, Order::Any).await?;
                }
            }
        }
        self.with_state(|state| {
            state.is_dirty = false;
            let shares = division.iter().map(|(at, queue)| (*at, Some(*queue)));
            state.shares = shares.collect();
        });
        Ok(diff)
    }
}

/// The entries of `found` that are new since the last call.
fn new_drift(known_drift: &mut BTreeSet<String>, found: BTreeSet<String>) -> Vec<String> {
    let new_drift = found.difference(known_drift).cloned().collect();
    *known_drift = found;
    new_drift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistent_drift_is_logged_once() {
        let mut known_drift = BTreeSet::new();
        let mut look = |found: &[&str]| {
            new_drift(
                &mut known_drift,
                found.iter().map(|it| it.to_string()).collect(),
            )
        };
        assert_eq!(look(&["a", "b"]), ["a", "b"]);
        assert_eq!(look(&["a", "b"]), [""; 0]);
        assert_eq!(look(&["b", "c"]), ["c"]);
        assert_eq!(look(&[]), [""; 0]);
        assert_eq!(look(&["a"]), ["a"], "the drift has come back");
    }
}
