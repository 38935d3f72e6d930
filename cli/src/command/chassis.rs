//! `ultima fabric chassis`: a switch's ports, as its own software is told of them.

use std::path::PathBuf;
use std::process::ExitCode;
use ultima_console::input;

use anyhow::{Result, bail};
use ultima_controller::chassis_push::{self, PushError};
use ultima_controller::client::Client;
use ultima_controller::fabric::Switch;
use ultima_controller::{chassis, fabric};
use ultima_p4runtime::text;

use super::controller_address::ControllerAddress;
use crate::exit::Exit;
use ultima_console::output;

/// Print how a switch's ports are configured, from the fabric's file, or have Stratum take it
///
/// For Stratum as its chassis configuration, which it reads when it starts (`-chassis_config_file`) or takes over gNMI (`--push`); for a switch
/// that runs the SDE without Stratum as commands for `bfshell -f`. With `--push` and without a file the controller does it, for the fabric that it
/// has been started with.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        ultima fabric chassis -f topologies/tofino32.yaml tofino1 > chassis_config.pb.txt\n  \
        ultima fabric chassis -f topologies/tofino32.yaml tofino1 --push\n  \
        ultima fabric chassis tofino1 --push")]
pub struct Options {
    /// The fabric, as YAML; `-` reads standard input
    #[arg(short, long, value_name = "FILE", required_unless_present = "push")]
    file: Option<PathBuf>,
    /// The switch
    switch: String,
    /// For whom
    #[arg(long = "for", value_name = "SOFTWARE", value_enum, default_value_t)]
    software: Software,
    /// Have Stratum at the switch's address take it now, over gNMI, and keep it. Ports that become others are down for a moment
    #[arg(long, conflicts_with = "software")]
    push: bool,
}

/// What configures a switch's ports.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Software {
    /// Stratum: ChassisConfig in protobuf text format
    #[default]
    Stratum,
    /// The SDE's shell: commands of its port manager
    Ucli,
}

/// Prints it, or has it taken, by the controller `at` an address where no file is given.
pub fn run(options: &Options, at: &ControllerAddress) -> Result<ExitCode> {
    let Some(file) = &options.file else {
        return pushed_by(at, &options.switch);
    };
    let name = input::name_of(file);
    let fabric = fabric::parse(&input::read_text(file)?, &name)?;
    let id = fabric.switch_called(&options.switch);
    let id = id.map_err(|error| Exit::NotThere.because(format!("{name}: {error}")))?;
    let switch = fabric.switch(id);
    if options.push {
        return pushed(switch);
    }
    let text = match options.software {
        Software::Stratum => text::print(&chassis::stratum(switch)?),
        Software::Ucli => chassis::ucli(switch)?,
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Has the controller have Stratum take it.
fn pushed_by(at: &ControllerAddress, switch: &str) -> Result<ExitCode> {
    super::runtime()?.block_on(async {
        let client = Client::connect(&at.controller).await?;
        client.configure_ports(switch).await
    })?;
    taken(switch)
}

fn taken(switch: &str) -> Result<ExitCode> {
    output::print(&format!("{switch} has taken its ports\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Has Stratum take it.
fn pushed(switch: &Switch) -> Result<ExitCode> {
    match super::runtime()?.block_on(chassis_push::push(switch)) {
        Ok(()) => taken(&switch.name),
        Err(error @ PushError::NoAnswer { .. }) => bail!(Exit::NoAnswer.because(error.to_string())),
        Err(error @ PushError::Refused { .. }) => bail!(Exit::Found.because(error.to_string())),
        Err(PushError::Chassis(error)) => Err(error.into()),
    }
}
