//! A step of a rerouting.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use super::{EntityChange, Round};
use crate::fabric::SwitchId;
use crate::job::JobId;
use crate::plan::{Entity, JobPlan, Stage, SwitchPlan};

/// Writes that happen at the same time, for jobs or for routes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    of_jobs: BTreeMap<JobId, Round>,
    of_routes: Round,
    /// Jobs whose changes are postponed while a switch may still use old paths.
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

    /// A step that may be postponed for the jobs in `wait`.
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

    /// The jobs whose changes are postponed until all of their switches have the new paths.
    pub fn waits_for(&self) -> impl Iterator<Item = JobId> {
        self.waiting.iter().copied()
    }

    /// The changes of a job; none if there are none.
    pub fn of(&self, job: JobId) -> Option<&Round> {
        self.of_jobs.get(&job)
    }

    /// The changed routes of a switch.
    pub fn routes_of(&self, switch: SwitchId) -> impl Iterator<Item = &Entity> {
        let changes = self.of_routes.get(&switch).into_iter().flatten();
        changes.map(|change| match change {
            EntityChange::Insert(entity)
            | EntityChange::Modify(entity)
            | EntityChange::Delete(entity) => entity,
        })
    }

    /// The switches with changes.
    pub fn switches(&self) -> impl Iterator<Item = SwitchId> {
        let rounds = self.of_jobs.values().chain([&self.of_routes]);
        rounds.flat_map(Round::keys).copied()
    }

    /// All changes, except those of these jobs.
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

/// A job's entities after a step.
pub fn applied<'a>(
    mut plan: JobPlan,
    round: impl IntoIterator<Item = (&'a SwitchId, &'a Vec<EntityChange>)>,
) -> JobPlan {
    for (switch, changes) in round {
        let here = plan.entry(*switch).or_default();
        changes.iter().for_each(|change| apply(here, change));
    }
    plan.retain(|_, plan| plan.entities().next().is_some());
    plan
}

/// Applies a change to a job's entities on a switch, of which one at most is its row, and one its
/// group.
fn apply(plan: &mut SwitchPlan, change: &EntityChange) {
    let (EntityChange::Insert(entity)
    | EntityChange::Modify(entity)
    | EntityChange::Delete(entity)) = change;
    let entities = match entity.stage() {
        Stage::Prepare => &mut plan.prepare,
        Stage::Announce => &mut plan.announce,
        Stage::Admit => &mut plan.admit,
    };
    match change {
        EntityChange::Insert(_) => entities.push(entity.clone()),
        EntityChange::Modify(_) => {
            let mut held = entities.iter_mut();
            let held = held.find(|held| discriminant(*held) == discriminant(entity));
            held.expect("only present entities change")
                .clone_from(entity);
        }
        EntityChange::Delete(_) => entities.retain(|held| held != entity),
    }
}
