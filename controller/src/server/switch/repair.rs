//! Whether a switch holds what it should, and how it is made to.

use std::collections::BTreeSet;

use tokio::time::Instant;
use ultima_p4runtime::names::Names;

use super::{Desired, ManagedSwitch};
use crate::p4rt::{BATCH, Order, SwitchClient};
use crate::plan::Division;
use crate::program::Program;
use crate::reconcile::{self, Diff, Held, Room};
use crate::server::error::BringUpError;

impl ManagedSwitch {
    /// Whether the switch still has our program. If somebody has given it another one meanwhile the connection counts as lost: it is
    /// brought up anew with the next.
    ///
    /// # Errors
    /// It has another one, or cannot be asked.
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

    /// Looks at what the switch holds. What is not as it should be is told, once; it is put right if it may be our own doing, or
    /// repairs are wanted.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn look(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let (diff, mended) = match desired.repair || self.may_differ() {
            true => (self.reconcile(client, desired).await?, "put right"),
            false => (self.diff(client, desired).await?, "not as it should be"),
        };
        self.metrics.differed(self.name(), diff.differences().len());
        let names = desired.program.names();
        let found = diff.differences().iter();
        let found = found.map(|it| it.describe(names).to_string()).collect();
        for what in self.with_state(|state| news(&mut state.told, found)) {
            tracing::warn!(switch = self.name(), %what, "{mended}");
        }
        Ok(())
    }

    /// In what the switch is not as it should be.
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
            self.strays.looked(asked);
        }
        Ok(diff)
    }

    /// Looks at what the switch holds and mends what is not as it should be; returns that.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn reconcile(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let wanted = desired.on(self.id)?;
        self.hold(client, desired.program.names(), wanted).await
    }

    /// Makes the switch hold exactly this; returns what was not so. Where a write of before is done between the look and the repair, both are done
    /// once more.
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
        let held = self.read(client, names).await?;
        let diff = self.make(client, names, &held, wanted).await?;
        self.strays.looked(asked);
        Ok(diff)
    }

    async fn read(&self, client: &SwitchClient, names: &Names) -> Result<Held, BringUpError> {
        let held = reconcile::read(client, names).await;
        held.map_err(|error| self.unreadable(error))
    }

    /// Makes of what it holds what it should hold; returns the difference.
    pub(super) async fn make(
        &self,
        client: &SwitchClient,
        names: &Names,
        held: &Held,
        (wanted, division): &(Held, Division),
    ) -> Result<Diff, BringUpError> {
        let diff = Diff::between(held, wanted, self.target);
        self.doubt();
        let limits = self.limits;
        let rounds = diff.updates(held, Room { names, limits });
        match rounds.iter().map(Vec::len).sum::<usize>() {
            // They take one call together.
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
            state.in_doubt = false;
            let shares = division.iter().map(|(at, queue)| (*at, Some(*queue)));
            state.shares = shares.collect();
        });
        Ok(diff)
    }
}

/// What of `found` was not there the last time, when it was `told`.
fn news(told: &mut BTreeSet<String>, found: BTreeSet<String>) -> Vec<String> {
    let news = found.difference(told).cloned().collect();
    *told = found;
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_wrong_is_told_once() {
        let mut told = BTreeSet::new();
        let mut look =
            |found: &[&str]| news(&mut told, found.iter().map(|it| it.to_string()).collect());
        assert_eq!(look(&["a", "b"]), ["a", "b"]);
        assert_eq!(look(&["a", "b"]), [""; 0]);
        assert_eq!(look(&["b", "c"]), ["c"]);
        assert_eq!(look(&[]), [""; 0]);
        assert_eq!(look(&["a"]), ["a"], "it has come back");
    }
}
