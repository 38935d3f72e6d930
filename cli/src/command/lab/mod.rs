//! `ultima lab`: a fabric with real hosts on this machine.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::{env, io};
use ultima_console::input;

use anyhow::{Context, Result};
use ultima_controller::fabric;
use ultima_lab::{Cancel, LabError, LabName, Plan, Programs, SwitchKind};

mod show;
mod traffic;

pub use traffic::{Arguments as TrafficArguments, run as run_traffic};

use super::controller_address;
use ultima_console::output::{self, Output};

/// Makes a fabric with real hosts on this machine: each is a network namespace with the kernel's own sockets
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
    /// Show what runs in one lab, or in all; exit code 1 if something of it does not
    #[command(after_help = "Example: ultima lab status star4 -o json")]
    Status {
        /// The lab; without a name all of them
        name: Option<LabName>,
        #[command(flatten)]
        output: Output,
    },
    Exec(Exec),
    /// End a lab: its processes, namespaces and interfaces, whatever is left of it
    #[command(after_help = "Example: ultima lab down star4")]
    Down {
        /// The lab; may be left out where there is one
        name: Option<LabName>,
    },
    /// Print what a fabric becomes, checked and with everything that it leaves out
    ///
    /// JSON and YAML have all of it, the table hosts and the wires of links that are impaired.
    #[command(after_help = "Example: ultima lab plan topologies/star4.yaml -o json")]
    Plan {
        /// The fabric, as YAML; `-` reads standard input
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

/// Makes a lab of a fabric: namespaces, links, switches, wires, controller, the fabric's own traffic.
///
/// It runs until `ultima lab down`. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima lab up topologies/dumbbell.yaml --switch bmv2 --name slow")]
struct Up {
    /// The fabric, as YAML; `-` reads standard input
    file: PathBuf,
    /// Which switch to run: embedded or bmv2 (simple_switch_grpc on the PATH)
    #[arg(long, value_name = "KIND", default_value_t = SwitchKind::Embedded)]
    switch: SwitchKind,
    /// What to call the lab [default: as the file, without .yaml]
    #[arg(long)]
    name: Option<LabName>,
}

/// Runs a command on a host of a lab, or beside its switches; its exit code is the command's.
///
/// The command finds the controller's address in ULTIMA_CONTROLLER, its host's name as the machine's name, and the
/// other hosts by name.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima lab exec h1 -- ping -c 3 h2\n  \
    ultima lab exec --name star4 s1 -- ultima switch tm show --grpc 127.0.0.1:9559")]
struct Exec {
    /// The lab; may be left out where there is one
    #[arg(long)]
    name: Option<LabName>,
    /// The host, or a switch
    host: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Does it.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Up(arguments) => return up(&arguments),
        Command::Status { name, output } => return status(name, output),
        Command::Exec(arguments) => return Err(exec(&arguments)),
        Command::Down { name } => {
            let name = one(name)?;
            let removed = ultima_lab::down(&name)?;
            output::print(&show::removed(&name, removed))?;
        }
        Command::Plan { file, output } => {
            let fabric = fabric::parse(&input::read_text(&file)?, &input::name_of(&file))?;
            let plan = Plan::new(&"lab".parse()?, &fabric)?;
            output::print(&output.print(&plan, || show::plan(&plan))?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(arguments: &Up) -> Result<ExitCode> {
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => name_of(&arguments.file)?,
    };
    let text = input::read_text(&arguments.file)?;
    let programs = Programs {
        ultima: std::env::current_exe().context("cannot find this program's own file")?,
        switch: arguments.switch,
    };
    let cancel = Cancel::default();
    let (file, making, cancelled) = (arguments.file.clone(), name.clone(), cancel.clone());
    let make = move || ultima_lab::up(&making, &file, &text, &programs, &cancelled);
    let made = super::runtime()?.block_on(async {
        let mut made = tokio::task::spawn_blocking(make);
        tokio::select! {
            made = &mut made => made,
            () = super::interrupted() => {
                cancel.set();
                made.await
            }
        }
    })?;
    match made {
        Err(LabError::Interrupted) => {
            eprintln!("error: interrupted; nothing of lab {name} is left");
            Ok(crate::exit::Exit::Interrupted.into())
        }
        made => {
            output::print(&show::up(&name, arguments.switch, &made?))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A lab is called as its fabric's file.
fn name_of(file: &Path) -> Result<LabName> {
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

/// Becomes the command, or says why not.
fn exec(arguments: &Exec) -> anyhow::Error {
    let entered = one(arguments.name.clone()).and_then(|lab| {
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
        io::ErrorKind::NotFound => anyhow::anyhow!("{program} is not on the PATH"),
        _ => anyhow::Error::new(error).context(format!("cannot run {program}")),
    }
}

/// PATH with this program's folder, so that `ultima agent` is found on hosts as it was here.
fn path_with_ultima() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    let folders = env::split_paths(&path).chain(own.map(Path::to_owned));
    // Only a folder with a colon in its name cannot be listed.
    env::join_paths(folders).unwrap_or(path)
}

/// The lab that was named, or the only one.
fn one(name: Option<LabName>) -> Result<LabName, LabError> {
    match (name, ultima_lab::names()?) {
        (Some(name), _) => Ok(name),
        (None, mut known) if known.len() == 1 => Ok(known.remove(0)),
        (None, known) => Err(LabError::WhichLab { known }),
    }
}
