//! A reroute in progress: what has been written to which switch, which switches are left behind, and
//! which jobs keep their old paths for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use ultima_planner::fabric::SwitchId;
use ultima_planner::job::JobId;
use ultima_planner::moves::{EntityChange, Moved, Planned, Step};
use ultima_planner::plan::Entity;
use ultima_planner::update::{Untranslatable, creations};

use crate::p4rt::{Order, SwitchClient};
use crate::server::controller::Controller;
use crate::server::error::BringUpError;
use crate::server::registry::record::Wanted;
use crate::server::switch::{Desired, OnSwitch};

/// The slowest switch that is waited for: a thousand updates a second.
const PER_UPDATE: Duration = Duration::from_millis(1);
/// Updates per call: so few that a switch of the slowest accepted rate answers well within the
/// timeout. A switch that hangs is thus detected after one call, however many updates it is to get.
const UPDATES_PER_CALL: usize = 70;

/// Timeout of so many updates, by the [timeout of a call](crate::server::timers::Timers::reroute_call).
fn timeout_of(call: Duration, updates: usize) -> Duration {
    call + PER_UPDATE * updates.try_into().unwrap_or(u32::MAX)
}

/// The connections to several switches.
type Clients = BTreeMap<SwitchId, Arc<SwitchClient>>;

/// A reroute, and how far it is.
pub struct Progress<'a> {
    controller: &'a Controller,
    /// The desired state before it.
    before: Desired<'a>,
    moved: &'a [Moved],
    steps: &'a [Step],
    /// Jobs that keep their old paths.
    pub keeping_old_paths: BTreeSet<JobId>,
    /// Switches that have not answered in time. They are resynced in the background after the
    /// reroute.
    behind: BTreeSet<SwitchId>,
    /// The number of updates so far.
    pub updates: usize,
}

impl<'a> Progress<'a> {
    /// A reroute from this desired state, with nothing written.
    pub fn new(
        controller: &'a Controller,
        before: Wanted,
        moved: &'a [Moved],
        steps: &'a [Step],
    ) -> Self {
        for switch in controller.switches.iter() {
            switch.expect(moved);
        }
        Progress {
            before: Desired {
                wanted: before,
                ..controller.desired()
            },
            controller,
            moved,
            steps,
            keeping_old_paths: BTreeSet::new(),
            behind: BTreeSet::new(),
            updates: 0,
        }
    }

    fn call_timeout(&self) -> Duration {
        self.controller.timers.reroute_call
    }

    /// The clients of the connected switches that have answered in time so far.
    fn clients(&self) -> Clients {
        let switches = self.controller.switches.iter();
        let in_time = switches.filter(|switch| !self.behind.contains(&switch.id));
        let client = |client: Arc<SwitchClient>| {
            Arc::new(client.with_limits(UPDATES_PER_CALL, self.call_timeout()))
        };
        in_time
            .filter_map(|switch| Some((switch.id, client(switch.client().ok()?))))
            .collect()
    }

    /// Divides ports among the jobs that use them before or after the reroute.
    pub async fn divide(&mut self) {
        let clients = self.clients();
        let late = self.divided(&clients, &self.before).await;
        self.leave_behind(&late);
    }

    /// Ends the reroute after its last step: divides ports among the jobs that use them now, and
    /// resyncs dirty switches.
    pub async fn end(&mut self) {
        let desired = self.controller.desired();
        for switch in self.controller.switches.iter() {
            switch.has_moved(self.moved, &desired);
        }
        let is_dirty = |id: &SwitchId| self.controller.switches[id.0].is_dirty();
        let (dirty, sound): (Clients, Clients) =
            (self.clients().into_iter()).partition(|(id, _)| is_dirty(id));
        let resync = dirty.iter().map(|(id, client)| {
            let switch = &self.controller.switches[id.0];
            let resync = switch.reconcile(client, &desired);
            in_time(self.call_timeout(), *id, resync, "resync failed")
        });
        let (late, divided) = tokio::join!(join_all(resync), self.divided(&sound, &desired));
        let late = late.into_iter().flatten().chain(divided).collect();
        self.leave_behind(&late);
        for switch in self.controller.switches.iter() {
            if switch.is_dirty() || !switch.has_all(&desired) {
                switch.wake();
            }
        }
    }

