//! The plan of a lab: names, interfaces, addresses. It changes nothing on the machine.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Serialize;
use ultima_link::WireConfig;
use ultima_planner::fabric::{Fabric, FlowKind, HostId, LinkEnd, SwitchPort};

use crate::error::LabError;
use crate::name::LabName;
use crate::namespace;

/// The name of a host's only interface.
pub const HOST_INTERFACE: &str = "eth0";
/// The port of the settings of the first link's wire. Other wires use the following ones.
const WIRE_PORT: usize = 20_000;
/// The port of the first flow's receiver. Others use the following ones.
const FLOW_PORT: usize = 30_000;
/// BMv2's default Thrift port. Each process uses another port.
const THRIFT_PORT: usize = 9090;
/// The longest name of an interface (IFNAMSIZ minus the final zero).
const MAX_INTERFACE: usize = 15;
/// The longest switch name that is used in its interfaces' names.
const MAX_LABEL: usize = MAX_INTERFACE - "-509".len();

/// A lab.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The namespace of switches, wires and controller.
    pub namespace: String,
    /// The switches.
    pub switches: Vec<PlannedSwitch>,
    /// The hosts.
    pub hosts: Vec<PlannedHost>,
    /// The links.
    pub links: Vec<PlannedLink>,
    /// Background traffic.
    pub traffic: Vec<PlannedFlow>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedSwitch {
    /// Its name in the fabric.
    pub name: String,
    /// P4Runtime's device id.
    pub device_id: u64,
    /// Its P4Runtime address in its namespace.
    pub grpc: SocketAddr,
    /// BMv2's Thrift port there.
    pub thrift_port: usize,
    /// Its ports and their interfaces.
    pub ports: Vec<(u16, String)>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedHost {
    /// Its name in the fabric.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its interface's MAC address.
    pub mac: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// The network of all hosts, ADDRESS/LENGTH, for which switches answer ARP.
    pub network: String,
    /// MTU of its interface.
    pub mtu: u16,
    /// Maximum number of ranks of one job on it.
    pub ranks: u16,
}

/// A link: one veth pair, or two pairs with a wire between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedLink {
    /// Its ends in the fabric's notation, A and B.
    pub ends: [String; 2],
    /// The interfaces at its ends.
    pub interfaces: [Interface; 2],
    /// MTU of the link.
    pub mtu: u16,
    /// The wire that applies its impairments.
    pub wire: Option<PlannedWire>,
}

/// An interface in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The MAC address, if it is fixed.
    pub mac: Option<String>,
}

/// A process of `ultima wire` on a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedWire {
    /// The interfaces that it connects, on the side of A and of B.
    pub interfaces: [String; 2],
    /// Settings from A to B, as in `ultima wire`.
    #[serde(serialize_with = "as_text")]
    pub a_to_b: WireConfig,
    /// Settings from B to A.
    #[serde(serialize_with = "as_text")]
    pub b_to_a: WireConfig,
    /// Seed of losses and delays.
    pub seed: u64,
    /// The address of its settings and counters.
    pub grpc: SocketAddr,
}

/// A flow of background traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedFlow {
    /// The sender's name.
    pub from: String,
    /// The receiver's name.
    pub to: String,
    /// The receiver's address.
    pub address: SocketAddr,
    /// Bits per second of UDP. None: TCP.
    pub udp_rate: Option<u64>,
}

fn as_text<S: serde::Serializer>(wire: &WireConfig, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(wire)
}

