//! What a controller refuses of jobs that files ask for, said of the place in the file.

use std::collections::HashSet;

use tonic::Code;
use ultima_controller::api::{self, FieldProblem};
use ultima_controller::client::ClientError;
use ultima_controller::fabric::WrittenFabric;
use ultima_controller::job::{JobSpec, WrittenJob};

use crate::document::{Action, Applied};
use crate::exit::Exit;

/// The job of a name among those of files, or the grid that it is of.
fn named<'a>(written: &'a [WrittenJob], job: &str) -> Option<&'a WrittenJob> {
    written.iter().find(|it| it.request.stands_for(job))
}

/// A refusal of `job`, which one of `written` asks for, with the place of the field that is in the way, or of the job as a whole. One that
/// no file can mend stays as it is: it is of the controller, or of who does not answer.
pub fn placed(written: &[WrittenJob], job: &str, error: ClientError) -> ClientError {
    match (error, named(written, job)) {
        (
            ClientError::Refused {
                code,
                message,
                field,
            },
            Some(written),
        ) if field.is_some() || is_of_what_was_asked(code) => ClientError::Refused {
            code,
            message: written.refused(job, field.as_deref(), &message),
            field,
        },
        (error, _) => error,
    }
}

/// The same of one of several jobs that were asked for together, which the controller names by its place among them.
pub fn placed_of_several(
    written: &[WrittenJob],
    specs: &[JobSpec],
    error: ClientError,
) -> ClientError {
    let ClientError::Refused {
        code,
        message,
        mut field,
    } = error
    else {
        return error;
    };
    // One that is asked for alone is named by nothing; what is said of all jobs of one file's document is of that.
    let is_of_one = specs.len() == 1 || written.len() == 1;
    let mut job = specs.first().filter(|_| is_of_one);
    if let Some((at, rest)) = field.as_ref().and_then(|it| one_of_several(&it.field)) {
        job = specs.get(at);
        field = rest.zip(field).map(|(rest, field)| {
            Box::new(FieldProblem {
                field: rest,
                problem: field.problem,
            })
        });
    }
    let error = ClientError::Refused {
        code,
        message,
        field,
    };
    match job {
        Some(job) => placed(written, &job.name, error),
        None => error,
    }
}

/// The place of a job by the path of it or of a field of it, such as `jobs[2].members[1]`, and the field.
fn one_of_several(path: &str) -> Option<(usize, Option<String>)> {
    let (at, rest) = path.strip_prefix("jobs[")?.split_once(']')?;
    let field = rest.strip_prefix('.').map(str::to_owned);
    Some((at.parse().ok()?, field))
}

/// The same of what a plan says that would be refused.
pub fn placed_in_plan(written: &[WrittenJob], plan: &mut api::PlanResponse) {
    for job in plan.jobs.iter_mut().filter(|job| !job.refusal.is_empty()) {
        if let Some(written) = named(written, &job.name) {
            job.refusal = written.refused(&job.name, job.refused_field.as_ref(), &job.refusal);
        }
    }
}

/// Says of the `jobs` that a plan refuses that they would be refused, and no more that they would be created or resized.
pub fn mark_refused(jobs: &mut [Applied], plan: &api::PlanResponse) {
    let is_refused = |job: &api::PlannedJob| !job.refusal.is_empty();
    let refused: HashSet<&str> = (plan.jobs.iter().filter(|job| is_refused(job)))
        .map(|job| job.name.as_str())
        .collect();
    for job in jobs
        .iter_mut()
        .filter(|job| refused.contains(job.name.as_str()))
    {
        job.action = Action::WouldBeRefused;
    }
}

/// How a command ends that does what this is the plan of, where `jobs` are those of its files: as the first refusal has it, unless something
/// is done by then.
pub fn exit_of_plan(plan: &api::PlanResponse, jobs: &[Applied]) -> Exit {
    if jobs.iter().any(|job| job.action == Action::Differs) {
        return Exit::Refused;
    }
    let is_refused = |job: &api::PlannedJob| !job.refusal.is_empty();
    let Some(at) = plan.jobs.iter().position(is_refused) else {
        return Exit::Done;
    };
    // They are resized one by one, and created together.
    let is_resized = |planned: &api::PlannedJob| {
        let mut jobs = jobs.iter().filter(|job| job.name == planned.name);
        jobs.any(|job| job.action == Action::WouldBeResized)
    };
    if plan.jobs[..at].iter().any(is_resized) {
        return Exit::Found;
    }
    Exit::of_code(Code::from_i32(plan.jobs[at].refused_code))
}

/// A refusal of a fabric's file, with the place of what is in the way there.
pub fn of_fabric(written: &WrittenFabric, error: ClientError) -> ClientError {
    match error {
        ClientError::Refused {
            code,
            message,
            field,
        } if is_of_what_was_asked(code) => ClientError::Refused {
            code,
            message: match &field {
                Some(it) => written.refused(Some(&it.field), &it.problem),
                None => written.refused(None, message),
            },
            field,
        },
        error => error,
    }
}

