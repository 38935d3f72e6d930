//! Creates the jobs of files, all or none.

use anyhow::Result;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_controller::job::{JobSpec, WrittenJob};

use super::refusal;

/// Creates `specs`, the jobs of `written`.
///
/// # Errors
/// The controller rejects one of them. The error names its place in the file.
pub async fn create(
    client: &Client,
    written: &[WrittenJob],
    specs: &[JobSpec],
) -> Result<Vec<api::Job>> {
    let created = match specs {
        [] => return Ok(Vec::new()),
        // One job has a shorter timeout than many.
        [spec] => client.create_job(spec).await.map(|job| vec![job]),
        specs => client.create_jobs(specs).await,
    };
    created.map_err(|error| refusal::placed_of_several(written, specs, error).into())
}
