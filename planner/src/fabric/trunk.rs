//! Trunks: the links between switches.

use super::{SwitchId, SwitchPort};
use crate::target::PortNumber;

/// A trunk's index in [`Fabric::trunks`](super::Fabric::trunks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrunkId(pub usize);

/// A link between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// The two ends.
    pub ends: [SwitchPort; 2],
    /// Bits per second of the slower direction; none if unlimited.
    pub rate: Option<u64>,
}

/// A trunk as seen from one of its switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrunkEnd {
    /// The local port.
    pub port: PortNumber,
    /// The trunk.
    pub trunk: TrunkId,
    /// The port at the other end.
    pub far: SwitchPort,
}

/// All trunks, also by switch. [`strain`](Self::strain) compares trunks with different rates.
#[derive(Clone, Debug)]
pub(super) struct Trunks {
    pub all: Vec<Trunk>,
    /// For each switch, by port.
    pub ends: Vec<Vec<TrunkEnd>>,
    /// The highest rate of a trunk.
    fastest: u64,
}

impl Trunks {
    pub fn new(switches: usize, all: Vec<Trunk>) -> Self {
        let mut ends = vec![Vec::new(); switches];
        for (index, Trunk { ends: [a, b], .. }) in all.iter().enumerate() {
            for (near, far) in [(a, b), (b, a)] {
                ends[near.switch.0].push(TrunkEnd {
                    port: near.port,
                    trunk: TrunkId(index),
                    far: *far,
                });
            }
        }
        ends.iter_mut().for_each(|ends| ends.sort_unstable());
        let fastest = all.iter().filter_map(|trunk| trunk.rate).max();
        Trunks {
            all,
            ends,
            fastest: fastest.unwrap_or(1),
        }
    }

    /// The first switch that has no path from the first one.
    pub(crate) fn first_missed(&self) -> Option<SwitchId> {
        let mut reached = vec![false; self.ends.len()];
        let mut stack = vec![SwitchId(0)];
        while let Some(switch) = stack.pop() {
            if !std::mem::replace(&mut reached[switch.0], true) {
                stack.extend(self.ends[switch.0].iter().map(|end| end.far.switch));
            }
        }
        reached.iter().position(|reached| !reached).map(SwitchId)
    }

    /// The relative cost of `amount` on a trunk: 2^16 per unit on the fastest trunk, more on slower
    /// ones. A trunk without a rate counts as the fastest one with a rate.
    pub(crate) fn strain(&self, trunk: TrunkId, amount: u64) -> u128 {
        let rate = self.all[trunk.0].rate.unwrap_or(self.fastest).max(1);
        let slowness = (u128::from(self.fastest) << 16) / u128::from(rate);
        slowness.saturating_mul(amount.into())
    }
}
