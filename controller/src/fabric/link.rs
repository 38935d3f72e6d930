//! Links, and the traffic that shares them.

use ultima_link::WireConfig;

use super::{HostId, SwitchPort};
use crate::target::Speed;

/// What a link carries unless the fabric says otherwise, as an IPv4 packet's largest size in bytes.
pub const DEFAULT_MTU: u16 = 1500;
/// The least that a link may carry: what every host must accept (RFC 791 §3.1).
pub const MIN_MTU: u16 = 576;
/// The most: jumbo frames as data centre switches have them.
pub const MAX_MTU: u16 = 9216;

/// What a link ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkEnd {
    /// A host's one interface.
    Host(HostId),
    /// A switch's port.
    Port(SwitchPort),
}

/// A link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its two ends, A and B.
    pub ends: [LinkEnd; 2],
    /// Bytes of the largest IPv4 packet that it carries.
    pub mtu: u16,
    /// What happens to frames from A to B, and to those from B to A.
    pub wires: [WireConfig; 2],
    /// What the ports at its ends are set to, where they are on a front panel.
    pub speed: Option<Speed>,
}

impl Link {
    /// Whether it does more to frames than its ports do by themselves: a perfect link needs nobody to see to it.
    pub fn is_impaired(&self) -> bool {
        let perfect = WireConfig {
            rate: self.speed.map(Speed::bits_per_second),
            ..WireConfig::default()
        };
        self.wires.iter().any(|wire| *wire != perfect)
    }
}

/// Traffic that is no job's: what jobs share the fabric with, from the lab's start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who sends.
    pub from: HostId,
    /// Who receives.
    pub to: HostId,
    /// How.
    pub kind: FlowKind,
}

/// How a flow sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// UDP at a steady rate in bits per second, Ethernet and IPv4 headers included, whatever is lost.
    Udp {
        /// The rate.
        rate: u64,
    },
    /// One TCP connection that always has something to send.
    Tcp,
}
