//! `ultima apply`: jobs as files say, created where they are missing.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::job::{self, Gather, JobRequest, JobSpec};

use super::controller_address::ControllerAddress;
use crate::document;
use crate::exit::Exit;
use crate::output::{self, Output};

/// Creates the jobs of files that are missing, and leaves alone those that are as their files say
///
/// Applied again it changes nothing. Where a job is there and is another than its file says, nothing is done.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima apply -f jobs.yaml")]
pub struct Arguments {
    /// Jobs as for `ultima job create`, one or several documents; `-` reads standard input. May be said several times
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Only say what would be done, and what that would change on switches
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    at: ControllerAddress,
}

/// What was done about a job, as it is printed.
#[derive(Serialize)]
struct Applied {
    name: String,
    action: Action,
    /// In what the job that is there is another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differs: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Unchanged,
    Created,
    WouldBeCreated,
    Differs,
}

#[derive(Serialize)]
struct Report<'a> {
    jobs: Vec<Applied>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<document::Plan<'a>>,
}

/// Creates what is missing.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut requests = Vec::new();
    for file in &arguments.file {
        requests.extend(job::parse_all(
            &super::read_text(file)?,
            &super::name_of(file),
        )?);
    }
    let mut names = HashSet::new();
    for spec in requests.iter().flat_map(|request| request.jobs(0)) {
        if !names.insert(spec.name.clone()) {
            bail!(
                "job {} stands in the files twice; names are unique",
                spec.name
            );
        }
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(apply(arguments, &requests))
}

async fn apply(arguments: &Arguments, requests: &[JobRequest]) -> Result<ExitCode> {
    let client = Client::connect(&arguments.at.controller).await?;
    let there = client.jobs().await?;
    let (mut jobs, missing) = compare(requests, &there);
    let differs = jobs.iter().any(|job| job.action == Action::Differs);
    let mut exit = match differs {
        true => Exit::Refused,
        false => Exit::Done,
    };
    let mut plan = None;
    if arguments.dry_run {
        plan = Some(client.plan_jobs(&[], &missing).await?);
    }
    for spec in &missing {
        let action = match arguments.dry_run || differs {
            true => Action::WouldBeCreated,
            false => {
                let created = client.create_job(spec).await;
                created.with_context(|| so_far(&jobs))?;
                Action::Created
            }
        };
        jobs.push(Applied {
            name: spec.name.clone(),
            action,
            differs: Vec::new(),
        });
    }
    let plan = plan.as_ref().map(document::Plan::from);
    if plan.as_ref().is_some_and(document::Plan::is_refused) {
        exit = Exit::Refused;
    }
    let report = Report { jobs, plan };
    output::print(&arguments.output.print(&report, || report.text())?)?;
    Ok(exit.into())
}

/// What had been created before an error.
fn so_far(jobs: &[Applied]) -> String {
    let created = jobs.iter().filter(|job| job.action == Action::Created);
    let created: Vec<&str> = created.map(|job| job.name.as_str()).collect();
    match created.is_empty() {
        true => "nothing was created".to_owned(),
        false => format!("{} created, then", created.join(", ")),
    }
}

/// The jobs that are there, and those that are missing. The latter get a seed that others of their grid have.
fn compare(requests: &[JobRequest], there: &[api::Job]) -> (Vec<Applied>, Vec<JobSpec>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let named = |name: &str| there.iter().find(|job| job.name == name);
    for request in requests {
        let parts = request.jobs(0);
        let known = parts.iter().find_map(|spec| named(&spec.name));
        let seed = known.map_or_else(rand::random, |job| job.seed);
        for spec in request.jobs(seed) {
            // A job alone gets its seed from the controller.
            let Some(job) = named(&spec.name) else {
                missing.push(spec);
                continue;
            };
            let differs = differences(&spec, request.seed(), job);
            let action = match differs.is_empty() {
                true => Action::Unchanged,
                false => Action::Differs,
            };
            let name = spec.name;
            found.push(Applied {
                name,
                action,
                differs,
            });
        }
    }
    (found, missing)
}

/// In which fields a job is another than its file says.
fn differences(spec: &JobSpec, seed: Option<u64>, job: &api::Job) -> Vec<String> {
    let mut differs = Vec::new();
    let mut compare = |field: &str, is: String, wanted: String| {
        if is != wanted {
            differs.push(format!("{field} is {is}, and the file says {wanted}"));
        }
    };
    let hosts: Vec<&str> = job.members.iter().map(|it| it.host.as_str()).collect();
    let list = |hosts: &[&str]| format!("[{}]", hosts.join(", "));
    let wanted: Vec<&str> = spec.members.iter().map(String::as_str).collect();
    compare("members", list(&hosts), list(&wanted));
    let gather = |gather| match gather {
        Gather::Multicast => "multicast".to_owned(),
        Gather::Unicast => "unicast".to_owned(),
    };
    let is = match job.gather() {
        api::Gather::Unicast => Gather::Unicast,
        api::Gather::Multicast | api::Gather::Unspecified => Gather::Multicast,
    };
    compare("gather", gather(is), gather(spec.gather));
    if let Some(seed) = seed {
        compare("seed", job.seed.to_string(), seed.to_string());
    }
    let threshold = spec.loss_threshold.to_string();
    compare("loss_threshold", job.loss_threshold.to_string(), threshold);
    let weight = spec.weight.get().to_string();
    compare("weight", job.weight.to_string(), weight);
    differs
}

impl Report<'_> {
    fn text(&self) -> String {
        let line = |job: &Applied| {
            let name = &job.name;
            match job.action {
                Action::Unchanged => format!("{name}: unchanged\n"),
                Action::Created => format!("{name}: created\n"),
                Action::WouldBeCreated => format!("{name}: would be created\n"),
                Action::Differs => format!(
                    "{name}: {}; delete it first, or correct the file\n",
                    job.differs.join("; ")
                ),
            }
        };
        let plan = self.plan.as_ref().map(document::Plan::text);
        let jobs: String = self.jobs.iter().map(line).collect();
        jobs + &plan.unwrap_or_default()
    }
}
