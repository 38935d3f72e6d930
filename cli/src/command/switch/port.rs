//! `ultima switch port`: the ports of a running switch.

use anyhow::Result;
use serde_json::{Value, json};
use ultima_switch::PortConfig;
use ultima_switch::config::{MAX_PORT, SpecError};
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::{
    AddPortRequest, Count, Drops, GetRequest, KeyCount, Port, Queue, RemovePortRequest,
};

use super::server::Server;
use crate::command::wire_options::WireOptions;
use ultima_console::output::{self, Output};

/// Add, remove and list the ports of a running switch
#[derive(clap::Args)]
#[command(after_help = "Example: ultima switch port list --grpc 127.0.0.1:9559")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Attach a port while the others keep forwarding
    #[command(after_help = "Examples:\n  \
        ultima switch port add 3@veth3 --grpc 127.0.0.1:9559\n  \
        ultima switch port add 4@unix:/run/p4.sock --rate 1G")]
    Add {
        /// PORT@INTERFACE or PORT@unix:PATH on the switch's machine. A path is relative to the working directory of the
        /// switch
        #[arg(value_name = "PORT@WHERE", value_parser = port)]
        port: Box<PortConfig>,
        #[command(flatten)]
        wire: Box<WireOptions>,
        #[command(flatten)]
        server: Server,
    },
    /// Detach a port and show its counters; queued frames are dropped and counted
    #[command(after_help = "Example: ultima switch port remove 3")]
    Remove {
        /// Port number
        #[arg(value_parser = clap::value_parser!(u16).range(0..=i64::from(MAX_PORT)))]
        port: u16,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        server: Server,
    },
    /// List the ports with their packet counters
    #[command(after_help = "Example: ultima switch port list --grpc 127.0.0.1:9559")]
    List {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        server: Server,
    },
}

fn port(text: &str) -> Result<Box<PortConfig>, SpecError> {
    text.parse().map(Box::new)
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<()> {
    let text = match arguments.command {
        Command::Add { port, wire, server } => {
            let request = AddPortRequest {
                device_id: 0,
                number: port.number.into(),
                attachment: port.attach.to_string(),
                settings: wire.change()?.to_string(),
            };
            server.ask(async {
                let mut client = PortControlClient::new(server.connect().await?);
                let added = client.add(request).await;
                added.map_err(|status| server.failed("port control", &status))
            })?;
            String::new()
        }
        Command::Remove {
            port,
            output,
            server,
        } => {
            let request = RemovePortRequest {
                device_id: 0,
                number: port.into(),
            };
            let removed = server.ask(async {
                let mut client = PortControlClient::new(server.connect().await?);
                let removed = client.remove(request).await;
                removed.map_err(|status| server.failed("port control", &status))
            })?;
            let port = removed.into_inner().port.unwrap_or_default();
            output.print(&object(&port), || table(vec![port]))?
        }
        Command::List { output, server } => {
            let all = server.ask(async {
                let mut client = PortStatisticsClient::new(server.connect().await?);
                let all = client.get(GetRequest { device_id: 0 }).await;
                all.map_err(|status| server.failed("port statistics", &status))
            })?;
            let ports = all.into_inner().ports;
            let objects: Value = ports.iter().map(object).collect();
            output.print(&objects, || table(ports))?
        }
    };
    Ok(output::print(&text)?)
}

/// All counters of a port, named as in the gRPC service.
fn object(port: &Port) -> Value {
    let drops = port.drops.clone().unwrap_or_default();
    let queue = |queue: &Queue| json!({ "priority": queue.priority, "packets": queue.packets, "bytes": queue.bytes });
    json!({
        "port": port.number,
        "attachment": port.attachment,
        "connected": port.connected,
        "entered": count(&port.entered),
        "forwarded": count(&port.forwarded),
        "ingress_program": count(&port.ingress_program),
        "no_program": count(&port.no_program),
        "too_long": count(&port.too_long),
        "overrun": count(&port.overrun),
        "ordered": count(&port.ordered),
        "left": count(&port.left),
        "drops": {
            "queue": count(&drops.queue),
            "egress_program": count(&drops.egress_program),
            "recirculated": count(&drops.recirculated),
            "wire": count(&drops.wire),
            "no_peer": count(&drops.no_peer),
            "oversize": count(&drops.oversize),
            "reconfigured": count(&drops.reconfigured),
            "removed": count(&drops.removed),
        },
        "queued": count(&port.queued),
        "in_flight": count(&port.in_flight),
        "marked": count(&port.marked),
        "queues": port.queues.iter().map(queue).collect::<Value>(),
    })
}

fn count(count: &Option<Count>) -> Value {
    let count = count.clone().unwrap_or_default();
    let mut object = json!({ "packets": count.packets, "bytes": count.bytes });
    if !count.by_key.is_empty() {
        let key =
            |key: &KeyCount| json!({ "key": key.key, "packets": key.packets, "bytes": key.bytes });
        object["by_key"] = count.by_key.iter().map(key).collect();
    }
    object
}

fn table(ports: Vec<Port>) -> String {
    let header = [
        "PORT",
        "ATTACHED-TO",
        "CONNECTED",
        "IN",
        "LOST-IN",
        "OUT",
        "LOST-OUT",
        "QUEUED",
    ];
    let packets = |count: &Option<Count>| count.as_ref().map_or(0, |count| count.packets);
    let row = |port: Port| {
        let Drops {
            queue,
            egress_program: _,
            recirculated: _,
            wire,
            no_peer,
            oversize,
            reconfigured,
            removed,
        } = port.drops.unwrap_or_default();
        // Drops by the program are not losses.
        let lost_in = [&port.no_program, &port.too_long, &port.overrun];
        let lost_out = [&queue, &wire, &no_peer, &oversize, &reconfigured, &removed];
        let sum =
            |counts: &[&Option<Count>]| counts.iter().map(|count| packets(count)).sum::<u64>();
        [
            port.number.to_string(),
            port.attachment,
            if port.connected { "yes" } else { "no" }.to_owned(),
            packets(&port.entered).to_string(),
            sum(&lost_in).to_string(),
            packets(&port.left).to_string(),
            sum(&lost_out).to_string(),
            sum(&[&port.queued, &port.in_flight]).to_string(),
        ]
    };
    output::table(header, ports.into_iter().map(row))
}
