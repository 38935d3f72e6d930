//! Forecasts of changes. Nothing is written and nothing is reserved.
//!
//! The planning is the real one: jobs are added to a copy of the registry, and another fabric is
//! restored from the store as at a start. Differences are those between the desired states before
//! and after, as an audit would find them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ultima_api::v1 as api;
use ultima_planner::fabric::damping::DampingConfig;
use ultima_planner::fabric::{Fabric, SwitchId};
use ultima_planner::job::JobSpec;
use ultima_planner::ledger::{Fill, Ledger};
use ultima_planner::plan;
use ultima_planner::reconcile::{Diff, Held};
use ultima_planner::routing::Routes;

use super::condition::Condition;
use super::controller::{Controller, JobState, state_alone};
use super::error::{JobRequestError, ServeError};
use super::jobs::policy_with;
use super::membership::change::may_resize;
use super::messages::{differences, job_of};
use super::registry::Registry;
use super::switch::Desired;
use crate::store::Stored;

/// The desired state and the resources, before or after a change.
struct State<'a> {
    desired: Desired<'a>,
    ledger: &'a Ledger,
}

impl State<'_> {
    fn held(&self, id: SwitchId) -> Result<Held, ServeError> {
        Ok(self.desired.on(id)?.held)
    }

    fn fills(&self, id: SwitchId) -> Result<Vec<Fill>, ServeError> {
        let Desired {
            fabric, program, ..
        } = self.desired;
        let fills = self.ledger.fills(fabric, program.names(), id);
        fills.map_err(|error| ServeError::Limit(error.into()))
    }
}

/// The effect of a change on a job.
fn planned_job(
    fabric: &Fabric,
    name: &str,
    job: Result<JobState, JobRequestError>,
) -> api::PlannedJob {
    let name = name.to_owned();
    match job {
        Ok(state) => api::PlannedJob {
            name,
            job: Some(job_of(fabric, &state)),
            ..api::PlannedJob::default()
        },
        Err(error) => api::PlannedJob {
            name,
            job: None,
            refusal: error.to_string(),
            refused_field: error.field(),
            refused_code: error.code().into(),
        },
    }
}

/// The effect of a change on a switch, which has the first id in `now` and the second in `then`.
fn planned_switch(
    controller: &Controller,
    now: &State<'_>,
    then: &State<'_>,
    ids: (Option<SwitchId>, Option<SwitchId>),
) -> Result<api::PlannedSwitch, ServeError> {
    let held = |state: &State<'_>, id: Option<SwitchId>| match id {
        Some(id) => state.held(id),
        None => Ok(Held::default()),
    };
    let fills = |state: &State<'_>, id: Option<SwitchId>| match id {
        Some(id) => state.fills(id),
        None => Ok(Vec::new()),
    };
    // A switch that leaves the fabric keeps its entries: the controller no longer connects to it.
    let diff = match ids.1 {
        Some(id) => {
            let target = then.desired.fabric.switch(id).target;
            Diff::between(&held(now, ids.0)?, &held(then, ids.1)?, target)
        }
        None => Diff::default(),
    };
    let before = fills(now, ids.0)?;
    let used = |of: &str| before.iter().find(|fill| fill.of == of);
    let fills = fills(then, ids.1)?.into_iter().map(|fill| api::Fill {
        of: fill.of.to_owned(),
        before: used(fill.of).map_or(0, |fill| fill.used),
        after: fill.used,
        limit: fill.limit,
    });
    let name = |state: &State<'_>, id: SwitchId| state.desired.fabric.switch(id).name.clone();
    let there = ids.0.map(|id| name(now, id));
    let problem = ids.0.and_then(|id| controller.client(id).err());
    Ok(api::PlannedSwitch {
        is_there: ids.0.is_some(),
        remaining: ids.1.is_some(),
        switch: there.or(ids.1.map(|id| name(then, id))).unwrap_or_default(),
        differences: differences(&diff, controller.program().names()),
        fills: fills.collect(),
        problem: problem.unwrap_or_default(),
    })
}

