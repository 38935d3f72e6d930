//! `ultima switch`: the embedded switch as a process of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use ultima_switch::stats::StatsKey;
use ultima_switch::{Loss, PortSpec, ProgramFiles, Switch, SwitchConfig, WireConfig};

use crate::{process, units};

/// Runs the embedded switch: a P4Runtime target that executes what p4c's BMv2 backend prints.
///
/// Loss, rate and delay apply to what leaves each port, behind its queue and the egress pipeline.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima switch --grpc 127.0.0.1:9559 -i 1@veth1 -i 2@veth2\n  \
    ultima switch --program ultima.json --p4info ultima.p4info.txtpb -i 1@unix:/run/p1.sock --loss 0.01")]
pub struct Arguments {
    /// Where P4Runtime and the port statistics are served; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9559", value_parser = units::listen_address)]
    grpc: SocketAddr,
    /// P4Runtime's device id
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    device_id: u64,
    /// Program to run until a controller sets one, as p4c's BMv2 backend printed it
    #[arg(long, value_name = "FILE", requires = "p4info")]
    program: Option<PathBuf>,
    /// Its P4Info, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,
    /// A port: PORT@INTERFACE, PORT@unix:PATH (SOCK_SEQPACKET) or PORT@fd:NUMBER
    #[arg(short = 'i', long = "interface", value_name = "PORT@WHERE")]
    ports: Vec<PortSpec>,

    /// Loss on every wire: P, or P:LEN for bursts of LEN frames on average; may be repeated
    #[arg(long, value_name = "P[:LEN]")]
    loss: Vec<Loss>,
    /// Lose the frames whose integer at byte OFFSET, BYTES long, lies in A..B
    #[arg(long, value_name = "OFFSET:BYTES:A..B", value_parser = lost_field)]
    drop_field: Vec<Loss>,
    /// Rate of every wire [default: unlimited]
    #[arg(long, value_name = "BITS/S", value_parser = units::bit_rate)]
    rate: Option<u64>,
    /// Delay of every wire, such as 500us
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::duration)]
    delay: Duration,
    /// Queue of every port
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = units::bytes)]
    queue: u64,
    /// Decides which frames are lost
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Break port statistics down by the frame's byte at OFFSET under MASK (hexadecimal)
    #[arg(long, value_name = "OFFSET:MASK", value_parser = stats_key)]
    stats_key: Option<StatsKey>,
    /// Keep what each port saw, as pcap files in this folder
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,

    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Serves until it is interrupted.
pub fn run(arguments: Arguments) -> Result<()> {
    if arguments.die_with_parent {
        process::die_with_parent()?;
    }
    let program = match (&arguments.program, &arguments.p4info) {
        (Some(json), Some(p4info)) => Some(ProgramFiles {
            json: fs::read(json).with_context(|| json.display().to_string())?,
            p4info: super::read_text(p4info)?,
        }),
        _ => None,
    };
    let wire = WireConfig {
        rate: arguments.rate,
        delay: arguments.delay,
        loss: arguments
            .loss
            .into_iter()
            .chain(arguments.drop_field)
            .collect(),
        queue_bytes: arguments.queue,
    };
    let config = SwitchConfig {
        device_id: arguments.device_id,
        grpc: arguments.grpc,
        program,
        ports: arguments
            .ports
            .into_iter()
            .map(|port| port.with_wire(wire.clone()))
            .collect(),
        seed: arguments.seed,
        stats_key: arguments.stats_key,
        pcap_dir: arguments.pcap,
        ..SwitchConfig::default()
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            let switch = Switch::start(config).await?;
            println!("listening on {}", switch.grpc_addr());
            Ok(switch.run_until(super::interrupted()).await?)
        })
}

fn lost_field(text: &str) -> Result<Loss, String> {
    let wrong = || String::from("expected OFFSET:BYTES:A..B, such as 74:4:3..7");
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next().ok_or_else(wrong);
    let loss = Loss::Field {
        offset: part()?.parse().map_err(|_| wrong())?,
        bytes: part()?.parse().map_err(|_| wrong())?,
        range: {
            let range = units::range(part()?)?;
            u64::from(range.start)..u64::from(range.end)
        },
    };
    loss.validate().map_err(|error| error.to_string())?;
    Ok(loss)
}

fn stats_key(text: &str) -> Result<StatsKey, String> {
    let wrong = || String::from("expected OFFSET:MASK with a mask from 01 to ff, such as 44:0f");
    let (offset, mask) = text.split_once(':').ok_or_else(wrong)?;
    let mask = u8::from_str_radix(mask, 16)
        .ok()
        .filter(|mask| *mask > 0)
        .ok_or_else(wrong)?;
    Ok(StatsKey {
        offset: offset.parse().map_err(|_| wrong())?,
        mask,
    })
}
