//! Validates a fabric's YAML form and builds the [`Fabric`], or returns the first problem.

mod panel;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_yaml::Spanned;
use ultima_api::MacAddr;
use ultima_grpc::tls::{ClientTls, IdentityFiles};
use ultima_link::{WireConfig, units};
use ultima_p4runtime::tofino::Packing;

use super::error::{FabricError, FabricProblem};
use super::file::{
    FabricFile, FlowFile, HostFile, LimitsFile, LinkFile, MOST_SWITCHES, ProtocolFile, ServerFile,
    SwitchFile, TlsFile,
};
use super::link::{DEFAULT_MTU, Flow, FlowKind, Link, LinkEnd, MAX_MTU, MIN_MTU};
use super::{Fabric, Host, HostId, Switch, SwitchId, SwitchPort, Trunk, Trunks};
use crate::target::{Limits, Speed, TARGETS, Target, V1MODEL};
use crate::{settings, yaml};

/// Checks `file`; errors call it `source`.
pub(super) fn check(file: FabricFile, source: &str) -> Result<Fabric, FabricError> {
    let mut checker = Checker {
        source,
        ..Checker::default()
    };
    if file.switches.value.is_empty() {
        return Err(checker.fail(&file.switches, "switches".into(), FabricProblem::NoSwitches));
    }
    if file.switches.value.len() > MOST_SWITCHES {
        let problem = FabricProblem::TooManySwitches {
            switches: file.switches.value.len(),
            most: MOST_SWITCHES,
        };
        return Err(checker.fail(&file.switches, "switches".into(), problem));
    }
    for (index, switch) in file.switches.value.iter().enumerate() {
        checker.switch(index, switch)?;
    }
    for (index, host) in file.hosts.value.iter().enumerate() {
        checker.host(index, host)?;
    }
    for (index, link) in file.links.value.iter().enumerate() {
        checker.link(index, link)?;
    }
    for (index, flow) in file.traffic.iter().enumerate() {
        checker.flow(index, flow)?;
    }
    checker.finish(&file)
}

/// The accepted elements, and the names and ports that are taken.
#[derive(Default)]
struct Checker<'a> {
    source: &'a str,
    switches: Vec<Switch>,
    hosts: Vec<UnlinkedHost>,
    links: Vec<Link>,
    trunks: Vec<Trunk>,
    traffic: Vec<Flow>,
    named: HashMap<String, Node>,
    macs: HashMap<MacAddr, usize>,
    ips: HashMap<Ipv4Addr, usize>,
    /// The link at each port, by its index in the file.
    linked: HashMap<SwitchPort, usize>,
}

/// The element behind a name.
#[derive(Clone, Copy)]
enum Node {
    Switch(SwitchId),
    Host(HostId),
}

/// A host before its link is known.
struct UnlinkedHost {
    name: String,
    mac: MacAddr,
    ip: Ipv4Addr,
    ranks: u16,
    udp_port: u16,
    /// The link, by its index in the file, and the switch port at its other end.
    attached: Option<(usize, SwitchPort)>,
}

/// The default P4Runtime port of a fabric's first switch, as IANA assigned it; the other switches'
/// defaults count up from it.
const GRPC_PORT: usize = 9559;