    /// Skips the steps from this one on.
    pub fn abandon(&mut self, at: usize) {
        let of_steps = self.steps[at..].iter().flat_map(Step::switches);
        let of_jobs = self.moved.iter().flat_map(Moved::switches);
        self.behind.extend(of_steps.chain(of_jobs));
        for id in &self.behind {
            let switch = &self.controller.switches[id.0];
            switch.mark_dirty();
            switch.wake();
        }
    }

    /// Divides ports as `desired`. Returns the switches that do not answer [in time](timeout_of).
    async fn divided(&self, clients: &Clients, desired: &Desired<'_>) -> BTreeSet<SwitchId> {
        let names = self.controller.program().names();
        let divided = clients.iter().map(|(id, client)| {
            let switch = &self.controller.switches[id.0];
            let division = desired.division(*id);
            let most = timeout_of(self.call_timeout(), division.len());
            let divided = switch.divide(client, names, division);
            in_time(
                most,
                *id,
                divided,
                "cannot write the shares of switch ports",
            )
        });
        let late = join_all(divided).await;
        late.into_iter().flatten().collect()
    }

    /// Writes a step to all its switches that are connected and answer [in time](timeout_of); the
    /// others are resynced later. A switch on which an update fails is resynced to the state after
    /// this step at once.
    pub async fn write(&mut self, at: usize) {
        for id in self.steps[at].waits_for() {
            self.wait_for_switches(id, at);
        }
        let round = self.steps[at].without(|id| self.keeping_old_paths.contains(&id));
        self.updates += round.values().map(Vec::len).sum::<usize>();
        let clients = self.clients();
        let so_far = &*self;
        let writes = round.iter().filter_map(|(id, changes)| {
            let Some(client) = clients.get(id) else {
                so_far.controller.switches[id.0].mark_dirty();
                return None;
            };
            Some(async move {
                let written = so_far.write_or_resync(at, *id, client, changes);
                let in_time =
                    timeout(timeout_of(so_far.call_timeout(), changes.len()), written).await;
                (in_time != Ok(true)).then_some(*id)
            })
        });
        let late = join_all(writes).await.into_iter().flatten();
        self.leave_behind(&late.collect());
    }

    /// If it is not known that all switches of a job have the new paths, the job keeps the old ones
    /// as they are before this step.
    fn wait_for_switches(&mut self, id: JobId, at: usize) {
        let mut jobs = self.moved.iter().filter(|moved| moved.id() == id);
        let Some(moved) = jobs
            .next()
            .filter(|_| !self.keeping_old_paths.contains(&id))
        else {
            return;
        };
        let switches = &self.controller.switches;
        let mut unsure = moved.switches();
        unsure.retain(|at| !switches[at.0].is_sure_of(id));
        if unsure.is_empty() {
            return;
        }
        let plan = moved.after_steps(&self.steps[..at], |_| true);
        let names = unsure.iter().map(|id| switches[id.0].name());
        let names = names.collect::<Vec<_>>().join(", ");
        tracing::warn!(
            job = moved.after.0.name,
            switches = names,
            "old paths are kept until these switches have the new ones"
        );
        self.controller.registry().keep_old_paths(
            &self.controller.fabric,
            moved.between(),
            plan,
            unsure,
        );
        self.keeping_old_paths.insert(id);
    }

    /// Marks switches as dirty whose writes have no known result. They are resynced after the
    /// reroute.
    fn leave_behind(&mut self, late: &BTreeSet<SwitchId>) {
        for id in late {
            let switch = &self.controller.switches[id.0];
            switch.mark_dirty();
            tracing::warn!(
                switch = switch.name(),
                "no answer in time; the switch is resynced after the reroute"
            );
            self.behind.insert(*id);
        }
    }

