//! Links, and background traffic.

use ultima_link::WireConfig;

use super::{HostId, SwitchPort};
use crate::target::Speed;

/// The default MTU of a link.
pub const DEFAULT_MTU: u16 = 1500;
/// The lowest MTU: every host must accept it (RFC 791 §3.1).
pub const MIN_MTU: u16 = 576;
/// The highest MTU: jumbo frames of data centre switches.
pub const MAX_MTU: u16 = 9216;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkEnd {
    /// A host's only interface.
    Host(HostId),
    /// A switch's port.
    Port(SwitchPort),
}

/// A link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The ends A and B.
    pub ends: [LinkEnd; 2],
    /// Bytes of the largest IPv4 packet that it carries.
    pub mtu: u16,
    /// The wires from A to B and from B to A.
    pub wires: [WireConfig; 2],
    /// The speed of the ports at its ends, if they are on a front panel.
    pub speed: Option<Speed>,
}

impl Link {
    /// True if the link has settings beyond those of its ports, which a lab must emulate.
    pub fn is_impaired(&self) -> bool {
        let perfect = WireConfig {
            rate: self.speed.map(Speed::bits_per_second),
            ..WireConfig::default()
        };
        self.wires.iter().any(|wire| *wire != perfect)
    }
}

/// Background traffic that shares the fabric with jobs, from the lab's start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The sender.
    pub from: HostId,
    /// The receiver.
    pub to: HostId,
    /// The kind of traffic.
    pub kind: FlowKind,
}

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// UDP at a constant rate in bits per second, including Ethernet and IPv4 headers.
    Udp {
        /// The rate.
        rate: u64,
    },
    /// One TCP connection that always has data to send.
    Tcp,
}