impl Plan {
    /// Plans the lab `name` of `fabric`.
    ///
    /// # Errors
    /// A switch that cannot run in a lab, or whose P4Runtime address is outside the lab's namespace or in
    /// use.
    pub fn new(name: &LabName, fabric: &Fabric) -> Result<Plan, LabError> {
        let namespace = namespace::of_lab(name);
        let labels = labels(fabric);
        let interface = |at: SwitchPort| format!("{}-{}", labels[at.switch.0], at.port);
        let network = network(fabric.hosts().iter().map(|host| host.ip));
        let host_namespace = |id: HostId| namespace::of_host(name, &fabric.host(id).name);

        let mut switches: Vec<PlannedSwitch> = Vec::new();
        for (index, switch) in fabric.switches().iter().enumerate() {
            if switch.tls.is_some() {
                return Err(LabError::Tls {
                    switch: switch.name.clone(),
                });
            }
            if switch.panel.is_some() {
                return Err(LabError::FrontPanel {
                    switch: switch.name.clone(),
                    target: switch.target.name,
                });
            }
            let grpc = switch.grpc.parse().ok();
            let free = |grpc: &SocketAddr| {
                grpc.ip().is_loopback() && switches.iter().all(|other| other.grpc != *grpc)
            };
            let grpc = grpc.filter(free).ok_or_else(|| LabError::Grpc {
                switch: switch.name.clone(),
                grpc: switch.grpc.clone(),
            })?;
            switches.push(PlannedSwitch {
                name: switch.name.clone(),
                device_id: switch.device_id,
                grpc,
                thrift_port: THRIFT_PORT + index,
                ports: Vec::new(),
            });
        }

        let mut mtus = vec![0; fabric.hosts().len()];
        let mut links = Vec::new();
        for (index, link) in fabric.links().iter().enumerate() {
            for end in link.ends {
                match end {
                    LinkEnd::Host(id) => mtus[id.0] = link.mtu,
                    LinkEnd::Port(at) => {
                        switches[at.switch.0].ports.push((at.port.0, interface(at)))
                    }
                }
            }
            links.push(PlannedLink {
                ends: link.ends.map(|end| match end {
                    LinkEnd::Host(id) => fabric.host(id).name.clone(),
                    LinkEnd::Port(at) => fabric.port_name(at),
                }),
                interfaces: link.ends.map(|end| match end {
                    LinkEnd::Host(id) => Interface {
                        namespace: host_namespace(id),
                        name: HOST_INTERFACE.to_owned(),
                        mac: Some(fabric.host(id).mac.to_string()),
                    },
                    LinkEnd::Port(at) => Interface {
                        namespace: namespace.clone(),
                        name: interface(at),
                        mac: None,
                    },
                }),
                mtu: link.mtu,
                wire: link.is_impaired().then(|| {
                    let [a_to_b, b_to_a] = link.wires.clone();
                    PlannedWire {
                        interfaces: ["a", "b"].map(|end| format!("wire{index}{end}")),
                        a_to_b,
                        b_to_a,
                        seed: index as u64 + 1,
                        grpc: loopback(WIRE_PORT + index),
                    }
                }),
            });
        }

        let hosts = fabric.host_ids().map(|id| {
            let host = fabric.host(id);
            PlannedHost {
                name: host.name.clone(),
                namespace: host_namespace(id),
                mac: host.mac.to_string(),
                ip: host.ip,
                network: network.clone(),
                mtu: mtus[id.0],
                ranks: host.ranks,
            }
        });
        let traffic = fabric.traffic().iter().enumerate().map(|(index, flow)| {
            let to = fabric.host(flow.to);
            PlannedFlow {
                from: fabric.host(flow.from).name.clone(),
                to: to.name.clone(),
                address: SocketAddr::from((to.ip, port(FLOW_PORT + index))),
                udp_rate: match flow.kind {
                    FlowKind::Udp { rate } => Some(rate),
                    FlowKind::Tcp => None,
                },
            }
        });
        Ok(Plan {
            hosts: hosts.collect(),
            traffic: traffic.collect(),
            namespace,
            switches,
            links,
        })
    }

    /// The namespaces of switches and hosts.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        let hosts = self.hosts.iter().map(|host| host.namespace.as_str());
        std::iter::once(self.namespace.as_str()).chain(hosts)
    }

    /// The namespace of a host, or of a switch.
    pub(crate) fn namespace_of(&self, node: &str) -> Option<&str> {
        let host = self.hosts.iter().find(|host| host.name == node);
        let switch = || self.switches.iter().find(|switch| switch.name == node);
        host.map(|host| host.namespace.as_str())
            .or_else(|| switch().map(|_| self.namespace.as_str()))
    }
}

/// Prefixes of switches' interfaces: the switches' own names if all fit.
fn labels(fabric: &Fabric) -> Vec<String> {
    let names = fabric.switches().iter().map(|switch| switch.name.clone());
    let names: Vec<String> = names.collect();
    match names.iter().all(|name| name.len() <= MAX_LABEL) {
        true => names,
        false => (1..=names.len())
            .map(|index| format!("sw{index}"))
            .collect(),
    }
}

/// The smallest network that contains all addresses.
fn network(addresses: impl Iterator<Item = Ipv4Addr> + Clone) -> String {
    let all = addresses.clone().map(Ipv4Addr::to_bits);
    let first = addresses.map(Ipv4Addr::to_bits).next().unwrap_or_default();
    let differing = all.fold(0, |bits, address| bits | (address ^ first));
    let length = differing.leading_zeros();
    let host_bits = u32::MAX.checked_shr(length).unwrap_or(0);
    format!("{}/{length}", Ipv4Addr::from_bits(first & !host_bits))
}

