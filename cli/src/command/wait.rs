//! `--wait`: waits until the effect of a command is complete.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};
use ultima_api::client::{Client, ClientError};
use ultima_api::v1 as api;

use super::resume;
use crate::document;
use crate::exit::{Ended, Exit};

/// The interval between requests to the controller.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The deadline of a command for everything that it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The value of `--wait`.
    pub limit: Duration,
    /// The deadline.
    pub end: Instant,
}

/// Starts now.
impl From<Duration> for Bound {
    fn from(limit: Duration) -> Self {
        Bound {
            limit,
            end: Instant::now() + limit,
        }
    }
}

impl Bound {
    /// Pauses before the next request. After the deadline returns the error `late`, made from the limit.
    async fn pause(self, late: impl FnOnce(Duration) -> String) -> Result<(), Ended> {
        if Instant::now() >= self.end {
            return Err(Exit::TimedOut.because(late(self.limit)));
        }
        sleep(POLL_INTERVAL).await;
        Ok(())
    }
}

/// Asks the current leader.
async fn ask<T>(
    client: &Client,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T> {
    let asked = resume::asked(client, ask).await;
    match asked {
        Err(error) if Exit::of(&error) == Exit::Unavailable => Err(error)
            .context("the request succeeded, but the controller failed while this command waited"),
        asked => asked,
    }
}

/// Waits until these jobs are ready, and updates them. Prints on standard error what is missing, when that changes.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with the switches that do not have them; a job was deleted, or the controller does not answer.
pub async fn ready(client: &Client, jobs: &mut [api::Job], bound: Bound) -> Result<()> {
    let mut printed = String::new();
    while let Some(job) = jobs.iter_mut().find(|job| !job.ready) {
        let missing = job.conditions.iter();
        let missing = missing.map(|it| format!("{}: {}", it.element, it.reason));
        let missing = missing.collect::<Vec<_>>().join(", ");
        let (name, ready) = (job.name.clone(), document::ready(job));
        let progress = format!("job {name}: {ready} switches are ready; {missing}");
        if progress != printed {
            eprintln!("{progress}");
            printed = progress;
        }
        let late = |bound| {
            format!(
                "job {name} is created, but not ready after {bound:?}: {missing}; the controller goes on trying, see \
                 `ultima job show {name}`"
            )
        };
        bound.pause(late).await?;
        *job = ask(client, async |client| client.job(&name).await).await?;
    }
    Ok(())
}

/// Waits until all members of these jobs have joined, and updates the jobs.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with the missing members; a job was deleted, or the controller does not answer.
pub async fn joined(client: &Client, jobs: &mut [api::Job], bound: Bound) -> Result<()> {
    for job in jobs {
        loop {
            let free = job
                .members
                .iter()
                .filter(|it| it.state() == api::MemberState::Free);
            let missing: Vec<String> = free
                .map(|member| format!("rank {} on {}", member.rank, member.host))
                .collect();
            if missing.is_empty() {
                break;
            }
            let (name, missing) = (&job.name, missing.join(", "));
            let late = |bound| {
                format!(
                    "job {name}: not joined after {bound:?}: {missing}; the job remains installed"
                )
            };
            bound.pause(late).await?;
            *job = ask(client, async |client| client.job(name).await).await?;
        }
    }
    Ok(())
}

/// Waits until these jobs, given by name and number of their epoch, are in their next epoch.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with the job that is not; [`Failure`](Exit::Failure) with the reason for a cancelled change; a job was deleted,
/// or the controller does not answer.
pub async fn changed(client: &Client, jobs: &[(&str, u32)], bound: Bound) -> Result<()> {
    for (name, before) in jobs {
        loop {
            let job = ask(client, async |client| client.job(name).await).await?;
            match (&job.next, job.id == *before) {
                (None, false) => break,
                (None, true) => {
                    bail!(Exit::Failure.because(format!("job {name}: {}", job.unchanged)))
                }
                (Some(_), _) => {
                    let late = |bound| {
                        format!(
                            "job {name}: not all new members joined within {bound:?}; the change continues"
                        )
                    };
                    bound.pause(late).await?;
                }
            }
        }
    }
    Ok(())
}

/// Waits until these switches are connected and need no resync.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with the text that `left` makes from the other switches; the controller does not answer.
pub async fn settled(
    client: &Client,
    names: &[String],
    bound: Bound,
    left: impl Fn(&str) -> String,
) -> Result<()> {
    loop {
        let switches = ask(client, async |client| client.switches().await).await?;
        let unsettled = switches
            .iter()
            .filter(|switch| names.contains(&switch.name) && (!switch.connected || switch.dirty));
        let unsettled: Vec<&str> = unsettled.map(|switch| switch.name.as_str()).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        let unsettled = unsettled.join(", ");
        let late = |bound| format!("timed out after {bound:?}: {}", left(&unsettled));
        bound.pause(late).await?;
    }
}
