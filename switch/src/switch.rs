//! A running switch: its forwarding thread and its gRPC server.

use std::net::SocketAddr;
use std::sync::Arc;

use ultima_grpc::server::Certificates;

use crate::config::{MAX_PORT, PortConfig, SwitchConfig};
use crate::datapath::ControllerLink;
use crate::error::SwitchError;
use crate::forward::Forwarder;
use crate::grpc::{self, Service};
use crate::notify::{self, Tallies};
use crate::opener::PortOpener;
use crate::pipeline::{Loader, Pipeline};
use crate::running::{self, Running};

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
        let (device_id, asked) = (config.device_id, config.grpc);
        let running = start(config, Some(asked), false).await?;
        let grpc = running.grpc_addr().unwrap_or(asked);
        tracing::info!("device {device_id} serves P4Runtime at {grpc}");
        Ok(Switch { grpc, running })
    }

    /// Returns the address of the gRPC server.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    /// Runs until `end` is ready. Then it stops forwarding, flushes captures and removes socket files.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn run_until(self, end: impl Future<Output = ()>) -> Result<(), SwitchError> {
        self.running.run_until(end).await
    }

    /// Stops the switch.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn stop(self) -> Result<(), SwitchError> {
        self.running.stop().await
    }
}

/// Starts forwarding, and serves gRPC at the address `grpc`. If `joined`, frames cross between two ports without a program.
pub(crate) async fn start(
    config: SwitchConfig,
    grpc: Option<SocketAddr>,
    joined: bool,
) -> Result<Running, SwitchError> {
    check_ports(&config.ports, config.cpu_port)?;
    let target = config.target;
    if let Some(target) = &target {
        for port in &config.ports {
            let checked = target.check_port(port.number);
            checked.map_err(|refusal| SwitchError::Ports(refusal.message))?;
        }
    }
    let mut limits = config.limits;
    limits.classes_of_service = config.priority_queues;
    let loader = Loader {
        limits: match &target {
            Some(target) => target.limits(limits),
            None => limits,
        },
        seed: config.seed,
        target,
    };
    let pipeline = match config.program {
        Some(files) => Some(loader.load_bare(files.parsed()?)?),
        None => None,
    };
    let certificates = Certificates::load(config.tls)?;
    let listening = match grpc {
        Some(address) => Some(running::listen(address).await?),
        None => None,
    };
    let opener = PortOpener {
        seed: config.seed,
        pcap_dir: config.pcap_dir,
        pcap_names: config.pcap_names,
        priority_queues: config.priority_queues,
        send_rings: config.send_rings,
        added_wire: config.added_wire,
        captured: Default::default(),
    };
    opener.create_folder()?;
    let ports = config.ports.into_iter().map(|port| opener.open(port));
    let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
    let tallies = Arc::<Tallies>::default();
    let (notifier, notifications) = notify::queues(tallies.clone());
    let cpu_port = config.cpu_port;
    if let Some(number) = cpu_port {
        ports.push(opener.open_cpu_port(number, notifier.clone()));
    }
    for port in &mut ports {
        opener.begin(port)?;
    }
    let controllers = ControllerLink { cpu_port, notifier };
    let schema = pipeline.as_ref().and_then(Pipeline::schema);
    let (mut forwarder, handle) =
        Forwarder::new(ports, controllers, config.stats_key, pipeline, config.poll)
            .map_err(SwitchError::Forwarding)?;
    if joined {
        forwarder.datapath().join();
    }
    if let Some(log) = config.packet_log {
        forwarder.datapath().start_log(log);
    }
    let mut running = Running::start(forwarder, handle.clone())?;
    if let Some(listener) = listening {
        let headers = notifications.headers.clone();
        let service = Service::new(
            config.device_id,
            loader,
            handle,
            tallies,
            headers,
            opener,
            schema,
        );
        tokio::spawn(grpc::deliver(service.clone(), notifications));
        let services = grpc::services(&service, joined);
        running.serve(listener, certificates, services, service);
    }
    Ok(running)
}

/// Checks numbers, attachments and wires of ports.
fn check_ports(ports: &[PortConfig], cpu_port: Option<u16>) -> Result<(), SwitchError> {
    let invalid = |what: String| Err(SwitchError::Ports(what));
    if let Some(number) = cpu_port
        && (!(1..=MAX_PORT).contains(&number) || ports.iter().any(|port| port.number == number))
    {
        return invalid(format!(
            "CPU port {number}: expected 1 to {MAX_PORT}, and no other port of this number"
        ));
    }
    for (index, port) in ports.iter().enumerate() {
        let number = port.number;
        if number > MAX_PORT {
            return invalid(format!("port {number}: expected 0 to {MAX_PORT}"));
        }
        if ports[..index].iter().any(|other| other.number == number) {
            return invalid(format!("port {number} is given twice"));
        }
        let attachment = port.attach.to_string();
        let same = |other: &&PortConfig| other.attach.to_string() == attachment;
        if let Some(other) = ports[..index].iter().find(same) {
            return invalid(format!(
                "port {number}: {attachment} is already attached to port {}; give each port its own",
                other.number
            ));
        }
        if let Err(error) = port.wire.validate() {
            return invalid(format!("port {number}: {error}"));
        }
    }
    Ok(())
}
