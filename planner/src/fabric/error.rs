//! Problems in fabric files.

use std::net::Ipv4Addr;

use ultima_api::{MacAddr, ParseMacError};
use ultima_link::units::UnitError;
use ultima_link::{ChangeError, WireError};

use super::front_panel::{PanelError, PortMapError};
use super::link::{MAX_MTU, MIN_MTU};
use crate::target::Speed;
use crate::yaml::LoadError;

/// Error in a fabric file.
pub type FabricError = LoadError<FabricProblem>;

/// A problem in a well-formed fabric file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FabricProblem {
    /// No switches.
    #[error("a fabric needs at least one switch")]
    NoSwitches,
    /// More switches than route tables support.
    #[error("{switches} switches; a fabric has at most {most}")]
    TooManySwitches {
        /// The number of switches.
        switches: usize,
        /// The most switches.
        most: usize,
    },
    /// A name with invalid characters.
    #[error(
        "invalid name {0:?}; use 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit"
    )]
    Name(String),
    /// Two switches or hosts with the same name.
    #[error(
        "duplicate name {name}, first used by {other}; names are unique among switches and hosts"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The first element with the name, such as `switches[0]`.
        other: String,
    },
    /// An unknown target.
    #[error("unknown target {name:?}; known targets: {known}")]
    Target {
        /// The name in the file.
        name: String,
        /// The known targets.
        known: String,
    },
    /// An address that is not `HOST:PORT`.
    #[error("invalid address {0:?}; use HOST:PORT of the P4Runtime server, such as 127.0.0.1:9559")]
    Grpc(String),
    /// Device id 0, which P4Runtime reserves.
    #[error("device_id 0 is reserved in P4Runtime; use the switch's id, 1 or above")]
    DeviceId,
    /// Two switches with the same address and device id.
    #[error(
        "duplicate device {device_id} at {grpc}, first used by {other}; give each switch its own"
    )]
    DeviceTaken {
        /// The device's id.
        device_id: u64,
        /// The server's address.
        grpc: String,
        /// The first switch with the device.
        other: String,
    },
    /// A TLS file that cannot be used.
    #[error("{0}")]
    Tls(String),
    /// A certificate without a key, or a key without a certificate.
    #[error("a client certificate needs both `cert` and `key`")]
    HalfIdentity,
    /// A limit of 0, or above the target's.
    #[error("{value} is out of range; target {target} takes 1 to {most}")]
    Limit {
        /// The limit in the file.
        value: u32,
        /// The switch's target.
        target: &'static str,
        /// The target's own limit.
        most: u32,
    },
    /// Not a MAC address.
    #[error("{text:?}: {error}")]
    Mac {
        /// The text in the file.
        text: String,
        /// The error.
        error: ParseMacError,
    },
    /// A multicast or zero MAC address.
    #[error(
        "{0} is not a unicast address; use one with an even first octet that is not all zeros, such as 02:00:00:00:00:01"
    )]
    MacNotStation(MacAddr),
    /// Two hosts with the same MAC address.
    #[error("duplicate MAC address {mac}, first used by {other}; give each host its own")]
    MacTaken {
        /// The address.
        mac: MacAddr,
        /// The first host with the address.
        other: String,
    },
    /// Not an IPv4 address.
    #[error("invalid IPv4 address {0:?}; use dotted decimal, such as 10.0.0.1")]
    Ip(String),
    /// An address that a host cannot have.
    #[error(
        "{0} is not a host's address; use a unicast address that is not loopback, such as 10.0.0.1"
    )]
    IpNotHost(Ipv4Addr),
    /// Two hosts with the same IPv4 address.
    #[error("duplicate IPv4 address {ip}, first used by {other}; give each host its own")]
    IpTaken {
        /// The address.
        ip: Ipv4Addr,
        /// The first host with the address.
        other: String,
    },
    /// A host without room for a rank.
    #[error("0 ranks; use 1 or more, or leave the host out")]
    NoRanks,
    /// UDP ports that end above 65535.
    #[error("{ranks} ranks from UDP port {first} end above 65535; start at 1 to {highest}")]
    UdpPort {
        /// The first rank's port.
        first: u16,
        /// The number of ranks on the host.
        ranks: u16,
        /// The highest valid first port.
        highest: u16,
    },
    /// A link without exactly two ends.
    #[error("{0} ends; a link has 2, such as [h1, s1/1] or [s1/9, s2/9]")]
    Ends(usize),
    /// An end that is neither a host nor a switch's port.
    #[error("unknown end {0:?}; use a host's name, or SWITCH/PORT")]
    UnknownEnd(String),
    /// A switch's name without a port.
    #[error("{switch} is a switch; add a port, such as {switch}/{port}")]
    EndWithoutPort {
        /// The switch's name.
        switch: String,
        /// A port's name, as an example.
        port: &'static str,
    },
    /// A host's name with a port.
    #[error("{0} is a host; write {0} without a port")]
    HostWithPort(String),
    /// A port that the target does not have.
    #[error("unknown port {port:?} of {switch}; target {target} has {first} to {last}")]
    Port {
        /// The port in the file.
        port: String,
        /// The switch's name.
        switch: String,
        /// The switch's target.
        target: &'static str,
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// A name that is not a front-panel port's.
    #[error(
        "unknown port {port:?} of {switch}; ports of target {target} are CONNECTOR/CHANNEL, such as {switch}/1/0"
    )]
    PanelPort {
        /// The port in the file.
        port: String,
        /// The switch's name.
        switch: String,
        /// The switch's target.
        target: &'static str,
    },
    /// A port that does not fit the front panel or its other ports.
    #[error(transparent)]
    Panel(#[from] PanelError),
    /// A front-panel setting of a switch without a front panel.
    #[error("target {0} has no front panel; leave the field out, or set another target")]
    NoPanel(&'static str),
    /// An unknown board, or a board with another chip.
    #[error(
        "unknown board {name:?} for target {target}; known boards: {known}; for another board, list the first device port of each connector, such as {{ 1: 132, 2: 140 }}"
    )]
    Board {
        /// The name in the file.
        name: String,
        /// The switch's target.
        target: &'static str,
        /// The known boards.
        known: String,
    },
    /// An invalid port map.
    #[error(transparent)]
    PortMap(#[from] PortMapError),
    /// A speed that the target does not have.
    #[error("invalid speed {text:?}; ports of target {target} have {known}")]
    Speed {
        /// The text in the file.
        text: String,
        /// The switch's target.
        target: &'static str,
        /// The target's speeds.
        known: String,
    },
    /// An unknown error correction.
    #[error("invalid forward error correction {0:?}; use none, fc (Firecode) or rs (Reed-Solomon)")]
    Fec(String),
    /// Neither a connector nor a port.
    #[error(
        "invalid front-panel port {0:?}; use CONNECTOR/CHANNEL, such as 1/0, or CONNECTOR for its first port"
    )]
    Connector(String),
    /// Both a breakout and a speed.
    #[error("`breakout` sets the channels' speed; leave `speed` out")]
    BreakoutWithSpeed,
    /// An invalid breakout.
    #[error(
        "invalid breakout {text:?} of a connector with {lanes} lanes; use CHANNELSxSPEED, such as {lanes}x25G"
    )]
    Breakout {
        /// The text in the file.
        text: String,
        /// The lanes of a connector.
        lanes: u8,
    },
    /// A breakout that needs more lanes than the connector has.
    #[error(
        "{channels}x{speed} needs more than the connector's {lanes} lanes: a port of {speed} takes {needed} lanes of {} each; use {}x{speed}",
        speed.of_lanes(*needed),
        lanes / needed
    )]
    BreakoutLanes {
        /// The number of channels.
        channels: u8,
        /// The speed of a channel.
        speed: Speed,
        /// The lanes of a channel.
        needed: u8,
        /// The lanes of a connector.
        lanes: u8,
    },
    /// A link between ports with different speeds.
    #[error("{} has speed {}, but {} has {}; set both to the same speed", ends[0], speeds[0], ends[1], speeds[1])]
    TwoSpeeds {
        /// The link's ends.
        ends: [String; 2],
        /// Their speeds.
        speeds: [Speed; 2],
    },
    /// A link with a higher rate than its ports.
    #[error("rate {rate} bit/s exceeds the port's {speed}; leave the rate out to use the port's")]
    RateOverSpeed {
        /// The rate.
        rate: u64,
        /// The port's speed.
        speed: Speed,
    },
    /// Two links at the same port.
    #[error("port {end} already has a link, {other}; use another port")]
    PortTaken {
        /// The port, such as `s1/1`.
        end: String,
        /// The first link at the port, such as `links[0]`.
        other: String,
    },
    /// A second link of a host.
    #[error("host {host} already has a link, {other}; a host has one link")]
    HostTaken {
        /// The host.
        host: String,
        /// The host's link, such as `links[0]`.
        other: String,
    },
    /// A link between two hosts.
    #[error("{0} and {1} are both hosts; link each to a switch's port, such as [{0}, s1/1]")]
    HostToHost(String, String),
    /// A link between two ports of one switch.
    #[error("both ends are on {0}; a trunk joins two switches")]
    Loop(String),
    /// A host without a link.
    #[error("host {0} has no link; add one such as [{0}, s1/1]")]
    NoLink(String),
    /// Switches that are not connected.
    #[error("no path leads from {from} to {to}; add a trunk such as [{from}/9, {to}/9]")]
    Disconnected {
        /// The first switch.
        from: String,
        /// The first switch that it does not reach.
        to: String,
    },
    /// An unknown setting of a link, or an invalid value.
    #[error(transparent)]
    Setting(#[from] ChangeError),
    /// Settings that a link cannot have together.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An MTU out of range.
    #[error("MTU {0} is out of range; use {MIN_MTU} to {MAX_MTU} bytes")]
    Mtu(u32),
    /// Traffic of an unknown host.
    #[error("unknown host {0:?}; traffic runs between two hosts")]
    NoHost(String),
    /// Traffic from a host to itself.
    #[error("traffic from {0} to itself crosses no link; name another host")]
    ToItself(String),
    /// UDP traffic without a rate.
    #[error("UDP traffic needs a rate, such as 40M")]
    NoRate,
    /// TCP traffic with a rate.
    #[error("TCP has no fixed rate; leave `rate` out, or use udp")]
    TcpRate,
    /// An invalid rate.
    #[error(transparent)]
    Rate(UnitError),
}
