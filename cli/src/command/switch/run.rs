//! `ultima switch` without a subcommand: runs a switch.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use ultima_switch::config::MAX_PORT;
use ultima_switch::stats::StatsKey;
use ultima_switch::{Loss, PortSpec, ProgramFiles, Switch, SwitchConfig, WireConfig};

use crate::{process, units};

#[derive(clap::Args)]
pub struct Options {
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
    /// The port to the controllers: what leaves through it becomes a packet-in, packet-outs enter there
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PORT)))]
    cpu_port: Option<u16>,

    /// Loss on every wire: P, P:LEN for bursts of LEN frames on average, or field:OFFSET:BYTES:A..B for frames
    /// whose integer at byte OFFSET, BYTES long, lies in A..B; may be repeated
    #[arg(long, value_name = "MODEL")]
    loss: Vec<Loss>,
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
pub fn run(options: Options) -> Result<()> {
    if options.die_with_parent {
        process::die_with_parent()?;
    }
    let program = match (&options.program, &options.p4info) {
        (Some(json), Some(p4info)) => Some(ProgramFiles {
            json: fs::read(json).with_context(|| json.display().to_string())?,
            p4info: crate::command::read_text(p4info)?,
        }),
        _ => None,
    };
    let wire = WireConfig {
        rate: options.rate,
        delay: options.delay,
        loss: options.loss,
        queue_bytes: options.queue,
        ..WireConfig::default()
    };
    let config = SwitchConfig {
        device_id: options.device_id,
        grpc: options.grpc,
        program,
        ports: options
            .ports
            .into_iter()
            .map(|port| port.with_wire(wire.clone()))
            .collect(),
        cpu_port: options.cpu_port,
        seed: options.seed,
        stats_key: options.stats_key,
        pcap_dir: options.pcap,
        ..SwitchConfig::default()
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            let switch = Switch::start(config).await?;
            println!("listening on {}", switch.grpc_addr());
            Ok(switch.run_until(crate::command::interrupted()).await?)
        })
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
