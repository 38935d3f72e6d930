//! `ultima fabric chassis`: a switch's ports, as its own software is told of them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use ultima_controller::{chassis, fabric};
use ultima_p4runtime::text;

use crate::output;

/// Print how a switch's ports are configured, from the fabric's file
///
/// For Stratum as its chassis configuration, which it reads when it starts (`-chassis_config_file`); for a switch that runs the SDE
/// without Stratum as commands for `bfshell -f`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima fabric chassis -f topologies/tofino32.yaml tofino1 > chassis_config.pb.txt"
)]
pub struct Options {
    /// The fabric, as YAML; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The switch
    switch: String,
    /// For whom
    #[arg(long = "for", value_name = "SOFTWARE", value_enum, default_value_t)]
    software: Software,
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

/// Prints it.
pub fn run(options: &Options) -> Result<ExitCode> {
    let name = super::name_of(&options.file);
    let fabric = fabric::parse(&super::read_text(&options.file)?, &name)?;
    let id = fabric.switch_named(&options.switch).ok_or_else(|| {
        let known: Vec<&str> = fabric
            .switches()
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        let (asked, known) = (&options.switch, known.join(", "));
        anyhow!("{name}: no switch is called {asked}; there are: {known}")
    })?;
    let switch = fabric.switch(id);
    let text = match options.software {
        Software::Stratum => text::print(&chassis::stratum(switch)?),
        Software::Ucli => chassis::ucli(switch)?,
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
