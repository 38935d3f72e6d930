//! Whether packets to a job's group could go round while it has one tree on some switches and another on others.

use std::collections::BTreeMap;

use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::Member;
use crate::ledger::homes;
use crate::plan::Ways;
use crate::tree::JobTree;

/// Whether there is a circle that packets of some member would follow if every switch sent them by all branches of both trees,
/// where `ways` are what is admitted. If there is none, no mixture of the trees has one.
pub(super) fn goes_round(
    fabric: &Fabric,
    ways: &Ways,
    members: &[Member],
    trees: [&JobTree; 2],
) -> bool {
    let mut homes = homes(fabric, members).into_iter();
    homes.any(|home| {
        let mut flood = Flood {
            ways,
            trees,
            home,
            come: BTreeMap::new(),
        };
        flood.from(home, None)
    })
}

/// Packets of one switch's hosts.
struct Flood<'a> {
    ways: &'a Ways,
    trees: [&'a JobTree; 2],
    home: SwitchId,
    /// Ports at which they have come in; true while they are followed from there.
    come: BTreeMap<SwitchPort, bool>,
}

impl Flood<'_> {
    /// Follows them from a switch where they came in by `ingress`; true if they come to where they were.
    fn from(&mut self, switch: SwitchId, ingress: Option<SwitchPort>) -> bool {
        let branches = self.trees.map(|tree| tree.branches(switch));
        for end in branches.into_iter().flatten() {
            let is_back = ingress.is_some_and(|ingress| ingress.port == end.port);
            if is_back || !self.ways.admits(self.home, end.far) {
                continue;
            }
            match self.come.get(&end.far) {
                Some(true) => return true,
                Some(false) => continue,
                None => {}
            }
            self.come.insert(end.far, true);
            if self.from(end.far.switch, Some(end.far)) {
                return true;
            }
            self.come.insert(end.far, false);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fabric::TrunkId;
    use crate::testing::{Site, fabric_of, leaf_spine, spec};

    fn tree(site: &Site, trunks: &[usize], homes: &BTreeSet<SwitchId>) -> JobTree {
        let trunks: BTreeSet<TrunkId> = trunks.iter().copied().map(TrunkId).collect();
        JobTree::joining(&site.fabric, &trunks, homes).unwrap()
    }

    fn between(site: &mut Site, members: &[&str], trunks: [&[usize]; 2]) -> bool {
        let (job, _) = site.add(&spec("train", members));
        let homes = homes(&site.fabric, &job.members);
        let [old, new] = trunks.map(|trunks| tree(site, trunks, &homes));
        let routes = (&site.routes, &site.routes);
        let ways = Ways::moving(&site.fabric, routes, &job.members, [Some(&old), Some(&new)]);
        goes_round(&site.fabric, &ways, &job.members, [&old, &new])
    }

    #[test]
    fn spines_are_no_circle_and_a_ring_is_one() {
        let mut site = Site::new(leaf_spine(2, 3, 1));
        assert!(!between(
            &mut site,
            &["h0", "h1", "h2"],
            [&[0, 2, 4], &[1, 3, 5]]
        ));

        // h sits on s0, which is linked to a triangle at two corners.
        let trunks = [(0, 1, ""), (1, 2, ""), (2, 3, ""), (0, 3, ""), (1, 3, "")];
        let mut site = Site::new(fabric_of(4, &[(0, 1), (1, 1), (2, 1), (3, 1)], &trunks));
        let members = ["h0", "h1", "h2", "h3"];
        assert!(between(&mut site, &members, [&[0, 1, 2], &[3, 4, 1]]));
    }
}
