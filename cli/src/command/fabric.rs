//! `ultima fabric`: switches as they should be, and as they are.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use ultima_controller::client::Client;
use ultima_controller::fabric::Health;
use ultima_controller::program::{Program, ProgramError};
use ultima_controller::routing::Routes;
use ultima_controller::{api, fabric, plan};

use super::controller_address::ControllerAddress;
use crate::output::{self, Format, table};

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
    },
    Chassis(super::chassis::Options),
    Ports(super::ports::Options),
    /// Show the switches, whether the controller is connected to them, what of them is in use, and their jobs
    #[command(after_help = "Example: ultima fabric show -o yaml")]
    Show {
        /// How it is printed
        #[arg(short, long, value_name = "FORMAT", default_value_t)]
        output: Format,
    },
    /// Show in what switches are not as they should be; the exit code is then 1
    #[command(after_help = "Example: ultima fabric diff -o json")]
    Diff {
        /// How it is printed
        #[arg(short, long, value_name = "FORMAT", default_value_t)]
        output: Format,
    },
    /// Move all jobs and routes off a part of the fabric, so that it can be taken away
    ///
    /// Nothing is lost by it: the new ways are there before the old ones are taken. Of a switch with hosts that is what it passes on
    /// between others; where there is no other way, what uses the part stays. It stays drained until `undrain`, also when
    /// the controller is started again with the same --state.
    #[command(after_help = "Example: ultima fabric drain spine1")]
    Drain {
        /// A switch (s1), a port (s1/9), or a link between switches (s1/9-s2/9), also by one end
        part: String,
    },
    /// Let a part of the fabric be used again
    ///
    /// Routes go back to it; jobs keep the trees that they have.
    #[command(after_help = "Example: ultima fabric undrain spine1")]
    Undrain {
        /// As for `drain`
        part: String,
    },
    /// Put right at once in what switches are not as they should be, and show what it was
    ///
    /// The controller does so by itself, as often as its --audit-every says. The exit code is 1 where a switch could not
    /// be put right.
    #[command(after_help = "Example: ultima fabric sync")]
    Sync {
        /// How it is printed
        #[arg(short, long, value_name = "FORMAT", default_value_t)]
        output: Format,
    },
}

/// Makes one request and prints what came of it.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Chassis(options) => return super::chassis::run(options),
        Command::Ports(options) => return super::ports::run(options),
        _ => {}
    }
    if let Command::Check {
        file,
        program,
        p4info,
    } = &arguments.command
    {
        let program = program.as_deref();
        let load = |program| Program::load(program, p4info.as_deref());
        return check(file, program.map(load).transpose()?);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let client = Client::connect(&arguments.at.controller).await?;
            let (text, code) = match arguments.command {
                Command::Check { .. } | Command::Chassis(_) | Command::Ports(_) => {
                    unreachable!("done above")
                }
                Command::Show { output } => {
                    let (switches, jobs) = (client.switches().await?, client.jobs().await?);
                    (show(&switches, &jobs, output)?, 0)
                }
                Command::Drain { part } => {
                    let part = client.drain(&part, true).await?;
                    let jobs = client.jobs().await?;
                    (format!("drained {part}\n{}", held_back(&jobs)), 0)
                }
                Command::Undrain { part } => (
                    format!("{} is in use\n", client.drain(&part, false).await?),
                    0,
                ),
                Command::Diff { output } => {
                    let switches = client.diff_fabric().await?;
                    let right = (switches.iter())
                        .all(|it| it.problem.is_empty() && it.differences.is_empty());
                    (differences(&switches, output)?, u8::from(!right))
                }
                Command::Sync { output } => {
                    let switches = client.sync_fabric().await?;
                    let right = switches.iter().all(|it| it.problem.is_empty());
                    (differences(&switches, output)?, u8::from(!right))
                }
            };
            output::print(&text)?;
            Ok(ExitCode::from(code))
        })
}

