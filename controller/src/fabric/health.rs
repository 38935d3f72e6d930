//! What of a fabric is down.

use std::collections::BTreeSet;

use super::{Fabric, SwitchId, SwitchPort, TrunkId};

/// A part of a fabric that can fail by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A switch, with all of its ports.
    Switch(SwitchId),
    /// What a switch passes on between others. It is avoided, and still an end of ways: of one that does not answer, or is to be left
    /// alone, that is all that others can take over.
    Transit(SwitchId),
    /// A port of a switch, with the link there.
    Port(SwitchPort),
    /// A link between two switches.
    Trunk(TrunkId),
}

/// The parts of a fabric that are down now; by default none. What hangs on a part is down with it and up with it: a part
/// that fails together with its switch is still down when the switch is back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    down: BTreeSet<Part>,
}

impl Health {
    /// A part goes down; false if it was.
    pub fn fail(&mut self, part: Part) -> bool {
        self.down.insert(part)
    }

    /// A part comes back; false if it was not down.
    pub fn mend(&mut self, part: Part) -> bool {
        self.down.remove(&part)
    }

    /// What is down by itself, in order.
    pub fn down(&self) -> impl ExactSizeIterator<Item = Part> {
        self.down.iter().copied()
    }

    /// Whether a switch works.
    pub fn switch_is_up(&self, switch: SwitchId) -> bool {
        !self.down.contains(&Part::Switch(switch))
    }

    /// Whether a switch works and passes on what others send each other.
    pub fn carries(&self, switch: SwitchId) -> bool {
        self.switch_is_up(switch) && !self.down.contains(&Part::Transit(switch))
    }

    /// Whether a port and its switch work.
    pub fn port_is_up(&self, port: SwitchPort) -> bool {
        self.switch_is_up(port.switch) && !self.down.contains(&Part::Port(port))
    }

    /// Whether a link between switches and both of its ends work.
    pub fn trunk_is_up(&self, fabric: &Fabric, trunk: TrunkId) -> bool {
        let ends = fabric.trunk(trunk).ends;
        !self.down.contains(&Part::Trunk(trunk)) && ends.iter().all(|end| self.port_is_up(*end))
    }
}

impl FromIterator<Part> for Health {
    fn from_iter<T: IntoIterator<Item = Part>>(down: T) -> Self {
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
    fn a_trunk_is_up_with_all_that_it_hangs_on() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = crate::fabric::parse(text, "two.yaml").unwrap();
        let trunk = TrunkId(0);
        let [one, other] = fabric.trunk(trunk).ends;
        let parts = [
            Part::Switch(one.switch),
            Part::Port(other),
            Part::Trunk(trunk),
        ];
        let mut health = Health::default();
        for part in parts {
            assert!(health.trunk_is_up(&fabric, trunk));
            assert!(health.fail(part) && !health.fail(part));
            assert!(!health.trunk_is_up(&fabric, trunk), "{part:?}");
            assert_eq!(health.down().collect::<Vec<_>>(), [part]);
            assert!(health.mend(part) && !health.mend(part));
        }

        // A host's port goes with its switch, and stays down by itself.
        let host = SwitchPort {
            switch: one.switch,
            port: PortNumber(1),
        };
        health.fail(Part::Switch(one.switch));
        health.fail(Part::Port(host));
        health.mend(Part::Switch(one.switch));
        assert!(!health.port_is_up(host) && health.port_is_up(one));
    }
}
