//! An impaired link: two ports joined by wires, without a program.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::{Attach, PortConfig, SwitchConfig};
use crate::datapath::Datapath;
use crate::error::SwitchError;
use crate::forward::Handle;
use crate::proto::GetResponse;
use crate::running::Running;
use crate::switch;
use crate::tm::WireConfig;
use crate::translate::statistics;

/// Port number of end A in port statistics and settings.
pub const PORT_A: u16 = 1;
/// Port number of end B.
pub const PORT_B: u16 = 2;
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

/// Reads a link's counts while it runs.
#[derive(Clone)]
pub struct LinkCounts(Handle);

/// Opens both ends and joins them.
///
/// # Errors
/// [`SwitchError`], on one line. Port 1 is A, port 2 is B. Leaves no files or sockets behind.
pub async fn start(config: LinkConfig) -> Result<Running, SwitchError> {
    let port = |number, attach, wire| PortConfig {
        number,
        attach,
        wire,
    };
    let ports = vec![
        port(PORT_A, config.a, config.b_to_a),
        port(PORT_B, config.b, config.a_to_b),
    ];
    let joined = SwitchConfig {
        device_id: DEVICE,
        ports,
        seed: config.seed,
        pcap_dir: config.pcap_dir,
        ..SwitchConfig::default()
    };
    switch::start(joined, config.grpc, true).await
}

/// Returns a handle that reads the counts of a running link.
pub fn counts(link: &Running) -> LinkCounts {
    LinkCounts(link.handle())
}

impl LinkCounts {
    /// Returns a consistent snapshot of both ends' counts, or `None` if the link has stopped.
    pub async fn get(&self) -> Option<GetResponse> {
        let read = |datapath: &mut Datapath| datapath.snapshot();
        let snapshot = self.0.call(read).await.ok()?;
        Some(statistics::message(DEVICE, snapshot))
    }
}
