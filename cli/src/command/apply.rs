//! `ultima apply`: jobs as files say, created where they are missing and resized where their members are others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use ultima_console::input;

use anyhow::{Result, bail};
use serde::Serialize;
use ultima_controller::client::{Client, ClientError};
use ultima_controller::job::{self, WrittenJob};
use ultima_controller::server::JOIN_WAIT;

use super::controller_address::ControllerAddress;
use super::creation;
use super::desired::{Compared, Resized, compare};
use super::{refusal, wait};
use crate::document::{self, Action, Applied};
use crate::exit::{Exit, HalfDone};
use ultima_console::output::{self, Output};
use ultima_console::units;

/// Makes jobs what files say: creates those that are missing, resizes those that have other members, leaves alone the rest
///
/// Applied again it changes nothing. A job of which only the members are others is resized. Where anything else of a job is other than
/// its file says, nothing is done.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        ultima apply -f jobs.yaml\n  \
        ultima apply -f jobs.yaml --wait 120s")]
pub struct Arguments {
    /// Jobs as for `ultima job create`, one or several documents; `-` reads standard input. May be said several times
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Only say what would be done, and what that would change on switches; the exit code is the one that it would end with
    #[arg(long)]
    dry_run: bool,
    /// When it is done, wait until all members of jobs that were created have joined, and jobs that were resized have their new members, so
    /// long at most
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "dry_run")]
    wait: Option<Duration>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    at: ControllerAddress,
}

#[derive(Serialize)]
struct Report<'a> {
    jobs: Vec<Applied>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<document::Plan<'a>>,
}

/// Creates what is missing.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut written = Vec::new();
    for file in &arguments.file {
        let (text, name) = (input::read_text(file)?, input::name_of(file));
        written.extend(job::parse_all(&text, &name)?);
    }
    super::desired::check_names(&written)?;
    super::runtime()?.block_on(apply(arguments, &written))
}

async fn apply(arguments: &Arguments, written: &[WrittenJob]) -> Result<ExitCode> {
    let client = Client::connect(&arguments.at.controller).await?;
    let compared = compare(written, &client.jobs().await?);
    let print = |jobs, plan| {
        let report = Report { jobs, plan };
        output::print(&arguments.output.print(&report, || report.text())?)?;
        anyhow::Ok(())
    };
    if arguments.dry_run {
        let (mut jobs, resized, missing) = compared.forecast();
        let resize = resized.iter().map(Resized::request).collect();
        let mut plan = client.plan_jobs(&[], resize, &missing).await?;
        refusal::placed_in_plan(written, &mut plan);
        let exit = refusal::exit_of_plan(&plan, &jobs);
        refusal::mark_refused(&mut jobs, &plan);
        print(jobs, Some(document::Plan::from(&plan)))?;
        return Ok(exit.into());
    }
    let differ = compared
        .found
        .iter()
        .filter_map(|job| Some(format!("{}: {}", job.name, job.refusal()?)));
    let differ: Vec<String> = differ.collect();
    if let [first, others @ ..] = &differ[..] {
        let others = match others.len() {
            0 => String::new(),
            others => format!("; so do {others} more"),
        };
        print(compared.forecast().0, None)?;
        bail!(Exit::Refused.because(format!("nothing was done: {first}{others}")));
    }
    let Compared {
        found: mut jobs,
        missing,
        resized,
    } = compared;
    for job in &resized {
        let of = (job.name.as_str(), Some(job.number));
        let resized = client.resize_job(of, &job.members, (JOIN_WAIT, false));
        resized.await.map_err(|error| {
            let error = refusal::placed(written, &job.name, error);
            so_far(&jobs, error.into())
        })?;
        jobs.push(Applied::new(&job.name, Action::Resized));
    }
    let created = creation::create(&client, written, &missing).await;
    let created = created.map_err(|error| so_far(&jobs, error))?;
    jobs.extend((created.iter()).map(|job| Applied::new(&job.name, Action::Created)));
    print(jobs, None)?;
    if let Some(bound) = arguments.wait {
        let bound = wait::Bound::from(bound);
        let resized = resized.iter().map(|job| (job.name.as_str(), job.number));
        wait::changed(&client, &resized.collect::<Vec<_>>(), bound).await?;
        wait::joined(&client, created, bound).await?;
    }
    Ok(Exit::Done.into())
}

/// An error with what had been done before it.
fn so_far(jobs: &[Applied], error: anyhow::Error) -> anyhow::Error {
    let is_done = |job: &&Applied| matches!(job.action, Action::Created | Action::Resized);
    let done: Vec<&str> = (jobs.iter().filter(is_done))
        .map(|job| job.name.as_str())
        .collect();
    let may_be_done = error
        .downcast_ref::<ClientError>()
        .is_some_and(ClientError::may_be_done);
    match done.is_empty() {
        // What is known of it the error says.
        true if may_be_done => error,
        true => error.context("nothing was done"),
        false => error.context(HalfDone(format!("{} done, then", done.join(", ")))),
    }
}

impl Report<'_> {
    fn text(&self) -> String {
        let line = |job: &Applied| {
            let refusal = job.refusal();
            let said = refusal.as_deref().unwrap_or(job.action.text());
            format!("{}: {said}\n", job.name)
        };
        let plan = self.plan.as_ref().map(document::Plan::text);
        let jobs: String = self.jobs.iter().map(line).collect();
        jobs + &plan.unwrap_or_default()
    }
}
