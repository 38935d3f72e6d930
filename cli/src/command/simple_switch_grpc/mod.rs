//! `ultima simple-switch-grpc`: the switch with the command line of BMv2's `simple_switch_grpc`.

mod log;
mod options;

use std::fs;
use std::process::ExitCode;

use crate::exit::InputErrors as _;
use anyhow::{Context, Error, Result};
use nix::sys::prctl;
use ultima_console::input::name_of;
use ultima_console::output;
use ultima_switch::trace::PacketLog;
use ultima_switch::{
    CaptureNames, PortConfig, ProgramFiles, Switch, SwitchConfig, SwitchError, WireConfig,
};

use self::log::Log;
pub use self::options::Arguments;

/// BMv2's name.
pub const NAME: &str = "simple_switch_grpc";
/// The version of BMv2's JSON format that p4c writes.
const JSON_VERSION: &str = "2.23";
/// BMv2's limit of a queue, in packets.
const QUEUE_PACKETS: u32 = 64;

/// Runs the switch until interrupted.
///
/// # Errors
/// Invalid options, or the switch does not start.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    if arguments.version || arguments.json_version {
        let version = match arguments.version {
            true => env!("CARGO_PKG_VERSION"),
            false => JSON_VERSION,
        };
        output::print(&format!("{version}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Scripts end the switch by its name (`pkill simple_switch`), also if a wrapper has started it.
    prctl::set_name(c"simple_switch_grpc").context("cannot set the name of the process")?;
    let (target, warnings) = arguments.target().input()?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    let json = arguments.json.as_deref().filter(|_| !arguments.no_p4);
    let in_json = |error: Error| match json {
        Some(path) => error.context(name_of(path)),
        None => error,
    };
    let program = json.map(|path| {
        let json = fs::read(path).with_context(|| name_of(path))?;
        Ok::<_, Error>(ProgramFiles { json, p4info: None })
    });
    let log = match &arguments.log_file {
        Some(name) => Some(
            Log::file(
                name,
                arguments.log_file_max_size,
                arguments.log_file_max_files,
            )
            .input()?,
        ),
        None => arguments.log_console.then(Log::console),
    };
    match &log {
        Some(log) => crate::start_log(arguments.log_level.filter(), log.clone(), false).input()?,
        None => crate::log().input()?,
    }
    let mut packets = None;
    let packet_log = log
        .filter(|_| arguments.log_level.has_packets())
        .map(|log| {
            let (packet_log, reader) = PacketLog::new();
            packets = Some(log.follow(reader, arguments.log_flush)?);
            Ok::<_, Error>(packet_log)
        })
        .transpose()?;
    let ports = arguments.ports.into_iter();
    let ports = ports.map(|port| PortConfig {
        wire: wire(),
        ..port
    });
    let config = SwitchConfig {
        device_id: arguments.device_id,
        grpc: target.grpc,
        tls: target.tls,
        program: program.transpose().input()?,
        ports: ports.collect(),
        cpu_port: target.cpu_port,
        pcap_dir: arguments.pcap,
        pcap_names: CaptureNames::Interface,
        priority_queues: target.priority_queues,
        send_rings: false,
        poll: arguments.poll.poll,
        packet_log,
        added_wire: wire(),
        ..SwitchConfig::default()
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            // Before the switch says that it listens: a script may end it at once.
            let interrupted = crate::runtime::interrupted();
            let started = Switch::start(config).await.map_err(|error| match error {
                SwitchError::Program(_) => in_json(error.into()),
                error => error.into(),
            });
            let switch = started.input()?;
            output::print(&format!("Server listening on {}\n", switch.grpc_addr()))?;
            Ok(switch.run_until(interrupted).await?)
        });
    if let Some(packets) = packets {
        // It ends with the switch. A panic there has been printed.
        let _ = packets.join();
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// A wire with BMv2's queue.
fn wire() -> WireConfig {
    WireConfig {
        queue_packets: Some(QUEUE_PACKETS),
        // Only the number of packets limits the queue.
        queue_bytes: u64::from(QUEUE_PACKETS) * u64::from(u16::MAX),
        ..WireConfig::default()
    }
}
