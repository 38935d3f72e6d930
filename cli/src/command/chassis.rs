//! `ultima fabric chassis`: generates the port configuration of a switch and pushes it.

use std::path::PathBuf;
use std::process::ExitCode;
use ultima_console::input;

use anyhow::{Result, bail};
use ultima_controller::chassis_push::{self, PushError};
use ultima_p4runtime::text;
use ultima_planner::fabric::Switch;
use ultima_planner::{chassis, fabric};

use crate::controller_address::ControllerAddress;
use crate::exit::{Exit, InputErrors as _};
use ultima_console::output;

/// Generate the port configuration of a switch, or push it to Stratum
///
/// Prints Stratum's chassis configuration, for its option `-chassis_config_file`, or with `--for ucli` commands for
/// `bfshell -f` on a switch that runs the SDE without Stratum. With `--push` it sends the configuration to Stratum over
/// gNMI instead; without a file, the controller pushes the configuration of its own fabric.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        ultima fabric chassis -f topologies/tofino32.yaml tofino1 > chassis_config.pb.txt\n  \
        ultima fabric chassis -f topologies/tofino32.yaml tofino1 --push\n  \
        ultima fabric chassis tofino1 --push")]
pub struct Options {
    /// YAML file of the fabric; `-` reads standard input
    #[arg(short, long, value_name = "FILE", required_unless_present = "push")]
    file: Option<PathBuf>,
    /// Name of the switch
    switch: String,
    /// Format of the configuration
    #[arg(long = "for", value_name = "SOFTWARE", value_enum, default_value_t)]
    software: Software,
    /// Push the configuration to Stratum on the switch, which saves it. Ports whose settings change go down briefly
    #[arg(long, conflicts_with = "software")]
    push: bool,
}

/// The software that configures the ports of a switch.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Software {
    /// ChassisConfig for Stratum, in protobuf text format
    #[default]
    Stratum,
    /// Port manager commands for the shell of the SDE
    Ucli,
}

/// Runs the command; without a file, the controller `at` an address pushes the configuration.
pub fn run(options: &Options, at: &ControllerAddress) -> Result<ExitCode> {
    let Some(file) = &options.file else {
        return push_by_controller(at, &options.switch);
    };
    let name = input::name_of(file);
    let fabric = fabric::parse(&input::read_text(file).input()?, &name).input()?;
    let id = fabric.switch_called(&options.switch);
    let id = id.map_err(|error| Exit::NotFound.because(format!("{name}: {error}")))?;
    let switch = fabric.switch(id);
    if options.push {
        return push(switch);
    }
    let text = match options.software {
        Software::Stratum => text::print(&chassis::stratum(switch).input()?),
        Software::Ucli => chassis::ucli(switch).input()?,
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the controller to push the configuration.
fn push_by_controller(at: &ControllerAddress, switch: &str) -> Result<ExitCode> {
    crate::runtime::runtime()?.block_on(async {
        let client = at.connect().await?;
        anyhow::Ok(client.configure_ports(switch).await?)
    })?;
    print_pushed(switch)
}

fn print_pushed(switch: &str) -> Result<ExitCode> {
    output::print(&format!("{switch}: port configuration applied\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Pushes the configuration to Stratum on the switch.
fn push(switch: &Switch) -> Result<ExitCode> {
    match crate::runtime::runtime()?.block_on(chassis_push::push(switch)) {
        Ok(()) => print_pushed(&switch.name),
        Err(error @ PushError::NoAnswer { .. }) => {
            bail!(Exit::Unavailable.because(error.to_string()))
        }
        Err(error @ PushError::Refused { .. }) => bail!(Exit::Failure.because(error.to_string())),
        Err(PushError::Chassis(error)) => Err(error).input(),
    }
}
