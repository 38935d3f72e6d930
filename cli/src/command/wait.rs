//! Waiting for what a command has begun to be whole.

use std::time::Duration;

use anyhow::Result;
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

/// Until these switches, by name, hold what they should as far as the controller knows, `bound` at most.
///
/// # Errors
/// [`TooLate`](Exit::TooLate) with those that do not; the controller doesn't answer.
pub async fn settled(client: &Client, names: &[String], bound: Duration) -> Result<()> {
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
        wait(end, || {
            format!("after {bound:?} something is still on {unsettled}; it goes when they are back")
        })
        .await?;
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
