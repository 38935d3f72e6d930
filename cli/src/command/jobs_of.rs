//! The jobs that a name stands for.

use ultima_api::client::{Client, ClientError};
use ultima_api::v1 as api;

use crate::which;
use crate::which::Kind;

/// The jobs that a name stands for: one job, or those of a grid, rows first.
pub async fn jobs_of(client: &Client, name: &str) -> Result<Vec<String>, ClientError> {
    let jobs = named(&client.jobs().await?, name);
    match jobs.is_empty() {
        // The controller reports an unknown name.
        true => Ok(vec![name.to_owned()]),
        false => Ok(jobs),
    }
}

/// The jobs among `all` that a name stands for, as [`jobs_of`]; none if it is unknown.
pub fn named(all: &[api::Job], name: &str) -> Vec<String> {
    let all = all.iter().map(|job| job.name.as_str());
    let found = which::named(Kind::Jobs.singular(), all, name);
    found.into_iter().map(str::to_owned).collect()
}
