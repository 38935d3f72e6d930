//! The load of jobs' trees on links and switches.

use super::JobTree;
use crate::fabric::{Fabric, SwitchId, TrunkId};
use crate::job::Weight;

/// The total weight of the trees through each trunk and each switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    trunks: Vec<u64>,
    switches: Vec<u64>,
}

impl Load {
    /// The load without jobs.
    pub fn new(fabric: &Fabric) -> Self {
        Load {
            trunks: vec![0; fabric.trunks().len()],
            switches: vec![0; fabric.switches().len()],
        }
    }

    /// Adds a job's tree.
    pub fn add(&mut self, tree: &JobTree, weight: Weight) {
        self.each(tree, |load| *load += u64::from(weight.get()));
    }

    /// Removes a tree that was added with this weight.
    pub fn remove(&mut self, tree: &JobTree, weight: Weight) {
        self.each(tree, |load| *load -= u64::from(weight.get()));
    }

    fn each(&mut self, tree: &JobTree, change: impl Fn(&mut u64)) {
        for TrunkId(trunk) in tree.trunks() {
            change(&mut self.trunks[trunk]);
        }
        for SwitchId(switch) in tree.junctions() {
            change(&mut self.switches[switch]);
        }
    }

    /// The strain on a trunk with one more job.
    pub(super) fn with(&self, fabric: &Fabric, trunk: TrunkId, weight: Weight) -> u128 {
        fabric.strain(trunk, self.trunks[trunk.0] + u64::from(weight.get()))
    }

    /// The weight of the trees with a junction at a switch.
    pub(super) fn at(&self, switch: SwitchId) -> u64 {
        self.switches[switch.0]
    }
}
