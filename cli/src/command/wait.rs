//! `ultima wait`, and `--wait`: waits until the effect of a command is complete.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};
use ultima_api::client::{Client, ClientError};
use ultima_api::v1 as api;
use ultima_console::units;

use super::jobs_of::named;
use super::resume;
use crate::controller_address::ControllerAddress;
use crate::exit::{Ended, Exit};
use crate::objects::Objects;
use crate::runtime::run_beside;
use crate::which::Kind;
use ultima_api::document;

/// Wait until jobs are ready, joined or deleted
///
/// What is missing is printed on standard error. The exit code is 6 if the time ends first.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima wait job/train\n  \
    ultima wait jobs --for joined --timeout 5m\n  \
    ultima wait job/train --for delete")]
pub struct Arguments {
    #[command(flatten)]
    objects: Objects,
    /// With `jobs`: all jobs, as without this flag
    #[arg(long, conflicts_with_all = ["names", "files"])]
    all: bool,
    /// The state to wait for
    #[arg(long = "for", value_name = "STATE", default_value = "ready")]
    state: State,
    /// How long to wait
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "30s")]
    timeout: Duration,
    #[command(flatten)]
    at: ControllerAddress,
}

/// A state of a job.
#[derive(Clone, Copy, clap::ValueEnum)]
enum State {
    /// All its switches have had it.
    #[value(alias = "condition=Ready", alias = "condition=ready")]
    Ready,
    /// All its members have joined.
    Joined,
    /// It does not exist.
    #[value(alias = "delete")]
    Deleted,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let kinds = arguments.objects.by_kind()?;
    let [(Kind::Jobs, names)] = &kinds[..] else {
        bail!(
            Exit::InvalidInput.because(
                "only jobs have these states; expected jobs, or objects such as job/train"
            )
        );
    };
    run_beside(async {
        let client = arguments.at.connect().await?;
        let mut jobs = client.jobs().await?;
        let of_names: Vec<Vec<String>> = names.iter().map(|name| named(&jobs, name)).collect();
        let unknown = (names.iter().zip(&of_names)).find(|(_, jobs)| jobs.is_empty());
        let wanted = of_names.concat();
        jobs.retain(|job| names.is_empty() || wanted.contains(&job.name));
        let bound = Bound::from(arguments.timeout);
        match (arguments.state, unknown) {
            (State::Deleted, _) => deleted(&client, &jobs, bound).await,
            (_, Some((name, _))) => {
                bail!(Exit::NotFound.because(format!("no job is named {name}")))
            }
            (State::Ready, None) => ready(&client, &mut jobs, bound).await,
            (State::Joined, None) => joined(&client, &mut jobs, bound).await,
        }?;
        Ok(ExitCode::SUCCESS)
    })
}

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

/// Waits until these jobs are ready, and updates them. Prints on standard error what is missing, when that changes, and then
/// which of the ready jobs have conditions.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with the switches that do not have them; a job was deleted, or the controller does not answer.
pub async fn ready(client: &Client, jobs: &mut [api::Job], bound: Bound) -> Result<()> {
    let mut printed = String::new();
    while let Some(job) = jobs.iter_mut().find(|job| !job.ready) {
        let missing = reasons(job);
        let (name, ready) = (job.name.clone(), document::ready(job));
        let progress = format!("job {name}: {ready} switches are ready; {missing}");
        if progress != printed {
            eprintln!("{progress}");
            printed = progress;
        }
        let late = |bound| {
            format!(
                "job {name} exists, but is not ready after {bound:?}: {missing}; the controller goes on trying, see \
                 `ultima job show {name}`"
            )
        };
        bound.pause(late).await?;
        *job = ask(client, async |client| client.job(&name).await).await?;
    }
    for job in jobs.iter() {
        if let Some(first) = job.conditions.first() {
            let (name, kind, reasons) = (&job.name, document::kind(first), reasons(job));
            eprintln!("warning: job {name} is ready, but {kind}: {reasons}");
        }
    }
    Ok(())
}

/// The elements of a job's conditions with the reasons.
fn reasons(job: &api::Job) -> String {
    let conditions = job.conditions.iter();
    let reasons = conditions.map(|it| format!("{}: {}", it.element, it.reason));
    reasons.collect::<Vec<_>>().join(", ")
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

/// Waits until these jobs do not exist. A job of the same name that is created meanwhile is another one.
///
/// # Errors
/// [`TimedOut`](Exit::TimedOut) with a job that exists; the controller does not answer.
async fn deleted(client: &Client, jobs: &[api::Job], bound: Bound) -> Result<()> {
    loop {
        let now = ask(client, Client::jobs).await?;
        let is_same =
            |one: &api::Job, other: &api::Job| (&one.name, one.uid) == (&other.name, other.uid);
        let Some(job) = (jobs.iter()).find(|job| now.iter().any(|it| is_same(it, job))) else {
            return Ok(());
        };
        let late = |bound| format!("job {}: not deleted after {bound:?}", job.name);
        bound.pause(late).await?;
    }
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

/// The problems of a job, a line each.
pub fn conditions(job: &api::Job) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let line = |it: &api::JobCondition| {
        let (kind, age) = (document::kind(it), now.saturating_sub(it.since));
        format!("{}: {kind} for {age} s: {}\n", it.element, it.reason)
    };
    job.conditions.iter().map(line).collect()
}
