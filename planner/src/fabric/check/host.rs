//! Validates hosts: their addresses, and their room for ranks.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::net::Ipv4Addr;

use ultima_api::MacAddr;

use super::{Checker, Node};
use crate::fabric::file::HostFile;
use crate::fabric::{Host, HostId, SwitchId, SwitchPort};
use crate::target::PortNumber;
use crate::yaml::LoadError;

/// The port of a host before its link is known.
const UNLINKED: SwitchPort = SwitchPort {
    switch: SwitchId(0),
    port: PortNumber(0),
};

impl Checker<'_> {
    pub(super) fn host(&mut self, index: usize, file: &HostFile) -> Result<(), LoadError> {
        let field = format!("hosts[{index}]");
        self.name(&file.name, &field, Node::Host(HostId(index)))?;
        let mac = self.mac(&format!("{field}.mac"), &file.mac)?;
        let ip = self.ip(&format!("{field}.ip"), &file.ip)?;
        let (ranks, udp_port) = self.ranks(&field, file)?;
        self.hosts.push(Host {
            name: file.name.clone(),
            mac,
            ip,
            ranks,
            udp_port,
            attached: UNLINKED,
        });
        Ok(())
    }

    /// The number of ranks and the UDP port of the first one.
    fn ranks(&self, field: &str, file: &HostFile) -> Result<(u16, u16), LoadError> {
        let ranks = file.ranks.unwrap_or(1);
        let ranks_field = format!("{field}.ranks");
        if ranks == 0 {
            let problem = "0 ranks; use 1 or more, or leave the host out";
            return Err(self.fail(&ranks_field, problem));
        }
        let first = file.udp_port.unwrap_or(ultima_wire::UDP_PORT);
        let highest = u16::MAX - (ranks - 1);
        if (1..=highest).contains(&first) {
            return Ok((ranks, first));
        }
        let problem =
            format!("{ranks} ranks from UDP port {first} end above 65535; start at 1 to {highest}");
        Err(match (file.udp_port, file.ranks) {
            (Some(_), _) => self.fail(&format!("{field}.udp_port"), problem),
            (None, Some(_)) => self.fail(&ranks_field, problem),
            (None, None) => self.fail_whole(field, problem),
        })
    }

    fn mac(&mut self, field: &str, text: &str) -> Result<MacAddr, LoadError> {
        let parsed: Result<MacAddr, _> = text.parse();
        let mac = parsed.map_err(|error| self.fail(field, format!("{text:?}: {error}")))?;
        if !mac.is_station() {
            let problem = format!(
                "{mac} is not a unicast address; use one with an even first octet that is not all zeros, such as 02:00:00:00:00:01"
            );
            return Err(self.fail(field, problem));
        }
        match self.first_with(mac, |it| &mut it.macs) {
            None => Ok(mac),
            Some(other) => Err(self.fail(field, duplicate("MAC", mac, &other))),
        }
    }

    fn ip(&mut self, field: &str, text: &str) -> Result<Ipv4Addr, LoadError> {
        let parsed: Result<Ipv4Addr, _> = text.parse();
        let ip = parsed.map_err(|_| {
            let problem =
                format!("invalid IPv4 address {text:?}; use dotted decimal, such as 10.0.0.1");
            self.fail(field, problem)
        })?;
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast() {
            let problem = format!(
                "{ip} is not a host's address; use a unicast address that is not loopback, such as 10.0.0.1"
            );
            return Err(self.fail(field, problem));
        }
        match self.first_with(ip, |it| &mut it.ips) {
            None => Ok(ip),
            Some(other) => Err(self.fail(field, duplicate("IPv4", ip, &other))),
        }
    }

    /// Takes an address for the next host. Returns the host that has it already.
    fn first_with<A: Eq + Hash>(
        &mut self,
        address: A,
        taken: impl Fn(&mut Self) -> &mut HashMap<A, usize>,
    ) -> Option<String> {
        let next = self.hosts.len();
        let other = taken(self).insert(address, next)?;
        Some(self.hosts[other].name.clone())
    }
}

fn duplicate(kind: &str, address: impl Display, other: &str) -> String {
    format!("duplicate {kind} address {address}, first used by {other}; give each host its own")
}
