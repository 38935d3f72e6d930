//! `ultima apply`: jobs as files say, created where they are missing and resized where their members are others.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use ultima_controller::api;
use ultima_controller::client::{Client, ClientError};
use ultima_controller::job::{self, Gather, JobRequest, JobSpec};
use ultima_controller::server::JOIN_WAIT;

use super::controller_address::ControllerAddress;
use crate::document;
use crate::exit::{Exit, HalfDone};
use crate::output::{self, Output};

/// Makes jobs what files say: creates those that are missing, resizes those that have other members, leaves alone the rest
///
/// Applied again it changes nothing. A job of which only the members are others is resized. Where anything else of a job is other than
/// its file says, nothing is done.
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
    /// Its members are on the way to be those of the file.
    Resized,
    WouldBeResized,
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
    let Compared {
        found: mut jobs,
        missing,
        resized,
    } = compare(requests, &there);
    let differs = jobs.iter().any(|job| job.action == Action::Differs);
    let mut exit = match differs {
        true => Exit::Refused,
        false => Exit::Done,
    };
    let mut plan = None;
    if arguments.dry_run {
        let resize = resized.iter().map(Resized::request).collect();
        plan = Some(client.plan_jobs(&[], resize, &missing).await?);
    }
    for job in &resized {
        let action = match arguments.dry_run || differs {
            true => Action::WouldBeResized,
            false => {
                let terms = (JOIN_WAIT, false);
                let of = (job.name.as_str(), Some(job.number));
                let resized = client.resize_job(of, &job.members, terms).await;
                resized.map_err(|error| so_far(&jobs, error))?;
                Action::Resized
            }
        };
        jobs.push(Applied {
            name: job.name.clone(),
            action,
            differs: Vec::new(),
        });
    }
    for spec in &missing {
        let action = match arguments.dry_run || differs {
            true => Action::WouldBeCreated,
            false => {
                let created = client.create_job(spec).await;
                created.map_err(|error| so_far(&jobs, error))?;
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

/// An error with what had been done before it.
fn so_far(jobs: &[Applied], error: ClientError) -> anyhow::Error {
    let is_done = |job: &&Applied| matches!(job.action, Action::Created | Action::Resized);
    let done: Vec<&str> = (jobs.iter().filter(is_done))
        .map(|job| job.name.as_str())
        .collect();
    let error = anyhow::Error::from(error);
    match done.is_empty() {
        true => error.context("nothing was done"),
        false => error.context(HalfDone(format!("{} done, then", done.join(", ")))),
    }
}

/// A job of which only the members are others.
struct Resized {
    name: String,
    /// The number of the epoch whose members the file's were compared with.
    number: u32,
    /// The file's.
    members: Vec<String>,
}

impl Resized {
    fn request(&self) -> api::ResizeJobRequest {
        api::ResizeJobRequest {
            job: self.name.clone(),
            members: self.members.clone(),
            job_id: self.number,
            ..api::ResizeJobRequest::default()
        }
    }
}

/// What files ask for against what is there.
struct Compared {
    found: Vec<Applied>,
    missing: Vec<JobSpec>,
    resized: Vec<Resized>,
}

/// Those of a grid that are missing get the seed that others of it have.
fn compare(requests: &[JobRequest], there: &[api::Job]) -> Compared {
    let mut compared = Compared {
        found: Vec::new(),
        missing: Vec::new(),
        resized: Vec::new(),
    };
    let named = |name: &str| there.iter().find(|job| job.name == name);
    for request in requests {
        let parts = request.jobs(0);
        let known = parts.iter().find_map(|spec| named(&spec.name));
        let seed = known.map_or_else(rand::random, |job| job.seed);
        // A job alone gets its seed from the controller.
        for spec in request.jobs(seed) {
            let Some(job) = named(&spec.name) else {
                compared.missing.push(spec);
                continue;
            };
            let mut differs = differences(&spec, request.seed(), job);
            let members = members(&spec, job);
            // A grid keeps its members.
            let is_alone = matches!(request, JobRequest::Job(_));
            if members.is_some() && is_alone && differs.is_empty() {
                compared.resized.push(Resized {
                    name: spec.name,
                    number: job.id,
                    members: spec.members,
                });
                continue;
            }
            differs.extend(members);
            let action = match differs.is_empty() {
                true => Action::Unchanged,
                false => Action::Differs,
            };
            let name = spec.name;
            compared.found.push(Applied {
                name,
                action,
                differs,
            });
        }
    }
    compared
}

fn differs(field: &str, is: &str, wanted: &str) -> Option<String> {
    (is != wanted).then(|| format!("{field} is {is}, and the file says {wanted}"))
}

/// In what a job's members are others than its file says, now and in the epoch that comes.
fn members(spec: &JobSpec, job: &api::Job) -> Option<String> {
    let list = |hosts: &[&str]| format!("[{}]", hosts.join(", "));
    let coming = job.next.as_ref().map_or(&job.members, |next| &next.members);
    let hosts: Vec<&str> = coming.iter().map(|it| it.host.as_str()).collect();
    let wanted: Vec<&str> = spec.members.iter().map(String::as_str).collect();
    differs("members", &list(&hosts), &list(&wanted))
}

/// In which other fields a job is another than its file says.
fn differences(spec: &JobSpec, seed: Option<u64>, job: &api::Job) -> Vec<String> {
    let gather = |gather| match gather {
        Gather::Multicast => "multicast",
        Gather::Unicast => "unicast",
    };
    let is = match job.gather() {
        api::Gather::Unicast => Gather::Unicast,
        api::Gather::Multicast | api::Gather::Unspecified => Gather::Multicast,
    };
    let number =
        |field: &str, is: u64, wanted: u64| differs(field, &is.to_string(), &wanted.to_string());
    let (threshold, weight) = (spec.loss_threshold.into(), spec.weight.get().into());
    let all = [
        differs("gather", gather(is), gather(spec.gather)),
        seed.and_then(|seed| number("seed", job.seed, seed)),
        number("loss_threshold", job.loss_threshold.into(), threshold),
        number("weight", job.weight.into(), weight),
        number(
            "evict_after_s",
            job.evict_after_s.into(),
            spec.eviction.seconds().into(),
        ),
    ];
    all.into_iter().flatten().collect()
}

impl Report<'_> {
    fn text(&self) -> String {
        let line = |job: &Applied| {
            let name = &job.name;
            match job.action {
                Action::Unchanged => format!("{name}: unchanged\n"),
                Action::Created => format!("{name}: created\n"),
                Action::WouldBeCreated => format!("{name}: would be created\n"),
                Action::Resized => format!("{name}: resized, as soon as newcomers have joined\n"),
                Action::WouldBeResized => format!("{name}: would be resized\n"),
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
