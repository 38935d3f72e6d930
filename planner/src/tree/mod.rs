//! Multicast trees: the trunks by which a job's packets reach all of its switches.
//!
//! [`JobTree::choose`] finds a tree with few links, so that packets are replicated late, and among
//! such trees the one with the least used links. A job keeps its tree as long as all of it is up,
//! whatever changes elsewhere.

mod choose;
mod grow;
mod load;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use load::Load;
use petgraph::unionfind::UnionFind;

use crate::fabric::{Fabric, Health, SwitchId, SwitchPort, TrunkEnd, TrunkId};
use crate::routing::Passage;

/// A loop-free set of trunks that joins a job's switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTree {
    /// The trunks to each switch's neighbours in the tree, by port.
    branches: BTreeMap<SwitchId, Vec<TrunkEnd>>,
}

impl JobTree {
    /// The tree of these trunks, which join `members` without a loop. Branches without a member are
    /// removed.
    fn of(fabric: &Fabric, trunks: &BTreeSet<TrunkId>, members: &BTreeSet<SwitchId>) -> Self {
        let mut branches: BTreeMap<SwitchId, Vec<TrunkEnd>> =
            members.iter().map(|switch| (*switch, Vec::new())).collect();
        for end in trunks.iter().flat_map(|trunk| fabric.trunk(*trunk).ends) {
            let of_switch = fabric.trunks_of(end.switch);
            let end_here = of_switch.iter().find(|other| other.port == end.port);
            branches.entry(end.switch).or_default().extend(end_here);
        }
        branches.values_mut().for_each(|ends| ends.sort_unstable());
        let mut tree = JobTree { branches };
        while let Some(end) = tree.bare_end(members) {
            tree.cut(end);
        }
        tree
    }

    /// The tree of these trunks, if they join all of `members` and no other ends, without a loop.
    pub fn joining(
        fabric: &Fabric,
        trunks: &BTreeSet<TrunkId>,
        members: &BTreeSet<SwitchId>,
    ) -> Option<Self> {
        let ends = trunks.iter().map(|trunk| fabric.trunk(*trunk).ends);
        let ends: Vec<[SwitchId; 2]> = ends.map(|ends| ends.map(|end| end.switch)).collect();
        let joined: BTreeSet<&SwitchId> = ends.iter().flatten().chain(members).collect();
        let mut parts = UnionFind::new(fabric.switches().len());
        let mut joins = |[one, other]: &[SwitchId; 2]| parts.union(one.0, other.0);
        let is_tree = ends.iter().all(&mut joins) && ends.len() + 1 == joined.len();
        is_tree.then(|| JobTree::of(fabric, trunks, members))
    }

    /// A tree without switches, for a job whose stored tree does not fit the fabric, until it gets
    /// another.
    pub fn nowhere() -> Self {
        JobTree {
            branches: BTreeMap::new(),
        }
    }

    /// A leaf of the tree without a member.
    fn bare_end(&self, members: &BTreeSet<SwitchId>) -> Option<SwitchId> {
        let mut ends = self.branches.iter().filter(|(_, ends)| ends.len() < 2);
        ends.find(|(switch, _)| !members.contains(switch))
            .map(|(switch, _)| *switch)
    }

    fn cut(&mut self, switch: SwitchId) {
        for end in self.branches.remove(&switch).unwrap_or_default() {
            if let Some(far) = self.branches.get_mut(&end.far.switch) {
                far.retain(|other| other.trunk != end.trunk);
            }
        }
    }

    /// The tree's switches.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = SwitchId> {
        self.branches.keys().copied()
    }

    /// The trunks to a switch's neighbours in the tree, by port; empty for a switch outside the
    /// tree.
    pub(crate) fn branches(&self, switch: SwitchId) -> &[TrunkEnd] {
        self.branches.get(&switch).map_or(&[], Vec::as_slice)
    }

    /// True if the tree contains a switch.
    pub fn contains(&self, switch: SwitchId) -> bool {
        self.branches.contains_key(&switch)
    }

    /// The tree's trunks, each once.
    pub fn trunks(&self) -> impl Iterator<Item = TrunkId> {
        let ends = self.branches.iter();
        ends.flat_map(|(switch, ends)| {
            let from_here = ends.iter().filter(|end| *switch < end.far.switch);
            from_here.map(|end| end.trunk)
        })
    }

    /// The inner switches of the tree.
    pub(crate) fn junctions(&self) -> impl Iterator<Item = SwitchId> {
        let inner = self.branches.iter().filter(|(_, ends)| ends.len() > 1);
        inner.map(|(switch, _)| *switch)
    }

    /// True if all of the tree is up.
    pub fn is_up(&self, fabric: &Fabric, health: &Health) -> bool {
        self.switches().all(|switch| health.switch_is_up(switch))
            && self.junctions().all(|switch| health.carries(switch))
            && self.trunks().all(|trunk| health.trunk_is_up(fabric, trunk))
    }

    /// True if the parts that are up join `members`.
    pub fn joins(&self, fabric: &Fabric, health: &Health, members: &BTreeSet<SwitchId>) -> bool {
        let first = members.first().copied();
        let mut reached: BTreeSet<SwitchId> = first.into_iter().collect();
        let mut stack: Vec<SwitchId> = first.into_iter().collect();
        while let Some(at) = stack.pop() {
            if Some(at) != first && !health.carries(at) {
                continue;
            }
            for end in self.branches(at) {
                if health.trunk_is_up(fabric, end.trunk) && reached.insert(end.far.switch) {
                    stack.push(end.far.switch);
                }
            }
        }
        members.is_subset(&reached) && members.iter().all(|member| self.contains(*member))
    }

    /// The ports at which packets from hosts of `from` enter the tree's other switches.
    pub fn entrances(&self, from: SwitchId) -> Vec<SwitchPort> {
        let mut entrances = Vec::new();
        let mut stack = vec![(from, None)];
        while let Some((at, came_by)) = stack.pop() {
            let onward = self.branches(at).iter();
            for end in onward.filter(|end| Some(end.trunk) != came_by) {
                entrances.push(end.far);
                stack.push((end.far.switch, Some(end.trunk)));
            }
        }
        entrances
    }

    /// The path of a packet from host port `from` to host port `to`, switch by switch.
    pub fn path(&self, from: SwitchPort, to: SwitchPort) -> Vec<Passage> {
        let mut path = Vec::new();
        self.lead(from, to, &mut path);
        path.reverse();
        path
    }

    /// Adds the passages from `ingress` to `to`, the last first. Returns false if `to` is not
    /// behind this switch.
    fn lead(&self, ingress: SwitchPort, to: SwitchPort, path: &mut Vec<Passage>) -> bool {
        let here = ingress.switch;
        let mut onward = self.branches(here).iter();
        let egress = match here == to.switch {
            true => Some(to.port),
            false => onward
                .find(|end| end.port != ingress.port && self.lead(end.far, to, path))
                .map(|end| end.port),
        };
        path.extend(egress.map(|egress| Passage { ingress, egress }));
        egress.is_some()
    }
}
