//! How much jobs' trees ask of links and switches.

use super::JobTree;
use crate::fabric::{Fabric, SwitchId, TrunkId};
use crate::job::Weight;

/// The weights of the jobs whose trees go through each trunk and each switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    trunks: Vec<u64>,
    switches: Vec<u64>,
}

impl Load {
    /// Without any job.
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

    /// Takes a tree away that was added with that weight.
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

    /// The weights of the jobs whose trees branch or pass at a switch.
    pub(super) fn at(&self, switch: SwitchId) -> u64 {
        self.switches[switch.0]
    }
}