    /// Returns true if the switch has answered every call.
    async fn write_or_resync(
        &self,
        at: usize,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[EntityChange],
    ) -> bool {
        let Err(error) = self.write_changes(id, client, changes).await else {
            return true;
        };
        if error.is_abandoned() {
            return false;
        }
        tracing::warn!(%error, "an update of the reroute failed; resyncing the switch");
        let Err(error) = self.resync(at, id, client, changes).await else {
            return true;
        };
        tracing::warn!(%error, "resync failed");
        !error.is_abandoned()
    }

    async fn write_changes(
        &self,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[EntityChange],
    ) -> Result<(), BringUpError> {
        let names = self.controller.program().names();
        let updates = changes
            .iter()
            .filter_map(|change| change.update(names).transpose());
        let updates = updates.collect::<Result<Vec<_>, Untranslatable>>()?;
        let switch = &self.controller.switches[id.0];
        switch.change(client, names, updates, Order::AsGiven).await
    }

    /// Resyncs a switch to the state after a step with these changes.
    async fn resync(
        &self,
        at: usize,
        id: SwitchId,
        client: &SwitchClient,
        changes: &[EntityChange],
    ) -> Result<(), BringUpError> {
        let names = self.controller.program().names();
        let switch = &self.controller.switches[id.0];
        switch.hold(client, names, self.after(at, id)?).await?;
        // The desired state has no counters; a counter of a new id must not continue from an old
        // value.
        let is_counter =
            |change: &&EntityChange| matches!(change, EntityChange::Insert(Entity::Counter(_)));
        let counters: Vec<EntityChange> = changes.iter().filter(is_counter).cloned().collect();
        self.write_changes(id, client, &counters).await
    }

    /// The desired state of a switch after a step.
    fn after(&self, at: usize, id: SwitchId) -> Result<OnSwitch, BringUpError> {
        let steps = &self.steps[..=at];
        let moved: BTreeMap<JobId, &Moved> = (self.moved.iter())
            .map(|moved| (moved.id(), moved))
            .collect();
        let now = |(job, plan): &Planned| {
            let plan = match moved.get(&job.id) {
                None => Arc::clone(plan),
                Some(_) if self.keeping_old_paths.contains(&job.id) => {
                    self.controller.plan_of(job.id).unwrap_or_default()
                }
                Some(moved) => Arc::new(moved.after_steps(steps, |at| at == id)),
            };
            (Arc::clone(job), plan)
        };
        let wanted = Wanted {
            routes: Arc::clone(&self.before.wanted.routes),
            jobs: self.before.wanted.jobs.iter().map(now).collect(),
        };
        let mut on = Desired {
            wanted,
            ..self.before
        }
        .on(id)?;
        let routes = steps.iter().flat_map(|step| step.routes_of(id));
        let routes = creations(routes, self.controller.program().names())?;
        on.held
            .extend(routes.into_iter().filter_map(|it| it.entity));
        Ok(on)
    }
}

/// Waits for a switch. Returns the switch if it has not answered within `most`.
async fn in_time<T>(
    most: Duration,
    id: SwitchId,
    done: impl Future<Output = Result<T, BringUpError>>,
    otherwise: &str,
) -> Option<SwitchId> {
    match timeout(most, done).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.is_abandoned() => Some(id),
        Ok(Err(error)) => {
            tracing::warn!(%error, "{otherwise}");
            None
        }
        Err(_) => Some(id),
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::damping::GRACE;

    use super::*;
    use crate::p4rt::IN_FLIGHT;
    use crate::server::timers::Timers;

    /// An element fails while a switch hangs in a write and then in the reroute. Writing to the
    /// others must fit into what is left of the second.
    #[test]
    fn a_switch_that_hangs_in_a_write_and_in_the_reroute_leaves_time_for_the_others() {
        let Timers {
            change,
            reroute_call,
            ..
        } = Timers::default();
        let all = GRACE + change + reroute_call;
        assert!(all <= Duration::from_millis(750), "{all:?}");
        // The new trees are stored during the first round.
        assert!(change <= reroute_call);
        // A switch of the slowest accepted rate also answers the last of the calls that begin
        // together.
        assert!(reroute_call > PER_UPDATE * (IN_FLIGHT * UPDATES_PER_CALL) as u32);
    }
}
