//! A move that is under way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::fabric::SwitchId;
use crate::install::{Clients, Untranslatable};
use crate::moves::{Change, Round};
use crate::p4rt::{Order, SwitchClient};
use crate::plan::Entity;
use crate::reconcile::Held;
use crate::server::controller::Controller;
use crate::server::error::BringUpError;
use crate::server::registry::Wanted;
use crate::server::switch::Desired;

/// How long a switch may take for one call of a move, and for a round, with as much more for each update as [`EACH`] says. One that takes longer is
/// left behind: the others go on without it. With what a failure takes to count as one, and what a change takes to make way, they are where
/// they should be in under a second although one takes nothing.
const PATIENCE: Duration = Duration::from_millis(300);
/// One that manages fewer than a thousand updates a second is not waited for.
const EACH: Duration = Duration::from_millis(1);
/// Updates of one call: as many as a switch that is waited for has long done when patience with the call ends. So one that takes nothing is known however
/// much it is to get.
const CALL: usize = 70;

fn patience(updates: usize) -> Duration {
    PATIENCE + EACH * updates.try_into().unwrap_or(u32::MAX)
}

/// What has been written so far: what a switch on which something fails is to hold then, as the others count on it.
pub struct Progress<'a> {
    controller: &'a Controller,
    before: Desired<'a>,
    done: Vec<Round>,
    /// Switches that have not answered in time. They are put right in the background when all others are done.
    behind: BTreeSet<SwitchId>,
}

impl<'a> Progress<'a> {
    /// Nothing is written yet: switches hold what was wanted before.
    pub fn new(controller: &'a Controller, before: Wanted) -> Self {
        Progress {
            before: Desired {
                wanted: before,
                ..controller.desired()
            },
            controller,
            done: Vec::new(),
            behind: BTreeSet::new(),
        }
    }

    /// How many updates that were.
    pub fn updates(&self) -> usize {
        self.done.iter().flat_map(Round::values).map(Vec::len).sum()
    }

    /// The switches that are connected and have answered in time so far.
    fn clients(&self) -> Clients {
        let clients = self.controller.connected().into_iter();
        let clients = clients.filter(|(id, _)| !self.behind.contains(id));
        clients
            .map(|(id, client)| (id, Arc::new(client.brisk(CALL, PATIENCE))))
            .collect()
    }

    /// Ports are divided among all that use them before, or will.
    pub async fn divide(&mut self) {
        let clients = self.clients();
        let late = self.divided(&clients, &self.before).await;
        self.leave_behind(&late);
    }

    /// All rounds are done: ports are divided among those that use them now, and a switch that may hold something else is looked at. Returns
    /// those that do not answer [in time](patience), or have not before: nobody waits for them once more.
    pub async fn end(mut self) -> BTreeSet<SwitchId> {
        let desired = self.controller.desired();
        let in_doubt = |id: &SwitchId| self.controller.switches[id.0].is_in_doubt();
        let (doubtful, sound): (Clients, Clients) =
            (self.clients().into_iter()).partition(|(id, _)| in_doubt(id));
        let put_right = doubtful.iter().map(|(id, client)| {
            let switch = &self.controller.switches[id.0];
            let put_right = switch.reconcile(client, &desired);
            in_time(PATIENCE, (*id, put_right), "not put right")
        });
        let (late, divided) = tokio::join!(join_all(put_right), self.divided(&sound, &desired));
        let late = late.into_iter().flatten().chain(divided).collect();
        self.leave_behind(&late);
        self.behind
    }

    /// The rounds that are left are not written. Returns the switches on which they, and what was left behind before, are to be put right.
    pub fn abandon(mut self, left: impl Iterator<Item = SwitchId>) -> BTreeSet<SwitchId> {
        self.behind.extend(left);
        let behind: Vec<SwitchId> = self.behind.iter().copied().collect();
        self.controller.doubt(&behind);
        self.behind
    }

    /// Divides ports as it is `desired`; returns the switches that do not answer [in time](patience).
    async fn divided(&self, clients: &Clients, desired: &Desired<'_>) -> BTreeSet<SwitchId> {
        let names = self.controller.program().names();
        let divided = clients.iter().map(|(id, client)| {
            let switch = &self.controller.switches[id.0];
            let division = desired.division(*id);
            let most = patience(division.len());
            let divided = switch.divide(client, names, division);
            in_time(
                most,
                (*id, divided),
                "shares of ports are not as they should be",
            )
        });
        let late = join_all(divided).await;
        late.into_iter().flatten().collect()
    }

