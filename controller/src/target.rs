//! What a switch's target can do: the one place where targets differ for the controller.

use std::fmt;
use std::ops::RangeInclusive;

/// A port's number on its switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u16);

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a target can do. Table and counter sizes are not here: they are the program's, and its
/// P4Info says them.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// The name that fabric files use.
    pub name: &'static str,
    /// The ports that links may use.
    pub ports: RangeInclusive<u16>,
    /// What the packet replication engine (PRE) holds.
    pub limits: Limits,
}

/// What a switch's packet replication engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Multicast groups.
    pub groups: u32,
    /// Replicas (port and RID) of one group.
    pub group_replicas: u32,
    /// Nodes over all groups. A node is one RID of one group, whatever the number of its ports.
    pub nodes: u32,
}

/// The v1model architecture as BMv2's `simple_switch_grpc` and the embedded switch run it.
///
/// Ports are 9 bits wide; 0 is left out because an unset port in a message reads as 0, 510 is that of
/// the clone session by which egress tells of losses (`names::loss::SESSION_PORT`), and 511 is the
/// drop port. Groups and nodes are BMv2's defaults (`bm_sim/simple_pre.h`:
/// `DEFAULT_MGID_TABLE_SIZE`, `DEFAULT_L1_MAX_ENTRIES`), which its users cannot change without
/// recompiling; replicas of one group are the embedded switch's (`engine::Limits`), which is stricter
/// there.
pub const V1MODEL: Target = Target {
    name: "v1model",
    ports: 1..=509,
    limits: Limits {
        groups: 4096,
        group_replicas: 1024,
        nodes: 4096,
    },
};

/// All targets that a fabric may name.
pub const TARGETS: &[&Target] = &[&V1MODEL];

impl Target {
    /// The target called `name`.
    pub fn by_name(name: &str) -> Option<&'static Target> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }
}
