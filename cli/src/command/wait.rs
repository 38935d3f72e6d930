//! Waiting for what a command has begun to be whole.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};
use ultima_controller::api;
use ultima_controller::client::{Client, ClientError};

use super::resume;
use crate::exit::{Ended, Exit};

/// How often the controller is asked.
const EVERY: Duration = Duration::from_millis(50);

/// How long is waited at most, from when this is made: for all that a command waits for together.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// As the user has said it.
    said: Duration,
    end: Instant,
}

/// From now on.
impl From<Duration> for Bound {
    fn from(said: Duration) -> Self {
        Bound {
            said,
            end: Instant::now() + said,
        }
    }
}

impl Bound {
    /// A while, if there is time left; else with what `late` says of how long it was.
    async fn pause(self, late: impl FnOnce(Duration) -> String) -> Result<(), Ended> {
        if Instant::now() >= self.end {
            return Err(Exit::TooLate.because(late(self.said)));
        }
        sleep(EVERY).await;
        Ok(())
    }
}

/// How that stands which is waited for, as whichever controller leads says.
async fn ask<T>(
    client: &Client,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T> {
    let asked = resume::asked(client, ask).await;
    match asked {
        Err(error) if Exit::of(&error) == Exit::NoAnswer => {
            Err(error).context("what was asked for is done and stays, and is not waited for")
        }
        asked => asked,
    }
}

/// Until all members of these jobs have joined, `bound` at most; returns the jobs as they are then.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with who is missing; a job has gone, or the controller doesn't answer.
pub async fn joined(
    client: &Client,
    jobs: Vec<api::Job>,
    bound: impl Into<Bound>,
) -> Result<Vec<api::Job>> {
    let bound = bound.into();
    let mut all = Vec::new();
    for mut job in jobs {
        loop {
            let free = job
                .members
                .iter()
                .filter(|it| it.state() == api::MemberState::Free);
            let missing: Vec<String> = free
                .map(|member| format!("rank {} on {}", member.rank, member.host))
                .collect();
            if missing.is_empty() {
                break all.push(job);
            }
            let (name, missing) = (&job.name, missing.join(", "));
            let late =
                |bound| format!("job {name}: after {bound:?} there is no {missing}; it stays");
            bound.pause(late).await?;
            job = ask(client, async |client| client.job(name).await).await?;
        }
    }
    Ok(all)
}

/// Until these jobs, by name and by the number of the epoch that they were in, are in the next one, `bound` at most.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with the one that is not; [`Found`](Exit::Found) with why a change was called off; a job has gone, or the controller
/// doesn't answer.
pub async fn changed(client: &Client, jobs: &[(&str, u32)], bound: impl Into<Bound>) -> Result<()> {
    let bound = bound.into();
    for (name, before) in jobs {
        loop {
            let job = ask(client, async |client| client.job(name).await).await?;
            match (&job.next, job.id == *before) {
                (None, false) => break,
                (None, true) => {
                    bail!(Exit::Found.because(format!("job {name}: {}", job.unchanged)))
                }
                (Some(_), _) => {
                    let late = |bound| {
                        format!(
                            "job {name}: after {bound:?} its new members have not all joined; it goes on"
                        )
                    };
                    bound.pause(late).await?;
                }
            }
        }
    }
    Ok(())
}

/// Until these switches, by name, hold what they should as far as the controller knows, `bound` at most.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with what `left` says of those that do not; the controller doesn't answer.
pub async fn settled(
    client: &Client,
    names: &[String],
    bound: impl Into<Bound>,
    left: impl Fn(&str) -> String,
) -> Result<()> {
    let bound = bound.into();
    loop {
        let switches = ask(client, async |client| client.switches().await).await?;
        let unsettled = switches.iter().filter(|switch| {
            names.contains(&switch.name) && (!switch.connected || switch.in_doubt)
        });
        let unsettled: Vec<&str> = unsettled.map(|switch| switch.name.as_str()).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        let unsettled = unsettled.join(", ");
        let late = |bound| format!("after {bound:?} {}", left(&unsettled));
        bound.pause(late).await?;
    }
}