/// The effect of deleting, updating, resizing and creating these jobs, in this order. A refused job is
/// left out of the plans for those after it.
///
/// # Errors
/// A job to delete does not exist, or the program lacks a table or counter.
pub fn plan_jobs(
    controller: &Controller,
    delete: &[String],
    update: &[api::UpdateJobRequest],
    resize: &[api::ResizeJobRequest],
    create: &[JobSpec],
) -> Result<api::PlanResponse, PlanError> {
    let (mut trial, before, wanted) = {
        let registry = controller.registry();
        (
            registry.trial(),
            registry.ledger().clone(),
            registry.wanted(),
        )
    };
    let (fabric, names) = (controller.fabric(), controller.program().names());
    let mut touched = BTreeSet::new();
    for name in delete {
        let epochs = trial.epochs_of(name);
        if epochs.is_empty() && !trial.stranded().contains_key(name) {
            return Err(controller.registry().no_job(name).into());
        }
        trial.forget_stranded(name);
        for id in epochs {
            touched.extend(trial.get(id).iter().flat_map(|it| it.plan.keys()));
            trial.remove(fabric, id);
        }
    }
    let mut jobs = Vec::new();
    for request in update {
        let name = &request.job;
        let policy = trial.named(name);
        let policy = policy.and_then(|record| policy_with(&record.job, request.into()));
        let state = policy.and_then(|policy| {
            let epochs = trial.epochs_of(name);
            trial.set_policy(fabric, &epochs, policy);
            touched.extend(trial.plan_policy(&epochs));
            trial.named(name).map(state_alone)
        });
        jobs.push(planned_job(fabric, name, state));
    }
    let mut add = |trial: &mut Registry, name: &str, proposed: Result<_, JobRequestError>| {
        let state = proposed.map(|proposed| {
            let (job, plan) = trial.reserve(fabric, proposed);
            touched.extend(plan.keys().copied());
            let record = trial.add(job.id, None);
            state_alone(record.expect("it was reserved"))
        });
        jobs.push(planned_job(fabric, name, state));
    };
    for request in resize {
        let (name, members) = (&request.job, &request.members);
        let number = (request.job_id > 0).then_some(request.job_id);
        let may = match delete.contains(name) {
            true => Err(controller.registry().no_job(name)),
            false => may_resize(controller, &controller.registry(), name, number, members),
        };
        let next = may.and_then(|(job, hosts)| {
            // With an updated policy.
            let job = trial.named(name).map_or(job, |it| Arc::clone(&it.job));
            trial.propose_next(fabric, names, &job, &hosts)
        });
        add(&mut trial, name, next);
    }
    for spec in create {
        let spec = JobSpec {
            seed: spec.seed.or(Some(0)),
            ..spec.clone()
        };
        let proposed = trial.propose(fabric, names, &spec);
        add(&mut trial, &spec.name, proposed);
    }
    let state = |wanted, ledger| State {
        desired: Desired {
            fabric: &controller.fabric,
            program: controller.program(),
            repair: false,
            wanted,
        },
        ledger,
    };
    let (now, then) = (
        state(wanted, &before),
        state(trial.wanted(), trial.ledger()),
    );
    let of = |id| planned_switch(controller, &now, &then, (Some(id), Some(id)));
    let switches = touched.into_iter().map(of);
    Ok(api::PlanResponse {
        jobs,
        switches: switches.collect::<Result<_, _>>()?,
    })
}

/// The registry of a controller that starts with this fabric and store.
///
/// # Errors
/// A switch has no room for the fabric.
fn restored(
    controller: &Controller,
    fabric: &Fabric,
    stored: &Stored,
) -> Result<Registry, ServeError> {
    let condition = Condition::new(fabric, DampingConfig::default(), &stored.drained);
    let routes = Routes::new(fabric, condition.health());
    for id in fabric.switch_ids() {
        plan::check_fabric(fabric, &routes, controller.program(), id)?;
    }
    let (names, timers) = (controller.program().names(), controller.timers.members);
    let stored = stored.clone();
    Ok(Registry::restore_what_fits(
        fabric, routes, names, stored, timers,
    ))
}

/// The effect of starting with another fabric file and these stored jobs and drains.
///
/// # Errors
/// The controller would not start.
pub fn plan_fabric(
    controller: &Controller,
    fabric: &Fabric,
    stored: &Stored,
) -> Result<api::PlanResponse, PlanError> {
    let registry = restored(controller, fabric, stored)?.trial();
    let (wanted, ledger) = {
        let registry = controller.registry();
        (registry.wanted(), registry.ledger().clone())
    };
    let state = |fabric, wanted, ledger| State {
        desired: Desired {
            fabric,
            program: controller.program(),
            repair: false,
            wanted,
        },
        ledger,
    };
    let now = state(&controller.fabric, wanted, &ledger);
    let then = state(fabric, registry.wanted(), registry.ledger());
    let comes = fabric.switch_ids().map(|id| {
        let there = controller.fabric.switch_named(&fabric.switch(id).name);
        (there, Some(id))
    });
    let goes = controller.fabric.switch_ids().filter_map(|id| {
        let name = &controller.fabric.switch(id).name;
        fabric
            .switch_named(name)
            .is_none()
            .then_some((Some(id), None))
    });
    let of = |ids| planned_switch(controller, &now, &then, ids);
    let switches = comes.chain(goes).map(of);
    let switches = switches.collect::<Result<_, _>>()?;
    let jobs = registry.iter();
    let jobs = jobs.map(|it| planned_job(fabric, &it.job.name, Ok(state_alone(it))));
    // Those that are on no switch now stay so.
    let now_unfit = controller.registry().stranded().clone();
    let unfit = (registry.stranded().iter())
        .filter(|(name, _)| !now_unfit.contains_key(*name))
        .map(|(name, it)| {
            let reason = it.reason.clone();
            planned_job(fabric, name, Err(JobRequestError::Unfit { reason }))
        });
    Ok(api::PlanResponse {
        jobs: jobs.chain(unfit).collect(),
        switches,
    })
}

/// The reason why a change has no forecast.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A job to delete does not exist.
    #[error(transparent)]
    Job(#[from] JobRequestError),
    /// The controller would not start.
    #[error("the controller would not start with this fabric: {0}")]
    Start(#[from] ServeError),
}

impl From<crate::store::StoreError> for PlanError {
    fn from(error: crate::store::StoreError) -> Self {
        ServeError::from(error).into()
    }
}