fn loopback(number: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port(number)))
}

/// Fabrics have fewer links and flows than there are ports from here: a target has 509 ports, and a lab of
/// more than a hundred switches exceeds one machine.
fn port(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric;

    use super::*;

    const FABRIC: &str = "
switches:
  - { name: left }
  - { name: right }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.1.1, ranks: 2 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.2.1 }
links:
  - { ends: [h1, left/1], mtu: 9000 }
  - { ends: [right/1, h2] }
  - { ends: [left/9, right/8], rate: 100M, b_to_a: { loss: 0.01 } }
traffic:
  - { from: h1, to: h2, rate: 30M }
  - { from: h2, to: h1, protocol: tcp }
";

    fn plan(text: &str) -> Result<Plan, LabError> {
        let fabric = fabric::parse(text, "fabric.yaml").expect("a fabric");
        Plan::new(&"x".parse().expect("a name"), &fabric)
    }

    #[test]
    fn a_fabric_becomes_namespaces_and_interfaces() {
        let plan = plan(FABRIC).unwrap();
        assert_eq!(
            plan.namespaces().collect::<Vec<_>>(),
            ["ultima:x", "ultima:x:h1", "ultima:x:h2"]
        );
        let ports: Vec<_> = plan.switches.iter().map(|switch| &switch.ports).collect();
        let named = |ports: &[(u16, &str)]| -> Vec<(u16, String)> {
            let owned = |&(port, name): &(u16, &str)| (port, name.to_owned());
            ports.iter().map(owned).collect()
        };
        assert_eq!(
            ports,
            [
                &named(&[(1, "left-1"), (9, "left-9")]),
                &named(&[(1, "right-1"), (8, "right-8")])
            ]
        );
        let [h1, h2] = &plan.hosts[..] else {
            panic!("two hosts");
        };
        assert_eq!(
            (h1.mtu, h2.mtu, h1.network.as_str()),
            (9000, 1500, "10.0.0.0/22")
        );
        assert_eq!(plan.namespace_of("h2"), Some("ultima:x:h2"));
        assert_eq!(plan.namespace_of("left"), Some("ultima:x"));
        assert_eq!(plan.namespace_of("h3"), None);
        let [first, second, trunk] = &plan.links[..] else {
            panic!("three links");
        };
        assert_eq!(first.interfaces[0].name, "eth0");
        assert_eq!(second.ends, ["right/1", "h2"]);
        assert!(first.wire.is_none() && second.wire.is_none());
        let wire = trunk.wire.as_ref().unwrap();
        assert_eq!(wire.interfaces, ["wire2a", "wire2b"]);
        assert_eq!((wire.a_to_b.loss.len(), wire.b_to_a.loss.len()), (0, 1));
        let flows: Vec<_> = plan
            .traffic
            .iter()
            .map(|flow| (flow.address.port(), flow.udp_rate))
            .collect();
        assert_eq!(flows, [(30_000, Some(30_000_000)), (30_001, None)]);
    }

    #[test]
    fn names_of_interfaces_fit_the_limit_of_the_kernel() {
        let long = "a-switch-with-a-long-name";
        let plan = plan(&FABRIC.replace("left", long).replace("/9", "/509")).unwrap();
        let names: Vec<&str> = (plan.switches.iter())
            .flat_map(|switch| switch.ports.iter().map(|(_, name)| name.as_str()))
            .collect();
        assert_eq!(names, ["sw1-1", "sw1-509", "sw2-1", "sw2-8"]);
    }

    #[test]
    fn the_network_is_the_smallest_that_contains_all_hosts() {
        let network =
            |addresses: &[[u8; 4]]| network(addresses.iter().copied().map(Ipv4Addr::from));
        assert_eq!(network(&[[10, 0, 0, 1], [10, 0, 0, 2]]), "10.0.0.0/30");
        assert_eq!(network(&[[10, 0, 0, 1]]), "10.0.0.1/32");
        assert_eq!(network(&[[10, 0, 0, 1], [192, 168, 0, 1]]), "0.0.0.0/0");
    }

    #[test]
    fn a_switch_outside_the_namespace_is_rejected() {
        for wrong in ["10.0.0.9:9559", "switch.example:9559", "127.0.0.1:9560"] {
            let text = FABRIC.replace("name: left }", &format!("name: left, grpc: '{wrong}' }}"));
            let line = plan(&text).unwrap_err().to_string();
            assert!(
                line.contains("which a lab does not have"),
                "{wrong}: {line}"
            );
        }
    }
}
