//! `ultima fabric`: switches as they should be, and as they are.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::sleep;
use ultima_controller::client::{Client, ClientError};
use ultima_controller::fabric::{Health, WrittenFabric};
use ultima_controller::job::{self, WrittenJob};
use ultima_controller::program::Program;
use ultima_controller::routing::Routes;
use ultima_controller::{api, plan};

use super::controller_address::ControllerAddress;
use super::desired::{Resized, check_names, compare};
use super::resume::asked;
use super::{dot, refusal, wait};
use crate::document::{self, Applied};
use crate::exit::Exit;
use crate::output::{self, Output, table};
use crate::units;

/// The pause before switches that could not be put right are looked at again.
const SYNC_AGAIN: Duration = Duration::from_millis(200);

/// Checks, shows and repairs the fabric
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    at: ControllerAddress,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check a fabric's file, without a controller: its form, and whether every switch has room for it
    #[command(after_help = "Example: ultima fabric check -f topologies/leaf-spine.yaml")]
    Check {
        /// The fabric, as YAML; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Another program for the switches: the folder of what a compiler printed, or the file that p4c's BMv2 backend did
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// The P4Info of a program that is a file, in text format
        #[arg(long, value_name = "FILE", requires = "program")]
        p4info: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    Chassis(super::chassis::Options),
    Ports(super::ports::Options),
    /// Show the switches, whether the controller is connected to them, what of them is in use, and their jobs
    #[command(after_help = "Example: ultima fabric show --dot --job train | dot -Tsvg > train.svg")]
    Show {
        /// Print a drawing of switches, hosts and links for Graphviz
        #[arg(long, conflicts_with = "format")]
        dot: bool,
        /// Draw this job's tree and members, too
        #[arg(long, value_name = "NAME", requires = "dot")]
        job: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Show in what switches are not as they should be; the exit code is then 1
    #[command(after_help = "Example: ultima fabric diff -o json")]
    Diff {
        #[command(flatten)]
        output: Output,
    },
    /// Say what a change would do before it is done: nothing is written
    ///
    /// With files of jobs, what `ultima apply` of them would: which would be created, resized, or left unchanged; with a fabric's file, what
    /// starting the controller with it and the jobs that it has would: for each switch the entities that come (+) and go (-), how full it gets, the trees. Where
    /// something would be refused the exit code is the one with which applying the files would end.
    #[command(after_help = "Example: ultima fabric plan -f job.yaml --without old")]
    Plan {
        /// Jobs, one or several documents, or a fabric, as YAML; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// As if this job had been deleted before; may be said several times
        #[arg(long, value_name = "JOB")]
        without: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Move all jobs and routes off a part of the fabric, so that it can be taken away
    ///
    /// New paths are installed before old ones are removed, so nothing is lost where switches have room for both. A switch's own
    /// hosts stay on it: only what it passes on between others moves, and jobs with members there are named. Refused if a
    /// job would have no room elsewhere. The exit code is 1 if a job keeps its path because there is no other, or if a switch has
    /// not confirmed the new paths. The part stays drained until `undrain`, also after a restart with the same --state.
    #[command(after_help = "Example: ultima fabric drain spine1 --wait 10s")]
    Drain {
        /// A switch (s1), a port (s1/9), or a link between switches (s1/9-s2/9), also by one end
        part: String,
        /// Wait until all switches are known to have the new ways, so long at most
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// Let a part of the fabric be used again
    ///
    /// Routes go back to it; jobs keep the trees that they have.
    #[command(after_help = "Example: ultima fabric undrain spine1")]
    Undrain {
        /// As for `drain`
        part: String,
        /// Wait until all switches are known to have the new ways, so long at most
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// Put right at once in what switches are not as they should be, and show what it was
    ///
    /// The controller does so by itself, as often as its --audit-every says. The exit code is 1 where a switch could not
    /// be put right.
    #[command(after_help = "Example: ultima fabric sync --wait 10s")]
    Sync {
        /// Try again until all switches are right, so long at most
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
}

/// Makes one request and prints what came of it.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Chassis(options) => return super::chassis::run(options, &arguments.at),
        Command::Ports(options) => return super::ports::run(options),
        _ => {}
    }
    if let Command::Check {
        file,
        program,
        p4info,
        output,
    } = &arguments.command
    {
        let program = program.as_deref();
        let load = |program| Program::load(program, p4info.as_deref());
        return check(file, program.map(load).transpose()?, *output);
    }
    let planned = match &arguments.command {
        Command::Plan { file, without, .. } => Some(Planned::read(file, without)?),
        _ => None,
    };
    super::runtime()?.block_on(async {
        let client = Client::connect(&arguments.at.controller).await?;
        let (text, exit) = match arguments.command {
            Command::Check { .. } | Command::Chassis(_) | Command::Ports(_) => {
                unreachable!("done above")
            }
            Command::Show { dot: true, job, .. } => {
                let (switches, fabric) = (client.switches().await?, client.fabric().await?);
                let job = match &job {
                    Some(name) => Some(client.job(name).await?),
                    None => None,
                };
                (dot::draw(&switches, &fabric, job.as_ref()), Exit::Done)
            }
            Command::Show { output, .. } => {
                let (switches, jobs) = (client.switches().await?, client.jobs().await?);
                (show(&switches, &jobs, output)?, Exit::Done)
            }
            Command::Plan { output, .. } => {
                let (plan, mut jobs) = planned.expect("read above").plan(&client).await?;
                let exit = refusal::exit_of_plan(&plan, &jobs);
                refusal::mark_refused(&mut jobs, &plan);
                let plan = document::Plan::from(&plan).with(&jobs);
                (output.print(&plan, || plan.text())?, exit)
            }
            Command::Drain { part, wait, output } => {
                drain(&client, (&part, true), wait, output).await?
            }
            Command::Undrain { part, wait, output } => {
                drain(&client, (&part, false), wait, output).await?
            }
            Command::Diff { output } => {
                let switches = client.diff_fabric().await?;
                let right =
                    (switches.iter()).all(|it| it.problem.is_empty() && it.differences.is_empty());
                (differences(&switches, output)?, Exit::found(!right))
            }
            Command::Sync { wait, output } => {
                let end = Instant::now() + wait.unwrap_or_default();
                // It may be done twice: nothing comes of the second one.
                let sync = async |client: &Client| client.sync_fabric().await;
                let mut switches = match wait {
                    Some(_) => asked(&client, sync).await?,
                    None => sync(&client).await?,
                };
                let is_right = |it: &api::SwitchDiff| it.problem.is_empty();
                while !switches.iter().all(is_right) && Instant::now() < end {
                    sleep(SYNC_AGAIN).await;
                    for (all, now) in switches.iter_mut().zip(asked(&client, sync).await?) {
                        all.differences.extend(now.differences);
                        all.problem = now.problem;
                    }
                }
                let right = switches.iter().all(is_right);
                (differences(&switches, output)?, Exit::found(!right))
            }
        };
        output::print(&text)?;
        Ok(exit.into())
    })
}

/// What `ultima fabric plan` is about.
enum Planned {
    Jobs {
        delete: Vec<String>,
        wanted: Vec<WrittenJob>,
    },
    Fabric {
        text: String,
        written: Box<WrittenFabric>,
    },
}

/// By what a fabric's file is known.
#[derive(Deserialize)]
struct Probe {
    switches: Option<IgnoredAny>,
}

impl Planned {
    fn read(file: &std::path::Path, without: &[String]) -> Result<Self> {
        let (text, name) = (super::read_text(file)?, super::name_of(file));
        let probe = serde_yaml::from_str::<Probe>(&text);
        if probe.is_ok_and(|probe| probe.switches.is_some()) {
            if !without.is_empty() {
                bail!("--without goes with jobs, and {name} is a fabric; delete the jobs first");
            }
            // What is wrong with it is said with its name.
            let written = Box::new(WrittenFabric::parse(&text, &name)?);
            return Ok(Planned::Fabric { text, written });
        }
        let wanted = job::parse_all(&text, &name)?;
        check_names(&wanted)?;
        Ok(Planned::Jobs {
            delete: without.to_vec(),
            wanted,
        })
    }

    /// What it would do, and of jobs what would be done about each.
    async fn plan(
        &self,
        client: &Client,
    ) -> Result<(api::PlanResponse, Vec<Applied>), ClientError> {
        match self {
            Planned::Jobs { delete, wanted } => {
                let mut there = client.jobs().await?;
                there.retain(|job| !delete.contains(&job.name));
                let (jobs, resized, missing) = compare(wanted, &there).forecast();
                let resize = resized.iter().map(Resized::request).collect();
                let mut plan = client.plan_jobs(delete, resize, &missing).await?;
                refusal::placed_in_plan(wanted, &mut plan);
                Ok((plan, jobs))
            }
            Planned::Fabric { text, written } => {
                let plan = client.plan_fabric(text).await;
                let plan = plan.map_err(|error| refusal::of_fabric(written, error))?;
                Ok((plan, Vec::new()))
            }
        }
    }
}

async fn drain(
    client: &Client,
    (part, drained): (&str, bool),
    wait: Option<Duration>,
    output: Output,
) -> Result<(String, Exit)> {
    let mut answer = client.drain(part, drained).await?;
    if let Some(bound) = wait
        && !answer.pending_switches.is_empty()
    {
        let left = |switches: &str| format!("the new ways are not known to be on {switches}");
        wait::settled(client, &answer.pending_switches, bound, left).await?;
        answer = client.drain(part, drained).await?;
    }
    let done = document::Drained::new(answer, drained, &client.jobs().await?);
    let text = output.print(&done, || done.text())?;
    Ok((text, Exit::found(!done.is_done())))
}

fn check(file: &std::path::Path, program: Option<Program>, output: Output) -> Result<ExitCode> {
    let name = super::name_of(file);
    let written = WrittenFabric::parse(&super::read_text(file)?, &name)?;
    let fabric = &written.fabric;
    let program = program.map_or_else(|| Program::own(fabric), Ok)?;
    let routes = Routes::new(fabric, Health::default());
    for id in fabric.switch_ids() {
        plan::check_fabric(fabric, &routes, &program, id).map_err(|error| {
            let part = error.switch().map(|_| format!("switches[{}]", id.0));
            anyhow!(written.refused(part.as_deref(), error))
        })?;
        if let Some(said) = plan::uncut(fabric, program.names(), id) {
            eprintln!("warning: {said}");
        }
    }
    let checked = document::Checked::new(name, fabric);
    output::print(&output.print(&checked, || checked.text())?)?;
    Ok(Exit::Done.into())
}

fn show(switches: &[api::Switch], jobs: &[api::Job], output: Output) -> Result<String> {
    let switches: Vec<document::Switch> = switches.iter().map(Into::into).collect();
    output.print(&switches, || {
        let rows = switches.iter().map(|switch| {
            [
                switch.name.to_owned(),
                switch.target.to_owned(),
                format!("{}#{}", switch.grpc, switch.device_id),
                switch.jobs.join(","),
                switch.health.to_owned(),
                switch.state().to_owned(),
            ]
        });
        let header = ["SWITCH", "TARGET", "DEVICE", "JOBS", "HEALTH", "STATE"];
        table(header, rows) + &document::held_back_text(jobs)
    })
}

fn differences(switches: &[api::SwitchDiff], output: Output) -> Result<String> {
    let all: Vec<document::Diff> = switches.iter().map(Into::into).collect();
    output.print(&all, || all.iter().map(document::Diff::text).collect())
}
