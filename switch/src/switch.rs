//! A running switch: its forwarding thread and its gRPC server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ultima_grpc::tls::TlsError;
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::text;
use ultima_p4runtime::v1::ForwardingPipelineConfig;

use crate::config::{MAX_PORT, PortConfig, ProgramFiles, SwitchConfig};
use crate::datapath::ControllerLink;
use crate::forward::Forwarder;
use crate::grpc::{self, Service};
use crate::notify::{self, Tallies};
use crate::opener::PortOpener;
use crate::pipeline::{ConfigError, Loader, Pipeline};
use crate::port::replay::ReplayPlan;
use crate::running::{self, Running};
use crate::target::Refusal;
use crate::tm::WireError;

/// Why a switch does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A port number that v1model does not have.
    #[error("port {0}: expected 0 to {MAX_PORT}")]
    PortNumber(u16),
    /// Two ports with one number.
    #[error("port {0} is given twice")]
    PortTwice(u16),
    /// Two ports on one interface or descriptor.
    #[error(
        "port {port}: {attachment} is already attached to port {other}; give each port its own"
    )]
    AttachedTwice {
        /// The second port.
        port: u16,
        /// The common attachment.
        attachment: String,
        /// The first port.
        other: u16,
    },
    /// An invalid number of the CPU port.
    #[error("CPU port {0}: expected 1 to {MAX_PORT}, and no other port of this number")]
    CpuPort(u16),
    /// A port's wire has invalid settings.
    #[error("port {port}: {source}")]
    Wire {
        /// The port.
        port: u16,
        /// The reason.
        source: WireError,
    },
    /// A port's attachment cannot be opened.
    #[error("port {port}: cannot attach to {attachment}: {source}")]
    Attach {
        /// The port.
        port: u16,
        /// The attachment.
        attachment: String,
        /// The reason.
        source: io::Error,
    },
    /// A port that the emulated target does not have.
    #[error(transparent)]
    NoSuchPort(Refusal),
    /// The P4Info file cannot be parsed.
    #[error("P4Info: {0}")]
    P4Info(#[from] text::TextError),
    /// The program does not load.
    #[error("program: {0}")]
    Program(#[from] ConfigError),
    /// The folder for captures is not writable.
    #[error("captures in {dir}: {source}")]
    Capture {
        /// The folder.
        dir: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// TLS cannot be configured.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The gRPC server cannot listen at the address.
    #[error("cannot serve gRPC at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The forwarding thread cannot start, or ended by itself.
    #[error("forwarding: {0}")]
    Forwarding(io::Error),
}

/// A running switch. Dropping it stops forwarding without waiting.
pub struct Switch {
    grpc: SocketAddr,
    running: Running,
}

impl Switch {
    /// Opens the ports, loads the program, and serves gRPC.
    ///
    /// # Errors
    /// [`SwitchError`], on one line. Leaves no files or sockets behind.
    pub async fn start(config: SwitchConfig) -> Result<Switch, SwitchError> {
        let SwitchConfig {
            device_id,
            grpc,
            tls,
            program,
            ports,
            cpu_port,
            seed,
            stats_key,
            replay_after,
            exit_when_done,
            pcap_dir,
            pcap_names,
            priority_queues,
            send_rings,
            packet_log,
            limits,
            target,
        } = config;
        check_ports(&ports, cpu_port)?;
        if let Some(target) = &target {
            for port in &ports {
                let checked = target.check_port(port.number);
                checked.map_err(SwitchError::NoSuchPort)?;
            }
        }
        let loader = Loader {
            limits: match &target {
                Some(target) => target.limits(limits),
                None => limits,
            },
            seed,
            target,
        };
        let pipeline = program.map(|files| load(files, &loader)).transpose()?;
        let mut server = match &tls {
            Some(files) => files.secure(running::server())?,
            None => running::server(),
        };
        let (listener, address) = running::listen(grpc).await?;
        let replay = ReplayPlan {
            after: replay_after,
            decisive: exit_when_done,
        };
        let mut opener = PortOpener::new(seed, pcap_dir, replay)?;
        opener.pcap_names = pcap_names;
        opener.priority_queues = priority_queues;
        opener.send_rings = send_rings;
        let mut ports = ports
            .into_iter()
            .map(|port| opener.open(port))
            .collect::<Result<Vec<_>, _>>()?;
        let tallies = Arc::<Tallies>::default();
        let (notifier, notifications) = notify::queues(tallies.clone());
        if let Some(number) = cpu_port {
            ports.push(opener.open_cpu_port(number, notifier.clone())?);
        }
        for port in &mut ports {
            opener.begin(port)?;
        }
        let controllers = ControllerLink { cpu_port, notifier };
        let (mut forwarder, handle) = Forwarder::new(ports, controllers, stats_key, pipeline)
            .map_err(SwitchError::Forwarding)?;
        if exit_when_done {
            forwarder.end_with_replay();
        }
        if let Some(log) = packet_log {
            forwarder.datapath().start_log(log);
        }
        let mut running = Running::start(forwarder, handle.clone())?;
        let service = Service::new(device_id, loader, handle, tallies, opener);
        tokio::spawn(grpc::deliver(service.clone(), notifications));
        let router = server
            .add_service(grpc::p4runtime_server(service.clone()))
            .add_service(grpc::gnmi_server(service.clone()))
            .add_service(grpc::ports_server(service.clone()))
            .add_service(grpc::trace_server(service.clone()))
            .add_service(grpc::port_control_server(service.clone()))
            .add_service(grpc::traffic_server(service.clone()));
        running.serve(listener, router, service);
        tracing::info!("device {device_id} serves P4Runtime at {address}");
        Ok(Switch {
            grpc: address,
            running,
        })
    }

    /// Returns the address of the gRPC server.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    /// Runs until `end` is ready, or until all files are replayed (`exit_when_done`). Then it stops forwarding, flushes captures
    /// and removes socket files.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn run_until(self, end: impl Future<Output = ()>) -> Result<(), SwitchError> {
        self.running.until(end).await
    }

    /// Stops the switch.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn stop(self) -> Result<(), SwitchError> {
        self.running.stop().await
    }
}

