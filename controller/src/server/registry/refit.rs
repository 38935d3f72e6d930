//! Planning all jobs again after an element has failed, come back, or been drained.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use ultima_p4runtime::names::Names;
use ultima_planner::fabric::{Fabric, Health, SwitchId};
use ultima_planner::job::{Job, JobId, Refusal};
use ultima_planner::ledger::Ledger;
use ultima_planner::moves::Moved;
use ultima_planner::plan::JobPlan;
use ultima_planner::routing::Routes;

use super::super::registry::Registry;
use super::super::registry::record::{PlanStatus, Record};

/// The plans of all jobs for another health of the fabric.
#[derive(Debug)]
pub struct Refit {
    routes: Arc<Routes>,
    ledger: Ledger,
    jobs: BTreeMap<JobId, PlanStatus>,
}

impl Refit {
    /// Plans these jobs again, and then the waiting ones as long as others make room.
    fn plan(&mut self, fabric: &Fabric, names: &Names, mut due: Vec<JobId>) {
        loop {
            let mut has_changed = false;
            for id in due {
                has_changed |= self.plan_one(fabric, names, id);
            }
            let waiting = self.jobs.iter().filter(|(_, it)| it.stays.is_some());
            due = waiting.map(|(id, _)| *id).collect();
            if !has_changed || due.is_empty() {
                break;
            }
        }
    }

    /// Plans one job. Returns true if its plan has changed.
    fn plan_one(&mut self, fabric: &Fabric, names: &Names, id: JobId) -> bool {
        let Some(plan_status) = self.jobs.get_mut(&id) else {
            return false;
        };
        plan_status.waits_for.clear();
        let (job, plan) = (&*plan_status.job, &*plan_status.plan);
        match self.ledger.refit(fabric, &self.routes, names, job, plan) {
            Ok(refitted) => {
                let has_changed = (&refitted.job, &refitted.plan) != (job, plan);
                *plan_status = refitted.into();
                has_changed
            }
            Err(refusal) => {
                plan_status.stays = Some(refusal);
                false
            }
        }
    }
}

impl Registry {
    /// Plans all jobs for a fabric of this health. If the health has not changed, only jobs that
    /// wait for room, or [may finish](Self::may_finish) a reroute, are planned.
    pub fn refit(
        &self,
        fabric: &Fabric,
        names: &Names,
        health: Health,
        is_sure: impl Fn(&SwitchId, JobId) -> bool,
    ) -> Refit {
        let is_same = *self.routes.health() == health;
        let unfinished = |it: &&Record| !is_same || it.stays.is_some() || it.may_finish(&is_sure);
        let due = self.jobs.values().filter(unfinished);
        let due = due.map(|record| record.job.id);
        let reserved = self.reserved.keys().copied().filter(|_| !is_same);
        let due = due.chain(reserved).collect();
        let mut refit = Refit {
            routes: match is_same {
                true => Arc::clone(&self.routes),
                false => Arc::new(Routes::new(fabric, health)),
            },
            ledger: self.ledger.clone(),
            jobs: (self.jobs.iter())
                .map(|(id, record)| (*id, record.plan_status.clone()))
                .chain(self.reserved.clone())
                .collect(),
        };
        refit.plan(fabric, names, due);
        refit
    }

