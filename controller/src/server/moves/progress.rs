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

use crate::server::controller::Controller;
use crate::server::error::BringUpError;
use crate::server::registry::record::Wanted;
use crate::server::switch::{Desired, OnSwitch, Write};

/// The slowest switch that is waited for: a thousand updates a second.
const PER_UPDATE: Duration = Duration::from_millis(1);
/// Timeout of so many updates, by the [timeout of a call](crate::server::timers::Timers::reroute_call).
fn timeout_of(call: Duration, updates: usize) -> Duration {
    call + PER_UPDATE * updates.try_into().unwrap_or(u32::MAX)
}

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

    /// The connected switches that have answered in time so far.
    fn connected(&self) -> BTreeSet<SwitchId> {
        let switches = self.controller.switches.iter();
        let connected = switches.filter(|switch| switch.client().is_ok());
        let connected = connected.map(|switch| switch.id);
        connected.filter(|id| !self.behind.contains(id)).collect()
    }

    /// Makes a switch's task write a part of a step. Returns none if the switch or its task does not answer.
    async fn hand(
        &self,
        id: SwitchId,
        write: Result<Write, BringUpError>,
    ) -> Option<Result<(), BringUpError>> {
        let switch = &self.controller.switches[id.0];
        let written = match write {
            Ok(write) => switch.write_step(self.call_timeout(), write).await?,
            Err(error) => Err(error),
        };
        match written {
            Err(error) if error.is_abandoned() => None,
            written => Some(written),
        }
    }

    /// Divides ports among the jobs that use them before or after the reroute.
    pub async fn divide(&mut self) {
        let late = self.divided(&self.connected(), &self.before).await;
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
        let (dirty, sound): (BTreeSet<SwitchId>, BTreeSet<SwitchId>) =
            self.connected().into_iter().partition(is_dirty);
        let resync = dirty.iter().map(async |id| {
            let write = desired.on(*id).map(Write::All);
            self.written(*id, 0, write, "resync failed").await
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
    async fn divided(
        &self,
        switches: &BTreeSet<SwitchId>,
        desired: &Desired<'_>,
    ) -> BTreeSet<SwitchId> {
        let divided = switches.iter().map(async |id| {
            let division = desired.division(*id);
            let (updates, write) = (division.len(), Ok(Write::Division(division)));
            let otherwise = "cannot write the shares of switch ports";
            self.written(*id, updates, write, otherwise).await
        });
        let late = join_all(divided).await;
        late.into_iter().flatten().collect()
    }

    /// Writes so many updates to a switch. Returns the switch if it has not answered [in time](timeout_of).
    async fn written(
        &self,
        id: SwitchId,
        updates: usize,
        write: Result<Write, BringUpError>,
        otherwise: &str,
    ) -> Option<SwitchId> {
        let most = timeout_of(self.call_timeout(), updates);
        match timeout(most, self.hand(id, write)).await.ok().flatten() {
            None => return Some(id),
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "{otherwise}"),
        }
        None
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
        let connected = self.connected();
        let so_far = &*self;
        let writes = round.iter().filter_map(|(id, changes)| {
            if !connected.contains(id) {
                so_far.controller.switches[id.0].mark_dirty();
                return None;
            }
            Some(async move {
                let most = timeout_of(so_far.call_timeout(), changes.len());
                let written = so_far.write_or_resync(at, *id, changes);
                (timeout(most, written).await != Ok(Some(()))).then_some(*id)
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
        unsure.retain(|at| self.behind.contains(at) || !switches[at.0].is_sure_of(id));
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

    /// Returns none if the switch does not answer every call.
    async fn write_or_resync(
        &self,
        at: usize,
        id: SwitchId,
        changes: &[EntityChange],
    ) -> Option<()> {
        let Err(error) = self.hand(id, self.updates(changes)).await? else {
            return Some(());
        };
        tracing::warn!(%error, "an update of the reroute failed; resyncing the switch");
        if let Err(error) = self.resync(at, id, changes).await? {
            tracing::warn!(%error, "resync failed");
        }
        Some(())
    }

    fn updates<'b>(
        &self,
        changes: impl IntoIterator<Item = &'b EntityChange>,
    ) -> Result<Write, BringUpError> {
        let names = self.controller.program().names();
        let updates = changes.into_iter();
        let updates = updates.filter_map(|change| change.update(names).transpose());
        Ok(Write::Updates(
            updates.collect::<Result<_, Untranslatable>>()?,
        ))
    }

    /// Resyncs a switch to the state after a step with these changes.
    async fn resync(
        &self,
        at: usize,
        id: SwitchId,
        changes: &[EntityChange],
    ) -> Option<Result<(), BringUpError>> {
        let resynced = self.hand(id, self.after(at, id).map(Write::All)).await?;
        if resynced.is_err() {
            return Some(resynced);
        }
        // The desired state has no counters; a counter of a new id must not continue from an old
        // value.
        let is_counter =
            |change: &&EntityChange| matches!(change, EntityChange::Insert(Entity::Counter(_)));
        let counters = changes.iter().filter(is_counter);
        self.hand(id, self.updates(counters)).await
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

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::damping::GRACE;

    use super::*;
    use crate::p4rt::IN_FLIGHT;
    use crate::server::switch::step::UPDATES_PER_CALL;
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
