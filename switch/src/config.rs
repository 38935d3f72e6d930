//! How a switch is configured, and what can be wrong with that.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::emulation::Emulation;
use crate::engine::Limits;
use crate::stats::StatsKey;
use crate::tls::TlsFiles;
use crate::tm::WireConfig;

/// Highest port number: v1model's egress port has nine bits, and 511 stands for "drop".
pub const MAX_PORT: u16 = 510;

/// What a port is attached to.
#[derive(Debug)]
pub enum Attach {
    /// A Linux network interface, by name; needs CAP_NET_RAW.
    Interface(String),
    /// A Unix socket (`SOCK_SEQPACKET`) that listens at this path and serves one peer at a time.
    /// The file is removed when the switch stops.
    Unix(PathBuf),
    /// One end of a connected pair of Unix sockets (`SOCK_SEQPACKET`), inherited from the parent
    /// process under this number and handed over to the switch.
    Inherited(RawFd),
    /// The same, within one process.
    Socket(OwnedFd),
    /// Pcap files: frames of one enter, those that leave go to another.
    Pcap(PcapFiles),
}

impl Attach {
    /// Whether both are one interface or one descriptor, which can serve one port only. Sockets and
    /// files that are in use say so themselves.
    pub(crate) fn is_same(&self, other: &Attach) -> bool {
        match (self, other) {
            (Attach::Interface(one), Attach::Interface(two)) => one == two,
            (Attach::Inherited(one), Attach::Inherited(two)) => one == two,
            _ => false,
        }
    }
}

/// The files of a port that replays what was captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcapFiles {
    /// Frames of this file enter the switch, once; none: nothing enters.
    pub input: Option<PathBuf>,
    /// What leaves the port goes to this file; none: it has no peer.
    pub output: Option<PathBuf>,
    /// Frames enter at the times that the file says, counted from the first, and not as fast as the
    /// switch takes them.
    pub timed: bool,
    /// A file that is there is replaced by what leaves; otherwise it is an error.
    pub overwrite: bool,
}

impl fmt::Display for PcapFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.timed { PCAP_TIMED } else { PCAP })?;
        if let Some(input) = &self.input {
            write!(f, "{}", input.display())?;
        }
        match &self.output {
            Some(output) => write!(f, ",{}", output.display()),
            None => Ok(()),
        }
    }
}

/// What precedes the files of a [`PcapFiles`] on a command line.
const PCAP: &str = "pcap:";
const PCAP_TIMED: &str = "pcap-timed:";

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::os::fd::AsRawFd;
        match self {
            Attach::Interface(name) => write!(f, "{name}"),
            Attach::Unix(path) => write!(f, "unix:{}", path.display()),
            Attach::Inherited(fd) => write!(f, "fd:{fd}"),
            Attach::Socket(socket) => write!(f, "fd:{}", socket.as_raw_fd()),
            Attach::Pcap(files) => files.fmt(f),
        }
    }
}

/// A port and its attachment as they are written on a command line: `3@veth0`,
/// `3@unix:/run/p3.sock`, `3@fd:7`, `3@pcap:in.pcap,out.pcap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Port number, at most [`MAX_PORT`].
    pub number: u16,
    /// What it is attached to.
    pub attach: AttachSpec,
}

/// An attachment as it is written on a command line: `veth0`, `unix:/run/p3.sock`, `fd:7`,
/// `pcap:in.pcap,out.pcap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachSpec(NamedAttach);

#[derive(Debug, Clone, PartialEq, Eq)]
enum NamedAttach {
    Interface(String),
    Unix(PathBuf),
    Inherited(RawFd),
    Pcap(PcapFiles),
}

impl From<AttachSpec> for Attach {
    fn from(spec: AttachSpec) -> Attach {
        match spec.0 {
            NamedAttach::Interface(name) => Attach::Interface(name),
            NamedAttach::Unix(path) => Attach::Unix(path),
            NamedAttach::Inherited(fd) => Attach::Inherited(fd),
            NamedAttach::Pcap(files) => Attach::Pcap(files),
        }
    }
}

/// Why an [`AttachSpec`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// A name that no interface can have.
    #[error("`{0}` is not an interface name, expected 1 to 15 characters without `/`")]
    Interface(String),
    /// A path that no socket can have.
    #[error("`{0}`: expected a path of 1 to 107 bytes after `unix:`")]
    Path(String),
    /// A descriptor that cannot be inherited.
    #[error("`{0}`: expected the number of an inherited descriptor, 3 or more, after `fd:`")]
    Descriptor(String),
    /// A descriptor of a process that does not ask.
    #[error(
        "`fd:{0}`: descriptors are for the process that starts the switch, expected an interface, \
         unix:PATH or pcap:IN,OUT"
    )]
    Remote(RawFd),
    /// No file at all.
    #[error("`{0}`: expected a pcap file to replay, `,` and one to write, or one of the two")]
    Pcap(String),
}

impl FromStr for AttachSpec {
    type Err = AttachError;

    fn from_str(spec: &str) -> Result<Self, AttachError> {
        let attach = if let Some(path) = spec.strip_prefix("unix:") {
            // sockaddr_un holds 108 bytes with the final zero.
            if path.is_empty() || path.len() > 107 || path.contains('\0') {
                return Err(AttachError::Path(spec.to_owned()));
            }
            NamedAttach::Unix(path.into())
        } else if let Some(fd) = spec.strip_prefix("fd:") {
            let fd = fd.parse().ok().filter(|fd| *fd > 2);
            NamedAttach::Inherited(fd.ok_or_else(|| AttachError::Descriptor(spec.to_owned()))?)
        } else if let Some(files) = pcap_files(spec) {
            NamedAttach::Pcap(files.ok_or_else(|| AttachError::Pcap(spec.to_owned()))?)
        } else {
            // dev_valid_name() of Linux.
            let refused = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
            if spec.is_empty() || spec.len() > 15 || spec.contains(refused) {
                return Err(AttachError::Interface(spec.to_owned()));
            }
            NamedAttach::Interface(spec.to_owned())
        };
        Ok(AttachSpec(attach))
    }
}

