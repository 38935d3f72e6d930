//! Waiting for what a command has begun to be whole.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};
use ultima_controller::api;
use ultima_controller::client::Client;

use crate::exit::{Ended, Exit};

/// How often the controller is asked.
const EVERY: Duration = Duration::from_millis(50);

/// Until all members of these jobs have joined, `bound` at most; returns the jobs as they are then.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with who is missing; a job has gone, or the controller doesn't answer.
pub async fn joined(
    client: &Client,
    jobs: Vec<api::Job>,
    bound: Duration,
) -> Result<Vec<api::Job>> {
    let end = Instant::now() + bound;
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
            wait(end, || {
                format!("job {name}: after {bound:?} there is no {missing}; it stays")
            })
            .await?;
            job = client.job(name).await?;
        }
    }
    Ok(all)
}

/// Until these jobs, by name and by the number of the epoch that they were in, are in the next one, `bound` at most.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with the one that is not; [`Found`](Exit::Found) with why a change was called off; a job has gone, or the controller
/// doesn't answer.
pub async fn changed(client: &Client, jobs: &[(&str, u32)], bound: Duration) -> Result<()> {
    let end = Instant::now() + bound;
    for (name, before) in jobs {
        loop {
            let job = client.job(name).await?;
            match (&job.next, job.id == *before) {
                (None, false) => break,
                (None, true) => {
                    bail!(Exit::Found.because(format!("job {name}: {}", job.unchanged)))
                }
                (Some(_), _) => {
                    let late = || {
                        format!(
                            "job {name}: after {bound:?} its new members have not all joined; it goes on"
                        )
                    };
                    wait(end, late).await?;
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
    bound: Duration,
    left: impl Fn(&str) -> String,
) -> Result<()> {
    let end = Instant::now() + bound;
    loop {
        let switches = client.switches().await?;
        let unsettled = switches.iter().filter(|switch| {
            names.contains(&switch.name) && (!switch.connected || switch.in_doubt)
        });
        let unsettled: Vec<&str> = unsettled.map(|switch| switch.name.as_str()).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        let unsettled = unsettled.join(", ");
        wait(end, || format!("after {bound:?} {}", left(&unsettled))).await?;
    }
}

/// A while, if there is time left.
async fn wait(end: Instant, late: impl FnOnce() -> String) -> Result<(), Ended> {
    if Instant::now() >= end {
        return Err(Exit::TooLate.because(late()));
    }
    sleep(EVERY).await;
    Ok(())
}
