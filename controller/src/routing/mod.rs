//! Which way packets to a host take through the fabric as it is now.
//!
//! Every switch sends what is for a host one step nearer to it, so that nothing goes round in circles whatever the
//! fabric looks like. Where several next switches are equally near, hosts are spread over them: the program has no
//! action selector, so a destination has one way from each switch, which also keeps its packets in order.

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

/// For each switch the port toward each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    health: Health,
    distances: Distances,
    /// For each host, by switch; also for hosts whose own port is down.
    ports: Vec<Vec<Option<PortNumber>>>,
    /// Whether that is up, by host.
    is_attached: Vec<bool>,
    /// What they are where all is well; none where that is now.
    whole: Option<Box<Whole>>,
}

/// Routes where all is well.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Whole {
    distances: Distances,
    ports: Vec<Vec<Option<PortNumber>>>,
}

/// Where a packet comes into a switch and where it leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Passage {
    /// The switch, and the port at which it comes in.
    pub ingress: SwitchPort,
    /// The port at which it leaves.
    pub egress: PortNumber,
}

impl Passage {
    /// The port at which it leaves, with its switch.
    pub fn leaving(self) -> SwitchPort {
        SwitchPort {
            switch: self.ingress.switch,
            port: self.egress,
        }
    }
}

impl Routes {
    /// The routes of `fabric` while `health` is how it stands. They depend on nothing else: what comes back gets back what
    /// it had, and what can stay as it is while other parts are down stays.
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

    /// What is down where these are the routes.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The port at which `switch` sends what is for `host`: the host's own, or a trunk. None if no way leads there.
    pub fn port(&self, switch: SwitchId, host: HostId) -> Option<PortNumber> {
        let port = self.ports[host.0][switch.0];
        port.filter(|_| self.is_attached[host.0])
    }

    /// The port that `switch` is given for `host`: where no way leads to its switch, that by which one does when all is well. Nothing is lost
    /// by it where that is broken indeed, and much kept where it only seems so.
    pub fn held(&self, switch: SwitchId, host: HostId) -> Option<PortNumber> {
        let whole = || self.whole.as_ref()?.ports[host.0][switch.0];
        self.ports[host.0][switch.0].or_else(whole)
    }

    /// When `switch` may be given [its port](Self::held) for a host at `home`: after those of lower turns have theirs. What then comes to
    /// a switch that has its new port stays on new ways to the end; until then it stays on old ones. So nothing goes round
    /// while some have old ports and some new.
    pub fn turn(&self, switch: SwitchId, home: SwitchId) -> (bool, u32) {
        let whole = self
            .whole
            .as_ref()
            .map_or(&self.distances, |it| &it.distances);
        match self.distance(switch, home) {
            Some(distance) => (false, distance),
            None => (true, whole.get(switch, home).unwrap_or(u32::MAX)),
        }
    }

    /// How many trunks are between two switches; none if no way leads from one to the other.
    pub fn distance(&self, from: SwitchId, to: SwitchId) -> Option<u32> {
        self.distances.get(from, to)
    }

    /// What becomes of a packet for `to` that comes in at `from`, switch by switch; nothing if no way leads there.
    pub fn way(
        &self,
        fabric: &Fabric,
        from: SwitchPort,
        to: HostId,
    ) -> impl Iterator<Item = Passage> {
        along(fabric, from, move |switch| self.port(switch, to))
    }

    /// The same by the ports that switches [are given](Self::held), whether or not all of it is up.
    pub fn held_way(
        &self,
        fabric: &Fabric,
        from: SwitchPort,
        to: HostId,
    ) -> impl Iterator<Item = Passage> {
        along(fabric, from, move |switch| self.held(switch, to))
    }
}

/// What becomes of a packet that comes in at `from`, where switches send it out of these ports.
fn along(
    fabric: &Fabric,
    from: SwitchPort,
    port: impl Fn(SwitchId) -> Option<PortNumber>,
) -> impl Iterator<Item = Passage> {
    let pass = move |ingress: SwitchPort| {
        let egress = port(ingress.switch)?;
        Some(Passage { ingress, egress })
    };
    let first = pass(from);
    iter::successors(first, move |passage| {
        fabric.across(passage.leaving()).and_then(&pass)
    })
}
