//! Grows a tree that joins some switches from a given switch.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Load;
use crate::fabric::{Fabric, Health, SwitchId, TrunkEnd, TrunkId};
use crate::job::Weight;

/// The distance of a switch from the tree: in trunks, then in their strain.
type Distance = (u32, u128);

/// The fabric, routes and load in which a tree is grown.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub fabric: &'a Fabric,
    pub health: &'a Health,
    pub load: &'a Load,
    pub weight: Weight,
}

impl Ground<'_> {
    /// Returns the trunks of a tree from `root` to all `members`: it repeatedly adds the path to
    /// the member that is nearest to the tree (H. Takahashi and A. Matsuyama, "An approximate
    /// solution for the Steiner problem in graphs", 1980). None if a member is not connected.
    ///
    /// A tree grown from a member has less than twice the fewest possible links. petgraph's `steiner_tree` (Kou) has the same bound, but
    /// knows no switch without transit, no root, and searches from every member.
    pub fn grow(&self, root: SwitchId, members: &BTreeSet<SwitchId>) -> Option<BTreeSet<TrunkId>> {
        let switches = self.fabric.switches().len();
        let mut nearest: Vec<Option<Distance>> = vec![None; switches];
        // The trunk by which a switch is reached, and its previous switch.
        let mut reached_by: Vec<Option<(SwitchId, TrunkEnd)>> = vec![None; switches];
        let mut is_in = vec![false; switches];
        let mut trunks = BTreeSet::new();
        let mut missing = members.iter().filter(|member| **member != root).count();

        is_in[root.0] = true;
        nearest[root.0] = Some((0, 0));
        let mut queue = BinaryHeap::from([Reverse(((0, 0), root))]);
        while missing > 0 {
            let Reverse((distance, switch)) = queue.pop()?;
            if nearest[switch.0] != Some(distance) {
                continue;
            }
            if members.contains(&switch) && !is_in[switch.0] {
                missing -= 1;
                let mut at = switch;
                while !std::mem::replace(&mut is_in[at.0], true) {
                    let (from, end) = reached_by[at.0]?;
                    trunks.insert(end.trunk);
                    nearest[at.0] = Some((0, 0));
                    queue.push(Reverse(((0, 0), at)));
                    // A switch on the path is not a member, which would have been nearer.
                    at = from;
                }
                continue;
            }
            if switch != root && !self.health.carries(switch) {
                continue;
            }
            for end in self.fabric.trunks_of(switch) {
                let far = end.far.switch.0;
                if is_in[far] || !self.health.trunk_is_up(self.fabric, end.trunk) {
                    continue;
                }
                let strain = self.load.with(self.fabric, end.trunk, self.weight);
                let further = (distance.0 + 1, distance.1.saturating_add(strain));
                if nearest[far].is_none_or(|nearest| further < nearest) {
                    nearest[far] = Some(further);
                    reached_by[far] = Some((switch, *end));
                    queue.push(Reverse((further, end.far.switch)));
                }
            }
        }
        Some(trunks)
    }
}
