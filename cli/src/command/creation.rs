//! Creates the jobs of files, all or none.

use std::time::Duration;

use anyhow::Result;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::{self as api, CreateJobRequest};
use ultima_planner::job::{JobSpec, WrittenJob};

use super::wait::Bound;
use super::{refusal, resume, wait};

/// How long a command waits until jobs are ready, unless `--wait` is given.
const READY: Duration = Duration::from_secs(15);
/// How long the creating request itself waits, so that most commands need no other.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Creates `specs`, the jobs of `written`. A request without an answer is repeated at the next leader: its key makes it the
/// same jobs. They may not be [ready] yet.
///
/// # Errors
/// The controller rejects one of them. The error names its place in the file.
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
    let created = resume::asked(client, async |client| match &requests[..] {
        [] => Ok(Vec::new()),
        // One job has a shorter timeout than many.
        [request] => client
            .create_job(request.clone())
            .await
            .map(|job| vec![job]),
        requests => client.create_jobs(requests.to_vec(), wait_ms).await,
    });
    created.await.map_err(|error| match error.downcast() {
        Ok::<ClientError, _>(error) => refusal::placed_of_several(written, specs, error).into(),
        Err(error) => error,
    })
}

/// Waits until these jobs are ready, for 15 s or as long as `--wait` says.
///
/// # Errors
/// [`TimedOut`](crate::exit::Exit::TimedOut): they are not ready in time. A job was deleted, or the controller does not answer.
pub async fn ready(client: &Client, jobs: &mut [api::Job], wait: Option<Bound>) -> Result<()> {
    match wait.unwrap_or_else(|| READY.into()) {
        bound if bound.limit.is_zero() => Ok(()),
        bound => wait::ready(client, jobs, bound).await,
    }
}
