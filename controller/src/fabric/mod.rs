//! The fabric: switches, hosts, and the links between them, with what the links do to frames.
//!
//! [`load`] reads it from YAML; a [`Fabric`] that exists has been checked: names are unique, every
//! host is linked to one port of a switch, every port has one link, and all switches are
//! connected.

pub mod blackhole;
mod check;
pub mod damping;
mod digest;
mod error;
mod file;
mod front_panel;
mod health;
mod link;
mod panel_file;
#[cfg(test)]
mod panel_tests;
mod part;
#[cfg(test)]
mod tests;
mod trunk;
mod written;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

use ultima_link::WireConfig;

pub use error::{FabricError, FabricProblem};
pub use front_panel::{FrontPanel, FrontPort, PanelError, PanelPort, PortMapError, PortSettings};
pub use health::{Health, Part};
pub use link::{DEFAULT_MTU, Flow, FlowKind, Link, LinkEnd, MAX_MTU, MIN_MTU};
pub use part::{UnknownPart, UnknownSwitch};
use trunk::Trunks;
pub use trunk::{Trunk, TrunkEnd, TrunkId};
use ultima_p4runtime::tls::ClientTls;
use ultima_p4runtime::tofino::Packing;
pub use written::WrittenFabric;

use crate::mac::MacAddr;
use crate::target::{Limits, PortNumber, Target};
use crate::yaml;

/// A switch's place in [`Fabric::switches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub usize);

/// A host's place in [`Fabric::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// One switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Its name, unique among switches and hosts.
    pub name: String,
    /// What it can do.
    pub target: &'static Target,
    /// What its replication engine holds: the target's limits, or lower ones that the file gives.
    pub limits: Limits,
    /// Where its P4Runtime server listens, `HOST:PORT`.
    pub grpc: String,
    /// P4Runtime's device id.
    pub device_id: u64,
    /// How to speak to a server that serves TLS; one without serves plain text.
    pub tls: Option<ClientTls>,
    /// How its server takes a program for Tofino.
    pub packing: Packing,
    /// Whether its ports' queues drain at the rates of their links, so that the time that a packet was queued is the
    /// link's doing. BMv2's don't, nor does a switch whose links are impaired by `ultima wire`: their queues are the
    /// process's backlog.
    pub line_rate_queues: bool,
    /// Its front panel, where its target has one.
    pub panel: Option<FrontPanel>,
}

impl Switch {
    /// What the fabric's file calls a port: its place on the front panel, or its number.
    pub fn port_label(&self, port: PortNumber) -> String {
        let on_panel = self.panel.as_ref().and_then(|panel| panel.port(port));
        on_panel.map_or_else(|| port.to_string(), |port| port.at.to_string())
    }

    /// The port of that name; whether a link is there is not asked.
    pub fn port_labelled(&self, label: &str) -> Option<PortNumber> {
        match &self.panel {
            Some(panel) => panel.number_of(PanelPort::parse(label)?),
            None => label.parse().ok().map(PortNumber),
        }
    }
}

/// One port of one switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchPort {
    /// The switch.
    pub switch: SwitchId,
    /// The port's number there.
    pub port: PortNumber,
}

/// One host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name, unique among switches and hosts.
    pub name: String,
    /// Its address on the link to its switch.
    pub mac: MacAddr,
    /// Its address in the fabric.
    pub ip: Ipv4Addr,
    /// How many ranks of one job may sit here, at least 1.
    pub ranks: u16,
    /// The UDP port of its first rank; the *n*-th further one listens *n* above.
    pub udp_port: u16,
    /// Where it is linked to.
    pub attached: SwitchPort,
}

