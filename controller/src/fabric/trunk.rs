//! Links between switches, as what leads through a fabric.

use super::{SwitchId, SwitchPort};
use crate::target::PortNumber;

/// A trunk's place in [`Fabric::trunks`](super::Fabric::trunks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrunkId(pub usize);

/// A link between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Its two ends.
    pub ends: [SwitchPort; 2],
    /// Bits per second of its slower direction; none where it takes no time.
    pub rate: Option<u64>,
}

/// A trunk as one of its switches sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrunkEnd {
    /// The port here.
    pub port: PortNumber,
    /// The trunk.
    pub trunk: TrunkId,
    /// Its other end.
    pub far: SwitchPort,
}

/// All trunks and who sees them. Trunks whose rates differ are compared by [`strain`](Self::strain).
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

    /// The first switch to which no trunks lead from the first one.
    pub fn first_missed(&self) -> Option<SwitchId> {
        let mut reached = vec![false; self.ends.len()];
        let mut stack = vec![SwitchId(0)];
        while let Some(switch) = stack.pop() {
            if !std::mem::replace(&mut reached[switch.0], true) {
                stack.extend(self.ends[switch.0].iter().map(|end| end.far.switch));
            }
        }
        reached.iter().position(|reached| !reached).map(SwitchId)
    }

    /// How heavily `amount`, of anything, weighs on a trunk: 2^16 for each on the fastest, more on slower ones. One
    /// without a rate counts as the fastest that has one.
    pub fn strain(&self, trunk: TrunkId, amount: u64) -> u128 {
        let rate = self.all[trunk.0].rate.unwrap_or(self.fastest).max(1);
        let slowness = (u128::from(self.fastest) << 16) / u128::from(rate);
        slowness.saturating_mul(amount.into())
    }
}
