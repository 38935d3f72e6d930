//! Deletes the jobs that a name stands for, and waits until all switches have removed them.

use std::time::Duration;

use anyhow::{Context, Result};
use tonic::Code;
use ultima_api::client::{Client, ClientError};
use ultima_console::output::Output;
use ultima_console::units;

use super::wait::{self, Bound};
use crate::exit::HalfDone;
use crate::text::pending;
use ultima_api::document::Deleted;

/// The options of commands that delete jobs.
#[derive(clap::Args)]
pub struct Options {
    /// Wait at most TIME, such as 10s, until disconnected switches have removed the jobs, too [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub wait: Option<Duration>,
    /// Succeed also if no job has one of the names
    #[arg(long)]
    pub ignore_not_found: bool,
    /// The format of the result.
    #[command(flatten)]
    pub output: Output,
}

/// Deletes jobs one after the other. With a `bound` it then waits, in all at most that long, until no switch holds anything of them.
///
/// # Errors
/// A job cannot be deleted; the error names those deleted before. [`TimedOut`](crate::exit::Exit::TimedOut) with the switches that are still
/// pending: the jobs are deleted nevertheless.
pub async fn delete(
    client: &Client,
    names: &[String],
    bound: Option<Bound>,
) -> Result<Vec<Deleted>> {
    let mut deleted = one_by_one(names, async |name| client.delete_job(name).await).await?;
    let Some(bound) = bound else {
        return Ok(deleted);
    };
    let switches = deleted
        .iter_mut()
        .flat_map(|job| std::mem::take(&mut job.pending_switches));
    let switches: Vec<String> = switches.collect();
    wait::settled(client, &switches, bound, pending).await?;
    Ok(deleted)
}

async fn one_by_one(
    names: &[String],
    delete: impl AsyncFn(&str) -> Result<Vec<String>, ClientError>,
) -> Result<Vec<Deleted>> {
    let mut deleted = Vec::new();
    for (at, name) in names.iter().enumerate() {
        match delete(name).await {
            Ok(pending_switches) => deleted.push(Deleted {
                name: name.clone(),
                pending_switches,
            }),
            // Another client has deleted it meanwhile.
            Err(ClientError::Refused {
                code: Code::NotFound,
                ..
            }) => {}
            Err(error) if at == 0 => return Err(error.into()),
            // The cause, such as a failing store, stops the other deletions as well.
            Err(error) => {
                let (done, rest) = names.split_at(at);
                let (unknown, not) = rest.split_at(usize::from(error.may_be_done()));
                let done = HalfDone(half_done(done, unknown, not));
                return Err(error).context(done);
            }
        }
    }
    Ok(deleted)
}

fn half_done(done: &[String], unknown: &[String], not: &[String]) -> String {
    let part = |(what, names): (&str, &[String])| {
        (!names.is_empty()).then(|| format!("{what}{}", names.join(", ")))
    };
    let parts = [
        ("deleted: ", done),
        ("unknown: ", unknown),
        ("not deleted: ", not),
    ];
    let parts: Vec<String> = parts.into_iter().filter_map(part).collect();
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// The error text and exit code when the third of four deletions fails with `code`.
    async fn third_fails(code: Code) -> (String, Exit) {
        let names = ["a", "b", "c", "d"].map(String::from);
        let delete = async |name: &str| match name {
            "c" => Err(ClientError::Refused {
                code,
                message: "why".into(),
                field: None,
            }),
            _ => Ok(Vec::new()),
        };
        let error = one_by_one(&names, delete).await.err().expect("one fails");
        (format!("{error:#}"), Exit::of(&error))
    }

    #[tokio::test]
    async fn an_error_names_the_jobs_deleted_before() {
        let (said, exit) = third_fails(Code::FailedPrecondition).await;
        let known = "deleted: a, b; not deleted: c, d: why";
        assert_eq!((&*said, exit), (known, Exit::Failure));
        let (said, exit) = third_fails(Code::Unavailable).await;
        let known = "deleted: a, b; unknown: c; not deleted: d: why";
        assert_eq!((&*said, exit), (known, Exit::Failure));
    }

    #[tokio::test]
    async fn a_job_that_another_client_deleted_is_no_error() {
        let names = ["a", "b", "c", "d"].map(String::from);
        let delete = async |name: &str| match name {
            "a" | "c" => Err(ClientError::Refused {
                code: Code::NotFound,
                message: "why".into(),
                field: None,
            }),
            _ => Ok(Vec::new()),
        };
        let deleted = one_by_one(&names, delete).await.unwrap();
        let deleted: Vec<&str> = deleted.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(deleted, ["b", "d"]);
    }

    #[tokio::test]
    async fn the_first_failure_is_reported_as_it_is() {
        let delete = async |_: &str| {
            Err(ClientError::Refused {
                code: Code::FailedPrecondition,
                message: "why".into(),
                field: None,
            })
        };
        let names = ["a", "b"].map(String::from);
        let error = one_by_one(&names, delete).await.err().expect("it fails");
        assert_eq!(error.to_string(), "why");
        assert_eq!(Exit::of(&error), Exit::Rejected);
    }
}
