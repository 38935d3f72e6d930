//! Making a switch match the desired state: by the jobs that it is known to have, or by reading its
//! entries and comparing them.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use tokio::time::Instant;
use ultima_p4::names::share;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, TableEntry, Update};
use ultima_planner::job::JobId;
use ultima_planner::plan::{Entity, JobPlan, SwitchPlan};
use ultima_planner::program::Program;
use ultima_planner::reconcile::{Diff, Held, Key, Room, key_of};
use ultima_planner::update::{creations, removals};

use super::{Contents, Desired, JobPlans, ManagedSwitch, OnSwitch};
use crate::p4rt::{self, BATCH, ConnectError, Order, SwitchClient, WriteError, failed};
use crate::server::error::BringUpError;

/// Marks a switch as needing a resync when it is dropped, unless the writes are complete by then.
struct Unsure<'a>(&'a ManagedSwitch);

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        self.0.mark_dirty();
    }
}

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
        client.mark_lost(error.to_string());
        Err(error)
    }

    /// Compares the switch with the desired state and logs new drift. Repairs it if the controller
    /// may have caused it, or if repairs are enabled. Returns the drift.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn look(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
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
        Ok(diff)
    }

    /// The drift of the switch.
    pub async fn diff(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let wanted = desired.on(self.id)?;
        let asked = Instant::now();
        let held = self.read(client, desired.program.names()).await?;
        let diff = Diff::between(&held, &wanted.held, self.target);
        if diff.is_empty() {
            self.unanswered.read_matched(asked);
        }
        Ok(diff)
    }

    /// Writes the differences between the jobs that the switch has and the desired ones. Compares all
    /// entries if the switch needs a resync.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn catch_up(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        if self.is_dirty() {
            return self.reconcile(client, desired).await.map(drop);
        }
        let jobs = desired.jobs_on(self.id);
        let had = self.with_state(|state| state.jobs.clone());
        let has_other = |(id, plan): (&JobId, &Arc<JobPlan>)| {
            had.get(id).is_some_and(|it| !Arc::ptr_eq(it, plan))
        };
        // A comparison changes single entries.
        if jobs.iter().any(has_other) {
            return self.reconcile(client, desired).await.map(drop);
        }
        let is_in = |all: &JobPlans, (id, plan): &(&JobId, &Arc<JobPlan>)| {
            all.get(id).is_some_and(|it| Arc::ptr_eq(it, plan))
        };
        let here = |(_, plan): (&JobId, &'_ Arc<JobPlan>)| plan.get(&self.id).cloned();
        let leaving = had.iter().filter(|it| !is_in(&jobs, it));
        let leaving: Vec<SwitchPlan> = leaving.filter_map(here).collect();
        let coming = jobs.iter().filter(|it| !is_in(&had, it));
        let coming: Vec<SwitchPlan> = coming.filter_map(here).collect();
        let (names, division) = (desired.program.names(), desired.division(self.id));
        // Entries that admit packets leave first and come last. Shares are divided before a job comes,
        // so that it takes no bandwidth of others and meets no meter of an earlier job.
        let mut rounds = Vec::new();
        for at in (0..3).rev() {
            let entities = leaving.iter().flat_map(|plan| plan.stages()[at]);
            rounds.push(removals(entities, names)?);
        }
        let unsure = Unsure(self);
        rounds.push(self.division_updates(&division, names)?);
        for at in 0..3 {
            let entities = coming.iter().flat_map(|plan| plan.stages()[at]);
            rounds.push(creations(entities, names)?);
        }
        if let Some(Refused { error, .. }) = self.write(client, names, rounds).await? {
            // A comparison tries again, and finds which jobs lack entries.
            self.with_state(|state| state.failed(error.to_string()));
            drop(unsure);
            return self.reconcile(client, desired).await.map(drop);
        }
        mem::forget(unsure);
        self.is_divided(&division);
        self.with_state(|state| state.jobs = jobs);
        Ok(())
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
        wanted: OnSwitch,
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
        wanted: &OnSwitch,
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
        let held = p4rt::read(client, names).await;
        held.map_err(|error| self.unreadable(error))
    }

    /// Writes the differences between `held` and the desired entries. Returns them.
    pub(super) async fn make(
        &self,
        client: &SwitchClient,
        names: &Names,
        held: &Held,
        wanted: &OnSwitch,
    ) -> Result<Diff, BringUpError> {
        let diff = Diff::between(held, &wanted.held, self.target);
        self.mark_dirty();
        let limits = self.limits;
        let mut rounds = diff.updates(held, Room { names, limits });
        rounds.insert(0, self.new_counters(names, held, &diff, wanted)?);
        if let Some(Refused { entities, error }) = self.write(client, names, rounds).await? {
            let contents = self.contents_without(&entities, wanted, names);
            self.with_state(|state| {
                state.failed(error.to_string());
                state.jobs = wanted.jobs.clone();
                if let Contents::AllBut { jobs, .. } = &contents {
                    state.jobs.retain(|id, _| !jobs.contains(id));
                }
                state.contents = contents;
            });
            return Err(error);
        }
        self.is_divided(&wanted.division);
        self.with_state(|state| {
            state.succeeded();
            state.contents = Contents::Whole;
            state.jobs = wanted.jobs.clone();
        });
        Ok(diff)
    }

    /// The contents of the switch after it refused updates of these entities. Unknown if every job
    /// needs one of them.
    fn contents_without(
        &self,
        entities: &[v1::Entity],
        wanted: &OnSwitch,
        names: &Names,
    ) -> Contents {
        let (mut jobs, mut has_leftovers) = (BTreeSet::new(), false);
        for key in entities.iter().filter_map(key_of) {
            match key
                .job(names)
                .or_else(|| self.job_with(&key, wanted, names))
            {
                Some(job) => drop(jobs.insert(job)),
                None if wanted.held.get(&key).is_none() => has_leftovers = true,
                None => return Contents::Unknown,
            }
        }
        Contents::AllBut {
            jobs,
            has_leftovers,
        }
    }

    /// The desired job with this group, or with this meter of a share.
    fn job_with(&self, key: &Key, wanted: &OnSwitch, names: &Names) -> Option<JobId> {
        let of_shares = names.meter(share::METER).ok()?.id;
        let is_it = |entity: &Entity| match (entity, key) {
            (Entity::Group(group), Key::Group(id)) => u32::from(group.id.0) == *id,
            (Entity::Share(share), Key::Meter { meter, index }) => {
                *meter == of_shares && i64::from(share.index.0) == *index
            }
            _ => false,
        };
        let has = |plan: &JobPlan| {
            plan.get(&self.id)
                .is_some_and(|it| it.entities().any(is_it))
        };
        let mut jobs = wanted.jobs.iter();
        jobs.find(|(_, plan)| has(plan)).map(|(id, _)| *id)
    }

    /// The updates that set the counters to zero of jobs whose packets the switch does not admit
    /// yet: an earlier job may have counted there. An empty switch has counted nothing.
    fn new_counters(
        &self,
        names: &Names,
        held: &Held,
        diff: &Diff,
        wanted: &OnSwitch,
    ) -> Result<Vec<Update>, BringUpError> {
        let mut counters = Vec::new();
        if held.is_empty() {
            return Ok(counters);
        }
        let missing = diff.differences().iter().filter(|it| it.held.is_none());
        let missing: BTreeSet<&Key> = missing.map(|it| &it.key).collect();
        for plan in wanted.jobs.values().filter_map(|plan| plan.get(&self.id)) {
            let admits = Held::planned(&plan.admit, names)?;
            if !admits.is_empty() && admits.iter().all(|(key, _)| missing.contains(key)) {
                let is_counter = |entity: &&Entity| matches!(entity, Entity::Counter(_));
                counters.extend(creations(plan.entities().filter(is_counter), names)?);
            }
        }
        Ok(counters)
    }

    /// Writes rounds of updates one after the other, each in any order. Goes on after updates that
    /// the switch refuses, so that a job's refused entry delays no other job. Returns these updates.
    async fn write(
        &self,
        client: &SwitchClient,
        names: &Names,
        rounds: Vec<Vec<Update>>,
    ) -> Result<Option<Refused>, BringUpError> {
        // Together they may take one call.
        let (rounds, order) = match rounds.iter().map(Vec::len).sum::<usize>() {
            ..=BATCH => (vec![rounds.concat()], Order::AsGiven),
            _ => (rounds, Order::Any),
        };
        let mut refused: Option<Refused> = None;
        for round in rounds {
            let Err(failure) = client.write(round.clone(), order).await else {
                continue;
            };
            self.mark_dirty();
            let error = match self.unwritten(&failure, &round, names) {
                Ok(()) => continue,
                Err(error) => error,
            };
            let WriteError::Updates(outcomes) = failure else {
                return Err(error);
            };
            let updates = round.into_iter().zip(outcomes);
            let failed = updates.filter(|(_, outcome)| failed(outcome));
            let entities = failed.filter_map(|(update, _)| update.entity);
            let refused = refused.get_or_insert(Refused {
                error,
                entities: Vec::new(),
            });
            refused.entities.extend(entities);
        }
        Ok(refused)
    }
}

/// Updates that a switch refused.
struct Refused {
    /// The first refusal.
    error: BringUpError,
    entities: Vec<v1::Entity>,
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