/// Checks numbers, attachments and wires of ports.
pub(crate) fn check_ports(ports: &[PortConfig], cpu_port: Option<u16>) -> Result<(), SwitchError> {
    let taken = |number| ports.iter().any(|port| port.number == number);
    if let Some(number) = cpu_port
        && (!(1..=MAX_PORT).contains(&number) || taken(number))
    {
        return Err(SwitchError::CpuPort(number));
    }
    for (index, port) in ports.iter().enumerate() {
        let number = port.number;
        if number > MAX_PORT {
            return Err(SwitchError::PortNumber(number));
        }
        if ports[..index].iter().any(|other| other.number == number) {
            return Err(SwitchError::PortTwice(number));
        }
        let same = |other: &&PortConfig| other.attach.is_same(&port.attach);
        if let Some(other) = ports[..index].iter().find(same) {
            return Err(SwitchError::AttachedTwice {
                port: number,
                attachment: port.attach.to_string(),
                other: other.number,
            });
        }
        port.wire.validate().map_err(|source| SwitchError::Wire {
            port: number,
            source,
        })?;
    }
    Ok(())
}

fn load(files: ProgramFiles, loader: &Loader) -> Result<Pipeline, SwitchError> {
    let Some(p4info) = files.p4info else {
        return Ok(loader.load_bare(files.json)?);
    };
    let p4info: P4Info = text::parse(&p4info)?;
    let config = ForwardingPipelineConfig {
        p4info: Some(p4info),
        p4_device_config: files.json,
        cookie: None,
    };
    Ok(loader.load(config)?)
}
