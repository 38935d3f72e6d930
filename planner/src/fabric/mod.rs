//! The fabric: switches, hosts and links, with the links' settings.
//!
//! [`load`] reads it from YAML. A [`Fabric`] is always valid: names are unique, every host is
//! linked to one port of a switch, every port has at most one link, and all switches are connected.

pub mod blackhole;
mod check;
pub mod damping;
mod digest;
mod element;
mod file;
mod front_panel;
mod health;
mod link;
mod panel_file;
#[cfg(test)]
mod panel_tests;
#[cfg(test)]
mod tests;
mod trunk;
mod written;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

use ultima_link::WireConfig;

pub use element::UnknownElement;
pub use front_panel::{FrontPanel, FrontPort, PanelPort, PortSettings};
pub use health::{Element, Health};
pub use link::{DEFAULT_MTU, Flow, FlowKind, Link, LinkEnd, MAX_MTU, MIN_MTU};
use trunk::Trunks;
pub use trunk::{Trunk, TrunkEnd, TrunkId};
use ultima_api::MacAddr;
use ultima_grpc::tls::ClientTls;
use ultima_p4runtime::tofino::Packing;
pub use written::WrittenFabric;

use crate::target::{Limits, PortNumber, Target};
use crate::yaml::{self, LoadError, Text};

/// A switch's index in [`Fabric::switches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub usize);

/// A host's index in [`Fabric::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The name, unique among switches and hosts.
    pub name: String,
    /// The target.
    pub target: &'static Target,
    /// The limits of the replication engine: the target's, or lower ones from the file.
    pub limits: Limits,
    /// HOST:PORT of the P4Runtime server.
    pub grpc: String,
    /// P4Runtime's device id.
    pub device_id: u64,
    /// TLS of the P4Runtime server; none for plain text.
    pub tls: Option<ClientTls>,
    /// The packing in which the server takes Tofino programs.
    pub packing: Packing,
    /// True if the ports' queues drain at their links' rates, so that queueing time is caused by
    /// the link. It is false for BMv2 and for switches whose links `ultima wire` impairs: their
    /// queues are the process's backlog.
    pub line_rate_queues: bool,
    /// The front panel, if the target has one.
    pub panel: Option<FrontPanel>,
}

impl Switch {
    /// A port's name in the fabric's file: its front-panel position, or its number.
    pub fn port_label(&self, port: PortNumber) -> String {
        let on_panel = self.panel.as_ref().and_then(|panel| panel.port(port));
        on_panel.map_or_else(|| port.to_string(), |port| port.at.to_string())
    }

    /// Finds a port by its name in the fabric's file, whether or not it has a link.
    pub(crate) fn port_labelled(&self, label: &str) -> Option<PortNumber> {
        match &self.panel {
            Some(panel) => panel.number_of(PanelPort::parse(label)?),
            None => label.parse().ok().map(PortNumber),
        }
    }
}

/// A port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchPort {
    /// The switch.
    pub switch: SwitchId,
    /// The port's number.
    pub port: PortNumber,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The name, unique among switches and hosts.
    pub name: String,
    /// The MAC address of the host's interface.
    pub mac: MacAddr,
    /// The IPv4 address.
    pub ip: Ipv4Addr,
    /// The number of ranks of one job for which the host has room, at least 1.
    pub ranks: u16,
    /// The UDP port of the first rank; the *n*-th further rank uses *n* above it.
    pub udp_port: u16,
    /// The switch port at the other end of the host's link.
    pub attached: SwitchPort,
}

/// A valid fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    switches: Vec<Switch>,
    hosts: Vec<Host>,
    host_names: HashMap<String, HostId>,
    links: Vec<Link>,
    /// The index in `links` of the link at a port.
    linked: HashMap<SwitchPort, usize>,
    trunks: Trunks,
    traffic: Vec<Flow>,
}

impl Fabric {
    /// All switches; a [`SwitchId`] is an index into these.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// All hosts; a [`HostId`] is an index into these.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// All links, in the file's order.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The wire by which frames leave a port, and its MTU; none if the port has no link.
    pub(crate) fn wire_out_of(&self, port: SwitchPort) -> Option<(&WireConfig, u16)> {
        let link = &self.links[*self.linked.get(&port)?];
        let at = LinkEnd::Port(port);
        let end = link.ends.iter().position(|end| *end == at)?;
        Some((&link.wires[end], link.mtu))
    }

    /// True if a port has a link.
    pub fn has_link(&self, port: SwitchPort) -> bool {
        self.linked.contains_key(&port)
    }