impl Checker<'_> {
    fn fail<T>(&self, at: &Spanned<T>, field: String, problem: FabricProblem) -> FabricError {
        yaml::invalid(self.source, at, field, problem)
    }

    fn name(&mut self, name: &Spanned<String>, field: &str, node: Node) -> Result<(), FabricError> {
        if !ultima_api::is_name(&name.value) {
            let problem = FabricProblem::Name(name.value.clone());
            return Err(self.fail(name, format!("{field}.name"), problem));
        }
        if let Some(other) = self.named.get(&name.value) {
            let other = match other {
                Node::Switch(id) => format!("switches[{}]", id.0),
                Node::Host(id) => format!("hosts[{}]", id.0),
            };
            let problem = FabricProblem::NameTaken {
                name: name.value.clone(),
                other,
            };
            return Err(self.fail(name, format!("{field}.name"), problem));
        }
        self.named.insert(name.value.clone(), node);
        Ok(())
    }

    fn switch(&mut self, index: usize, file: &SwitchFile) -> Result<(), FabricError> {
        let field = format!("switches[{index}]");
        self.name(&file.name, &field, Node::Switch(SwitchId(index)))?;

        let target = match &file.target {
            None => &V1MODEL,
            Some(name) => self.target(&field, name)?,
        };
        let grpc = match &file.grpc {
            None => format!("127.0.0.1:{}", GRPC_PORT + index),
            Some(grpc) if is_authority(&grpc.value) => grpc.value.clone(),
            Some(grpc) => {
                let problem = FabricProblem::Grpc(grpc.value.clone());
                return Err(self.fail(grpc, format!("{field}.grpc"), problem));
            }
        };
        let device_id = match &file.device_id {
            None => index as u64 + 1,
            Some(id) if id.value != 0 => id.value,
            Some(id) => {
                let field = format!("{field}.device_id");
                return Err(self.fail(id, field, FabricProblem::DeviceId));
            }
        };
        let same = |other: &&Switch| other.grpc == grpc && other.device_id == device_id;
        if let Some(other) = self.switches.iter().find(same) {
            let problem = FabricProblem::DeviceTaken {
                device_id,
                grpc,
                other: other.name.clone(),
            };
            return Err(match &file.device_id {
                Some(id) => self.fail(id, format!("{field}.device_id"), problem),
                None => self.fail(&file.name, field, problem),
            });
        }
        let limits = self.limits(&field, target, &file.limits)?;
        let panel = self.panel(&field, target, file)?;
        let tls = file.tls.as_ref().map(|file| self.tls(&field, file));
        self.switches.push(Switch {
            name: file.name.value.clone(),
            target,
            limits,
            grpc,
            device_id,
            tls: tls.transpose()?,
            packing: match file.server.as_ref().map(|server| server.value) {
                None | Some(ServerFile::Stratum) => Packing::Stratum,
                Some(ServerFile::Pi) => Packing::Pi,
            },
            line_rate_queues: file.line_rate_queues.unwrap_or(target.line_rate_queues),
            panel,
        });
        Ok(())
    }

    fn tls(&self, field: &str, file: &TlsFile) -> Result<ClientTls, FabricError> {
        let folder = Path::new(self.source).parent().unwrap_or(Path::new(""));
        let path = |path: &Spanned<PathBuf>| folder.join(&path.value);
        let identity = match (&file.cert, &file.key) {
            (Some(cert), Some(key)) => Some(IdentityFiles {
                cert: path(cert),
                key: path(key),
            }),
            (None, None) => None,
            (Some(at), None) | (None, Some(at)) => {
                return Err(self.fail(at, format!("{field}.tls"), FabricProblem::HalfIdentity));
            }
        };
        ClientTls::load(&path(&file.ca), identity.as_ref()).map_err(|error| {
            let problem = FabricProblem::Tls(error.to_string());
            self.fail(&file.ca, format!("{field}.tls"), problem)
        })
    }

    fn target(&self, field: &str, name: &Spanned<String>) -> Result<&'static Target, FabricError> {
        Target::by_name(&name.value).ok_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            let problem = FabricProblem::Target {
                name: name.value.clone(),
                known: known.join(", "),
            };
            self.fail(name, format!("{field}.target"), problem)
        })
    }

    fn limits(
        &self,
        field: &str,
        target: &'static Target,
        file: &LimitsFile,
    ) -> Result<Limits, FabricError> {
        let limit = |name: &str, given: &Option<Spanned<u32>>, most: u32| match given {
            None => Ok(most),
            Some(given) if (1..=most).contains(&given.value) => Ok(given.value),
            Some(given) => {
                let problem = FabricProblem::Limit {
                    value: given.value,
                    target: target.name,
                    most,
                };
                Err(self.fail(given, format!("{field}.limits.{name}"), problem))
            }
        };
        Ok(Limits {
            groups: limit("groups", &file.groups, target.limits.groups)?,
            group_replicas: limit(
                "group_replicas",
                &file.group_replicas,
                target.limits.group_replicas,
            )?,
            nodes: limit("nodes", &file.nodes, target.limits.nodes)?,
        })
    }

    fn host(&mut self, index: usize, file: &HostFile) -> Result<(), FabricError> {
        let field = format!("hosts[{index}]");
        self.name(&file.name, &field, Node::Host(HostId(index)))?;
        let mac = self.mac(index, &field, &file.mac)?;
        let ip = self.ip(index, &field, &file.ip)?;

        let ranks = file.ranks.as_ref().map_or(1, |ranks| ranks.value);
        if let (0, Some(at)) = (ranks, &file.ranks) {
            return Err(self.fail(at, format!("{field}.ranks"), FabricProblem::NoRanks));
        }
        let udp_port = file
            .udp_port
            .as_ref()
            .map_or(ultima_wire::UDP_PORT, |port| port.value);
        let highest = u16::MAX - (ranks - 1);
        if !(1..=highest).contains(&udp_port) {
            let problem = FabricProblem::UdpPort {
                first: udp_port,
                ranks,
                highest,
            };
            return Err(match (&file.udp_port, &file.ranks) {
                (Some(at), _) => self.fail(at, format!("{field}.udp_port"), problem),
                (None, Some(at)) => self.fail(at, format!("{field}.ranks"), problem),
                (None, None) => self.fail(&file.name, field, problem),
            });
        }
        self.hosts.push(UnlinkedHost {
            name: file.name.value.clone(),
            mac,
            ip,
            ranks,
            udp_port,
            attached: None,
        });
        Ok(())
    }

    fn mac(
        &mut self,
        index: usize,
        field: &str,
        text: &Spanned<String>,
    ) -> Result<MacAddr, FabricError> {
        let field = format!("{field}.mac");
        let mac: MacAddr = text.value.parse().map_err(|error| {
            let problem = FabricProblem::Mac {
                text: text.value.clone(),
                error,
            };
            self.fail(text, field.clone(), problem)
        })?;
        if !mac.is_station() {
            return Err(self.fail(text, field, FabricProblem::MacNotStation(mac)));
        }
        if let Some(other) = self.macs.insert(mac, index) {
            let other = self.hosts[other].name.clone();
            return Err(self.fail(text, field, FabricProblem::MacTaken { mac, other }));
        }
        Ok(mac)
    }

    fn ip(
        &mut self,
        index: usize,
        field: &str,
        text: &Spanned<String>,
    ) -> Result<Ipv4Addr, FabricError> {
        let field = format!("{field}.ip");
        let ip: Ipv4Addr = text
            .value
            .parse()
            .map_err(|_| self.fail(text, field.clone(), FabricProblem::Ip(text.value.clone())))?;
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast() {
            return Err(self.fail(text, field, FabricProblem::IpNotHost(ip)));
        }
        if let Some(other) = self.ips.insert(ip, index) {
            let other = self.hosts[other].name.clone();
            return Err(self.fail(text, field, FabricProblem::IpTaken { ip, other }));
        }
        Ok(ip)
    }

    fn link(&mut self, index: usize, file: &LinkFile) -> Result<(), FabricError> {
        let field = format!("links[{index}].ends");
        let [first, second] = file.ends.value.as_slice() else {
            let problem = FabricProblem::Ends(file.ends.value.len());
            return Err(self.fail(&file.ends, field, problem));
        };
        let ends = [
            self.end(index, &field, first)?,
            self.end(index, &field, second)?,
        ];
        match ends {
            [LinkEnd::Host(a), LinkEnd::Host(b)] => {
                let name = |host: HostId| self.hosts[host.0].name.clone();
                let problem = FabricProblem::HostToHost(name(a), name(b));
                return Err(self.fail(&file.ends, field, problem));
            }
            [LinkEnd::Host(host), LinkEnd::Port(port)]
            | [LinkEnd::Port(port), LinkEnd::Host(host)] => {
                self.hosts[host.0].attached = Some((index, port));
            }
            [LinkEnd::Port(a), LinkEnd::Port(b)] if a.switch == b.switch => {
                let problem = FabricProblem::Loop(self.switches[a.switch.0].name.clone());
                return Err(self.fail(&file.ends, field, problem));
            }
            [LinkEnd::Port(_), LinkEnd::Port(_)] => {}
        }
        let mtu = self.mtu(index, file)?;
        let speed = (self.speed(ends)).map_err(|problem| self.fail(&file.ends, field, problem))?;
        let wires = self.wires(index, file, speed)?;
        if let [LinkEnd::Port(a), LinkEnd::Port(b)] = ends {
            let rate = wires.iter().filter_map(|wire| wire.rate).min();
            let ends = [a, b];
            self.trunks.push(Trunk { ends, rate });
        }
        self.links.push(Link {
            ends,
            mtu,
            wires,
            speed,
        });
        Ok(())
    }

    fn mtu(&self, index: usize, file: &LinkFile) -> Result<u16, FabricError> {
        let Some(given) = &file.mtu else {
            return Ok(DEFAULT_MTU);
        };
        let mtu = u16::try_from(given.value).ok();
        mtu.filter(|mtu| (MIN_MTU..=MAX_MTU).contains(mtu))
            .ok_or_else(|| {
                let problem = FabricProblem::Mtu(given.value);
                self.fail(given, format!("links[{index}].mtu"), problem)
            })
    }

    /// The wire of each direction. A link between front-panel ports has their speed as its rate,
    /// unless the file gives it a lower one.
    fn wires(
        &self,
        index: usize,
        file: &LinkFile,
        speed: Option<Speed>,
    ) -> Result<[WireConfig; 2], FabricError> {
        let field = format!("links[{index}]");
        let both = settings::change(file.settings(), self.source, &field)?;
        let wire = |name: &str, own: &settings::Settings| {
            let field = format!("{field}.{name}");
            let own = own.iter().map(|(name, values)| (name.as_str(), values));
            let own = settings::change(own, self.source, &field)?;
            let mut wire = WireConfig {
                rate: speed.map(Speed::bits_per_second),
                ..WireConfig::default()
            };
            both.apply(&mut wire);
            own.apply(&mut wire);
            if let (Some(rate), Some(speed)) = (wire.rate, speed)
                && rate > speed.bits_per_second()
            {
                let problem = FabricProblem::RateOverSpeed { rate, speed };
                return Err(self.fail(&file.ends, format!("{field}.rate"), problem));
            }
            wire.validate()
                .map_err(|problem| self.fail(&file.ends, field, problem.into()))?;
            Ok(wire)
        };
        Ok([wire("a_to_b", &file.a_to_b)?, wire("b_to_a", &file.b_to_a)?])
    }

    fn flow(&mut self, index: usize, file: &FlowFile) -> Result<(), FabricError> {
        let field = format!("traffic[{index}]");
        let host = |name: &Spanned<String>, end: &str| match self.named.get(&name.value) {
            Some(Node::Host(id)) => Ok(*id),
            _ => {
                let problem = FabricProblem::NoHost(name.value.clone());
                Err(self.fail(name, format!("{field}.{end}"), problem))
            }
        };
        let (from, to) = (host(&file.from, "from")?, host(&file.to, "to")?);
        if from == to {
            let problem = FabricProblem::ToItself(file.to.value.clone());
            return Err(self.fail(&file.to, format!("{field}.to"), problem));
        }
        let kind = match (file.protocol, &file.rate) {
            (ProtocolFile::Udp, Some(text)) => FlowKind::Udp {
                rate: units::bit_rate(&text.value).map_err(|error| {
                    let problem = FabricProblem::Rate(error);
                    self.fail(text, format!("{field}.rate"), problem)
                })?,
            },
            (ProtocolFile::Udp, None) => {
                return Err(self.fail(&file.from, field, FabricProblem::NoRate));
            }
            (ProtocolFile::Tcp, None) => FlowKind::Tcp,
            (ProtocolFile::Tcp, Some(text)) => {
                return Err(self.fail(text, format!("{field}.rate"), FabricProblem::TcpRate));
            }
        };
        self.traffic.push(Flow { from, to, kind });
        Ok(())
    }

    fn end(
        &mut self,
        link: usize,
        field: &str,
        text: &Spanned<String>,
    ) -> Result<LinkEnd, FabricError> {
        let end = self.end_named(link, &text.value);
        end.map_err(|problem| self.fail(text, field.to_owned(), problem))
    }

    fn end_named(&mut self, link: usize, text: &str) -> Result<LinkEnd, FabricProblem> {
        let (name, port) = match text.split_once('/') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        match (self.named.get(name), port) {
            (None, _) => Err(FabricProblem::UnknownEnd(name.to_owned())),
            (Some(&Node::Switch(switch)), None) => Err(FabricProblem::EndWithoutPort {
                switch: name.to_owned(),
                port: self.switches[switch.0].target.ports.example(),
            }),
            (Some(Node::Host(_)), Some(_)) => Err(FabricProblem::HostWithPort(name.to_owned())),
            (Some(&Node::Host(id)), None) => match self.hosts[id.0].attached {
                None => Ok(LinkEnd::Host(id)),
                Some((other, _)) => Err(FabricProblem::HostTaken {
                    host: name.to_owned(),
                    other: format!("links[{other}]"),
                }),
            },
            (Some(&Node::Switch(switch)), Some(port)) => {
                let port = self.port_number(switch, port)?;
                let end = SwitchPort { switch, port };
                if let Some(other) = self.linked.get(&end) {
                    return Err(FabricProblem::PortTaken {
                        end: text.to_owned(),
                        other: format!("links[{other}]"),
                    });
                }
                self.linked.insert(end, link);
                Ok(LinkEnd::Port(end))
            }
        }
    }

    /// Checks what depends on all links, and builds the fabric.
    fn finish(mut self, file: &FabricFile) -> Result<Fabric, FabricError> {
        let mut hosts = Vec::with_capacity(self.hosts.len());
        for (index, host) in self.hosts.iter().enumerate() {
            let Some((_, attached)) = host.attached else {
                let name = &file.hosts.value[index].name;
                let problem = FabricProblem::NoLink(host.name.clone());
                return Err(self.fail(name, format!("hosts[{index}]"), problem));
            };
            let UnlinkedHost {
                ref name,
                mac,
                ip,
                ranks,
                udp_port,
                ..
            } = *host;
            hosts.push(Host {
                name: name.clone(),
                mac,
                ip,
                ranks,
                udp_port,
                attached,
            });
        }
        let trunks = Trunks::new(self.switches.len(), std::mem::take(&mut self.trunks));
        if let Some(missed) = trunks.first_missed() {
            let problem = FabricProblem::Disconnected {
                from: self.switches[0].name.clone(),
                to: self.switches[missed.0].name.clone(),
            };
            let name = &file.switches.value[missed.0].name;
            return Err(self.fail(name, format!("switches[{}]", missed.0), problem));
        }
        let host = |(name, node)| match node {
            Node::Host(id) => Some((name, id)),
            Node::Switch(_) => None,
        };
        Ok(Fabric {
            switches: self.switches,
            hosts,
            host_names: self.named.into_iter().filter_map(host).collect(),
            links: self.links,
            linked: self.linked,
            trunks,
            traffic: self.traffic,
        })
    }
}

/// True if `text` is `HOST:PORT`. The resolver validates host names.
fn is_authority(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_plausible = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        }
    };
    host_is_plausible && port.parse::<u16>().is_ok_and(|port| port != 0)
}