/// Whether it is not the controller, or who does not answer, that is in the way.
fn is_of_what_was_asked(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
    )
}

#[cfg(test)]
mod tests {
    use ultima_controller::job;

    use super::*;

    const JOBS: &str = "\
name: near
members: [h1, h2]
---
# Rows are [a, b] and [c, d], columns [a, c] and [b, d].
name: grid
members: [a, b,
          c, d]
groups: 2
weight: 3
";

    fn refusal(job: &str, code: Code, field: Option<(&str, &str)>) -> ClientError {
        ClientError::Refused {
            code,
            message: format!("job {job}: switch s1 is full"),
            field: field.map(|(field, problem)| {
                Box::new(FieldProblem {
                    field: field.into(),
                    problem: problem.into(),
                })
            }),
        }
    }

    fn said(job: &str, code: Code, field: Option<(&str, &str)>) -> String {
        let written = job::parse_all(JOBS, "jobs.yaml").expect("jobs");
        placed(&written, job, refusal(job, code, field)).to_string()
    }

    #[test]
    fn what_is_refused_has_the_place_in_the_file() {
        let unknown = "unknown host";
        let of = |job, field| said(job, Code::NotFound, Some((field, unknown)));
        for (job, field, place) in [
            ("near", "members[1]", "jobs.yaml:2:15: members[1]"),
            ("near", "name", "jobs.yaml:1:7: name"),
            // The file does not say it.
            ("near", "weight", "jobs.yaml:1:1: weight"),
            ("near", "members[2]", "jobs.yaml:1:1: members[2]"),
            ("grid.row1", "members[1]", "jobs.yaml:7:14: members[3]"),
            ("grid.column1", "members[0]", "jobs.yaml:6:14: members[1]"),
            ("grid.column1", "members[1]", "jobs.yaml:7:14: members[3]"),
            ("grid.row0", "weight", "jobs.yaml:9:9: weight"),
        ] {
            assert_eq!(of(job, field), format!("{place}: {unknown}"));
        }
        assert_eq!(
            said("grid.row1", Code::ResourceExhausted, None),
            "jobs.yaml:5:1: job grid.row1: switch s1 is full"
        );
    }

    #[test]
    fn a_plan_ends_as_what_it_is_of() {
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
            (&[fine.clone()][..], Exit::Done),
            (&[fine.clone(), missing.clone()], Exit::NotThere),
            (
                &[full.clone(), fine.clone(), missing.clone()],
                Exit::Refused,
            ),
            (&[planned("old", Code::Ok), missing.clone()], Exit::Found),
        ] {
            assert_eq!(exit(plan, &jobs), expected, "{plan:?}");
        }
        let mut marked = jobs;
        let plan = api::PlanResponse {
            jobs: vec![fine, missing.clone()],
            switches: Vec::new(),
        };
        mark_refused(&mut marked, &plan);
        assert_eq!(
            marked.map(|job| job.action),
            [
                Action::WouldBeResized,
                Action::WouldBeCreated,
                Action::WouldBeRefused
            ]
        );
        let differs = [Applied::new("other", Action::Differs)];
        assert_eq!(exit(&[missing], &differs), Exit::Refused);
    }

    #[test]
    fn what_no_file_can_mend_is_of_no_place() {
        assert_eq!(
            said("near", Code::Unavailable, None),
            "job near: switch s1 is full"
        );
    }

    #[test]
    fn one_of_several_is_found() {
        let written = job::parse_all(JOBS, "jobs.yaml").expect("jobs");
        let specs: Vec<JobSpec> = written.iter().flat_map(|it| it.request.jobs(7)).collect();
        let said = |written: &[WrittenJob], field| {
            let field = Option::map(field, |field| (field, "it is full"));
            let error = refusal("near and 4 more", Code::ResourceExhausted, field);
            placed_of_several(written, &specs, error).to_string()
        };
        let all = "job near and 4 more: switch s1 is full";
        for (field, text) in [
            // near, grid.row0, grid.row1, grid.column0, grid.column1
            (
                Some("jobs[0].members[1]"),
                "jobs.yaml:2:15: members[1]: it is full".to_owned(),
            ),
            (
                Some("jobs[3].members[1]"),
                "jobs.yaml:7:11: members[2]: it is full".to_owned(),
            ),
            (Some("jobs[2]"), format!("jobs.yaml:5:1: {all}")),
            // What no controller of ours says.
            (Some("jobs[5].members[1]"), all.to_owned()),
            (Some("jobs"), all.to_owned()),
            (None, all.to_owned()),
        ] {
            assert_eq!(said(&written, field), text, "{field:?}");
        }
        let alone = refusal("near", Code::NotFound, Some(("members[1]", "it is full")));
        assert_eq!(
            placed_of_several(&written, &specs[..1], alone).to_string(),
            "jobs.yaml:2:15: members[1]: it is full"
        );
        assert_eq!(said(&written[..1], None), format!("jobs.yaml:1:1: {all}"));
    }
}