    /// The wire by which frames enter a port; none if the port has no link.
    pub fn wire_into(&self, port: SwitchPort) -> Option<&WireConfig> {
        let link = &self.links[*self.linked.get(&port)?];
        let at = LinkEnd::Port(port);
        let end = link.ends.iter().position(|end| *end != at)?;
        Some(&link.wires[end])
    }

    /// The lowest MTU of all links.
    pub fn least_mtu(&self) -> u16 {
        let mtus = self.links.iter().map(|link| link.mtu);
        mtus.min().unwrap_or(DEFAULT_MTU)
    }

    /// A switch's ports with links, in the file's order.
    pub fn ports_of(&self, switch: SwitchId) -> impl Iterator<Item = PortNumber> {
        let ends = self.links.iter().flat_map(|link| link.ends);
        ends.filter_map(move |end| match end {
            LinkEnd::Port(at) if at.switch == switch => Some(at.port),
            _ => None,
        })
    }

    /// The background traffic.
    pub fn traffic(&self) -> &[Flow] {
        &self.traffic
    }

    /// All links between switches; a [`TrunkId`] is an index into these.
    pub fn trunks(&self) -> &[Trunk] {
        &self.trunks.all
    }

    /// A link between switches.
    pub fn trunk(&self, id: TrunkId) -> Trunk {
        self.trunks.all[id.0]
    }

    /// A switch's links to other switches, by port.
    pub fn trunks_of(&self, switch: SwitchId) -> &[TrunkEnd] {
        &self.trunks.ends[switch.0]
    }

    /// The port at the other end of the trunk at `port`; none without a trunk.
    pub fn across(&self, port: SwitchPort) -> Option<SwitchPort> {
        self.trunk_end(port).map(|end| end.far)
    }

    /// The trunk at `port`, if there is one.
    pub fn trunk_at(&self, port: SwitchPort) -> Option<TrunkId> {
        self.trunk_end(port).map(|end| end.trunk)
    }

    fn trunk_end(&self, port: SwitchPort) -> Option<&TrunkEnd> {
        let ends = self.trunks_of(port.switch);
        let at = ends.binary_search_by_key(&port.port, |end| end.port).ok()?;
        Some(&ends[at])
    }

    /// The relative cost of `amount` on a trunk: 2^16 per unit on the fastest trunk, more on slower
    /// ones. A trunk without a rate counts as the fastest one with a rate.
    pub(crate) fn strain(&self, trunk: TrunkId, amount: u64) -> u128 {
        self.trunks.strain(trunk, amount)
    }

    /// Finds a switch by name.
    pub fn switch_named(&self, name: &str) -> Option<SwitchId> {
        let at = self.switches.iter().position(|switch| switch.name == name);
        at.map(SwitchId)
    }

    /// A port's full name, as in the fabric's file.
    pub fn port_name(&self, at: SwitchPort) -> String {
        let switch = self.switch(at.switch);
        format!("{}/{}", switch.name, switch.port_label(at.port))
    }

    /// A switch.
    pub fn switch(&self, id: SwitchId) -> &Switch {
        &self.switches[id.0]
    }

    /// A host.
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0]
    }

    /// The ids of all switches, in the file's order.
    pub fn switch_ids(&self) -> impl ExactSizeIterator<Item = SwitchId> + use<> {
        (0..self.switches.len()).map(SwitchId)
    }

    /// The ids of all hosts, in the file's order.
    pub fn host_ids(&self) -> impl ExactSizeIterator<Item = HostId> + use<> {
        (0..self.hosts.len()).map(HostId)
    }

    /// Finds a host by name.
    pub fn host_named(&self, name: &str) -> Option<HostId> {
        self.host_names.get(name).copied()
    }
}

/// Reads the fabric in the YAML file at `path`.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub fn load(path: &Path) -> Result<Fabric, LoadError> {
    parse(&yaml::read(path)?, &path.display().to_string())
}

/// Reads the fabric in `text`. Errors call the text `source`; if that is a file, relative paths
/// start at its folder.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, source: &str) -> Result<Fabric, LoadError> {
    WrittenFabric::parse(text, source).map(|written| written.fabric)
}

/// Reads a fabric like [`parse`], but does not read its TLS files: for planning, which connects to
/// no switch.
///
/// # Errors
/// As [`load`].
pub fn sketch(text: &str, source: &str) -> Result<Fabric, LoadError> {
    let text = Text::new(text, source);
    let mut file: file::FabricFile = text.parse()?;
    file.switches
        .iter_mut()
        .for_each(|switch| switch.tls = None);
    check::check(&text, file)
}

/// The JSON schema of the YAML form.
pub fn schema() -> serde_json::Value {
    yaml::schema::<file::FabricFile>()
}
