//! A switch's configuration, and its ports in the form of the command line.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ultima_grpc::tls::ServerTls;
use ultima_p4runtime::text::{self, TextError};
use ultima_p4runtime::v1::ForwardingPipelineConfig;

use crate::stats::StatsKey;
use crate::target::Target;
use crate::tm::{PRIORITIES, WireConfig};
use crate::trace::PacketLog;
use ultima_engine::Limits;

/// Longest average pause that a switch polls through by default: about as long as the kernel takes to wake a thread.
pub const POLL: Duration = Duration::from_micros(30);

/// Highest port number: v1model's egress port has nine bits, and 511 stands for "drop".
pub const MAX_PORT: u16 = 510;

/// A port's attachment. On the command line: `veth0`, `unix:/run/p3.sock`, `fd:7`.
#[derive(Debug, Clone)]
pub enum Attach {
    /// A Linux network interface, by name; needs CAP_NET_RAW.
    Interface(String),
    /// A Unix socket (`SOCK_SEQPACKET`) that listens at this path and serves one peer at a time.
    /// The file is removed when the switch stops.
    Unix(PathBuf),
    /// One end of a connected pair of such sockets, inherited from the parent process under this number and handed over to the
    /// switch.
    Inherited(RawFd),
    /// One end of such a pair within one process.
    Socket(Arc<OwnedFd>),
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attach::Interface(name) => write!(f, "{name}"),
            Attach::Unix(path) => write!(f, "unix:{}", path.display()),
            Attach::Inherited(fd) => write!(f, "fd:{fd}"),
            Attach::Socket(socket) => write!(f, "fd:{}", socket.as_raw_fd()),
        }
    }
}

/// Why an [`Attach`] or a [`PortConfig`] is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl FromStr for Attach {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let invalid = |expected: &str| Err(SpecError(format!("`{spec}`{expected}")));
        if let Some(path) = spec.strip_prefix("unix:") {
            // sockaddr_un holds 108 bytes with the final zero.
            if path.is_empty() || path.len() > 107 || path.contains('\0') {
                return invalid(": expected a path of 1 to 107 bytes after `unix:`");
            }
            return Ok(Attach::Unix(path.into()));
        }
        if let Some(fd) = spec.strip_prefix("fd:") {
            let what = ": expected the number of an inherited descriptor, 3 or more, after `fd:`";
            let fd = fd.parse().ok().filter(|fd| *fd > 2);
            return fd.map_or_else(|| invalid(what), |fd| Ok(Attach::Inherited(fd)));
        }
        // dev_valid_name() of Linux.
        let refused = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
        if spec.is_empty() || spec.len() > 15 || spec.contains(refused) {
            return invalid(" is not an interface name, expected 1 to 15 characters without `/`");
        }
        Ok(Attach::Interface(spec.to_owned()))
    }
}

/// A port. On the command line: `3@veth0`, `3@unix:/run/p3.sock`, `3@fd:7`, with a wire that changes nothing.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Port number, at most [`MAX_PORT`].
    pub number: u16,
    /// The port's attachment.
    pub attach: Attach,
    /// The port's queue and wire, in the direction out of the switch.
    pub wire: WireConfig,
}

impl FromStr for PortConfig {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let invalid = |why: String| SpecError(format!("port `{spec}`: {why}"));
        let Some((number, target)) = spec.split_once('@') else {
            let expected = "expected PORT@INTERFACE, PORT@unix:PATH or PORT@fd:NUMBER";
            return Err(invalid(expected.to_owned()));
        };
        let known = number.parse().ok().filter(|number| *number <= MAX_PORT);
        Ok(PortConfig {
            number: known.ok_or_else(|| {
                invalid(format!(
                    "`{number}` is not a port number, expected 0 to {MAX_PORT}"
                ))
            })?,
            attach: target
                .parse()
                .map_err(|error: SpecError| invalid(error.0))?,
            wire: WireConfig::default(),
        })
    }
}

/// A program to start with.
#[derive(Debug, Clone)]
pub struct ProgramFiles {
    /// The JSON of p4c's BMv2 backend.
    pub json: Vec<u8>,
    /// The program's P4Info in protobuf's text format. Without it, packets run through the program with its constant entries
    /// and default actions, and controllers have no access until one of them sets a pipeline config, as on simple_switch_grpc.
    pub p4info: Option<String>,
}

impl ProgramFiles {
    /// Parses the P4Info.
    pub(crate) fn parsed(self) -> Result<ForwardingPipelineConfig, TextError> {
        Ok(ForwardingPipelineConfig {
            p4info: self.p4info.as_deref().map(text::parse).transpose()?,
            p4_device_config: self.json,
            cookie: None,
        })
    }
}

/// The names of a port's captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureNames {
    /// `3_in.pcap` and `3_out.pcap`, by the port's number.
    Number,
    /// `veth3_in.pcap` and `veth3_out.pcap`, by the port's interface, as BMv2 does; by number for other attachments.
    Interface,
}

/// A switch's configuration.
#[derive(Debug)]
pub struct SwitchConfig {
    /// P4Runtime's device id.
    pub device_id: u64,
    /// Address of the gRPC server; port 0 takes any free one.
    pub grpc: SocketAddr,
    /// Serve over TLS.
    pub tls: Option<ServerTls>,
    /// The program to run until a controller sets another; without one, frames are counted and
    /// dropped.
    pub program: Option<ProgramFiles>,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// The CPU port (P4Runtime §16.1): a frame that leaves through it becomes a packet-in, packet-outs enter there. A number
    /// from 1 to [`MAX_PORT`] that is not in `ports`.
    pub cpu_port: Option<u16>,
    /// Random seed. Two switches with equal configurations and frames lose the same frames, and every loaded program draws the
    /// same numbers.
    pub seed: u64,
    /// Counts port statistics by a byte of the frame, too.
    pub stats_key: Option<StatsKey>,
    /// Folder for captures, two files for each port. They replace those of an earlier run. A port that is removed and added
    /// again appends to its files.
    pub pcap_dir: Option<PathBuf>,
    /// The names of these files.
    pub pcap_names: CaptureNames,
    /// Number of queues of each port, 1 to [`PRIORITIES`], for the lowest priorities. A copy with a higher priority is dropped.
    pub priority_queues: u8,
    /// Sends to veths through AF_XDP, which costs less. Captures on the switch's own interfaces then show received frames only.
    pub send_rings: bool,
    /// Longest average pause between packets in which the forwarding thread polls for the next one. In longer pauses it sleeps.
    pub poll: Duration,
    /// Receives the trace of every packet that enters.
    pub packet_log: Option<PacketLog>,
    /// Queues and wire of ports that are added later, where the request does not set them.
    pub added_wire: WireConfig,
    /// Limits for programs and their entries.
    pub limits: Limits,
    /// Emulate this target. `program` is then a configuration for it.
    pub target: Option<Arc<dyn Target>>,
}

/// Device 1 at P4Runtime's port on loopback, without program and ports.
impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig {
            device_id: 1,
            grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 9559)),
            tls: None,
            program: None,
            ports: Vec::new(),
            cpu_port: None,
            seed: 1,
            stats_key: None,
            pcap_dir: None,
            pcap_names: CaptureNames::Number,
            priority_queues: PRIORITIES as u8,
            send_rings: true,
            poll: POLL,
            packet_log: None,
            added_wire: WireConfig::default(),
            limits: Limits::default(),
            target: None,
        }
    }
}
