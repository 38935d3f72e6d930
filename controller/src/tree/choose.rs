//! Which tree a job gets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::grow::Ground;
use super::{JobTree, Load};
use crate::fabric::{Fabric, SwitchId};
use crate::job::Weight;
use crate::routing::Routes;

/// What decides between trees, the first first: links; the most strained link, as multicast is as fast as that one; the
/// strain on all links; the jobs whose trees go through the same junctions.
type Cost = (usize, u128, u128, u64);

impl JobTree {
    /// A tree over the switches `members` for a job of this weight beside `load`. The same
    /// arguments give the same tree. None if no way leads from one of them to another.
    ///
    /// Trees are grown from each switch that is in all nearest to the members, such as every spine over them, and from
    /// the member that is. In a leaf-spine fabric one of these has the fewest links possible; in any other it
    /// has less than twice the fewest, as the one that is grown from a member has.
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

/// The switches to grow from, by number.
fn roots(fabric: &Fabric, routes: &Routes, members: &BTreeSet<SwitchId>) -> BTreeSet<SwitchId> {
    let to_all = |from: SwitchId| -> Option<u32> {
        let ways = members.iter().map(|to| routes.distance(from, *to));
        ways.sum()
    };
    // What is grown from a switch branches there, unless it is one way from one member to the other.
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
