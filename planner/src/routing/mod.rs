//! Routes: the paths of packets to hosts through the elements that are up.
//!
//! Every switch sends a packet for a host one hop nearer to it, so that nothing loops in any
//! fabric. If several next switches are equally near, hosts are spread over them: the program has
//! no action selector, so a destination has one route on each switch, which also preserves the
//! order of its packets.

mod distance;
mod order;
mod spread;
#[cfg(test)]
pub(crate) mod tests;

use std::iter;

use distance::Distances;
pub use order::reorder;

use crate::fabric::{Fabric, Health, HostId, SwitchId, SwitchPort};
use crate::target::PortNumber;

/// The port toward each host on each switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    health: Health,
    distances: Distances,
    /// The port by host and switch; also for hosts whose own port is down.
    ports: Vec<Vec<Option<PortNumber>>>,
    /// True by host if its own port is up.
    is_attached: Vec<bool>,
    /// The routes without failures; none if there are no failures now.
    whole: Option<Box<Whole>>,
}

/// The routes without failures.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Whole {
    distances: Distances,
    ports: Vec<Vec<Option<PortNumber>>>,
}

/// A packet's passage through a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Passage {
    /// The switch and its ingress port.
    pub ingress: SwitchPort,
    /// The egress port.
    pub egress: PortNumber,
}

impl Passage {
    /// The egress port, with the switch.
    pub fn leaving(self) -> SwitchPort {
        SwitchPort {
            switch: self.ingress.switch,
            port: self.egress,
        }
    }
}

impl Routes {
    /// The routes of `fabric` with this `health`. They depend on nothing else: a recovered element
    /// gets its old routes back, and routes that can stay unchanged do.
    pub fn new(fabric: &Fabric, health: Health) -> Self {
        let all_well = Health::default();
        let distances = Distances::new(fabric, &all_well);
        let ports = spread::ports(fabric, &all_well, &distances, None);
        let hosts = fabric.hosts().iter();
        let is_attached = hosts.map(|host| health.port_is_up(host.attached)).collect();
        if health == all_well {
            return Routes {
                health,
                distances,
                ports,
                is_attached,
                whole: None,
            };
        }
        let now = Distances::new(fabric, &health);
        Routes {
            ports: spread::ports(fabric, &health, &now, Some(&ports)),
            distances: now,
            is_attached,
            health,
            whole: Some(Box::new(Whole { distances, ports })),
        }
    }

    /// The health for which the routes were computed.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The port by which `switch` sends packets for `host`: the host's own, or a trunk. None if no
    /// path exists.
    pub fn port(&self, switch: SwitchId, host: HostId) -> Option<PortNumber> {
        let port = self.ports[host.0][switch.0];
        port.filter(|_| self.is_attached[host.0])
    }

    /// The port that is written to `switch` for `host`. Without a path to the host's switch, it is
    /// the port of the routes without failures: this loses nothing if the failure is real, and
    /// keeps traffic flowing if it is not.
    pub fn held(&self, switch: SwitchId, host: HostId) -> Option<PortNumber> {
        let whole = || self.whole.as_ref()?.ports[host.0][switch.0];
        self.ports[host.0][switch.0].or_else(whole)
    }

    /// The round of writes in which `switch` may get its [held](Self::held) port for hosts at `home`: after
    /// all switches of earlier rounds. Packets that reach a switch with its new port stay on new
    /// paths from there; until then they stay on old ones. So no packet loops during the change.
    pub fn write_round(&self, switch: SwitchId, home: SwitchId) -> (bool, u32) {
        let whole = self
            .whole
            .as_ref()
            .map_or(&self.distances, |it| &it.distances);
        match self.distance(switch, home) {
            Some(distance) => (false, distance),
            None => (true, whole.get(switch, home).unwrap_or(u32::MAX)),
        }
    }

    /// The number of trunks between two switches; none if no path exists.
    pub fn distance(&self, from: SwitchId, to: SwitchId) -> Option<u32> {
        self.distances.get(from, to)
    }

    /// The path of a packet from port `from` to `to`, switch by switch, by [held](Self::held) ports,
    /// whether or not they are up.
    pub fn path(
        &self,
        fabric: &Fabric,
        from: SwitchPort,
        to: HostId,
    ) -> impl Iterator<Item = Passage> {
        let pass = move |ingress: SwitchPort| {
            let egress = self.held(ingress.switch, to)?;
            Some(Passage { ingress, egress })
        };
        iter::successors(pass(from), move |passage| {
            fabric.across(passage.leaving()).and_then(pass)
        })
    }
}