impl PortSpec {
    /// The port with a wire.
    pub fn with_wire(self, wire: WireConfig) -> PortConfig {
        PortConfig {
            number: self.number,
            attach: self.attach.into(),
            wire,
        }
    }
}

impl AttachSpec {
    /// The attachment, as somebody asks for it who is not at this machine.
    ///
    /// # Errors
    /// An inherited descriptor, of which they cannot know.
    pub(crate) fn asked_remotely(self) -> Result<Attach, AttachError> {
        match self.0 {
            NamedAttach::Inherited(fd) => Err(AttachError::Remote(fd)),
            // Whoever may add ports may not overwrite all that this process could.
            NamedAttach::Pcap(files) => Ok(Attach::Pcap(PcapFiles {
                overwrite: false,
                ..files
            })),
            NamedAttach::Interface(_) | NamedAttach::Unix(_) => Ok(self.into()),
        }
    }
}

/// Why a [`PortSpec`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortSpecError {
    /// No `@`.
    #[error(
        "port `{0}`: expected PORT@INTERFACE, PORT@unix:PATH, PORT@fd:NUMBER or PORT@pcap:IN,OUT"
    )]
    Syntax(String),
    /// The part before `@` is no port number.
    #[error("port `{spec}`: `{number}` is not a port number, expected 0 to {MAX_PORT}")]
    Number {
        /// All of it.
        spec: String,
        /// The part before `@`.
        number: String,
    },
    /// The part after `@` is no attachment.
    #[error("port `{spec}`: {source}")]
    Attach {
        /// All of it.
        spec: String,
        /// What is wrong.
        source: AttachError,
    },
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(spec: &str) -> Result<Self, PortSpecError> {
        let syntax = || PortSpecError::Syntax(spec.to_owned());
        let (number, target) = spec.split_once('@').ok_or_else(syntax)?;
        let number = number
            .parse()
            .ok()
            .filter(|n| *n <= MAX_PORT)
            .ok_or_else(|| PortSpecError::Number {
                spec: spec.to_owned(),
                number: number.to_owned(),
            })?;
        let attach = target.parse().map_err(|source| PortSpecError::Attach {
            spec: spec.to_owned(),
            source,
        })?;
        Ok(PortSpec { number, attach })
    }
}

/// The files of `pcap:IN,OUT`, either of which may be left out; none for another attachment, and
/// `Some(None)` when both are.
fn pcap_files(target: &str) -> Option<Option<PcapFiles>> {
    let (timed, names) = match target.strip_prefix(PCAP_TIMED) {
        Some(names) => (true, names),
        None => (false, target.strip_prefix(PCAP)?),
    };
    let (input, output) = names.split_once(',').unwrap_or((names, ""));
    let file = |name: &str| (!name.is_empty()).then(|| PathBuf::from(name));
    let files = PcapFiles {
        input: file(input),
        output: file(output),
        timed,
        overwrite: true,
    };
    Some((files.input.is_some() || files.output.is_some()).then_some(files))
}

/// A port.
#[derive(Debug)]
pub struct PortConfig {
    /// Port number, at most [`MAX_PORT`].
    pub number: u16,
    /// What it is attached to.
    pub attach: Attach,
    /// Its queue and what is behind it, in the direction out of the switch.
    pub wire: WireConfig,
}

/// A program to start with.
#[derive(Debug, Clone)]
pub struct ProgramFiles {
    /// What p4c's BMv2 backend printed.
    pub json: Vec<u8>,
    /// Its P4Info in protobuf's text format.
    pub p4info: String,
}

/// A switch.
#[derive(Debug)]
pub struct SwitchConfig {
    /// P4Runtime's device id, not 0.
    pub device_id: u64,
    /// Where P4Runtime and the port statistics are served; port 0: any free one.
    pub grpc: SocketAddr,
    /// Serve them over TLS.
    pub tls: Option<TlsFiles>,
    /// The program to run until a controller sets another; without one, frames are counted and
    /// dropped.
    pub program: Option<ProgramFiles>,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// The number of the port to the controllers (P4Runtime §16.1): what leaves through it becomes
    /// a packet-in, packet-outs enter there. None of `ports`, from 1 to [`MAX_PORT`].
    pub cpu_port: Option<u16>,
    /// Seed of all that is random. Two switches of one configuration that see the same frames lose
    /// the same, and every program that is loaded draws the same numbers.
    pub seed: u64,
    /// Break the port statistics down by a byte of the frame.
    pub stats_key: Option<StatsKey>,
    /// Ports that replay a file begin so long after the start: time to write entries.
    pub replay_after: Duration,
    /// End when every file is replayed and nothing is on its way any more. Without a file to replay
    /// the switch does not end by itself.
    pub exit_when_done: bool,
    /// Write `PORT_in.pcap` and `PORT_out.pcap` for each port into this folder, over those of an
    /// earlier run. A port that is removed and added again goes on in the same files.
    pub pcap_dir: Option<PathBuf>,
    /// What a program may ask of the switch.
    pub limits: Limits,
    /// Present the switch as a Tofino; `program` is then none of its.
    pub emulation: Option<Emulation>,
}

/// One switch, device 1, on P4Runtime's own port of this machine, without program and ports.
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
            replay_after: Duration::ZERO,
            exit_when_done: false,
            pcap_dir: None,
            limits: Limits::default(),
            emulation: None,
        }
    }
}
