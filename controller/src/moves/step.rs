//! One step of a move.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Round};
use crate::job::JobId;
use crate::plan::{Entity, JobPlan, SwitchPlan};

/// What is written at the same time, for jobs or for routes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    of_jobs: BTreeMap<JobId, Round>,
    of_routes: Round,
    /// Jobs that are not to be changed like this while some switch may still send by old ways.
    waiting: BTreeSet<JobId>,
}

impl Step {
    pub(super) fn brings(of_jobs: BTreeMap<JobId, Round>) -> Self {
        Step {
            of_jobs,
            ..Step::default()
        }
    }

    pub(super) fn routes(of_routes: Round) -> Self {
        Step {
            of_routes,
            ..Step::default()
        }
    }

    /// Of these jobs it may `wait`.
    pub(super) fn waits(of_jobs: BTreeMap<JobId, Round>, wait: &BTreeSet<JobId>) -> Self {
        let waiting = of_jobs.keys().filter(|job| wait.contains(job));
        Step {
            waiting: waiting.copied().collect(),
            of_jobs,
            ..Step::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_jobs.is_empty() && self.of_routes.is_empty()
    }

    /// The jobs for which it is to wait until all of their switches are known to have the new ways.
    pub fn waits_for(&self) -> impl Iterator<Item = JobId> {
        self.waiting.iter().copied()
    }

    /// What it does to a job; none if nothing.
    pub fn of(&self, job: JobId) -> Option<&Round> {
        self.of_jobs.get(&job)
    }

    /// All that is written, but for these jobs.
    pub fn without(&self, left: impl Fn(JobId) -> bool) -> Round {
        let mut all = self.of_routes.clone();
        let jobs = self.of_jobs.iter().filter(|(job, _)| !left(**job));
        for (switch, changes) in jobs.flat_map(|(_, round)| round) {
            let here = all.entry(*switch).or_default();
            here.extend(changes.iter().cloned());
        }
        all
    }
}

/// What a job has on switches after a step of its own.
pub fn applied(mut plan: JobPlan, round: &Round) -> JobPlan {
    for (switch, changes) in round {
        let here = plan.entry(*switch).or_default();
        for change in changes {
            match change {
                Change::Put(entity) | Change::Set(entity) => put(here, entity),
                Change::Drop(entity) => {
                    place(here, entity).retain(|held| held != entity);
                }
            }
        }
    }
    plan.retain(|_, plan| plan.entities().next().is_some());
    plan
}

fn put(plan: &mut SwitchPlan, entity: &Entity) {
    let place = place(plan, entity);
    let is_like = |held: &Entity| match (held, entity) {
        (Entity::Job(held), Entity::Job(it)) => held.job == it.job,
        (Entity::Group(held), Entity::Group(it)) => held.id == it.id,
        (held, it) => held == it,
    };
    match place.iter_mut().find(|held| is_like(held)) {
        Some(held) => *held = entity.clone(),
        None => place.push(entity.clone()),
    }
}

fn place<'a>(plan: &'a mut SwitchPlan, entity: &Entity) -> &'a mut Vec<Entity> {
    match entity {
        Entity::Source(_) => &mut plan.admit,
        Entity::Job(_) => &mut plan.announce,
        _ => &mut plan.prepare,
    }
}
