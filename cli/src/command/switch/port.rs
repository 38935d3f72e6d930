//! `ultima switch port`: the ports of a switch that runs.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ultima_switch::config::MAX_PORT;
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::{
    AddPortRequest, Count, Drops, GetRequest, Port, RemovePortRequest, Settings,
};
use ultima_switch::{Attach, PortSpec, WireConfig};

use crate::command::wire_options::WireOptions;
use crate::output;

/// Adds ports to a switch that runs, removes some, and lists them
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Attach a port, while the others forward
    #[command(after_help = "Examples:\n  \
        ultima switch port add 3@veth3 --grpc 127.0.0.1:9559\n  \
        ultima switch port add 4@unix:/run/p4.sock --rate 1G\n  \
        ultima switch port add 5@pcap:seen.pcap,/tmp/out.pcap")]
    Add {
        /// PORT@INTERFACE, PORT@unix:PATH, PORT@pcap:IN,OUT or PORT@pcap-timed:IN,OUT, all on the switch's
        /// machine; OUT must not be there yet
        #[arg(value_name = "PORT@WHERE")]
        port: PortSpec,
        #[command(flatten)]
        wire: Box<WireOptions>,
        #[command(flatten)]
        target: Target,
    },
    /// Detach a port and show all that it has counted; what is queued there is lost, and counted
    Remove {
        /// Its number
        #[arg(value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_PORT)))]
        port: u16,
        #[command(flatten)]
        target: Target,
    },
    /// Show the ports, and what came in, left and was lost there
    List {
        #[command(flatten)]
        target: Target,
    },
}

#[derive(clap::Args)]
struct Target {
    /// Where the switch serves gRPC
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9559")]
    grpc: String,
}

/// How long a switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes one request and prints what came of it.
pub fn run(arguments: Arguments) -> Result<()> {
    let (Command::Add { target, .. } | Command::Remove { target, .. } | Command::List { target }) =
        &arguments.command;
    let grpc = target.grpc.clone();
    let text = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { tokio::time::timeout(PATIENCE, ask(arguments.command, &grpc)).await })
        .with_context(|| format!("{grpc}: no answer within {PATIENCE:?}"))??;
    Ok(output::print(&text)?)
}

async fn ask(command: Command, grpc: &str) -> Result<String> {
    let nobody = || format!("no switch answers at {grpc}");
    let control = async || {
        let client = PortControlClient::connect(format!("http://{grpc}")).await;
        client.with_context(nobody)
    };
    match command {
        Command::Add { port, wire, .. } => {
            let mut config = WireConfig::default();
            wire.change()?.apply(&mut config);
            let request = AddPortRequest {
                device_id: 0,
                number: port.number.into(),
                attachment: Attach::from(port.attach).to_string(),
                settings: Some(Settings::from(&config)),
            };
            let added = control().await?.add(request).await;
            added.map_err(|status| anyhow!("{grpc}: {}", status.message()))?;
            Ok(String::new())
        }
        Command::Remove { port, .. } => {
            let request = RemovePortRequest {
                device_id: 0,
                number: port.into(),
            };
            let removed = control().await?.remove(request).await;
            let removed = removed.map_err(|status| anyhow!("{grpc}: {}", status.message()))?;
            Ok(table(removed.into_inner().port.into_iter()))
        }
        Command::List { .. } => {
            let client = PortStatisticsClient::connect(format!("http://{grpc}")).await;
            let all = client
                .with_context(nobody)?
                .get(GetRequest { device_id: 0 })
                .await;
            let all = all.map_err(|status| anyhow!("{grpc}: {}", status.message()))?;
            Ok(table(all.into_inner().ports.into_iter()))
        }
    }
}

fn table(ports: impl Iterator<Item = Port>) -> String {
    let header = [
        "PORT",
        "ATTACHED TO",
        "PEER",
        "IN",
        "LOST IN",
        "OUT",
        "LOST OUT",
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
        // What the program dropped, it was told to drop.
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
    output::table(header, ports.map(row))
}
