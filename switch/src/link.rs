//! An impaired link: two ports joined by wires, without a program.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Attach, PortConfig};
use crate::datapath::{ControllerLink, Datapath};
use crate::engine::Limits;
use crate::forward::{Forwarder, Handle};
use crate::grpc::{self, Service};
use crate::notify::{self, Tallies};
use crate::opener::PortOpener;
use crate::pipeline::Loader;
use crate::port::replay::ReplayPlan;
use crate::proto::GetResponse;
use crate::running::{self, Running};
use crate::switch::{SwitchError, check_ports};
use crate::tm::WireConfig;

/// Port number of end A in port statistics and settings.
pub const PORT_A: u16 = 1;
/// Port number of end B.
pub const PORT_B: u16 = 2;
/// A link's device id.
const DEVICE: u64 = 1;

/// A link's configuration.
#[derive(Debug)]
pub struct LinkConfig {
    /// End A.
    pub a: Attach,
    /// End B.
    pub b: Attach,
    /// Queue and wire from A to B: those of port B.
    pub a_to_b: WireConfig,
    /// Queue and wire from B to A: those of port A.
    pub b_to_a: WireConfig,
    /// Random seed. Two links with equal configurations and frames lose the same frames.
    pub seed: u64,
    /// Address of the services for port statistics and traffic-manager settings; port 0 takes any free one.
    pub grpc: Option<SocketAddr>,
    /// Folder for captures: `1_in.pcap`, `1_out.pcap` (end A), `2_in.pcap`, `2_out.pcap`.
    pub pcap_dir: Option<PathBuf>,
}

/// A running link. Dropping it stops forwarding without waiting.
pub struct Link {
    grpc: Option<SocketAddr>,
    handle: Handle,
    running: Running,
}

/// Reads a link's counts while it runs.
#[derive(Clone)]
pub struct LinkCounts(Handle);

impl Link {
    /// Opens both ends and joins them.
    ///
    /// # Errors
    /// [`SwitchError`], on one line. Port 1 is A, port 2 is B. Leaves no files or sockets behind.
    pub async fn start(config: LinkConfig) -> Result<Link, SwitchError> {
        let port = |number, attach, wire| PortConfig {
            number,
            attach,
            wire,
        };
        let ports = vec![
            port(PORT_A, config.a, config.b_to_a),
            port(PORT_B, config.b, config.a_to_b),
        ];
        check_ports(&ports, None)?;
        let listening = match config.grpc {
            Some(address) => Some(running::listen(address).await?),
            None => None,
        };
        let opener = PortOpener::new(config.seed, config.pcap_dir, ReplayPlan::default())?;
        let mut ports = ports
            .into_iter()
            .map(|port| opener.open(port))
            .collect::<Result<Vec<_>, _>>()?;
        for port in &mut ports {
            opener.begin(port)?;
        }
        let tallies = Arc::<Tallies>::default();
        // Without a program there are no messages to controllers.
        let (notifier, _) = notify::queues(tallies.clone());
        let controllers = ControllerLink {
            cpu_port: None,
            notifier,
        };
        let (mut forwarder, handle) =
            Forwarder::new(ports, controllers, None, None).map_err(SwitchError::Forwarding)?;
        forwarder.datapath().join();
        let mut running = Running::start(forwarder, handle.clone())?;
        let mut grpc = None;
        if let Some((listener, address)) = listening {
            let loader = Loader {
                limits: Limits::default(),
                seed: config.seed,
                target: None,
            };
            let service = Service::new(DEVICE, loader, handle.clone(), tallies, opener);
            let router = running::server()
                .add_service(grpc::ports_server(service.clone()))
                .add_service(grpc::traffic_server(service.clone()));
            running.serve(listener, router, service);
            grpc = Some(address);
        }
        Ok(Link {
            grpc,
            handle,
            running,
        })
    }

    /// Returns the address of the gRPC server, if there is one.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Returns a handle that reads the link's counts.
    pub fn counts(&self) -> LinkCounts {
        LinkCounts(self.handle.clone())
    }

    /// Runs until `end` is ready. Then it stops forwarding, flushes captures and removes socket files.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn run_until(self, end: impl Future<Output = ()>) -> Result<(), SwitchError> {
        self.running.until(end).await
    }

    /// Stops the link.
    ///
    /// # Errors
    /// The forwarding thread ended by itself.
    pub async fn stop(self) -> Result<(), SwitchError> {
        self.running.stop().await
    }
}

impl LinkCounts {
    /// Returns a consistent snapshot of both ends' counts, or `None` if the link has stopped.
    pub async fn get(&self) -> Option<GetResponse> {
        let read = |datapath: &mut Datapath| datapath.snapshot();
        let snapshot = self.0.call(read).await.ok()?;
        Some(grpc::statistics(DEVICE, snapshot))
    }
}