    /// Writes a round on all its switches that are connected; the others get everything when they are, and so does who does not answer
    /// [in time](patience). A switch on which something fails is looked at and made what it is to be after this round, before the next.
    pub async fn write(&mut self, round: Round) {
        let clients = self.clients();
        let so_far = &*self;
        let writes = round.iter().filter_map(|(id, changes)| {
            let Some(client) = clients.get(id) else {
                so_far.controller.doubt(&[*id]);
                return None;
            };
            Some(async move {
                let written = so_far.write_or_put_right(*id, client, changes);
                let in_time = timeout(patience(changes.len()), written).await;
                (in_time != Ok(true)).then_some(*id)
            })
        });
        let late = join_all(writes).await.into_iter().flatten();
        self.leave_behind(&late.collect());
        self.done.push(round);
    }

    /// What was written to these may be done yet, or not. They are put right after the end.
    fn leave_behind(&mut self, late: &BTreeSet<SwitchId>) {
        for id in late {
            let switch = &self.controller.switches[id.0];
            switch.doubt();
            tracing::warn!(
                switch = switch.name(),
                "left behind: it has not answered in time"
            );
            self.behind.insert(*id);
        }
    }

    /// Whether it has answered all that it was asked for.
    async fn write_or_put_right(
        &self,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[Change],
    ) -> bool {
        let Err(error) = self.write_changes(id, client, changes).await else {
            return true;
        };
        if error.is_given_up() {
            return false;
        }
        tracing::warn!(%error, "a move is put right");
        let Err(error) = self.put_right(id, client, changes).await else {
            return true;
        };
        tracing::warn!(%error, "not put right");
        !error.is_given_up()
    }

    async fn write_changes(
        &self,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[Change],
    ) -> Result<(), BringUpError> {
        let names = self.controller.program().names();
        let updates = changes
            .iter()
            .filter_map(|change| change.update(names).transpose());
        let updates = updates.collect::<Result<Vec<_>, Untranslatable>>()?;
        let switch = &self.controller.switches[id.0];
        switch.change(client, names, updates, Order::AsGiven).await
    }

    /// Makes a switch hold what it should after all rounds so far and these changes.
    async fn put_right(
        &self,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[Change],
    ) -> Result<(), BringUpError> {
        let names = self.controller.program().names();
        let (mut held, division) = self.before.on(id)?;
        let done = self.done.iter().filter_map(|round| round.get(&id));
        for change in done.flatten().chain(changes) {
            apply(&mut held, change, self)?;
        }
        let switch = &self.controller.switches[id.0];
        switch.hold(client, names, (held, division)).await?;
        // Of counters nothing is held: those that begin with a new number are not to go on where an old one ended.
        let is_counter = |change: &&Change| matches!(change, Change::Put(Entity::Counter(_)));
        let counters: Vec<Change> = changes.iter().filter(is_counter).cloned().collect();
        self.write_changes(id, client, &counters).await
    }
}

/// Waits so long for what a switch does; returns the switch if that is not enough.
async fn in_time<T>(
    most: Duration,
    (id, done): (SwitchId, impl Future<Output = Result<T, BringUpError>>),
    otherwise: &str,
) -> Option<SwitchId> {
    match timeout(most, done).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.is_given_up() => Some(id),
        Ok(Err(error)) => {
            tracing::warn!(%error, "{otherwise}");
            None
        }
        Err(_) => Some(id),
    }
}

fn apply(held: &mut Held, change: &Change, of: &Progress<'_>) -> Result<(), Untranslatable> {
    let (Change::Put(entity) | Change::Set(entity) | Change::Drop(entity)) = change;
    let creation = entity.creation(of.controller.program().names());
    let creation = creation.map_err(|error| Untranslatable::new(entity, error))?;
    let whole = creation.entity.unwrap_or_default();
    match change {
        Change::Drop(_) => held.remove(&whole),
        Change::Put(_) | Change::Set(_) => held.insert(whole),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::damping::GRACE;
    use crate::p4rt::{HURRIED, IN_FLIGHT};

    /// A part fails while a switch hangs in a change, and takes nothing of the move either: what remains is for what others write.
    #[test]
    fn who_hangs_in_a_change_and_in_the_move_after_it_leaves_time_for_that() {
        let (makes_way, is_taken_back) = (GRACE.max(HURRIED), HURRIED);
        let all = makes_way + is_taken_back + PATIENCE;
        assert!(all <= Duration::from_millis(850), "{all:?}");
        // The new trees are stored meanwhile.
        assert!(HURRIED <= PATIENCE);
        // Who is as fast as is asked for answers the last of the calls that begin together, too.
        assert!(PATIENCE > EACH * (IN_FLIGHT * CALL) as u32);
    }
}
