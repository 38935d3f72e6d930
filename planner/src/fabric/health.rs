//! The elements of a fabric that are down.

use std::collections::BTreeSet;

use super::{Fabric, SwitchId, SwitchPort, TrunkId};

/// An element of a fabric that can fail or be drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// A switch, with all of its ports.
    Switch(SwitchId),
    /// A switch's transit traffic, between other switches. Paths avoid the switch but may still end
    /// there. This is how a switch that does not answer, or is drained, is relieved as far as
    /// others can replace it.
    Transit(SwitchId),
    /// A switch's port, with the link there.
    Port(SwitchPort),
    /// A link between two switches.
    Trunk(TrunkId),
}

/// The elements of a fabric that are down; by default none. An element is also down while one that
/// it depends on is down. An element that failed together with its switch is still down when the
/// switch is back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    down: BTreeSet<Element>,
}

impl Health {
    /// Marks an element as down. Returns false if it was down.
    pub fn fail(&mut self, element: Element) -> bool {
        self.down.insert(element)
    }

    /// Marks an element as up. Returns false if it was not down.
    pub fn repair(&mut self, element: Element) -> bool {
        self.down.remove(&element)
    }

    /// The elements that are down by themselves, in order.
    pub fn down(&self) -> impl ExactSizeIterator<Item = Element> {
        self.down.iter().copied()
    }

    /// True if a switch is up.
    pub(crate) fn switch_is_up(&self, switch: SwitchId) -> bool {
        !self.down.contains(&Element::Switch(switch))
    }

    /// True if a switch is up and carries transit traffic.
    pub fn carries(&self, switch: SwitchId) -> bool {
        self.switch_is_up(switch) && !self.down.contains(&Element::Transit(switch))
    }

    /// True if a port and its switch are up.
    pub(crate) fn port_is_up(&self, port: SwitchPort) -> bool {
        self.switch_is_up(port.switch) && !self.down.contains(&Element::Port(port))
    }

    /// True if a trunk and both of its ends are up.
    pub fn trunk_is_up(&self, fabric: &Fabric, trunk: TrunkId) -> bool {
        let ends = fabric.trunk(trunk).ends;
        !self.down.contains(&Element::Trunk(trunk)) && ends.iter().all(|end| self.port_is_up(*end))
    }
}

impl FromIterator<Element> for Health {
    fn from_iter<T: IntoIterator<Item = Element>>(down: T) -> Self {
        Health {
            down: down.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::PortNumber;

    #[test]
    fn trunks_depend_on_their_ends() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
        let trunk = TrunkId(0);
        let [one, other] = fabric.trunk(trunk).ends;
        let parts = [
            Element::Switch(one.switch),
            Element::Port(other),
            Element::Trunk(trunk),
        ];
        let mut health = Health::default();
        for element in parts {
            assert!(health.trunk_is_up(&fabric, trunk));
            assert!(health.fail(element) && !health.fail(element));
            assert!(!health.trunk_is_up(&fabric, trunk), "{element:?}");
            assert_eq!(health.down().collect::<Vec<_>>(), [element]);
            assert!(health.repair(element) && !health.repair(element));
        }

        // A host's port depends on its switch, and stays down by itself.
        let host = SwitchPort {
            switch: one.switch,
            port: PortNumber(1),
        };
        health.fail(Element::Switch(one.switch));
        health.fail(Element::Port(host));
        health.repair(Element::Switch(one.switch));
        assert!(!health.port_is_up(host) && health.port_is_up(one));
    }
}
