//! `ultima switch` without a subcommand: runs a switch.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Error, Result, bail};
use ultima_emulation::Tofino;
use ultima_grpc::tls::{IdentityFiles, ServerTls};
use ultima_p4runtime::tofino::{self, Chip};
use ultima_switch::config::MAX_PORT;
use ultima_switch::stats::StatsKey;
use ultima_switch::tm::WireChange;
use ultima_switch::{PortConfig, Switch, SwitchConfig, SwitchError};

use super::program::ProgramPaths;
use crate::command::poll_option::PollOption;
use crate::command::traffic_file::TrafficFile;
use crate::command::wire_options::WireOptions;
use crate::exit::InputErrors as _;
use crate::process;
use ultima_console::{output, units};

#[derive(clap::Args)]
pub struct Options {
    /// Address for P4Runtime, port statistics and traffic manager settings; port 0 selects a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9559", value_parser = units::listen_address)]
    grpc: SocketAddr,
    /// Certificate of the switch (PEM); enables TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// P4Runtime device id
    #[arg(long, value_name = "ID", default_value_t = 1)]
    device_id: u64,
    /// P4 program to run until a controller sets one: the JSON file of p4c's BMv2 backend
    #[arg(long, value_name = "FILE", requires = "p4info")]
    program: Option<PathBuf>,
    /// P4Info of --program, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,
    /// Emulate another target's ports, limits and Stratum behaviour, for tests of controllers. Packets are always forwarded
    /// by Ultima's v1model program
    #[arg(long, value_name = "TARGET", value_enum, conflicts_with_all = ["program", "cpu_port"])]
    emulate: Option<Emulated>,
    /// Port: PORT@INTERFACE, PORT@unix:PATH (SOCK_SEQPACKET) or PORT@fd:NUMBER. Repeatable
    #[arg(short = 'i', long = "interface", value_name = "PORT@WHERE")]
    ports: Vec<PortConfig>,
    /// Port for P4Runtime packet-in and packet-out [default: none]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PORT)))]
    cpu_port: Option<u16>,

    #[command(flatten)]
    wires: WireOptions,
    /// YAML file of port settings, which override the options for all ports (`ultima schema tm` prints its schema)
    #[arg(long, value_name = "FILE", help_heading = "Queues and wires")]
    tm: Option<PathBuf>,
    /// Settings of one port, which override all others: PORT:NAME=VALUE[,NAME=VALUE...]. Repeatable
    #[arg(long = "wire", value_name = "PORT:SETTINGS", value_parser = port_wire, help_heading = "Queues and wires")]
    port_wires: Vec<(u16, WireChange)>,
    /// Seed for loss, jitter and the program's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Split port statistics by the value of the frame's byte at OFFSET under MASK (hexadecimal), such as 44:0f
    #[arg(long, value_name = "OFFSET:MASK", value_parser = stats_key)]
    stats_key: Option<StatsKey>,
    /// Folder for pcap files of each port, PORT_in.pcap and PORT_out.pcap; existing files are replaced
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,

    #[command(flatten)]
    poll: PollOption,

    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// A target that the switch can emulate.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Emulated {
    /// Tofino with Stratum
    Tofino,
    /// Tofino 2 with Stratum
    Tofino2,
}

impl Emulated {
    fn chip(self) -> &'static Chip {
        match self {
            Emulated::Tofino => &tofino::TOFINO,
            Emulated::Tofino2 => &tofino::TOFINO2,
        }
    }
}

/// Runs a switch until interrupted.
pub fn run(options: Options) -> Result<()> {
    if options.die_with_parent {
        process::die_with_parent()?;
    }
    let (json, p4info) = (options.program.as_deref(), options.p4info.as_deref());
    let paths = ProgramPaths::given(json, p4info);
    let program = paths.map(ProgramPaths::read).transpose().input()?;
    let ports = with_wires(
        options.ports,
        &options.wires.change().input()?,
        options.tm.as_deref(),
        &options.port_wires,
    )
    .input()?;
    let tls = match (options.tls_cert, options.tls_key) {
        (Some(cert), Some(key)) => Some(ServerTls {
            identity: IdentityFiles { cert, key },
            client_ca: options.tls_ca,
        }),
        _ => None,
    };
    let config = SwitchConfig {
        device_id: options.device_id,
        grpc: options.grpc,
        tls,
        program,
        ports,
        cpu_port: options.cpu_port,
        seed: options.seed,
        stats_key: options.stats_key,
        pcap_dir: options.pcap,
        poll: options.poll.poll,
        target: options.emulate.map(|it| Arc::new(Tofino(it.chip())) as _),
        ..SwitchConfig::default()
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            let interrupted = crate::runtime::interrupted();
            let started = Switch::start(config).await;
            let switch = started.map_err(|error| with_file(error, paths)).input()?;
            if let Some(emulated) = options.emulate {
                let chip = emulated.chip().name;
                eprintln!(
                    "ultima switch: emulates a {chip}; packets are forwarded by the v1model program"
                );
            }
            output::print(&format!("listening on {}\n", switch.grpc_addr()))?;
            Ok(switch.run_until(interrupted).await?)
        })
}

/// Adds the file's name to an error in a program.
fn with_file(error: SwitchError, paths: Option<ProgramPaths<'_>>) -> Error {
    match (&error, paths) {
        (SwitchError::P4Info(_), Some(paths)) => paths.in_p4info(error),
        (SwitchError::Program(_), Some(paths)) => paths.in_json(error),
        _ => error.into(),
    }
}

/// The ports with their wires. Later settings override earlier ones: options for all ports, the file's default, the file's port, `--wire`.
fn with_wires(
    ports: Vec<PortConfig>,
    all: &WireChange,
    file: Option<&Path>,
    own: &[(u16, WireChange)],
) -> Result<Vec<PortConfig>> {
    let numbers: Vec<u16> = ports.iter().map(|port| port.number).collect();
    let file = match file {
        Some(path) => TrafficFile::load(path, Some(&numbers))?,
        None => TrafficFile::default(),
    };
    if let Some((number, _)) = own.iter().find(|(number, _)| !numbers.contains(number)) {
        bail!("--wire {number}: no port {number}; add it with -i {number}@WHERE");
    }
    let with_wire = |mut port: PortConfig| {
        let own = own.iter().filter(|(number, _)| *number == port.number);
        let of_port = file.ports.get(&port.number).into_iter();
        for change in [all, &file.default]
            .into_iter()
            .chain(of_port)
            .chain(own.map(|(_, change)| change))
        {
            change.apply(&mut port.wire);
        }
        port
    };
    Ok(ports.into_iter().map(with_wire).collect())
}

fn port_wire(text: &str) -> Result<(u16, WireChange), String> {
    let (number, settings) = text
        .split_once(':')
        .ok_or("expected PORT:NAME=VALUE[,NAME=VALUE...], such as 3:rate=1G,delay=50us")?;
    let number = number
        .parse()
        .map_err(|_| format!("`{number}` is not a port number"))?;
    let settings = settings.parse().map_err(|error| format!("{error}"))?;
    Ok((number, settings))
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
