//! `ultima fabric`: the desired and the actual state of the switches.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use ultima_console::input::{self, File};

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::sleep;
use ultima_api::client::{Client, ClientError};
use ultima_api::document::{self, Applied};
use ultima_api::v1 as api;
use ultima_planner::fabric::{Health, WrittenFabric};
use ultima_planner::job::{self, WrittenJob};
use ultima_planner::plan;
use ultima_planner::program::Program;
use ultima_planner::routing::Routes;

use super::desired::{check_names, compare};
use super::jobs_of::named;
use super::resume::asked;
use super::wait::{self, Bound};
use super::{dot, outcome, refusal};
use crate::controller_address::ControllerAddress;
use crate::exit::{Exit, InputErrors as _};
use crate::listing::listing;
use crate::text::{self, Text};
use crate::which::Kind;
use ultima_console::output::{self, Output};
use ultima_console::units;

/// The pause before `sync --wait` tries again.
const SYNC_RETRY: Duration = Duration::from_millis(200);

/// Check, show, drain and repair the fabric
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima fabric show\n  \
    ultima fabric drain spine1 --wait 10s")]
pub struct Arguments {
    #[command(flatten)]
    at: ControllerAddress,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Validate a fabric file without a controller
    ///
    /// Checks the file's form, and that the routes and hosts fit into the tables of every switch. The number of links includes those
    /// to hosts.
    #[command(after_help = "Example: ultima fabric check topologies/leaf-spine.yaml")]
    Check {
        #[command(flatten)]
        file: File,
        /// P4 program for the switches: the JSON file of p4c's BMv2 backend, or the output folder of another compiler [default:
        /// Ultima's program for the switch's target]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// P4Info of a program that is a JSON file, in text format
        #[arg(long, value_name = "FILE", requires = "program")]
        p4info: Option<PathBuf>,
        /// Takes the place of the option of all other commands, and rejects every value.
        #[arg(long, hide = true, value_name = "ADDR", value_parser = no_controller)]
        controller: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    Chassis(super::chassis::Options),
    Ports(super::ports::Options),
    /// Show the switches, as `get switches -o wide`, and the jobs that cannot be rerouted
    #[command(after_help = "Examples:\n  \
        ultima fabric show\n  \
        ultima fabric show --dot --job train | dot -Tsvg > train.svg")]
    Show {
        /// Print switches, hosts and links as a Graphviz graph
        #[arg(long, conflicts_with = "format")]
        dot: bool,
        /// Highlight the tree and the members of this job
        #[arg(long, value_name = "NAME", requires = "dot", add = crate::names::jobs(), value_parser = crate::names::job)]
        job: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Show drift: entries on switches that differ from the desired state
    ///
    /// Prints `-` before the actual value of an entry and `+` before the desired one. The exit code is 1 if there is drift.
    #[command(after_help = "Examples:\n  \
        ultima fabric diff\n  \
        ultima fabric diff -o json")]
    Diff {
        #[command(flatten)]
        output: Output,
    },
    /// Show what a change would do, and change nothing
    ///
    /// For a file of jobs, plans `ultima apply`; for a fabric file, a restart of the controller with this file and its
    /// current jobs. Prints for each job the action and the tree, and for each switch the entries that are removed (-) and
    /// added (+) and the table usage. If the change would be rejected, the exit code is that of the real command.
    #[command(after_help = "Examples:\n  \
        ultima fabric plan job.yaml --without old\n  \
        ultima fabric plan new-fabric.yaml")]
    Plan {
        #[command(flatten)]
        file: File,
        /// Assume that this job, or this grid's jobs, are deleted first. Repeatable
        #[arg(long, value_name = "JOB", add = crate::names::jobs(), value_parser = crate::names::job)]
        without: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Reroute all jobs and routes around a switch, port or link, for maintenance
    ///
    /// Installs the new routes before it removes the old ones, so that no packet is lost if the switches have room for both.
    /// A drained switch still serves its own hosts, and the command names the jobs with members there. The command is
    /// rejected if a job does not fit elsewhere. The element stays drained until `undrain`, also after a restart of the
    /// controller with the same --state.
    ///
    /// The exit code is 1 if a job still uses the element, because it has members there or there is no other path, or if a
    /// switch has not confirmed the new routes: read the output before you disconnect anything.
    #[command(after_help = "Examples:\n  \
        ultima fabric drain spine1 --wait 10s\n  \
        ultima fabric drain leaf1/9-spine1/1")]
    Drain {
        /// Switch (s1), port (s1/9), or link between switches (s1/9-s2/9, or one of its ports)
        #[arg(add = crate::names::elements(), value_parser = crate::names::element)]
        element: String,
        /// Wait at most TIME, such as 10s, until all switches have confirmed the new routes [default: do not wait]
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// Use a drained switch, port or link again
    ///
    /// Routes return to it; existing jobs keep their current trees.
    #[command(after_help = "Example: ultima fabric undrain spine1")]
    Undrain {
        /// Switch, port or link, as for `drain`
        #[arg(add = crate::names::elements(), value_parser = crate::names::element)]
        element: String,
        /// Wait at most TIME, such as 10s, until all switches have confirmed the new routes [default: do not wait]
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
    /// Repair drift on all switches now, and show what was repaired
    ///
    /// The controller also repairs drift by itself, at the interval `--audit-every`. The exit code is 1 if a switch could
    /// not be repaired.
    #[command(after_help = "Example: ultima fabric sync --wait 10s")]
    Sync {
        /// Retry for at most TIME, such as 10s, until all switches are in sync [default: try once]
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        output: Output,
    },
}

/// Rejects `--controller`.
fn no_controller(_: &str) -> Result<String, String> {
    Err("`fabric check` asks no controller; `fabric plan` does".into())
}

/// Runs the command.
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
        ..
    } = &arguments.command
    {
        let program = program.as_deref();
        let load = |program| Program::load(program, p4info.as_deref());
        let program = program.map(load).transpose().input()?;
        return check(file.path(), program, *output).input();
    }
    let planned = match &arguments.command {
        Command::Plan { file, without, .. } => Some(Planned::read(file.path(), without).input()?),
        _ => None,
    };
    crate::runtime::runtime()?.block_on(async {
        let client = match arguments.command {
            Command::Show { .. } => arguments.at.connect_to_read().await?,
            _ => arguments.at.connect().await?,
        };
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
                (dot::draw(&switches, &fabric, job.as_ref()), Exit::Success)
            }
            Command::Show { output, .. } => {
                let switches = listing(&client, Kind::Switches).await?;
                let documents: Vec<_> = switches.rows.iter().map(|row| &row.document).collect();
                let table = switches.table(true)?;
                let jobs = text::not_rerouted(&client.jobs().await?);
                (output.print(&documents, || table + &jobs)?, Exit::Success)
            }
            Command::Plan { output, .. } => {
                let (plan, mut jobs) = planned.expect("read above").plan(&client).await?;
                let exit = outcome::exit_of_plan(&plan, &jobs);
                outcome::mark_rejected(&mut jobs, &plan);
                let plan = document::Plan::from(&plan).with(&jobs);
                (output.print(&plan, || plan.text())?, exit)
            }
            Command::Drain {
                element,
                wait,
                output,
            } => drain(&client, (&element, true), wait, output).await?,
            Command::Undrain {
                element,
                wait,
                output,
            } => drain(&client, (&element, false), wait, output).await?,
            Command::Diff { output } => {
                let switches = client.diff_fabric().await?;
                let in_sync =
                    (switches.iter()).all(|it| it.problem.is_empty() && it.differences.is_empty());
                (differences(&switches, output)?, Exit::failure_if(!in_sync))
            }
            Command::Sync { wait, output } => {
                let end = Instant::now() + wait.unwrap_or_default();
                // A sync may be repeated safely: a second one changes nothing.
                let sync = async |client: &Client| client.sync_fabric().await;
                let mut switches = match wait {
                    Some(_) => asked(&client, sync).await?,
                    None => sync(&client).await?,
                };
                // Not a retry of a failed request: each answer adds to the result.
                let is_repaired = |it: &api::SwitchDiff| it.problem.is_empty();
                while !switches.iter().all(is_repaired) && Instant::now() < end {
                    sleep(SYNC_RETRY).await;
                    for (all, latest) in switches.iter_mut().zip(asked(&client, sync).await?) {
                        all.differences.extend(latest.differences);
                        all.problem = latest.problem;
                    }
                }
                let repaired = switches.iter().all(is_repaired);
                (differences(&switches, output)?, Exit::failure_if(!repaired))
            }
        };
        output::print(&text)?;
        Ok(exit.into())
    })
}

/// The change that `ultima fabric plan` plans.
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

/// Tells a fabric file, which has `switches`, from a file of jobs.
#[derive(Deserialize)]
struct Probe {
    switches: Option<IgnoredAny>,
}

impl Planned {
    fn read(file: &std::path::Path, without: &[String]) -> Result<Self> {
        let (text, name) = (input::read_text(file)?, input::name_of(file));
        let probe = serde_yaml::from_str::<Probe>(&text);
        if probe.is_ok_and(|probe| probe.switches.is_some()) {
            if !without.is_empty() {
                bail!(
                    "--without applies to a file of jobs, but {name} is a fabric; delete the jobs first"
                );
            }
            // A local check, whose errors name the file.
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

    /// Asks the controller for the plan; for jobs, also returns the action for each.
    async fn plan(
        &self,
        client: &Client,
    ) -> Result<(api::PlanResponse, Vec<Applied>), ClientError> {
        match self {
            Planned::Jobs { delete, wanted } => {
                let mut existing = client.jobs().await?;
                let of_name = |name: &String| match named(&existing, name) {
                    // The controller reports an unknown name.
                    none if none.is_empty() => vec![name.clone()],
                    jobs => jobs,
                };
                let delete: Vec<String> = delete.iter().flat_map(of_name).collect();
                existing.retain(|job| !delete.contains(&job.name));
                let compared = compare(wanted, &existing);
                let jobs = compared.forecast();
                let mut plan = client.plan_jobs(compared.plan(&delete)).await?;
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
    (element, drained): (&str, bool),
    wait: Option<Duration>,
    output: Output,
) -> Result<(String, Exit)> {
    let wait = wait.map(Bound::from);
    let mut answer = client.drain(element, drained).await?;
    if let Some(bound) = wait
        && !answer.pending_switches.is_empty()
    {
        let left = |switches: &str| format!("new routes are not confirmed by {switches}");
        wait::settled(client, &answer.pending_switches, bound, left).await?;
        answer = client.drain(element, drained).await?;
    }
    let done = document::Drained::new(answer, drained, &client.jobs().await?);
    let text = output.print(&done, || done.text())?;
    Ok((text, Exit::failure_if(!done.is_done())))
}

fn check(file: &std::path::Path, program: Option<Program>, output: Output) -> Result<ExitCode> {
    let name = input::name_of(file);
    let written = WrittenFabric::parse(&input::read_text(file)?, &name)?;
    let fabric = &written.fabric;
    let program = program.map_or_else(|| Program::own(fabric), Ok)?;
    let routes = Routes::new(fabric, Health::default());
    for id in fabric.switch_ids() {
        plan::check_fabric(fabric, &routes, &program, id).map_err(|error| {
            let part = (error.switch.as_ref()).map(|_| format!("switches[{}]", id.0));
            anyhow!(written.refused(part.as_deref(), error))
        })?;
        if let Some(warning) = plan::uncut(fabric, program.names(), id) {
            eprintln!("warning: {warning}");
        }
    }
    let checked = text::Checked::new(name, fabric);
    output::print(&output.print(&checked, || checked.text())?)?;
    Ok(Exit::Success.into())
}

fn differences(switches: &[api::SwitchDiff], output: Output) -> Result<String> {
    let all: Vec<document::Diff> = switches.iter().map(Into::into).collect();
    output.print(&all, || all.iter().map(Text::text).collect())
}
