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
    /// For each host, by switch.
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
        if health == all_well {
            return Routes {
                health,
                distances,
                ports,
            };
        }
        let distances = Distances::new(fabric, &health);
        Routes {
            ports: spread::ports(fabric, &health, &distances, Some(&ports)),
            distances,
            health,
        }
    }

    /// What is down where these are the routes.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The port at which `switch` sends what is for `host`: the host's own, or a trunk. None if no way leads there.
    pub fn port(&self, switch: SwitchId, host: HostId) -> Option<PortNumber> {
        self.ports[host.0][switch.0]
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
        let pass = move |ingress: SwitchPort| {
            let egress = self.port(ingress.switch, to)?;
            Some(Passage { ingress, egress })
        };
        iter::successors(pass(from), move |passage| {
            fabric.across(passage.leaving()).and_then(pass)
        })
    }
}