    /// The first job that would have to wait for room because of this change, and the refusal.
    pub fn refused<'a>(&self, refit: &'a Refit) -> Option<(&'a str, &'a Refusal)> {
        let stays_now = |id: &JobId| self.get(*id).is_some_and(|record| record.stays.is_some());
        let mut jobs = refit.jobs.iter().filter(|(id, _)| !stays_now(id));
        jobs.find_map(|(_, it)| Some((it.job.name.as_str(), it.stays.as_ref()?)))
    }

    /// Adopts the plans. Returns the jobs whose plans have changed. Their old numbers are free for other jobs after
    /// [`free_returned`](Self::free_returned).
    pub fn adopt(&mut self, refit: Refit) -> Vec<Moved> {
        let Refit {
            routes,
            ledger,
            jobs,
        } = refit;
        (self.routes, self.ledger) = (routes, ledger);
        let mut moved = Vec::new();
        for (id, plan_status) in jobs {
            let Some(record) = self.jobs.get_mut(&id) else {
                self.reserved.insert(id, plan_status);
                continue;
            };
            let (before, after) = (record.planned(), plan_status.planned());
            let since = record.degraded_since;
            record.plan_status = plan_status;
            record.plan_status.degraded_from(since);
            if before == after {
                // The tasks of switches compare plans by address.
                (record.plan_status.job, record.plan_status.plan) = before;
            } else {
                record.planned_at = SystemTime::now();
                moved.push(Moved { before, after });
            }
        }
        moved
    }

    /// Frees the numbers that jobs had before a reroute, which is over.
    pub fn free_returned(&mut self) {
        self.ledger.free_returned();
    }

    /// Records that a job has changed over only in part: `plan` is what its switches have until
    /// `switches` are known to have the new paths, and `job` has the ids of both.
    pub fn keep_old_paths(
        &mut self,
        fabric: &Fabric,
        job: Job,
        plan: JobPlan,
        switches: BTreeSet<SwitchId>,
    ) {
        let Some(record) = self.jobs.get_mut(&job.id) else {
            return;
        };
        // It may have changed during the reroute.
        let policy = record.job.policy;
        let job = Job { policy, ..job };
        // There may be no room, but the switches have it.
        self.ledger.remove(fabric, &record.job, &record.plan);
        self.ledger.take(fabric, &job, &plan);
        record.plan_status.job = Arc::new(job);
        record.plan_status.plan = Arc::new(plan);
        record.plan_status.waits_for = switches;
        record.planned_at = SystemTime::now();
    }

    /// The switches for which jobs keep their old paths.
    pub fn awaited(&self) -> BTreeSet<SwitchId> {
        let waits_for = self.jobs.values().flat_map(|record| &record.waits_for);
        waits_for.copied().collect()
    }

    /// True if a job waits for room, or keeps old paths.
    pub fn is_waiting(&self) -> bool {
        let mut jobs = self.jobs.values();
        self.is_short_of_room() || jobs.any(|record| !record.waits_for.is_empty())
    }

    /// True if a job waits for room.
    pub fn is_short_of_room(&self) -> bool {
        self.jobs.values().any(|record| record.stays.is_some())
    }

    /// True if a job keeps old paths, and all switches that it waits for have the new ones: of those
    /// `is_sure`.
    pub fn may_finish(&self, is_sure: impl Fn(&SwitchId, JobId) -> bool) -> bool {
        self.jobs.values().any(|it| it.may_finish(&is_sure))
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::{self, Element};
    use ultima_planner::job::JobSpec;
    use ultima_planner::program::Program;

    use super::*;

    /// A job that is created while another one moves gets none of that one's old numbers: switches have them still, and
    /// the other job needs them again if it keeps its old paths.
    #[test]
    fn a_new_job_gets_no_number_that_a_reroute_is_about_to_free() {
        let text = include_str!("../../../../topologies/leaf-spine.yaml");
        let fabric = fabric::parse(text, "leaf-spine.yaml").unwrap();
        let program = Program::v1model().unwrap();
        let names = program.names();
        let mut registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let first = JobSpec::new("first", ["h1", "h3"]);
        let first = registry.propose(&fabric, names, &first).unwrap();
        let first = registry.reserve(&fabric, first).0;
        registry.add(first.id, None);

        let spine = Element::Transit(fabric.switch_named("spine1").unwrap());
        let health: Health = [spine].into_iter().collect();
        let refit = registry.refit(&fabric, names, health, |_, _| true);
        let moved = registry.adopt(refit);
        let shares = |job: &Job| -> BTreeSet<_> {
            let shares = job.shares.iter();
            shares.map(|(at, share)| (at.switch, share.0)).collect()
        };
        let had = shares(&moved[0].before.0);
        let freed: BTreeSet<_> = &had - &shares(&moved[0].after.0);
        assert!(!freed.is_empty());
        let second = JobSpec::new("second", ["h2", "h4"]);
        let gets =
            |registry: &Registry| shares(&registry.propose(&fabric, names, &second).unwrap().0);
        assert!(gets(&registry).is_disjoint(&had));
        registry.free_returned();
        assert!(!gets(&registry).is_disjoint(&freed));
    }
}
