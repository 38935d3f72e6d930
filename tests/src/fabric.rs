//! The fabrics that tests build, as a value and as YAML for the controller.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use pnet::util::MacAddr;

/// A host's index in [`Fabric::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name in the fabric.
    pub name: String,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// The maximum number of ranks of a job on the host.
    pub ranks: u16,
    /// The index of its switch.
    pub switch: usize,
    /// The switch's port.
    pub port: u16,
}

/// Switches, hosts and links.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// The number of switches.
    pub switches: usize,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Links between switches, each end a switch and its port.
    pub trunks: Vec<[(usize, u16); 2]>,
    /// Settings of links out of switches' ports in the controller's YAML. The testbed's links have no impairments.
    pub port_settings: BTreeMap<(usize, u16), &'static str>,
    /// The value of `line_rate_queues` in the controller's YAML.
    pub line_rate_queues: bool,
}

impl Fabric {
    /// One switch and four hosts, at its ports 1 to 4; the first has room for two ranks of a job.
    pub fn star() -> Self {
        Self {
            hosts: vec![
                host(1, 2, 0, 1),
                host(2, 1, 0, 2),
                host(3, 1, 0, 3),
                host(4, 1, 0, 4),
            ],
            ..Self::new(1)
        }
    }

    /// Two switches with a trunk between them and two hosts on each; the first on each has room for two ranks.
    pub fn pair() -> Self {
        Self {
            hosts: vec![
                host(1, 2, 0, 1),
                host(2, 1, 0, 2),
                host(3, 2, 1, 1),
                host(4, 1, 1, 2),
            ],
            trunks: vec![[(0, 9), (1, 9)]],
            ..Self::new(2)
        }
    }

    /// Three switches in a row and two hosts on each; the first on the outer ones has room for two ranks.
    pub fn row() -> Self {
        Self {
            hosts: vec![
                host(1, 2, 0, 1),
                host(2, 1, 0, 2),
                host(3, 1, 1, 1),
                host(4, 1, 1, 2),
                host(5, 2, 2, 1),
                host(6, 1, 2, 2),
            ],
            trunks: vec![[(0, 9), (1, 8)], [(1, 9), (2, 8)]],
            ..Self::new(3)
        }
    }

    /// Two leaves, each linked to two spines, and two hosts on each leaf; the first on each has room for two ranks. Switches
    /// are the leaves first, then the spines.
    pub fn spines() -> Self {
        Self {
            hosts: vec![
                host(1, 2, 0, 1),
                host(2, 1, 0, 2),
                host(3, 2, 1, 1),
                host(4, 1, 1, 2),
            ],
            trunks: vec![
                [(0, 9), (2, 1)],
                [(0, 10), (3, 1)],
                [(1, 9), (2, 2)],
                [(1, 10), (3, 2)],
            ],
            ..Self::new(4)
        }
    }

    /// One switch and `hosts` hosts with room for one rank each, at its ports from 1 on.
    pub fn wide(hosts: u8) -> Self {
        Self {
            hosts: (1..=hosts).map(|n| host(n, 1, 0, n.into())).collect(),
            ..Self::new(1)
        }
    }

    /// The same fabric with these settings of the link out of a port.
    #[must_use]
    pub fn with_port(mut self, port: (usize, u16), settings: &'static str) -> Self {
        self.port_settings.insert(port, settings);
        self
    }

    fn new(switches: usize) -> Self {
        Self {
            switches,
            hosts: vec![],
            trunks: vec![],
            port_settings: BTreeMap::new(),
            line_rate_queues: false,
        }
    }

