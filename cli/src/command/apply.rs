//! `ultima apply`: creates, changes and deletes jobs to match files.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use ultima_api::client::Client;
use ultima_api::document::{self, Action, Applied};
use ultima_controller::server::JOIN_WAIT;
use ultima_planner::job::WrittenJob;

use super::creation;
use super::desired::{self, Compared, compare};
use super::wait::{self, Bound};
use super::{deletion, outcome, refusal, resume};
use crate::controller_address::ControllerAddress;
use crate::exit::Exit;
use crate::text::Text;
use ultima_console::output::{self, Output};
use ultima_console::units;

/// Create or change jobs to match their files
///
/// Creates jobs that do not exist. Changes members, weight, loss_threshold and evict_after_s of existing jobs, while they run.
/// Jobs that match their file stay unchanged, so a second run does nothing. If gather, seed or sealed of an existing job differs,
/// or the members of a grid, the command names the field, leaves this job alone, and ends with exit code 1, or 5 if it changed no
/// other job: delete the job first, or correct the file.
///
/// With `--prune`, jobs that no file names are deleted first, after a check that the others fit then and can be changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        ultima apply -f jobs.yaml\n  \
        ultima apply -f jobs.yaml --prune --dry-run\n  \
        ultima apply -f jobs.yaml --wait 120s")]
pub struct Arguments {
    /// YAML file with one or more jobs, as for `ultima job create`, or a folder of such files; `-` reads standard input.
    /// Repeatable; `FILE` alone is the same
    #[arg(short, long, value_name = "FILE", required_unless_present = "words")]
    file: Vec<PathBuf>,
    #[arg(value_name = "FILE", hide = true)]
    words: Vec<PathBuf>,
    /// Also delete all jobs of the controller that no file names. Changes nothing if a job differs in a field that cannot change
    #[arg(long)]
    prune: bool,
    /// Print the actions and the changes on switches, and change nothing. The exit code is that of the real run
    #[arg(long)]
    dry_run: bool,
    /// Wait at most TIME, such as 120s, until all members of created jobs have joined and resized jobs run with their new
    /// members; 0: do not wait for switches either [default: wait at most 10s until created jobs are ready]
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

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let written = desired::read(&[&arguments.file[..], &arguments.words].concat())?;
    desired::check_names(&written)?;
    crate::runtime::runtime()?.block_on(apply(arguments, &written))
}

async fn apply(arguments: &Arguments, written: &[WrittenJob]) -> Result<ExitCode> {
    let bound = arguments.wait.map(Bound::from);
    let client = arguments.at.connect().await?;
    let existing = client.jobs().await?;
    let compared = compare(written, &existing);
    let named: HashSet<String> = (written.iter()).flat_map(|it| it.request.names()).collect();
    let pruned = existing.into_iter().map(|job| job.name);
    let pruned: Vec<String> = pruned
        .filter(|name| arguments.prune && !named.contains(name))
        .collect();
    let print = |jobs, plan| {
        let report = Report { jobs, plan };
        output::print(&arguments.output.print(&report, || report.text())?)?;
        anyhow::Ok(())
    };
    if arguments.dry_run {
        let mut jobs = compared.forecast();
        let mut plan = client.plan_jobs(compared.plan(&pruned)).await?;
        refusal::placed_in_plan(written, &mut plan);
        let deleted = pruned.iter();
        jobs.extend(deleted.map(|name| Applied::new(name, Action::WouldBeDeleted)));
        let exit = outcome::exit_of_plan(&plan, &jobs);
        outcome::mark_rejected(&mut jobs, &plan);
        print(jobs, Some(document::Plan::from(&plan)))?;
        return Ok(exit.into());
    }
    let mut jobs = compared.found.clone();
    if !pruned.is_empty() {
        if let Err(error) = outcome::check_differences(&jobs) {
            print(jobs, None)?;
            return Err(error
                .context("nothing was changed: --prune deletes jobs only where all others match"));
        }
        let mut plan = client.plan_jobs(compared.plan(&pruned)).await?;
        refusal::placed_in_plan(written, &mut plan);
        outcome::check_plan(&plan).map_err(|error| outcome::failed(&jobs, error))?;
        let deleted = deletion::delete(&client, &pruned, None).await?;
        jobs.extend(deleted.into_iter().map(|job| Applied {
            pending_switches: job.pending_switches,
            ..Applied::new(&job.name, Action::Deleted)
        }));
    }
    let Compared {
        changed, missing, ..
    } = compared;
    for job in &changed {
        if let Some(update) = &job.update {
            let ask = async |client: &Client| client.update_job(update.clone()).await;
            let updated = resume::asked(&client, ask).await;
            updated.map_err(|error| outcome::failed(&jobs, error))?;
        }
        if let Some(members) = &job.members {
            let (name, number) = (&job.name, Some(job.number));
            let resized = client.resize_job(name, number, members, JOIN_WAIT, false);
            resized.await.map_err(|error| {
                let error = refusal::placed(written, &job.name, error);
                let updated = job.update.iter().map(|_| job.applied(true));
                jobs.extend(updated);
                outcome::failed(&jobs, error)
            })?;
        }
        jobs.push(job.applied(true));
    }
    let created = creation::create(&client, written, &missing, bound).await;
    let mut created = created.map_err(|error| outcome::failed(&jobs, error))?;
    jobs.extend((created.iter()).map(|job| Applied::new(&job.name, Action::Created)));
    let differences = outcome::check_differences(&jobs);
    let differences = differences.map_err(|error| outcome::failed(&jobs, error));
    print(jobs, None)?;
    let waited = async {
        creation::ready(&client, &mut created, bound).await?;
        if let Some(bound) = bound.filter(|bound| !bound.limit.is_zero()) {
            let resized = changed.iter().filter(|job| job.members.is_some());
            let resized = resized.map(|job| (job.name.as_str(), job.number));
            wait::changed(&client, &resized.collect::<Vec<_>>(), bound).await?;
            wait::joined(&client, &mut created, bound).await?;
        }
        anyhow::Ok(())
    };
    match (waited.await, differences) {
        (Err(error), Err(differences)) => Err(error.context(format!("{differences:#}"))),
        (waited, differences) => waited.and(differences).map(|()| Exit::Success.into()),
    }
}

impl Report<'_> {
    fn text(&self) -> String {
        let line = |job: &Applied| {
            let rejection = job.rejection();
            let text = rejection.unwrap_or_else(|| job.text());
            format!("{}: {text}\n", job.name)
        };
        let plan = self.plan.as_ref().map(Text::text);
        let jobs: String = self.jobs.iter().map(line).collect();
        jobs + &plan.unwrap_or_default()
    }
}
