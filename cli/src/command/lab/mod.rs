//! `ultima lab`: runs a fabric on this machine, with a network namespace for each host.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, ExitCode};
use std::{env, io};
use ultima_console::input::{self, File};

use anyhow::{Context, Result};
use ultima_lab::{Cancel, LabError, LabName, Plan, Programs, SwitchKind};
use ultima_planner::fabric;

mod show;
mod traffic;

pub use traffic::{Arguments as TrafficArguments, run as run_traffic};

use crate::controller_address;
use crate::exit::{Exit, InputErrors as _};
use crate::names;
use ultima_console::output::{self, Output};

/// Run a fabric on this machine, with a network namespace for each host
///
/// Programs on the hosts use the kernel's sockets, as on real machines. Labs need root and iproute2.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima lab up topologies/star4.yaml\n  \
    ultima lab exec h1 -- ping -c 3 h2\n  \
    ultima lab down star4")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Up(Up),
    /// Show the processes, hosts and wires of labs; the exit code is 1 if a process or namespace is missing
    #[command(after_help = "Examples:\n  \
        ultima lab status\n  \
        ultima lab status star4 -o json")]
    Status {
        /// Name of the lab [default: all labs]
        #[arg(add = names::labs())]
        name: Option<LabName>,
        #[command(flatten)]
        output: Output,
    },
    Exec(Exec),
    /// Stop a lab: end its processes and delete its namespaces and interfaces
    #[command(after_help = "Example: ultima lab down star4")]
    Down {
        /// Name of the lab; optional if there is only one
        #[arg(add = names::labs())]
        name: Option<LabName>,
    },
    /// Show the lab that a fabric file describes, with all defaults, and start nothing
    ///
    /// The table lists the hosts and the impaired links; JSON and YAML contain everything.
    #[command(after_help = "Example: ultima lab plan topologies/star4.yaml -o json")]
    Plan {
        #[command(flatten)]
        file: File,
        /// Name of the lab [default: the name of the file without .yaml; `lab` for standard input]
        #[arg(long)]
        name: Option<LabName>,
        #[command(flatten)]
        output: Output,
    },
}

/// Start a lab: namespaces, links, switches, the controller, and the fabric's background traffic
///
/// The lab runs in the background until `ultima lab down`. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima lab up topologies/star4.yaml\n  \
    ultima lab up topologies/dumbbell.yaml --switch bmv2 --name slow")]
struct Up {
    #[command(flatten)]
    file: File,
    /// Switch to run: embedded (this program) or bmv2 (simple_switch_grpc, which must be on the PATH)
    #[arg(long, value_name = "KIND", default_value_t = SwitchKind::Embedded)]
    switch: SwitchKind,
    /// Name of the lab [default: the name of the file without .yaml; `lab` for standard input]
    #[arg(long)]
    name: Option<LabName>,
}

/// Run a command on a host or switch of a lab; the exit code is that of the command
///
/// The environment variable ULTIMA_CONTROLLER has the controller's address. The hostname is the name of the host, and
/// the names of the other hosts resolve to their addresses.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima lab exec h1 -- ping -c 3 h2\n  \
    ultima lab exec --name star4 s1 -- ultima switch tm show --grpc 127.0.0.1:9559")]
struct Exec {
    /// Name of the lab; optional if there is only one
    #[arg(long, add = names::labs())]
    name: Option<LabName>,
    /// Name of the host or switch
    #[arg(add = names::nodes())]
    host: String,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Up(arguments) => return up(&arguments),
        Command::Status { name, output } => return status(name, output),
        Command::Exec(arguments) => return Err(exec(&arguments)),
        Command::Down { name } => {
            let name = one(name, "NAME")?;
            let removed = ultima_lab::down(&name)?;
            output::print(&show::removed(&name, removed))?;
        }
        Command::Plan { file, name, output } => {
            let name = name_or_default(name, file.path()).input()?;
            let text = input::read_text(file.path()).input()?;
            let fabric = fabric::parse(&text, &input::name_of(file.path())).input()?;
            let plan = Plan::new(&name, &fabric)?;
            output::print(&output.print(&plan, || show::plan(&plan))?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(arguments: &Up) -> Result<ExitCode> {
    let name = name_or_default(arguments.name.clone(), arguments.file.path()).input()?;
    let text = input::read_text(arguments.file.path()).input()?;
    let programs = Programs {
        ultima: std::env::current_exe().context("cannot determine the path of this program")?,
        switch: arguments.switch,
    };
    let cancel = Cancel::default();
    let (file, making, cancelled) = (
        arguments.file.path().to_owned(),
        name.clone(),
        cancel.clone(),
    );
    let make = move || ultima_lab::up(&making, &file, &text, &programs, &cancelled);
    let made = crate::runtime::runtime()?.block_on(async {
        let mut made = tokio::task::spawn_blocking(make);
        tokio::select! {
            made = &mut made => made,
            () = crate::runtime::interrupted() => {
                cancel.set();
                made.await
            }
        }
    })?;
    match made {
        Err(LabError::Interrupted) => {
            eprintln!("error: interrupted; lab {name} was removed again");
            Ok(Exit::Interrupted.into())
        }
        made => {
            output::print(&show::up(&name, arguments.switch, &made?))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The name of a lab. Default: the name of its fabric file.
fn name_or_default(name: Option<LabName>, file: &Path) -> Result<LabName> {
    if let Some(name) = name {
        return Ok(name);
    }
    if file == Path::new("-") {
        return Ok("lab".parse()?);
    }
    let stem = file.file_stem().unwrap_or_default();
    Ok(stem.to_string_lossy().parse()?)
}

fn status(name: Option<LabName>, output: Output) -> Result<ExitCode> {
    let names = match name {
        Some(name) => vec![name],
        None => ultima_lab::names()?,
    };
    let all = names.iter().map(ultima_lab::status);
    let all: Vec<_> = all.collect::<Result<_, _>>()?;
    output::print(&output.print(&all, || show::status(&all))?)?;
    Ok(match all.iter().all(ultima_lab::Status::is_well) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Replaces this process with the command; returns only on failure.
fn exec(arguments: &Exec) -> anyhow::Error {
    let entered = one(arguments.name.clone(), "--name NAME").and_then(|lab| {
        ultima_lab::enter(&lab, &arguments.host)?;
        Ok(lab)
    });
    let lab = match entered {
        Ok(lab) => lab,
        Err(error) => return error.into(),
    };
    let (program, rest) = arguments.command.split_first().expect("clap requires one");
    let error = Process::new(program)
        .args(rest)
        .env("PATH", path_with_ultima())
        .env(
            controller_address::VARIABLE,
            ultima_lab::controller_address(&lab),
        )
        .exec();
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => (Exit::InvalidInput)
            .because(format!("{program} is not on the PATH"))
            .into(),
        _ => (Exit::InvalidInput)
            .because(format!("cannot run {program}: {error}"))
            .into(),
    }
}

/// `PATH` with this program's folder, so that hosts find `ultima`.
fn path_with_ultima() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    let folders = env::split_paths(&path).chain(own.map(Path::to_owned));
    // Fails only for a folder with a colon in its name.
    env::join_paths(folders).unwrap_or(path)
}

/// The lab with the name that `argument` gives, or the only one.
fn one(name: Option<LabName>, argument: &'static str) -> Result<LabName, LabError> {
    match (name, ultima_lab::names()?) {
        (Some(name), _) => Ok(name),
        (None, mut known) if known.len() == 1 => Ok(known.remove(0)),
        (None, known) => Err(LabError::WhichLab { argument, known }),
    }
}
