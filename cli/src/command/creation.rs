//! Creates the jobs of files, all or none.

use std::cell::Cell;

use std::time::Duration;

use anyhow::Result;
use ultima_api::client::{Client, ClientError, READY_WAIT};
use ultima_api::v1::{self as api, CreateJobRequest};
use ultima_planner::job::{JobSpec, WrittenJob};

use super::wait::Bound;
use super::{refusal, resume, wait};

/// How long the creating request itself waits, so that most commands need no other.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Creates `specs`, the jobs of `written`. A request without an answer is [repeated](resume::asked): its key makes it the same
/// jobs. They may not be [ready] yet.
///
/// # Errors
/// The controller rejects one of them: the error names its place in the file. No controller answers.
pub async fn create(
    client: &Client,
    written: &[WrittenJob],
    specs: &[JobSpec],
    wait: Option<Bound>,
) -> Result<Vec<api::Job>> {
    let at_once = wait.map_or(AT_ONCE, |wait| wait.limit.min(AT_ONCE));
    let wait_ms = Some(at_once.as_millis() as u32);
    let request = |spec: &JobSpec| CreateJobRequest {
        idempotency_key: rand::random_range(1..=u64::MAX),
        wait_ms,
        ..spec.into()
    };
    let requests: Vec<CreateJobRequest> = specs.iter().map(request).collect();
    // An attempt before the last one may have created them.
    let is_unknown = Cell::new(false);
    let created = resume::asked(client, async |client| {
        let created = match &requests[..] {
            [] => Ok(Vec::new()),
            // One job has a shorter timeout than many.
            [request] => {
                let job = client.create_job(request.clone()).await;
                job.map(|job| vec![job])
            }
            requests => client.create_jobs(requests.to_vec(), wait_ms).await,
        };
        let note = |error: &ClientError| is_unknown.set(is_unknown.get() || error.is_unanswered());
        created.inspect_err(note)
    });
    created.await.map_err(|error| {
        let error = match error.downcast() {
            Ok::<ClientError, _>(error) if matches!(error, ClientError::Refused { .. }) => {
                return refusal::placed_of_several(written, specs, error).into();
            }
            Ok(error) => error.into(),
            Err(error) => error,
        };
        match is_unknown.get() {
            true => error
                .context("no answer; `ultima get jobs` shows if the controller created anything"),
            false => error,
        }
    })
}

/// Waits until these jobs are ready, for [`READY_WAIT`] or as long as `--wait` says.
///
/// # Errors
/// [`TimedOut`](crate::exit::Exit::TimedOut): they are not ready in time. A job was deleted, or the controller does not answer.
pub async fn ready(client: &Client, jobs: &mut [api::Job], wait: Option<Bound>) -> Result<()> {
    match wait.unwrap_or_else(|| READY_WAIT.into()) {
        bound if bound.limit.is_zero() => Ok(()),
        bound => wait::ready(client, jobs, bound).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn help_and_documents_have_the_default_wait() {
        let limit = READY_WAIT.as_secs();
        for path in [&["apply"][..], &["job", "create"]] {
            let mut command = crate::Arguments::command();
            for name in path {
                let found = command.find_subcommand(name).expect("a command");
                command = found.clone();
            }
            let help = command.render_long_help().to_string();
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            let default = format!("[default: wait at most {limit}s until ");
            assert!(words.contains(&default), "{words}");
        }
        let guide = include_str!("../../../docs/guide.md");
        assert!(guide.contains(&format!("the job is ready, at most {limit} s")));
        let controller = include_str!("../../../docs/controller.md");
        assert!(controller.contains(&format!("each after {limit} s at most")));
        let proto = include_str!("../../../api/proto/ultima/control/v1/control.proto");
        assert!(proto.contains("  // Default: 10,000. After that time the answer is the job"));
        assert_eq!(READY_WAIT.as_millis(), 10_000);
    }
}
