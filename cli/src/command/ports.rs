//! `ultima fabric ports`: the front-panel ports of a fabric file and their device ports.

use crate::exit::InputErrors as _;
use std::path::PathBuf;
use std::process::ExitCode;
use ultima_console::input;

use anyhow::Result;
use serde::Serialize;
use ultima_planner::fabric::{self, Fabric, LinkEnd, SwitchId, SwitchPort};

use ultima_console::output::{self, Output, table};

/// List the front-panel ports of a fabric file: settings, device port and link
///
/// P4Runtime, counters and loss reports use device ports. Compare them with the switch itself (`pm show` in the SDE's
/// shell, `ifindex` in Stratum's gNMI): boards differ. Only switches of target tofino or tofino2 have a front panel; of
/// others the command prints nothing.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima fabric ports -f topologies/tofino32.yaml")]
pub struct Options {
    /// YAML file of the fabric; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// A port as it is printed.
#[derive(Serialize)]
struct PortDocument {
    switch: String,
    port: String,
    device_port: u16,
    pipe: u16,
    speed: String,
    fec: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    autoneg: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    let name = input::name_of(&options.file);
    let text = input::read_text(&options.file).input()?;
    let fabric = fabric::parse(&text, &name).input()?;
    let ports: Vec<PortDocument> = fabric
        .switch_ids()
        .flat_map(|id| ports_of(&fabric, id))
        .collect();
    let text = options.output.format().print(&ports, || {
        let rows = ports.iter().map(|it| {
            [
                it.switch.clone(),
                it.port.clone(),
                it.device_port.to_string(),
                it.pipe.to_string(),
                it.speed.clone(),
                it.fec.clone(),
                it.link.clone().unwrap_or_default(),
            ]
        });
        let header = [
            "SWITCH",
            "PORT",
            "DEVICE-PORT",
            "PIPE",
            "SPEED",
            "FEC",
            "LINK",
        ];
        table(header, rows)
    })?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The front-panel ports of a switch, in panel order; empty for a switch without a front panel.
fn ports_of(fabric: &Fabric, switch: SwitchId) -> Vec<PortDocument> {
    let at = fabric.switch(switch);
    let mut ports: Vec<_> = at.panel.iter().flat_map(|panel| panel.ports()).collect();
    ports.sort_by_key(|(_, port)| port.at);
    let document = |(number, port): (ultima_planner::target::PortNumber, &fabric::FrontPort)| {
        let end = SwitchPort {
            switch,
            port: number,
        };
        PortDocument {
            switch: at.name.clone(),
            port: port.at.to_string(),
            device_port: number.0,
            pipe: number.pipe(),
            speed: port.settings.speed.to_string(),
            fec: port.settings.fec.to_string(),
            autoneg: port.settings.autoneg,
            link: far_end(fabric, end),
        }
    };
    ports.into_iter().map(document).collect()
}

/// The other end of the link at a port, if there is one.
fn far_end(fabric: &Fabric, at: SwitchPort) -> Option<String> {
    let mut links = fabric.links().iter();
    let link = links.find(|link| link.ends.contains(&LinkEnd::Port(at)))?;
    let [one, other] = link.ends;
    Some(match if one == LinkEnd::Port(at) { other } else { one } {
        LinkEnd::Host(host) => fabric.host(host).name.clone(),
        LinkEnd::Port(far) => fabric.port_name(far),
    })
}