fn check(file: &std::path::Path, program: Option<Program>) -> Result<ExitCode> {
    let fabric = fabric::parse(&super::read_text(file)?, &super::name_of(file))?;
    let (program, unchecked) = match program.map_or_else(|| Program::own(&fabric), Ok) {
        Ok(program) => (Some(program), String::new()),
        Err(error @ ProgramError::NotBuiltIn { .. }) => (
            None,
            format!("; whether its tables hold that is not checked: {error}"),
        ),
        Err(error) => return Err(error.into()),
    };
    if let Some(program) = program {
        let routes = Routes::new(&fabric, Health::default());
        for id in fabric.switch_ids() {
            plan::check_fabric(&fabric, &routes, &program, id)?;
        }
    }
    output::print(&format!(
        "{}: {} switches, {} hosts, {} links{unchecked}\n",
        super::name_of(file),
        fabric.switches().len(),
        fabric.hosts().len(),
        fabric.links().len(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A switch as it is printed.
#[derive(Serialize)]
struct SwitchDocument<'a> {
    name: &'a str,
    target: &'a str,
    grpc: &'a str,
    device_id: u64,
    connected: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    problem: &'a str,
    health: &'a str,
    jobs: &'a [String],
}

/// How a switch's parts are.
fn health(switch: &api::Switch) -> &str {
    match switch.health.as_str() {
        "" => "up",
        health => health,
    }
}

/// Jobs that could not be moved off what is down or drained, a line each.
fn held_back(jobs: &[api::Job]) -> String {
    let mut text = String::new();
    for job in jobs {
        let cut_off = job.members.iter().filter(|member| member.cut_off);
        let cut_off: Vec<String> = cut_off
            .map(|member| format!("rank {} on {}", member.rank, member.host))
            .collect();
        if !cut_off.is_empty() {
            let cut_off = cut_off.join(", ");
            text += &format!(
                "job {} keeps its ways, as no others lead to {cut_off}\n",
                job.name
            );
        }
        if !job.stays.is_empty() {
            text += &format!("job {} keeps its ways: {}\n", job.name, job.stays);
        }
    }
    text
}

fn show(switches: &[api::Switch], jobs: &[api::Job], format: Format) -> Result<String> {
    let documents = switches.iter().map(|switch| SwitchDocument {
        name: &switch.name,
        target: &switch.target,
        grpc: &switch.grpc,
        device_id: switch.device_id,
        connected: switch.connected,
        problem: &switch.problem,
        health: health(switch),
        jobs: &switch.jobs,
    });
    let documents: Vec<SwitchDocument> = documents.collect();
    format.print(&documents, || {
        let rows = switches.iter().map(|switch| {
            let state = match switch.connected {
                true => "connected".to_owned(),
                false => switch.problem.clone(),
            };
            [
                switch.name.clone(),
                switch.target.clone(),
                format!("{}#{}", switch.grpc, switch.device_id),
                switch.jobs.join(","),
                health(switch).to_owned(),
                state,
            ]
        });
        let header = ["SWITCH", "TARGET", "DEVICE", "JOBS", "HEALTH", "STATE"];
        table(header, rows) + &held_back(jobs)
    })
}

/// What is not right at a switch, as it is printed.
#[derive(Serialize)]
struct DiffDocument<'a> {
    switch: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    problem: &'a str,
    differences: Vec<DifferenceDocument<'a>>,
}

#[derive(Serialize)]
struct DifferenceDocument<'a> {
    entity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<&'a str>,
}

fn differences(switches: &[api::SwitchDiff], format: Format) -> Result<String> {
    let documents = switches.iter().map(|switch| {
        let differences = switch.differences.iter();
        DiffDocument {
            switch: &switch.switch,
            problem: &switch.problem,
            differences: (differences.map(|it| DifferenceDocument {
                entity: &it.entity,
                held: it.held.as_deref(),
                wanted: it.wanted.as_deref(),
            }))
            .collect(),
        }
    });
    let documents: Vec<DiffDocument> = documents.collect();
    format.print(&documents, || text(&documents))
}

/// As `diff` has it: what is there and should not be after `-`, what should and is not after `+`.
fn text(switches: &[DiffDocument]) -> String {
    let mut text = String::new();
    for switch in switches {
        match (switch.problem, switch.differences.len()) {
            ("", 0) => text += &format!("{}: as it should be\n", switch.switch),
            ("", 1) => text += &format!("{}: 1 difference\n", switch.switch),
            ("", count) => text += &format!("{}: {count} differences\n", switch.switch),
            (problem, _) => text += &format!("{}: {problem}\n", switch.switch),
        }
        for difference in &switch.differences {
            for (sign, value) in [('-', difference.held), ('+', difference.wanted)] {
                if let Some(value) = value {
                    text += &format!("{sign} {}: {value}\n", difference.entity);
                }
            }
        }
    }
    text
}
