//! Creating the jobs of files: all of them as they are asked for, or none.

use anyhow::{Context, Result};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::job::{JobSpec, WrittenJob};

use super::desired::not_as_asked;
use super::refusal;
use crate::exit::{Exit, HalfDone};

/// Creates `specs`, which `written` ask for.
///
/// # Errors
/// The controller refuses one of them, said of its place in the file, or has not done all that was asked for, as one of another version may.
pub async fn create(
    client: &Client,
    written: &[WrittenJob],
    specs: &[JobSpec],
) -> Result<Vec<api::Job>> {
    let created = match specs {
        [] => return Ok(Vec::new()),
        // One is not waited for as long as many, and controllers of before know nothing else.
        [spec] => client.create_job(spec).await.map(|job| vec![job]),
        specs => client.create_jobs(specs).await,
    };
    let created = created.map_err(|error| refusal::placed_of_several(written, specs, error))?;
    let Some(why) = not_as_asked(written, specs, &created) else {
        return Ok(created);
    };
    let (mut left, mut problem) = (Vec::new(), None);
    for job in &created {
        if let Err(error) = client.delete_job(&job.name).await {
            left.push(job.name.as_str());
            problem = Some(error);
        }
    }
    if let Some(error) = problem {
        let left = left.join(", ");
        return Err(error).with_context(|| HalfDone(format!("{why}; still there: {left}")));
    }
    let why = format!("{why}; it is of another version, and nothing was created");
    Err(Exit::Refused.because(why).into())
}
