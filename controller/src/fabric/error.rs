//! What can be wrong with a fabric.

use std::net::Ipv4Addr;

use ultima_link::units::UnitError;
use ultima_link::{ChangeError, WireError};

use super::front_panel::{PanelError, PortMapError};
use super::link::{MAX_MTU, MIN_MTU};
use crate::mac::{MacAddr, ParseMacError};
use crate::target::Speed;
use crate::yaml::LoadError;

/// Why a fabric file was not accepted.
pub type FabricError = LoadError<FabricProblem>;

/// What is wrong with a well-formed fabric file, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FabricProblem {
    /// A fabric without switches.
    #[error("a fabric needs at least one switch")]
    NoSwitches,
    /// More than ways are kept for.
    #[error("{switches} switches; a fabric has {most} at the most")]
    TooManySwitches {
        /// How many there are.
        switches: usize,
        /// How many there may be.
        most: usize,
    },
    /// A name with characters that names cannot have.
    #[error(
        "{0:?} is no name; one has 1 to 63 letters, digits, '-', '_' or '.' and starts with a letter or digit"
    )]
    Name(String),
    /// Two switches or hosts of one name.
    #[error("{name} is the name of {other} already; names are unique among switches and hosts")]
    NameTaken {
        /// The name.
        name: String,
        /// Who had it first, such as `switches[0]`.
        other: String,
    },
    /// A target that does not exist.
    #[error("no target is called {name:?}; known: {known}")]
    Target {
        /// What the file says.
        name: String,
        /// The targets there are.
        known: String,
    },
    /// Not `HOST:PORT`.
    #[error("{0:?} is no address of a P4Runtime server; one is HOST:PORT, such as 127.0.0.1:9559")]
    Grpc(String),
    /// P4Runtime's device ids count from 1.
    #[error("device_id 0 means none in P4Runtime; use the switch's own, 1 or above")]
    DeviceId,
    /// Two switches that are one device.
    #[error("device {device_id} at {grpc} is {other} already; every switch is its own device")]
    DeviceTaken {
        /// The device's id.
        device_id: u64,
        /// The server's address.
        grpc: String,
        /// The switch that had it first.
        other: String,
    },
    /// A file for TLS that is of no use.
    #[error("{0}")]
    Tls(String),
    /// A certificate without its key, or the other way round.
    #[error("a certificate of ours needs both `cert` and `key`")]
    HalfIdentity,
    /// A limit of 0, or above what the target can do.
    #[error("{value} is out of range; target {target} takes 1 to {most}")]
    Limit {
        /// What the file says.
        value: u32,
        /// The switch's target.
        target: &'static str,
        /// The target's own limit.
        most: u32,
    },
    /// Not a MAC address.
    #[error("{text:?} is {error}")]
    Mac {
        /// What the file says.
        text: String,
        /// Why it is none.
        error: ParseMacError,
    },
    /// A multicast or zero MAC address.
    #[error(
        "{0} cannot be a host's, which is not all zeros and has 0 as the lowest bit of the first octet, such as 02:00:00:00:00:01"
    )]
    MacNotStation(MacAddr),
    /// Two hosts with one MAC address.
    #[error("{mac} is {other}'s already; every host has its own")]
    MacTaken {
        /// The address.
        mac: MacAddr,
        /// The host that had it first.
        other: String,
    },
    /// Not an IPv4 address.
    #[error("{0:?} is no IPv4 address; one is written 10.0.0.1")]
    Ip(String),
    /// An address that no host can have.
    #[error("{0} cannot be a host's; use a unicast address that is not loopback, such as 10.0.0.1")]
    IpNotHost(Ipv4Addr),
    /// Two hosts with one IPv4 address.
    #[error("{ip} is {other}'s already; every host has its own")]
    IpTaken {
        /// The address.
        ip: Ipv4Addr,
        /// The host that had it first.
        other: String,
    },
    /// A host with room for no rank.
    #[error("0 ranks make no member; give 1 or more, or leave the host out")]
    NoRanks,
    /// The ranks' UDP ports do not fit.
    #[error("{ranks} ranks from UDP port {first} would end above 65535; start at 1 to {highest}")]
    UdpPort {
        /// The first rank's port.
        first: u16,
        /// The ranks on the host.
        ranks: u16,
        /// The highest first port that would do.
        highest: u16,
    },
    /// A link that has not two ends.
    #[error("a link has 2 ends, not {0}; write [h1, s1/1] or [s1/9, s2/9]")]
    Ends(usize),
    /// An end that is neither host nor switch port.
    #[error("no switch or host is called {0:?}; ends are a host's name or SWITCH/PORT")]
    UnknownEnd(String),
    /// A switch's name without a port.
    #[error("{switch} is a switch; say which port, such as {switch}/{port}")]
    EndWithoutPort {
        /// The switch's name.
        switch: String,
        /// What a port of it is called.
        port: &'static str,
    },
    /// A host's name with a port.
    #[error("{0} is a host, which has one link; write {0} without a port")]
    HostWithPort(String),
    /// A port number that the target does not have.
    #[error("{port:?} is no port of {switch}; target {target} has {first} to {last}")]
    Port {
        /// What the file says.
        port: String,
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// Not a front panel's port.
    #[error(
        "{port:?} is no port of {switch}; those of target {target} are CONNECTOR/CHANNEL, such as {switch}/1/0"
    )]
    PanelPort {
        /// What the file says.
        port: String,
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
    },
    /// A port that the front panel cannot have, or not beside its others.
    #[error(transparent)]
    Panel(#[from] PanelError),
    /// A setting of a switch with a front panel, of one that has none.
    #[error("target {0} has no front panel; leave it out, or name another target")]
    NoPanel(&'static str),
    /// A board that nobody knows, or one with another chip.
    #[error(
        "no board with a {target} is called {name:?}; known: {known}; of others give the first device port of each connector, such as {{ 1: 132, 2: 140 }}"
    )]
    Board {
        /// What the file says.
        name: String,
        /// The switch's target.
        target: &'static str,
        /// The boards there are.
        known: String,
    },
    /// A port map that is none.
    #[error(transparent)]
    PortMap(#[from] PortMapError),
    /// No speed of the target's ports.
    #[error("{text:?} is no speed of a port; target {target} has {known}")]
    Speed {
        /// What the file says.
        text: String,
        /// The switch's target.
        target: &'static str,
        /// Those that there are.
        known: String,
    },
    /// No forward error correction.
    #[error(
        "{0:?} is no forward error correction; there are none, fc (Firecode) and rs (Reed-Solomon)"
    )]
    Fec(String),
    /// Neither a connector nor a port of one.
    #[error(
        "{0:?} is no port of a front panel; one is CONNECTOR/CHANNEL, such as 1/0, or CONNECTOR for its first"
    )]
    Connector(String),
    /// A connector that is broken out, and a speed beside that of its channels.
    #[error("the channels' speed stands in `breakout`; leave `speed` out")]
    BreakoutWithSpeed,
    /// No way to break a connector out.
    #[error(
        "{text:?} breaks no connector of {lanes} lanes out; write CHANNELSxSPEED, such as {lanes}x25G"
    )]
    Breakout {
        /// What the file says.
        text: String,
        /// Lanes of a connector.
        lanes: u8,
    },
    /// A connector that is to be broken out into more than it has lanes for.
    #[error(
        "{channels}x{speed} takes more than a connector's {lanes} lanes: a port of {speed} takes {needed}, of {} each; write {}x{speed}",
        speed.of_lanes(*needed),
        lanes / needed
    )]
    BreakoutLanes {
        /// Ports that are asked for.
        channels: u8,
        /// Their speed.
        speed: Speed,
        /// Lanes that each takes.
        needed: u8,
        /// Lanes of a connector.
        lanes: u8,
    },
    /// A link between ports of two speeds.
    #[error("{} is set to {}, and {} to {}; a link has one speed", ends[0], speeds[0], ends[1], speeds[1])]
    TwoSpeeds {
        /// Its ends.
        ends: [String; 2],
        /// Their speeds.
        speeds: [Speed; 2],
    },
    /// A link with a higher rate than its ports.
    #[error(
        "a rate of {rate} bits per second over a port of {speed}; leave it out for the port's own"
    )]
    RateOverSpeed {
        /// The rate.
        rate: u64,
        /// The port's speed.
        speed: Speed,
    },
    /// Two links at one port.
    #[error("port {end} has a link already, {other}; a port takes one")]
    PortTaken {
        /// The port, as `s1/1`.
        end: String,
        /// The link that had it first, such as `links[0]`.
        other: String,
    },
    /// A second link of a host.
    #[error("host {host} has a link already, {other}; a host takes one")]
    HostTaken {
        /// The host.
        host: String,
        /// The link that it has, such as `links[0]`.
        other: String,
    },
    /// Two hosts linked to each other.
    #[error("{0} and {1} are both hosts; link each to a switch's port, such as [{0}, s1/1]")]
    HostToHost(String, String),
    /// A switch linked to itself.
    #[error("both ends are at {0}; a trunk joins two switches")]
    Loop(String),
    /// A host without a link.
    #[error("host {0} is on no port; add a link such as [{0}, s1/1]")]
    NoLink(String),
    /// Two parts without a link between them.
    #[error("no links lead from {from} to {to}; add a trunk such as [{from}/9, {to}/9]")]
    Disconnected {
        /// The first switch.
        from: String,
        /// The first one that it does not reach.
        to: String,
    },
    /// A link's setting that is none, or a value that it cannot have.
    #[error(transparent)]
    Setting(#[from] ChangeError),
    /// What no wire can do.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A packet size that no link has.
    #[error(
        "an MTU of {0} is out of range; a link carries IPv4 packets of {MIN_MTU} to {MAX_MTU} bytes"
    )]
    Mtu(u32),
    /// Traffic between what are no hosts.
    #[error("no host is called {0:?}; traffic runs between two hosts")]
    NoHost(String),
    /// Traffic that goes nowhere.
    #[error("traffic from {0} to itself crosses no link; name another host")]
    ToItself(String),
    /// UDP traffic without a rate.
    #[error("UDP traffic needs a rate, such as 40M")]
    NoRate,
    /// TCP traffic with one.
    #[error("TCP finds its rate itself; leave `rate` out, or use udp")]
    TcpRate,
    /// A rate that is none.
    #[error(transparent)]
    Rate(UnitError),
}