/// A checked fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    switches: Vec<Switch>,
    hosts: Vec<Host>,
    host_names: HashMap<String, HostId>,
    links: Vec<Link>,
    /// The place in `links` of the link at a port.
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

    /// What happens to frames that leave by `port`, and the bytes of the largest packet there; none where no link is.
    pub fn wire_out_of(&self, port: SwitchPort) -> Option<(&WireConfig, u16)> {
        let link = &self.links[*self.linked.get(&port)?];
        let at = LinkEnd::Port(port);
        let end = link.ends.iter().position(|end| *end == at)?;
        Some((&link.wires[end], link.mtu))
    }

    /// What happens to frames that come to `port` by its link; none where no link is.
    pub fn wire_into(&self, port: SwitchPort) -> Option<&WireConfig> {
        let link = &self.links[*self.linked.get(&port)?];
        let at = LinkEnd::Port(port);
        let end = link.ends.iter().position(|end| *end != at)?;
        Some(&link.wires[end])
    }

    /// Bytes of the largest packet that every link carries.
    pub fn least_mtu(&self) -> u16 {
        let mtus = self.links.iter().map(|link| link.mtu);
        mtus.min().unwrap_or(DEFAULT_MTU)
    }

    /// The ports of a switch that have links, in the file's order.
    pub fn ports_of(&self, switch: SwitchId) -> impl Iterator<Item = PortNumber> {
        let ends = self.links.iter().flat_map(|link| link.ends);
        ends.filter_map(move |end| match end {
            LinkEnd::Port(at) if at.switch == switch => Some(at.port),
            _ => None,
        })
    }

    /// Traffic that is no job's.
    pub fn traffic(&self) -> &[Flow] {
        &self.traffic
    }

    /// The links between switches; a [`TrunkId`] is an index into these.
    pub fn trunks(&self) -> &[Trunk] {
        &self.trunks.all
    }

    /// One link between switches.
    pub fn trunk(&self, id: TrunkId) -> Trunk {
        self.trunks.all[id.0]
    }

    /// The links from a switch to others, by port.
    pub fn trunks_of(&self, switch: SwitchId) -> &[TrunkEnd] {
        &self.trunks.ends[switch.0]
    }

    /// The port at the other end of the trunk at `port`; none where no trunk is.
    pub fn across(&self, port: SwitchPort) -> Option<SwitchPort> {
        self.trunk_end(port).map(|end| end.far)
    }

    /// The trunk at `port`; none where none is.
    pub fn trunk_at(&self, port: SwitchPort) -> Option<TrunkId> {
        self.trunk_end(port).map(|end| end.trunk)
    }

    fn trunk_end(&self, port: SwitchPort) -> Option<&TrunkEnd> {
        let ends = self.trunks_of(port.switch);
        let at = ends.binary_search_by_key(&port.port, |end| end.port).ok()?;
        Some(&ends[at])
    }

    /// How heavily `amount`, of anything, weighs on a trunk: 2^16 for each on the fastest, more on slower ones. One
    /// without a rate counts as the fastest that has one.
    pub fn strain(&self, trunk: TrunkId, amount: u64) -> u128 {
        self.trunks.strain(trunk, amount)
    }

    /// The switch called `name`.
    pub fn switch_named(&self, name: &str) -> Option<SwitchId> {
        let at = self.switches.iter().position(|switch| switch.name == name);
        at.map(SwitchId)
    }

    /// A port's name, as the fabric's file writes it.
    pub fn port_name(&self, at: SwitchPort) -> String {
        let switch = self.switch(at.switch);
        format!("{}/{}", switch.name, switch.port_label(at.port))
    }

    /// One switch.
    pub fn switch(&self, id: SwitchId) -> &Switch {
        &self.switches[id.0]
    }

    /// One host.
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

    /// The host called `name`.
    pub fn host_named(&self, name: &str) -> Option<HostId> {
        self.host_names.get(name).copied()
    }
}

/// Reads and checks the fabric in the YAML file at `path`.
///
/// # Errors
/// Each is one line with the file, the line and the field; see [`FabricProblem`].
pub fn load(path: &Path) -> Result<Fabric, FabricError> {
    parse(&yaml::read(path)?, &path.display().to_string())
}

/// Reads and checks the fabric in `text`, which errors call `source`: a file, from whose folder on the
/// relative paths in it count, or another name.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, source: &str) -> Result<Fabric, FabricError> {
    check::check(yaml::parse(text, source)?, source)
}

/// The same without looking at files that the fabric names, the keys and certificates of TLS: for planning, where no switch is spoken to.
///
/// # Errors
/// As [`load`].
pub fn sketch(text: &str, source: &str) -> Result<Fabric, FabricError> {
    let mut file: file::FabricFile = yaml::parse(text, source)?;
    let switches = file.switches.value.iter_mut();
    switches.for_each(|switch| switch.tls = None);
    check::check(file, source)
}

/// The JSON schema of the YAML form.
pub fn schema() -> serde_json::Value {
    yaml::schema::<file::FabricFile>()
}
