//! Validates a fabric's YAML form and builds the [`Fabric`], or returns the first problem: switches
//! here, hosts and links in files of their own.

mod host;
mod link;
mod panel;

use std::collections::HashMap;
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::path::Path;

use ultima_api::MacAddr;
use ultima_grpc::tls::{ClientTls, IdentityFiles};
use ultima_p4runtime::tofino::Packing;

use super::file::{FabricFile, LimitsFile, MOST_SWITCHES, ServerFile, SwitchFile, TlsFile};
use super::link::{Flow, Link};
use super::{Fabric, Host, HostId, Switch, SwitchId, SwitchPort, Trunk, Trunks};
use crate::target::{Limits, TARGETS, Target, V1MODEL};
use crate::yaml::{self, LoadError, Text};

/// Checks the form of `text`.
pub(super) fn check(text: &Text, file: FabricFile) -> Result<Fabric, LoadError> {
    match file.switches.len() {
        0 => return Err(text.fail("switches", "a fabric needs at least one switch")),
        1..=MOST_SWITCHES => {}
        many => {
            let problem = format!("{many} switches; a fabric has at most {MOST_SWITCHES}");
            return Err(text.fail("switches", problem));
        }
    }
    let mut checker = Checker {
        text,
        switches: Vec::new(),
        hosts: Vec::new(),
        links: Vec::new(),
        trunks: Vec::new(),
        traffic: Vec::new(),
        named: HashMap::new(),
        macs: HashMap::new(),
        ips: HashMap::new(),
        linked: HashMap::new(),
        linked_hosts: HashMap::new(),
    };
    for (index, switch) in file.switches.iter().enumerate() {
        checker.switch(index, switch)?;
    }
    for (index, host) in file.hosts.iter().enumerate() {
        checker.host(index, host)?;
    }
    for (index, link) in file.links.iter().enumerate() {
        checker.link(index, link)?;
    }
    for (index, flow) in file.traffic.iter().enumerate() {
        checker.flow(index, flow)?;
    }
    checker.finish()
}

/// The accepted elements, and the names and ports that are taken.
struct Checker<'a> {
    text: &'a Text,
    switches: Vec<Switch>,
    /// Their ports are unknown before the links are checked.
    hosts: Vec<Host>,
    links: Vec<Link>,
    trunks: Vec<Trunk>,
    traffic: Vec<Flow>,
    named: HashMap<String, Node>,
    macs: HashMap<MacAddr, usize>,
    ips: HashMap<Ipv4Addr, usize>,
    /// The link at each port, by its index in the file.
    linked: HashMap<SwitchPort, usize>,
    /// The link of each host, by its index in the file.
    linked_hosts: HashMap<HostId, usize>,
}

/// The element behind a name.
#[derive(Clone, Copy)]
enum Node {
    Switch(SwitchId),
    Host(HostId),
}

/// The default P4Runtime port of a fabric's first switch, as IANA assigned it; the other switches'
/// defaults count up from it.
const GRPC_PORT: usize = 9559;

