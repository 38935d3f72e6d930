//! Loop detection: whether packets to a job's group could loop while switches have a mixture of two
//! trees.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::graphmap::DiGraphMap;
use petgraph::visit::{Control, DfsEvent, depth_first_search};

use super::group;
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::{Member, Rank};
use crate::plan::{Entity, JobPlan, SwitchPlan};
use crate::target::PortNumber;

/// True if some member's packets could loop if every switch had the group branches of both plans in
/// `trees`, and admitted what any plan admits. Otherwise no mixture of the plans loops.
pub(super) fn may_loop(
    fabric: &Fabric,
    members: &[Member],
    trees: [&JobPlan; 2],
    during: &JobPlan,
) -> bool {
    let mut branches = BTreeSet::new();
    for (switch, plan) in trees.into_iter().flatten() {
        let replicas = group(Some(plan)).into_iter().flat_map(|it| &it.replicas);
        let ports = replicas.filter(|replica| replica.is_branch());
        branches.extend(ports.map(|replica| (*switch, replica.port)));
    }
    // All members on a switch have the same admissions.
    let homes: BTreeMap<SwitchId, Rank> = (members.iter().zip(0..))
        .map(|(member, rank)| (fabric.host(member.host).attached.switch, Rank(rank)))
        .collect();
    let ranks: BTreeSet<Rank> = homes.values().copied().collect();
    let all = trees.into_iter().chain([during]).flatten();
    let sources = all.flat_map(|(switch, plan): (&SwitchId, &SwitchPlan)| {
        plan.entities().filter_map(|entity| match entity {
            Entity::Source(row) if ranks.contains(&row.rank) => {
                Some((row.rank, *switch, row.ingress))
            }
            _ => None,
        })
    });
    let admitted: BTreeSet<(Rank, SwitchId, PortNumber)> = sources.collect();
    homes.into_iter().any(|(home, rank)| {
        // The ports at which the member's packets arrive from a switch. They do not leave by the port by which they arrive.
        let onward = |switch: SwitchId, ingress: Option<PortNumber>| {
            let ports = branches.range((switch, PortNumber(0))..=(switch, PortNumber(u16::MAX)));
            let others = ports.filter(move |(_, port)| Some(*port) != ingress);
            let far =
                others.filter_map(|&(switch, port)| fabric.across(SwitchPort { switch, port }));
            far.filter(|far| admitted.contains(&(rank, far.switch, far.port)))
        };
        let first = (rank, SwitchId(0), PortNumber(0));
        let last = (rank, SwitchId(usize::MAX), PortNumber(u16::MAX));
        let ports = admitted.range(first..=last);
        let ports: DiGraphMap<SwitchPort, ()> = ports
            .flat_map(|&(_, switch, port)| {
                let from = SwitchPort { switch, port };
                onward(switch, Some(port)).map(move |far| (from, far))
            })
            .collect();
        let loops = depth_first_search(&ports, onward(home, None), |event| match event {
            DfsEvent::BackEdge(..) => Control::Break(()),
            _ => Control::Continue,
        });
        loops.break_value().is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::TrunkId;
    use crate::ledger::homes;
    use crate::plan::{self, JobPaths};
    use crate::testing::{Site, fabric_of, leaf_spine, spec};
    use crate::tree::JobTree;

    fn tree(site: &Site, trunks: &[usize], homes: &BTreeSet<SwitchId>) -> JobTree {
        let trunks: BTreeSet<TrunkId> = trunks.iter().copied().map(TrunkId).collect();
        JobTree::joining(&site.fabric, &trunks, homes).unwrap()
    }

    fn between(site: &mut Site, members: &[&str], trunks: [&[usize]; 2]) -> bool {
        let (job, _) = site.add(&spec("train", members));
        let homes = homes(&site.fabric, &job.members);
        let [old, new] = trunks.map(|trunks| tree(site, trunks, &homes));
        let routes = [&site.routes; 2];
        let paths = JobPaths::moving(&site.fabric, routes, &job.members, [Some(&old), Some(&new)]);
        let with = |tree| {
            let mut job = job.clone();
            job.multicast.as_mut().unwrap().tree = tree;
            plan::of_paths(&site.fabric, &job, &paths)
        };
        let trees = [with(old), with(new)];
        may_loop(
            &site.fabric,
            &job.members,
            trees.each_ref(),
            &JobPlan::new(),
        )
    }

    #[test]
    fn rings_loop_and_spines_do_not() {
        let mut site = Site::new(leaf_spine(2, 3, 1));
        assert!(!between(
            &mut site,
            &["h0", "h1", "h2"],
            [&[0, 2, 4], &[1, 3, 5]]
        ));

        // h is on s0, which is linked to two corners of a triangle.
        let trunks = [(0, 1, ""), (1, 2, ""), (2, 3, ""), (0, 3, ""), (1, 3, "")];
        let mut site = Site::new(fabric_of(4, &[(0, 1), (1, 1), (2, 1), (3, 1)], &trunks));
        let members = ["h0", "h1", "h2", "h3"];
        assert!(between(&mut site, &members, [&[0, 1, 2], &[3, 4, 1]]));
    }
}
