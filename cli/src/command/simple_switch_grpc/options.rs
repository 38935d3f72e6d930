//! The command line of BMv2's `simple_switch_grpc` (behavioral-model's `options_parse.cpp` and `simple_switch_grpc/main.cpp`).

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::{Parser, ValueEnum};
use ultima_console::{error_line, units};
use ultima_grpc::tls::{IdentityFiles, ServerTls};
use ultima_switch::PortConfig;
use ultima_switch::config::MAX_PORT;
use ultima_switch::tm::PRIORITIES;

use crate::command::poll_option::PollOption;

const HEADING: &str = "Accepted without an effect";
/// v1model's port for dropped packets.
const DROP_PORT: u16 = 511;
/// BMv2's size of a log file before the log moves to another one.
const LOG_FILE_SIZE: u64 = 5 << 20;

/// Run the switch with the command line of BMv2's simple_switch_grpc
///
/// Scripts that start simple_switch_grpc start Ultima's switch without a change: this program also runs this command when
/// it is called by that name, for example through a link on the PATH. Options of the target follow `--`, as with BMv2.
#[derive(clap::Args)]
#[command(after_help = format!("{}\nExamples:\n  \
    ln -s \"$(command -v ultima)\" /usr/local/bin/simple_switch_grpc\n  \
    simple_switch_grpc -i 1@veth1 -i 2@veth2 --log-console basic.json -- --grpc-server-addr 127.0.0.1:9559\n  \
    ultima simple-switch-grpc --no-p4 --device-id 1 -i 1@veth1 --pcap=pcaps -- --cpu-port 510", target_help()))]
pub struct Arguments {
    /// Program to run until a controller sets one: the JSON file of p4c's BMv2 backend
    #[arg(value_name = "JSON", required_unless_present_any = ["no_p4", "version", "json_version"])]
    pub json: Option<PathBuf>,
    /// Start without a program
    #[arg(long)]
    pub no_p4: bool,
    /// Port and its interface, or another attachment of `ultima switch`. Repeatable
    #[arg(short = 'i', long = "interface", value_name = "PORT@INTERFACE")]
    pub ports: Vec<PortConfig>,
    /// P4Runtime device id
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub device_id: u64,
    /// Write the frames of each interface to INTERFACE_in.pcap and INTERFACE_out.pcap in DIR [default for DIR: .]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".")]
    pub pcap: Option<PathBuf>,
    #[command(flatten)]
    pub poll: PollOption,
    /// Log every packet to standard output
    #[arg(long, conflicts_with = "log_file")]
    pub log_console: bool,
    /// Log every packet to FILE.txt, then to FILE.1.txt and so on
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Level of the log: trace and debug include every packet, info the program's log messages
    #[arg(short = 'L', long, value_name = "LEVEL", default_value = "trace")]
    pub log_level: LogLevel,
    /// Write the log file after every packet, not when the switch has time
    #[arg(long)]
    pub log_flush: bool,
    /// Size of a log file, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = LOG_FILE_SIZE, value_parser = clap::value_parser!(u64).range(1..))]
    pub log_file_max_size: u64,
    /// Number of older log files to keep
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub log_file_max_files: u64,
    /// Print the version
    #[arg(short = 'v', long)]
    pub version: bool,
    /// Print the supported version of BMv2's JSON format
    #[arg(long)]
    pub json_version: bool,

    /// The switch has no Thrift server
    #[arg(long, value_name = "PORT", help_heading = HEADING)]
    thrift_port: Option<u16>,
    /// The switch writes no events to a nanomsg socket
    #[arg(long, value_name = "SOCKET", help_heading = HEADING)]
    nanolog: Option<String>,
    /// P4Runtime carries all notifications
    #[arg(long, value_name = "SOCKET", help_heading = HEADING)]
    notifications_addr: Option<String>,
    /// `ultima switch trace` takes the debugger's place
    #[arg(long, help_heading = HEADING)]
    debugger: bool,
    /// As --debugger
    #[arg(long, value_name = "SOCKET", help_heading = HEADING)]
    debugger_addr: Option<String>,
    /// The log has whole frames
    #[arg(long, value_name = "BYTES", help_heading = HEADING)]
    dump_packet_data: Option<u64>,
    /// Ports have numbers from 0 to 510
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    max_port_count: Option<u32>,