    /// One host.
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0]
    }

    /// All hosts' ids.
    pub fn host_ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len()).map(HostId)
    }

    /// The number of switches on a shortest path between two hosts.
    pub fn hops(&self, from: HostId, to: HostId) -> u8 {
        let mut at = self.host(from).switch;
        let mut hops = 1;
        while let Some((next, _)) = self.peer(at, self.toward(at, to)) {
            at = next;
            hops += 1;
        }
        hops
    }

    /// The switch's port on the first shortest path to a host.
    ///
    /// # Panics
    /// If there is no path.
    pub fn toward(&self, switch: usize, to: HostId) -> u16 {
        let to = self.host(to);
        if to.switch == switch {
            to.port
        } else {
            let far = self.distances(to.switch);
            let mut ends = self.trunk_ends();
            let trunk = ends.find(|((at, _), (next, _))| *at == switch && far[*next] < far[switch]);
            let ((_, port), _) = trunk.expect("the fabric is connected");
            port
        }
    }

    /// The switch and port at the other end of a trunk.
    pub fn peer(&self, switch: usize, port: u16) -> Option<(usize, u16)> {
        let mut ends = self.trunk_ends();
        ends.find(|(end, _)| *end == (switch, port))
            .map(|(_, peer)| peer)
    }

    /// The distance of each switch from one switch, in trunks.
    fn distances(&self, to: usize) -> Vec<usize> {
        let mut far = vec![usize::MAX; self.switches];
        far[to] = 0;
        let mut reached = vec![to];
        // A queue of switches, the nearest first.
        let mut next = 0;
        while let Some(&at) = reached.get(next) {
            next += 1;
            for ((_, _), (neighbour, _)) in self.trunk_ends().filter(|((end, _), _)| *end == at) {
                if far[neighbour] == usize::MAX {
                    far[neighbour] = far[at] + 1;
                    reached.push(neighbour);
                }
            }
        }
        far
    }

    fn trunk_ends(&self) -> impl Iterator<Item = ((usize, u16), (usize, u16))> + '_ {
        let both = |[one, other]: &[(usize, u16); 2]| [(*one, *other), (*other, *one)];
        self.trunks.iter().flat_map(both)
    }

    /// The controller's YAML, with the switches' P4Runtime servers at `grpc`.
    pub fn yaml(&self, grpc: &[SocketAddr]) -> String {
        let mut yaml = String::from("switches:\n");
        for (switch, grpc) in grpc.iter().enumerate() {
            let (name, id) = (switch_name(switch), device_id(switch));
            line(
                &mut yaml,
                &format!(
                    "name: {name}, target: v1model, grpc: \"{grpc}\", device_id: {id}, line_rate_queues: {}",
                    self.line_rate_queues
                ),
            );
        }
        yaml += "hosts:\n";
        for Host {
            name,
            mac,
            ip,
            ranks,
            ..
        } in &self.hosts
        {
            line(
                &mut yaml,
                &format!("name: {name}, mac: \"{mac}\", ip: {ip}, ranks: {ranks}"),
            );
        }
        yaml += "links:\n";
        for Host {
            name, switch, port, ..
        } in &self.hosts
        {
            line(
                &mut yaml,
                &format!(
                    "ends: [{name}, {}/{port}], b_to_a: {}",
                    switch_name(*switch),
                    self.settings((*switch, *port))
                ),
            );
        }
        for [one, other] in &self.trunks {
            let [a_to_b, b_to_a] = [self.settings(*one), self.settings(*other)];
            let end = |(switch, port): &(usize, u16)| format!("{}/{port}", switch_name(*switch));
            let (one, other) = (end(one), end(other));
            line(
                &mut yaml,
                &format!("ends: [{one}, {other}], a_to_b: {a_to_b}, b_to_a: {b_to_a}"),
            );
        }
        yaml
    }

    /// The settings of the link out of a port, as YAML.
    fn settings(&self, port: (usize, u16)) -> String {
        format!("{{ {} }}", self.port_settings.get(&port).unwrap_or(&""))
    }
}

/// The name of a fabric's switch.
pub fn switch_name(switch: usize) -> String {
    format!("s{}", switch + 1)
}

/// P4Runtime's device id of a fabric's switch.
pub fn device_id(switch: usize) -> u64 {
    switch as u64 + 1
}

fn host(number: u8, ranks: u16, switch: usize, port: u16) -> Host {
    Host {
        name: format!("h{number}"),
        mac: MacAddr::new(2, 0, 0, 0, 0, number),
        ip: Ipv4Addr::new(10, 0, 0, number),
        ranks,
        switch,
        port,
    }
}

fn line(yaml: &mut String, entry: &str) {
    writeln!(yaml, "  - {{ {entry} }}").expect("a String cannot fail");
}
