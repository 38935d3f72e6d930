//! Adds the place in a file (`job.yaml:2:15`) to errors of the controller about jobs and fabrics.

use tonic::Code;
use ultima_api::client::ClientError;
use ultima_api::v1::{self as api, FieldProblem};
use ultima_planner::fabric::WrittenFabric;
use ultima_planner::job::{JobSpec, WrittenJob};

/// The job or grid in the files that `job` belongs to.
fn named<'a>(written: &'a [WrittenJob], job: &str) -> Option<&'a WrittenJob> {
    written.iter().find(|it| it.request.stands_for(job))
}

/// Adds the place of the rejected field, or of the whole job, to an error about `job`. An error that is not about the request, such as an
/// unreachable controller, stays as it is.
pub fn placed(written: &[WrittenJob], job: &str, error: ClientError) -> ClientError {
    match (error, named(written, job)) {
        (
            ClientError::Refused {
                code,
                message,
                field,
            },
            Some(written),
        ) if field.is_some() || concerns_request(code) => ClientError::Refused {
            code,
            message: written.refused(job, field.as_deref(), &message),
            field,
        },
        (error, _) => error,
    }
}

/// Like [`placed`] for a batch of jobs, of which the controller names one by its index.
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
    // An error about a single job or a single document needs no index.
    let is_single = specs.len() == 1 || written.len() == 1;
    let mut job = specs.first().filter(|_| is_single);
    if let Some((at, rest)) = field.as_ref().and_then(|it| split_index(&it.field)) {
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

/// Splits a path such as `jobs[2].members[1]` into the job's index and the field.
fn split_index(path: &str) -> Option<(usize, Option<String>)> {
    let (at, rest) = path.strip_prefix("jobs[")?.split_once(']')?;
    let field = rest.strip_prefix('.').map(str::to_owned);
    Some((at.parse().ok()?, field))
}

/// Like [`placed`] for the jobs that a plan rejects.
pub fn placed_in_plan(written: &[WrittenJob], plan: &mut api::PlanResponse) {
    for job in plan.jobs.iter_mut().filter(|job| !job.refusal.is_empty()) {
        if let Some(written) = named(written, &job.name) {
            job.refusal = written.refused(&job.name, job.refused_field.as_ref(), &job.refusal);
        }
    }
}

/// Adds the place in the file to an error about a fabric.
pub fn of_fabric(written: &WrittenFabric, error: ClientError) -> ClientError {
    match error {
        ClientError::Refused {
            code,
            message,
            field,
        } if concerns_request(code) => ClientError::Refused {
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

/// True if a status concerns the request, not the controller or the connection.
fn concerns_request(code: Code) -> bool {
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
    use ultima_planner::job;

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
    fn an_error_about_a_job_has_its_place_in_the_file() {
        let unknown = "unknown host";
        let of = |job, field| said(job, Code::NotFound, Some((field, unknown)));
        for (job, field, place) in [
            ("near", "members[1]", "jobs.yaml:2:15: members[1]"),
            ("near", "name", "jobs.yaml:1:7: name"),
            // The file does not contain the field.
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
    fn an_error_about_the_controller_has_no_place() {
        assert_eq!(
            said("near", Code::Unavailable, None),
            "job near: switch s1 is full"
        );
    }

    #[test]
    fn the_rejected_job_of_a_batch_is_found() {
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
            // Fields that our controller never sends.
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