    /// A nanomsg socket for packets is not supported
    #[arg(long, value_name = "SOCKET", hide = true)]
    packet_in: Option<String>,
    /// Packets from files are not supported
    #[arg(long, value_name = "SECONDS", hide = true)]
    use_files: Option<String>,
    /// Saved state is not supported
    #[arg(long, value_name = "FILE", hide = true)]
    restore_state: Option<String>,

    /// Options of the target
    #[arg(last = true, value_name = "TARGET OPTIONS", hide = true)]
    target: Vec<String>,
}

/// A log level of BMv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
    Off,
}

impl LogLevel {
    /// True if the log includes every packet.
    pub fn has_packets(self) -> bool {
        self <= LogLevel::Debug
    }

    /// The filter of log messages that are not about single packets.
    pub fn filter(self) -> &'static str {
        match self {
            LogLevel::Trace | LogLevel::Debug => "warn,ultima_switch=debug",
            LogLevel::Info => "warn,ultima_switch=info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
            LogLevel::Off => "off",
        }
    }
}

/// The options after `--`.
#[derive(Parser)]
#[command(name = "--", no_binary_name = true, disable_help_flag = true)]
struct TargetOptions {
    /// Address of the P4Runtime server; port 0 selects a free one
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9559", value_parser = units::listen_address)]
    grpc_server_addr: SocketAddr,
    /// Serve TLS only
    #[arg(long, requires = "grpc_server_cert", requires = "grpc_server_key")]
    grpc_server_ssl: bool,
    /// Certificate of the switch (PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_ssl")]
    grpc_server_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_ssl")]
    grpc_server_key: Option<PathBuf>,
    /// Authorities of clients' certificates (PEM)
    #[arg(long, value_name = "FILE", requires = "grpc_server_ssl")]
    grpc_server_cacert: Option<PathBuf>,
    /// Accept only clients with a certificate of --grpc-server-cacert
    #[arg(long, requires = "grpc_server_cacert")]
    grpc_server_with_client_auth: bool,
    /// Port for P4Runtime packet-in and packet-out [default: none]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PORT)))]
    cpu_port: Option<u16>,
    /// Number of queues of each port; a packet with a higher priority is dropped
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=PRIORITIES as i64))]
    priority_queues: u8,
    /// Egress port that drops a packet; only 511
    #[arg(long, value_name = "PORT", default_value_t = DROP_PORT)]
    drop_port: u16,

    /// The switch has room for 4,096 groups
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    max_mc_groups: Option<u32>,
    /// A group has up to 1,024 replicas
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    max_l1_entries: Option<u32>,
    /// As --max-l1-entries
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    max_l2_entries: Option<u32>,
    /// Controllers can always set another program
    #[arg(long, help_heading = HEADING)]
    disable_swap: bool,

    /// A gRPC channel for packets is not supported
    #[arg(long, value_name = "ADDR", hide = true)]
    dp_grpc_server_addr: Option<String>,
    /// Modules in C++ are not supported
    #[arg(long, value_name = "FILES", hide = true)]
    load_modules: Option<String>,
}

/// The settings of the target.
pub struct Target {
    /// Address of the gRPC server.
    pub grpc: SocketAddr,
    /// The TLS files, if the server speaks TLS.
    pub tls: Option<ServerTls>,
    /// The CPU port, if there is one.
    pub cpu_port: Option<u16>,
    /// Number of queues of each port.
    pub priority_queues: u8,
}

/// The help of the options after `--`.
fn target_help() -> String {
    use clap::CommandFactory as _;
    let mut command = TargetOptions::command().help_template("{options}");
    let options = command.render_help().to_string();
    let options = options.replace(HEADING, "Target options accepted without an effect");
    format!("Target options, after `--`:\n{}\n", options.trim_end())
}

