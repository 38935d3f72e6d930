//! The choice of a job's tree.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::grow::Ground;
use super::{JobTree, Load};
use crate::fabric::{Fabric, SwitchId};
use crate::job::Weight;
use crate::routing::Routes;

/// The cost of a tree, most important first: its links; the strain of its most strained link, which
/// limits multicast; the strain of all links; the jobs with the same junctions.
type Cost = (usize, u128, u128, u64);

impl JobTree {
    /// Chooses a tree over the switches `members` for a job of this weight, given the `load` of
    /// other jobs. The result depends on the arguments only. None if the members are not connected.
    ///
    /// Trees are grown from each switch with the lowest total distance to the members, such as
    /// every spine above them, and from the member with the lowest one. In a leaf–spine fabric, one
    /// of these trees has the fewest possible links. In any other fabric, a tree has less than
    /// twice the fewest, because the one grown from a member has.
    pub fn choose(
        fabric: &Fabric,
        routes: &Routes,
        load: &Load,
        weight: Weight,
        members: &BTreeSet<SwitchId>,
    ) -> Option<JobTree> {
        let ground = Ground {
            fabric,
            health: routes.health(),
            load,
            weight,
        };
        let trees = roots(fabric, routes, members)
            .into_iter()
            .filter_map(|root| {
                let trunks = ground.grow(root, members)?;
                Some(JobTree::of(fabric, &trunks, members))
            });
        trees.min_by_key(|tree| ground.cost(tree))
    }
}

/// The switches from which trees are grown.
fn roots(fabric: &Fabric, routes: &Routes, members: &BTreeSet<SwitchId>) -> BTreeSet<SwitchId> {
    let to_all = |from: SwitchId| -> Option<u32> {
        let paths = members.iter().map(|to| routes.distance(from, *to));
        paths.sum()
    };
    // A tree grown from a switch branches there, unless it is a path between two members.
    let branches = |at: &SwitchId| {
        let is_end = members.len() <= 2 && members.contains(at);
        members.is_empty() || is_end || routes.health().carries(*at)
    };
    let totals = fabric
        .switch_ids()
        .filter(branches)
        .filter_map(|from| Some((to_all(from)?, from)));
    let totals: Vec<(u32, SwitchId)> = totals.collect();
    let least = totals.iter().map(|(total, _)| *total).min();
    let nearest = totals.iter().filter(|(total, _)| Some(*total) == least);
    let member = (totals.iter().filter(|(_, from)| members.contains(from)))
        .max_by_key(|total| Reverse(**total));
    nearest.chain(member).map(|(_, from)| *from).collect()
}

impl Ground<'_> {
    fn cost(&self, tree: &JobTree) -> Cost {
        let strains = || {
            let trunks = tree.trunks();
            trunks.map(|trunk| self.load.with(self.fabric, trunk, self.weight))
        };
        (
            tree.trunks().count(),
            strains().max().unwrap_or_default(),
            strains().fold(0, u128::saturating_add),
            tree.junctions().map(|switch| self.load.at(switch)).sum(),
        )
    }
}