impl Checker<'_> {
    fn fail(&self, field: &str, problem: impl Display) -> LoadError {
        self.text.fail(field, problem)
    }

    /// Reports a problem of a switch or host as a whole, at its name.
    fn fail_whole(&self, field: &str, problem: impl Display) -> LoadError {
        let place = self.text.place(&format!("{field}.name"));
        LoadError::at(&place, field, problem)
    }

    fn name(&mut self, name: &str, field: &str, node: Node) -> Result<(), LoadError> {
        let at = format!("{field}.name");
        yaml::check_name(name).map_err(|problem| self.fail(&at, problem))?;
        let other = match self.named.insert(name.to_owned(), node) {
            None => return Ok(()),
            Some(Node::Switch(id)) => format!("switches[{}]", id.0),
            Some(Node::Host(id)) => format!("hosts[{}]", id.0),
        };
        let problem = format!(
            "duplicate name {name}, first used by {other}; names are unique among switches and hosts"
        );
        Err(self.fail(&at, problem))
    }

    fn switch(&mut self, index: usize, file: &SwitchFile) -> Result<(), LoadError> {
        let field = format!("switches[{index}]");
        self.name(&file.name, &field, Node::Switch(SwitchId(index)))?;

        let target = match &file.target {
            None => &V1MODEL,
            Some(name) => self.target(&field, name)?,
        };
        let grpc = match &file.grpc {
            None => format!("127.0.0.1:{}", GRPC_PORT + index),
            Some(grpc) if is_authority(grpc) => grpc.clone(),
            Some(grpc) => {
                let problem = format!(
                    "invalid address {grpc:?}; use HOST:PORT of the P4Runtime server, such as 127.0.0.1:9559"
                );
                return Err(self.fail(&format!("{field}.grpc"), problem));
            }
        };
        let id_field = format!("{field}.device_id");
        let device_id = file.device_id.unwrap_or(index as u64 + 1);
        if device_id == 0 {
            let problem = "device_id 0 is reserved in P4Runtime; use the switch's id, 1 or above";
            return Err(self.fail(&id_field, problem));
        }
        let same = |other: &&Switch| other.grpc == grpc && other.device_id == device_id;
        if let Some(other) = self.switches.iter().find(same) {
            let problem = format!(
                "duplicate device {device_id} at {grpc}, first used by {}; give each switch its own",
                other.name
            );
            return Err(match file.device_id {
                Some(_) => self.fail(&id_field, problem),
                None => self.fail_whole(&field, problem),
            });
        }
        let limits = self.limits(&field, target, &file.limits)?;
        let panel = self.panel(&field, target, file)?;
        let tls = file.tls.as_ref().map(|file| self.tls(&field, file));
        self.switches.push(Switch {
            name: file.name.clone(),
            target,
            limits,
            grpc,
            device_id,
            tls: tls.transpose()?,
            packing: match file.server {
                None | Some(ServerFile::Stratum) => Packing::Stratum,
                Some(ServerFile::Pi) => Packing::Pi,
            },
            line_rate_queues: file.line_rate_queues.unwrap_or(target.line_rate_queues),
            panel,
        });
        Ok(())
    }

    fn tls(&self, field: &str, file: &TlsFile) -> Result<ClientTls, LoadError> {
        let field = format!("{field}.tls");
        let folder = Path::new(self.text.name())
            .parent()
            .unwrap_or(Path::new(""));
        let identity = match (&file.cert, &file.key) {
            (Some(cert), Some(key)) => Some(IdentityFiles {
                cert: folder.join(cert),
                key: folder.join(key),
            }),
            (None, None) => None,
            (cert, _) => {
                let given = if cert.is_some() { "cert" } else { "key" };
                let place = self.text.place(&format!("{field}.{given}"));
                let problem = "a client certificate needs both `cert` and `key`";
                return Err(LoadError::at(&place, &field, problem));
            }
        };
        ClientTls::load(&folder.join(&file.ca), identity.as_ref()).map_err(|error| {
            let place = self.text.place(&format!("{field}.ca"));
            LoadError::at(&place, &field, error)
        })
    }

    fn target(&self, field: &str, name: &str) -> Result<&'static Target, LoadError> {
        Target::by_name(name).ok_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            let known = known.join(", ");
            let problem = format!("unknown target {name:?}; known targets: {known}");
            self.fail(&format!("{field}.target"), problem)
        })
    }

    fn limits(
        &self,
        field: &str,
        target: &'static Target,
        file: &LimitsFile,
    ) -> Result<Limits, LoadError> {
        let limit = |name: &str, given: Option<u32>, most: u32| match given {
            None => Ok(most),
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => {
                let target = target.name;
                let problem = format!("{value} is out of range; target {target} takes 1 to {most}");
                Err(self.fail(&format!("{field}.limits.{name}"), problem))
            }
        };
        let own = target.limits;
        Ok(Limits {
            groups: limit("groups", file.groups, own.groups)?,
            group_replicas: limit("group_replicas", file.group_replicas, own.group_replicas)?,
            nodes: limit("nodes", file.nodes, own.nodes)?,
        })
    }

    /// Checks what depends on all links, and builds the fabric.
    fn finish(mut self) -> Result<Fabric, LoadError> {
        for (index, host) in self.hosts.iter().enumerate() {
            if !self.linked_hosts.contains_key(&HostId(index)) {
                let name = &host.name;
                let problem = format!("host {name} has no link; add one such as [{name}, s1/1]");
                return Err(self.fail_whole(&format!("hosts[{index}]"), problem));
            }
        }
        let trunks = Trunks::new(self.switches.len(), std::mem::take(&mut self.trunks));
        if let Some(SwitchId(missed)) = trunks.first_missed() {
            let (from, to) = (&self.switches[0].name, &self.switches[missed].name);
            let problem = format!(
                "no path leads from {from} to {to}; add a trunk such as [{from}/9, {to}/9]"
            );
            return Err(self.fail_whole(&format!("switches[{missed}]"), problem));
        }
        let host = |(name, node)| match node {
            Node::Host(id) => Some((name, id)),
            Node::Switch(_) => None,
        };
        Ok(Fabric {
            switches: self.switches,
            hosts: self.hosts,
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
    let v6 = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_plausible = match v6 {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !host.is_empty() && host.bytes().all(is_usual)
        }
    };
    is_plausible && port.parse::<u16>().is_ok_and(|port| port != 0)
}