impl Arguments {
    /// Parses the options after `--` and collects a warning for each option without an effect.
    ///
    /// # Errors
    /// An unknown option, an invalid value, or an option that the switch does not support.
    pub fn target(&self) -> Result<(Target, Vec<String>)> {
        let target = TargetOptions::try_parse_from(&self.target).map_err(|error| {
            let line = error_line::clap_line(&error);
            anyhow!(
                "after --: {}",
                line.strip_prefix("error: ").unwrap_or(&line)
            )
        })?;
        if self.packet_in.is_some() {
            bail!(
                "--packet-in is not supported; attach a port to a Unix socket with -i PORT@unix:PATH"
            );
        }
        if self.use_files.is_some() {
            bail!(
                "--use-files is not supported; attach interfaces with -i and send the files with tcpreplay"
            );
        }
        if self.restore_state.is_some() {
            bail!("--restore-state is not supported; write the table entries over P4Runtime");
        }
        if target.dp_grpc_server_addr.is_some() {
            bail!(
                "--dp-grpc-server-addr is not supported; attach ports to interfaces or Unix sockets with -i"
            );
        }
        if target.load_modules.is_some() {
            bail!("--load-modules is not supported: the switch has v1model's externs only");
        }
        if target.drop_port != DROP_PORT {
            bail!(
                "--drop-port {}: expected {DROP_PORT}, the port of v1model's mark_to_drop",
                target.drop_port
            );
        }
        let tls = match (
            target.grpc_server_cert.clone(),
            target.grpc_server_key.clone(),
        ) {
            (Some(cert), Some(key)) => {
                let client_ca = target.grpc_server_cacert.clone();
                Some(ServerTls {
                    identity: IdentityFiles { cert, key },
                    client_ca: client_ca.filter(|_| target.grpc_server_with_client_auth),
                })
            }
            _ => None,
        };
        let warnings = self.warnings(&target);
        let target = Target {
            grpc: target.grpc_server_addr,
            tls,
            cpu_port: target.cpu_port,
            priority_queues: target.priority_queues,
        };
        Ok((target, warnings))
    }

    fn warnings(&self, target: &TargetOptions) -> Vec<String> {
        let grpc = target.grpc_server_addr;
        let ignored = [
            (
                self.thrift_port.is_some(),
                "--thrift-port",
                format!(
                    "the switch has no Thrift server; use P4Runtime at {grpc}, and `ultima switch` for queues and ports"
                ),
            ),
            (
                self.nanolog.is_some(),
                "--nanolog",
                "the switch sends no events over nanomsg; see --log-console".to_owned(),
            ),
            (
                self.notifications_addr.is_some(),
                "--notifications-addr",
                "P4Runtime carries digests and idle timeouts".to_owned(),
            ),
            (
                self.debugger || self.debugger_addr.is_some(),
                "--debugger",
                "use `ultima switch trace`".to_owned(),
            ),
            (
                self.dump_packet_data.is_some(),
                "--dump-packet-data",
                "the log has whole frames".to_owned(),
            ),
            (
                self.max_port_count.is_some(),
                "--max-port-count",
                format!("ports have numbers from 0 to {MAX_PORT}"),
            ),
            (
                self.no_p4 && self.json.is_some(),
                "the JSON file",
                "--no-p4 starts the switch without a program".to_owned(),
            ),
            (
                self.log_flush && self.log_file.is_none(),
                "--log-flush",
                "there is no --log-file".to_owned(),
            ),
            (
                target.max_mc_groups.is_some(),
                "--max-mc-groups",
                "the switch has room for 4,096 multicast groups".to_owned(),
            ),
            (
                target.max_l1_entries.is_some() || target.max_l2_entries.is_some(),
                "--max-l1-entries and --max-l2-entries",
                "a multicast group has up to 1,024 replicas".to_owned(),
            ),
            (
                target.disable_swap,
                "--disable-swap",
                "controllers can always set another program".to_owned(),
            ),
            (
                target.grpc_server_cacert.is_some() && !target.grpc_server_with_client_auth,
                "--grpc-server-cacert",
                "clients need no certificate without --grpc-server-with-client-auth".to_owned(),
            ),
        ];
        let ignored = ignored.into_iter().filter(|(given, ..)| *given);
        ignored
            .map(|(_, option, why)| format!("{option} has no effect: {why}"))
            .collect()
    }
}
