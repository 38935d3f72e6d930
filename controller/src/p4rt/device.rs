//! The address of a switch.

use ultima_grpc::tls::ClientTls;
use ultima_p4runtime::tofino::Packing;

/// A device behind a P4Runtime server.
#[derive(Clone, Debug)]
pub struct Device {
    /// The switch's name, for errors.
    pub name: String,
    /// HOST:PORT of the P4Runtime server.
    pub grpc: String,
    /// The P4Runtime device id.
    pub device_id: u64,
    /// TLS of the server; none for plain text.
    pub tls: Option<ClientTls>,
    /// The packing in which the server takes Tofino programs.
    pub packing: Packing,
}
