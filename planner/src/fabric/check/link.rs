//! Validates links and background traffic.

use ultima_link::{WireConfig, units};

use super::{Checker, Node};
use crate::fabric::file::{FlowFile, LinkFile, ProtocolFile};
use crate::fabric::link::{DEFAULT_MTU, Flow, FlowKind, Link, LinkEnd, MAX_MTU, MIN_MTU};
use crate::fabric::{SwitchPort, Trunk};
use crate::settings::{self, Settings};
use crate::target::Speed;
use crate::yaml::LoadError;

impl Checker<'_> {
    pub(super) fn link(&mut self, index: usize, file: &LinkFile) -> Result<(), LoadError> {
        let field = format!("links[{index}].ends");
        let [first, second] = file.ends.as_slice() else {
            let ends = file.ends.len();
            let problem = format!("{ends} ends; a link has 2, such as [h1, s1/1] or [s1/9, s2/9]");
            return Err(self.fail(&field, problem));
        };
        let mut end = |at: usize, text: &str| {
            self.end(index, text).map_err(|problem| {
                let place = self.text.place(&format!("{field}[{at}]"));
                LoadError::at(&place, &field, problem)
            })
        };
        let ends = [end(0, first)?, end(1, second)?];
        match ends {
            [LinkEnd::Host(a), LinkEnd::Host(b)] => {
                let [a, b] = [a, b].map(|host| &self.hosts[host.0].name);
                let problem = format!(
                    "{a} and {b} are both hosts; link each to a switch's port, such as [{a}, s1/1]"
                );
                return Err(self.fail(&field, problem));
            }
            [LinkEnd::Host(host), LinkEnd::Port(port)]
            | [LinkEnd::Port(port), LinkEnd::Host(host)] => {
                self.hosts[host.0].attached = port;
                self.linked_hosts.insert(host, index);
            }
            [LinkEnd::Port(a), LinkEnd::Port(b)] if a.switch == b.switch => {
                let switch = &self.switches[a.switch.0].name;
                let problem = format!("both ends are on {switch}; a trunk joins two switches");
                return Err(self.fail(&field, problem));
            }
            [LinkEnd::Port(_), LinkEnd::Port(_)] => {}
        }
        let mtu = self.mtu(index, file)?;
        let speed = (self.speed(ends)).map_err(|problem| self.fail(&field, problem))?;
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

    fn mtu(&self, index: usize, file: &LinkFile) -> Result<u16, LoadError> {
        let Some(value) = file.mtu else {
            return Ok(DEFAULT_MTU);
        };
        let mtu = u16::try_from(value).ok();
        let mtu = mtu.filter(|mtu| (MIN_MTU..=MAX_MTU).contains(mtu));
        mtu.ok_or_else(|| {
            let problem = format!("MTU {value} is out of range; use {MIN_MTU} to {MAX_MTU} bytes");
            self.fail(&format!("links[{index}].mtu"), problem)
        })
    }

    /// The wire of each direction. A link between front-panel ports has their speed as its rate,
    /// unless the file gives it a lower one.
    fn wires(
        &self,
        index: usize,
        file: &LinkFile,
        speed: Option<Speed>,
    ) -> Result<[WireConfig; 2], LoadError> {
        let field = format!("links[{index}]");
        let ends = self.text.place(&format!("{field}.ends"));
        let both = settings::change(file.settings(), self.text.name(), &field)?;
        let wire = |name: &str, own: &Settings| {
            let field = format!("{field}.{name}");
            let own = own.iter().map(|(name, values)| (name.as_str(), values));
            let own = settings::change(own, self.text.name(), &field)?;
            let mut wire = WireConfig {
                rate: speed.map(Speed::bits_per_second),
                ..WireConfig::default()
            };
            both.apply(&mut wire);
            own.apply(&mut wire);
            if let (Some(rate), Some(speed)) = (wire.rate, speed)
                && rate > speed.bits_per_second()
            {
                let problem = format!(
                    "rate {rate} bit/s exceeds the port's {speed}; leave the rate out to use the port's"
                );
                return Err(LoadError::at(&ends, &format!("{field}.rate"), problem));
            }
            let valid = wire.validate();
            valid.map_err(|problem| LoadError::at(&ends, &field, problem))?;
            Ok(wire)
        };
        Ok([wire("a_to_b", &file.a_to_b)?, wire("b_to_a", &file.b_to_a)?])
    }

    /// Finds a link's end by name, and takes its port.
    fn end(&mut self, link: usize, text: &str) -> Result<LinkEnd, String> {
        let (name, port) = match text.split_once('/') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        match (self.named.get(name), port) {
            (None, _) => Err(format!(
                "unknown end {name:?}; use a host's name, or SWITCH/PORT"
            )),
            (Some(&Node::Switch(switch)), None) => {
                let port = self.switches[switch.0].target.ports.example();
                Err(format!(
                    "{name} is a switch; add a port, such as {name}/{port}"
                ))
            }
            (Some(Node::Host(_)), Some(_)) => {
                Err(format!("{name} is a host; write {name} without a port"))
            }
            (Some(&Node::Host(id)), None) => match self.linked_hosts.get(&id) {
                None => Ok(LinkEnd::Host(id)),
                Some(other) => Err(format!(
                    "host {name} already has a link, links[{other}]; a host has one link"
                )),
            },
            (Some(&Node::Switch(switch)), Some(port)) => {
                let port = self.port_number(switch, port)?;
                let end = SwitchPort { switch, port };
                match self.linked.get(&end) {
                    Some(other) => Err(format!(
                        "port {text} already has a link, links[{other}]; use another port"
                    )),
                    None => {
                        self.linked.insert(end, link);
                        Ok(LinkEnd::Port(end))
                    }
                }
            }
        }
    }

    pub(super) fn flow(&mut self, index: usize, file: &FlowFile) -> Result<(), LoadError> {
        let field = format!("traffic[{index}]");
        let host = |name: &str, end: &str| match self.named.get(name) {
            Some(Node::Host(id)) => Ok(*id),
            _ => {
                let problem = format!("unknown host {name:?}; traffic runs between two hosts");
                Err(self.fail(&format!("{field}.{end}"), problem))
            }
        };
        let (from, to) = (host(&file.from, "from")?, host(&file.to, "to")?);
        if from == to {
            let name = &file.to;
            let problem =
                format!("traffic from {name} to itself crosses no link; name another host");
            return Err(self.fail(&format!("{field}.to"), problem));
        }
        let rate_field = format!("{field}.rate");
        let kind = match (file.protocol, &file.rate) {
            (ProtocolFile::Udp, Some(text)) => {
                let rate = units::bit_rate(text);
                let rate = rate.map_err(|error| self.fail(&rate_field, error))?;
                FlowKind::Udp { rate }
            }
            (ProtocolFile::Udp, None) => {
                let problem = "UDP traffic needs a rate, such as 40M";
                let place = self.text.place(&format!("{field}.from"));
                return Err(LoadError::at(&place, &field, problem));
            }
            (ProtocolFile::Tcp, None) => FlowKind::Tcp,
            (ProtocolFile::Tcp, Some(_)) => {
                let problem = "TCP has no fixed rate; leave `rate` out, or use udp";
                return Err(self.fail(&rate_field, problem));
            }
        };
        self.traffic.push(Flow { from, to, kind });
        Ok(())
    }
}
