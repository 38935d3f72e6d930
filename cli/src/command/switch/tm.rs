//! `ultima switch tm`: the traffic manager of a running switch or wire.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::json;
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, GetSettingsRequest, PortSettings, SetSettingsRequest};
use ultima_switch::tm::WireChange;
use ultima_switch::units::{show_bit_rate, show_bytes, show_duration, show_packet_rate};
use ultima_switch::{WireConfig, unknown_port};

use super::server::Server;
use crate::command::traffic_file::TrafficFile;
use crate::command::wire_options::{WireOptions, unchanged_by_default};
use crate::exit::{Exit, InputErrors as _};
use ultima_console::output::{self, Output};
use ultima_console::units::counted;

/// Show and change the queues and wires of a running `ultima switch` or `ultima wire`
#[derive(clap::Args)]
#[command(after_help = "Example: ultima switch tm set --port 3 --rate 1G --delay 2ms")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the settings of ports
    #[command(after_help = "Example: ultima switch tm show --grpc 127.0.0.1:9559")]
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Change the settings of ports atomically, without interrupting traffic
    ///
    /// Queued frames stay queued; frames already on a wire keep their arrival times.
    #[command(after_help = "Examples:\n  \
        ultima switch tm set --port 3 --rate 1G --delay 2ms --jitter normal:200us\n  \
        ultima switch tm set --port 3 --packet-rate 100\n  \
        ultima switch tm set --loss none\n  \
        ultima switch tm set --tm tm.yaml")]
    #[command(mut_args(unchanged_by_default))]
    Set {
        #[command(flatten)]
        target: Target,
        /// YAML file of port settings, which the options override (`ultima schema tm` prints its schema)
        #[arg(long, value_name = "FILE")]
        tm: Option<PathBuf>,
        #[command(flatten)]
        wire: Box<WireOptions>,
    },
}

#[derive(clap::Args)]
struct Target {
    #[command(flatten)]
    server: Server,
    /// Port number. Repeatable [default: all ports]
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<u32>,
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<()> {
    let (target, changes) = match arguments.command {
        Command::Show { target } => (target, None),
        Command::Set { target, tm, wire } => {
            let mut changes = Vec::new();
            let mut add = |change: &WireChange, ports| {
                if !change.is_empty() {
                    let settings = change.to_string();
                    changes.push(Change { ports, settings });
                }
            };
            if let Some(path) = tm {
                let file = TrafficFile::load(&path, None).input()?;
                add(&file.default, Vec::new());
                for (port, change) in &file.ports {
                    add(change, vec![u32::from(*port)]);
                }
            }
            add(&wire.change().input()?, target.ports.clone());
            if changes.is_empty() {
                bail!(Exit::InvalidInput.because(
                    "no settings to change; pass an option such as --rate 1G, or --tm FILE"
                ));
            }
            (target, Some(changes))
        }
    };
    let server = &target.server;
    let ports = server.ask(async {
        let mut client = TrafficManagerClient::new(server.connect().await?);
        let ports = match changes {
            None => {
                let response = client.get(GetSettingsRequest { device_id: 0 }).await;
                response.map(|response| response.into_inner().ports)
            }
            Some(changes) => {
                let device_id = 0;
                let response = client.set(SetSettingsRequest { device_id, changes }).await;
                response.map(|response| response.into_inner().ports)
            }
        };
        ports.map_err(|status| server.failed("traffic manager", &status))
    })?;
    let mut asked = target.ports.iter();
    if let Some(missing) = asked.find(|asked| ports.iter().all(|port| port.port != **asked)) {
        let numbers = ports.iter().map(|port| port.port);
        bail!(Exit::NotFound.because(unknown_port(*missing, numbers)));
    }
    let wires: Vec<_> = ports
        .into_iter()
        .filter(|port| target.ports.is_empty() || target.ports.contains(&port.port))
        .map(wire)
        .collect::<Result<_>>()?;
    let ports: Vec<_> = wires.iter().map(object).collect();
    let text = target.output.print(&ports, || {
        output::table(
            [
                "PORT",
                "ATTACHED-TO",
                "RATE",
                "DELAY",
                "JITTER",
                "LOSS",
                "QUEUE",
                "ECN",
            ],
            wires.iter().map(row),
        )
    })?;
    Ok(output::print(&text)?)
}

/// A port: number, attachment, settings.
type Wire = (u32, String, WireConfig);

fn wire(port: PortSettings) -> Result<Wire> {
    let settings: WireChange = (port.settings.parse())
        .with_context(|| format!("the switch sent invalid settings for port {}", port.port))?;
    let mut wire = WireConfig::default();
    settings.apply(&mut wire);
    Ok((port.port, port.attachment, wire))
}

fn or_none(setting: Option<String>) -> String {
    setting.unwrap_or_else(|| "none".to_owned())
}

fn row((port, attachment, wire): &Wire) -> [String; 8] {
    let loss: Vec<String> = wire.loss.iter().map(ToString::to_string).collect();
    let jitter = wire.jitter.map(|jitter| match wire.reorder {
        true => format!("{jitter} (reorders)"),
        false => jitter.to_string(),
    });
    let bits = wire.rate.map(show_bit_rate);
    let packets = (wire.packet_rate).map(|rate| format!("{} packets/s", show_packet_rate(rate)));
    let flows = (wire.background).map(|flows| format!("background {flows}"));
    let rates: Vec<String> = [bits, packets, flows].into_iter().flatten().collect();
    let rate = or_none((!rates.is_empty()).then(|| rates.join(", ")));
    let bytes = show_bytes(wire.queue_bytes);
    let queue = match wire.queue_packets {
        Some(packets) => format!("{bytes}, {}", counted(packets, "packet")),
        None => bytes,
    };
    [
        port.to_string(),
        attachment.clone(),
        rate,
        show_duration(wire.delay),
        or_none(jitter),
        or_none((!loss.is_empty()).then(|| loss.join(" "))),
        queue,
        or_none(wire.ecn.map(|ecn| ecn.to_string())),
    ]
}

/// Numbers in base units; models as the options take them.
fn object((port, attachment, wire): &Wire) -> serde_json::Value {
    let loss: Vec<String> = wire.loss.iter().map(ToString::to_string).collect();
    json!({
        "port": port,
        "attachment": attachment,
        "rate_bps": wire.rate,
        "packets_per_second": wire.packet_rate,
        "background": wire.background.map(|flows| flows.to_string()),
        "delay_ns": u64::try_from(wire.delay.as_nanos()).unwrap_or(u64::MAX),
        "jitter": wire.jitter.map(|jitter| jitter.to_string()),
        "reorder": wire.reorder,
        "loss": loss,
        "queue_bytes": wire.queue_bytes,
        "queue_packets": wire.queue_packets,
        "ecn": wire.ecn.map(|ecn| ecn.to_string()),
    })
}
