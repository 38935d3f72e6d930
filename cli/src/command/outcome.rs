//! The end of `ultima apply`, and its forecast from a plan.

use std::collections::HashSet;

use tonic::Code;
use ultima_api::client::ClientError;
use ultima_api::document::{Action, Applied};
use ultima_api::v1 as api;

use ultima_console::error_line;

use crate::exit::{Exit, HalfDone};

/// The names of the jobs with an action, as a list.
pub fn names(jobs: &[Applied], action: Action) -> String {
    names_if(jobs, |job| job.action == action)
}

fn names_if(jobs: &[Applied], is_named: impl Fn(&Applied) -> bool) -> String {
    let jobs = jobs.iter().filter(|job| is_named(job));
    let names: Vec<&str> = jobs.map(|job| job.name.as_str()).collect();
    names.join(", ")
}

/// The error of a run with these actions: it names the jobs that were changed before, and its exit code is [`Exit::Failure`] if there are
/// any.
pub fn failed(jobs: &[Applied], error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    let is_changed = |job: &Applied| match job.action {
        Action::Unchanged | Action::Differs | Action::WouldBeRejected => false,
        Action::Created | Action::Resized | Action::Changed | Action::Deleted => true,
        Action::WouldBeCreated | Action::WouldBeResized | Action::WouldBeChanged => true,
        Action::WouldBeDeleted => true,
    };
    let done = names_if(jobs, is_changed);
    let may_be_done = error
        .downcast_ref::<ClientError>()
        .is_some_and(ClientError::may_be_done);
    match done.is_empty() {
        // The error itself says that the outcome is unknown.
        true if may_be_done => error,
        // The error begins with its place in a file.
        true => (Exit::of(&error))
            .because(format!(
                "{}; nothing was changed",
                error_line::one_line(&error)
            ))
            .into(),
        false => error.context(HalfDone(format!("applied {done}, but not the rest"))),
    }
}

/// Checks that no job differs from its file.
///
/// # Errors
/// The jobs that differ.
pub fn check_differences(jobs: &[Applied]) -> anyhow::Result<()> {
    let differ = names(jobs, Action::Differs);
    match differ.is_empty() {
        true => Ok(()),
        false => Err(Exit::Rejected
            .because(format!(
                "the file differs from {differ} in fields that cannot change; delete the job first, or correct the file"
            ))
            .into()),
    }
}

fn is_rejected(job: &api::PlannedJob) -> bool {
    !job.refusal.is_empty()
}

/// Checks that a plan rejects no job.
///
/// # Errors
/// The first rejection.
pub fn check_plan(plan: &api::PlanResponse) -> anyhow::Result<()> {
    let rejected = plan.jobs.iter().find(|job| is_rejected(job));
    rejected.map_or(Ok(()), |job| {
        let exit = Exit::of_code(Code::from_i32(job.refused_code));
        Err(exit.because(&job.refusal).into())
    })
}

/// The exit code of the run that this is the plan of.
pub fn exit_of_plan(plan: &api::PlanResponse, jobs: &[Applied]) -> Exit {
    let is_pruned = jobs.iter().any(|job| job.action == Action::WouldBeDeleted);
    // A run that deletes jobs looks for differences first.
    let checked = match is_pruned {
        true => check_differences(jobs).and_then(|()| check_plan(plan)),
        false => check_plan(plan).and_then(|()| check_differences(jobs)),
    };
    let Err(error) = checked else {
        return Exit::Success;
    };
    let accepted = plan.jobs.iter().take_while(|job| !is_rejected(job));
    let accepted: HashSet<&str> = accepted.map(|job| job.name.as_str()).collect();
    let is_rejected = accepted.len() < plan.jobs.len();
    let is_changed_before = |job: &&Applied| match job.action {
        // Jobs are created together.
        Action::WouldBeCreated => !is_rejected,
        // Jobs are changed one by one.
        Action::WouldBeResized | Action::WouldBeChanged => {
            !is_rejected || accepted.contains(job.name.as_str())
        }
        _ => false,
    };
    // A run that deletes jobs changes nothing if another job cannot be as its file says.
    let before = jobs.iter().filter(|_| !is_pruned).filter(is_changed_before);
    Exit::of(&failed(&before.cloned().collect::<Vec<_>>(), error))
}

/// Changes the action of the jobs that a plan rejects.
pub fn mark_rejected(jobs: &mut [Applied], plan: &api::PlanResponse) {
    let rejected: HashSet<&str> = (plan.jobs.iter().filter(|job| is_rejected(job)))
        .map(|job| job.name.as_str())
        .collect();
    for job in jobs
        .iter_mut()
        .filter(|job| rejected.contains(job.name.as_str()))
    {
        job.action = Action::WouldBeRejected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_the_exit_code_of_its_command() {
        let planned = |name: &str, code: Code| api::PlannedJob {
            name: name.into(),
            refusal: match code {
                Code::Ok => String::new(),
                _ => "unknown host".into(),
            },
            refused_code: code.into(),
            ..api::PlannedJob::default()
        };
        let jobs = [
            Applied::new("old", Action::WouldBeResized),
            Applied::new("new", Action::WouldBeCreated),
            Applied::new("newer", Action::WouldBeCreated),
        ];
        let exit = |planned: &[api::PlannedJob], jobs: &[Applied]| {
            let plan = api::PlanResponse {
                jobs: planned.to_vec(),
                switches: Vec::new(),
            };
            exit_of_plan(&plan, jobs)
        };
        let (fine, missing) = (planned("new", Code::Ok), planned("newer", Code::NotFound));
        let full = planned("old", Code::ResourceExhausted);
        for (plan, expected) in [
            (&[fine.clone()][..], Exit::Success),
            (&[fine.clone(), missing.clone()], Exit::NotFound),
            (
                &[full.clone(), fine.clone(), missing.clone()],
                Exit::Rejected,
            ),
            (&[planned("old", Code::Ok), missing.clone()], Exit::Failure),
        ] {
            assert_eq!(exit(plan, &jobs), expected, "{plan:?}");
        }
        let mut marked = jobs;
        let plan = api::PlanResponse {
            jobs: vec![fine, missing.clone()],
            switches: Vec::new(),
        };
        mark_rejected(&mut marked, &plan);
        assert_eq!(
            marked.map(|job| job.action),
            [
                Action::WouldBeResized,
                Action::WouldBeCreated,
                Action::WouldBeRejected
            ]
        );
        let differs = || Applied::new("other", Action::Differs);
        let created = Applied::new("new", Action::WouldBeCreated);
        assert_eq!(exit(&[], &[differs()]), Exit::Rejected);
        assert_eq!(exit(&[missing], &[differs()]), Exit::NotFound);
        let plan = [planned("new", Code::Ok)];
        assert_eq!(exit(&plan, &[differs(), created]), Exit::Failure);
        let deleted = Applied::new("old", Action::WouldBeDeleted);
        assert_eq!(exit(&plan, &[differs(), deleted.clone()]), Exit::Rejected);
        let missing = [planned("newer", Code::NotFound)];
        assert_eq!(exit(&missing, &[differs(), deleted]), Exit::Rejected);
    }
}
