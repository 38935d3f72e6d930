use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::fabric::Element;
use crate::job::Weight;
use crate::routing::Routes;
use crate::testing::{cases, fabric_of, leaf_spine};

fn choose(fabric: &Fabric, load: &Load, members: impl IntoIterator<Item = usize>) -> JobTree {
    let routes = Routes::new(fabric, Health::default());
    let members = members.into_iter().map(SwitchId).collect();
    JobTree::choose(fabric, &routes, load, Weight::default(), &members).unwrap()
}

/// The fewest trunks that join switches: those of a spanning tree of the smallest connected set
/// that contains them.
fn fewest(fabric: &Fabric, health: &Health, members: &BTreeSet<SwitchId>) -> Option<usize> {
    let others: Vec<SwitchId> = fabric
        .switch_ids()
        .filter(|at| !members.contains(at))
        .collect();
    let sets = (0u32..1 << others.len()).map(|bits| {
        let picked = others
            .iter()
            .enumerate()
            .filter(|(at, _)| bits >> at & 1 == 1);
        picked
            .map(|(_, at)| *at)
            .chain(members.iter().copied())
            .collect::<BTreeSet<_>>()
    });
    sets.filter(|set| is_connected(fabric, health, set))
        .map(|set| set.len() - 1)
        .min()
}

fn is_connected(fabric: &Fabric, health: &Health, set: &BTreeSet<SwitchId>) -> bool {
    let mut reached = BTreeSet::new();
    let mut stack: Vec<SwitchId> = set.first().copied().into_iter().collect();
    while let Some(at) = stack.pop() {
        if health.switch_is_up(at) && reached.insert(at) {
            let up = fabric
                .trunks_of(at)
                .iter()
                .filter(|end| health.trunk_is_up(fabric, end.trunk));
            stack.extend(up.map(|end| end.far.switch).filter(|far| set.contains(far)));
        }
    }
    reached == *set
}

#[test]
fn a_job_on_one_switch_has_a_tree_without_trunks() {
    let fabric = leaf_spine(2, 4, 2);
    let tree = choose(&fabric, &Load::new(&fabric), [3]);
    assert_eq!(tree.switches().collect::<Vec<_>>(), [SwitchId(3)]);
    assert_eq!((tree.trunks().count(), tree.junctions().count()), (0, 0));
}

/// Equal jobs over the same leaves: the numbers of jobs on any two spines differ by at most one.
#[test]
fn spines_get_equally_many_jobs() {
    for (spines, members) in [(2, 2..6), (3, 3..5), (4, 4..12), (5, 5..8)] {
        let fabric = leaf_spine(spines, 8, 1);
        let mut load = Load::new(&fabric);
        let mut jobs = vec![0; spines];
        for _ in 0..3 * spines + 1 {
            let tree = choose(&fabric, &load, members.clone());
            assert_eq!(tree.trunks().count(), members.len(), "one for each leaf");
            let [spine] = tree.junctions().collect::<Vec<_>>()[..] else {
                panic!("one spine joins all leaves")
            };
            jobs[spine.0] += 1;
            load.add(&tree, Weight::default());
            let (least, most) = (jobs.iter().min().unwrap(), jobs.iter().max().unwrap());
            assert!(most - least <= 1, "{jobs:?}");
        }
    }
}

/// Jobs without a common leaf use different spines, as long as there are enough.
#[test]
fn jobs_on_different_leaves_get_different_spines() {
    let fabric = leaf_spine(2, 4, 1);
    let mut load = Load::new(&fabric);
    let one = choose(&fabric, &load, [2, 3]);
    load.add(&one, Weight::default());
    let two = choose(&fabric, &load, [4, 5]);
    assert_ne!(one.junctions().next(), two.junctions().next());
    load.remove(&one, Weight::default());
    load.add(&two, Weight::default());
    assert_eq!(choose(&fabric, &load, [2, 3]), one);
    load.remove(&two, Weight::default());
    assert_eq!(load, Load::new(&fabric));
}

/// A heavy job counts as several light ones, and a slow link carries fewer.
#[test]
fn load_depends_on_weight_and_rate() {
    let trunks = [
        (2, 0, "rate: 1G"),
        (3, 0, "rate: 1G"),
        (2, 1, "rate: 4G"),
        (3, 1, "rate: 4G"),
    ];
    let fabric = fabric_of(4, &[(2, 1), (3, 1)], &trunks);
    let mut load = Load::new(&fabric);
    let spine = |weight: u32| {
        let (routes, weight) = (
            Routes::new(&fabric, Health::default()),
            weight.try_into().unwrap(),
        );
        let members = BTreeSet::from([SwitchId(2), SwitchId(3)]);
        let tree = JobTree::choose(&fabric, &routes, &load, weight, &members).unwrap();
        load.add(&tree, weight);
        tree.junctions().next().unwrap().0
    };
    assert_eq!([2, 1, 8, 1, 1].map(spine), [1, 1, 1, 0, 0]);
}

#[test]
fn packets_follow_the_tree() {
    let fabric = leaf_spine(2, 3, 1);
    let tree = choose(&fabric, &Load::new(&fabric), [2, 3, 4]);
    let attached = |host: usize| fabric.hosts()[host].attached;
    let path = tree.path(attached(0), attached(2));
    let switches: Vec<usize> = path
        .iter()
        .map(|passage| passage.ingress.switch.0)
        .collect();
    assert_eq!(switches, [2, 0, 4]);
    assert_eq!(path[0].ingress, attached(0));
    assert_eq!(path[2].leaving(), attached(2));
    for pair in path.windows(2) {
        assert_eq!(fabric.across(pair[0].leaving()), Some(pair[1].ingress));
    }
    let entrances: BTreeSet<SwitchPort> = tree.entrances(SwitchId(2)).into_iter().collect();
    let path_to_other = tree.path(attached(0), attached(1));
    let on_paths = path[1..].iter().chain(&path_to_other[1..]);
    assert_eq!(entrances, on_paths.map(|passage| passage.ingress).collect());
}

#[test]
fn disconnected_members_have_no_tree() {
    let fabric = leaf_spine(1, 3, 1);
    let mut health = Health::default();
    health.fail(Element::Trunk(TrunkId(0)));
    let routes = Routes::new(&fabric, health);
    let tree = |members: [usize; 2]| {
        let members = members.map(SwitchId).into();
        JobTree::choose(
            &fabric,
            &routes,
            &Load::new(&fabric),
            Weight::default(),
            &members,
        )
    };
    assert_eq!(tree([1, 2]), None);
    assert!(tree([2, 3]).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(32, 2000)))]

    /// In any fabric after any failures, trees are loop-free, contain all members' switches and
    /// only switches between them, and use only elements that are up.
    #[test]
    fn trees_join_members_and_only_them(case in cases(30)) {
        let fabric = &case.fabric;
        let routes = Routes::new(fabric, case.health());
        let mut load = Load::new(fabric);
        for job in &case.jobs {
            let hosts = job.iter().map(|name| fabric.host_named(name).unwrap());
            let members: BTreeSet<SwitchId> = hosts.map(|host| fabric.host(host).attached.switch).collect();
            let weight = Weight::default();
            let tree = JobTree::choose(fabric, &routes, &load, weight, &members);
            prop_assert_eq!(&tree, &JobTree::choose(fabric, &routes, &load, weight, &members));
            let joined = members.iter().all(|to| routes.distance(*members.first().unwrap(), *to).is_some());
            prop_assert_eq!(tree.is_some(), joined);
            let Some(tree) = tree else { continue };
            prop_assert!(tree.is_up(fabric, routes.health()));
            let switches: BTreeSet<SwitchId> = tree.switches().collect();
            prop_assert!(switches.is_superset(&members));
            prop_assert_eq!(tree.trunks().count(), switches.len() - 1);
            // Every switch is reached once, by its own path.
            for from in &switches {
                let entered: Vec<SwitchId> = tree.entrances(*from).iter().map(|port| port.switch).collect();
                let mut all: BTreeSet<SwitchId> = entered.iter().copied().collect();
                prop_assert_eq!(all.len(), entered.len());
                all.insert(*from);
                prop_assert_eq!(&all, &switches);
            }
            for switch in &switches {
                prop_assert!(members.contains(switch) || tree.branches(*switch).len() > 1);
            }
            load.add(&tree, weight);
        }
    }

    /// If one switch is next to all members, no tree has fewer links; otherwise no tree has twice
    /// the fewest.
    #[test]
    fn trees_have_few_links(case in cases(9)) {
        let fabric = &case.fabric;
        let routes = Routes::new(fabric, case.health());
        for job in &case.jobs {
            let hosts = job.iter().map(|name| fabric.host_named(name).unwrap());
            let members: BTreeSet<SwitchId> = hosts.map(|host| fabric.host(host).attached.switch).collect();
            let tree = JobTree::choose(fabric, &routes, &Load::new(fabric), Weight::default(), &members);
            let links = tree.map(|tree| tree.trunks().count());
            let fewest = fewest(fabric, routes.health(), &members);
            prop_assert_eq!(links.is_some(), fewest.is_some());
            let (Some(links), Some(fewest)) = (links, fewest) else { continue };
            let next_to_all = |at: &SwitchId| members.iter().all(|to| routes.distance(*at, *to).is_some_and(|far| far <= 1));
            if fabric.switch_ids().any(|at| next_to_all(&at)) {
                prop_assert_eq!(links, fewest);
            }
            prop_assert!(links * members.len() <= 2 * (members.len() - 1) * fewest);
        }
    }

    /// While one spine of a leaf–spine fabric is up with all links, a job has no more links than
    /// necessary.
    #[test]
    fn leaf_spine_trees_have_the_fewest_links(
        spines in 1usize..4,
        picked in prop::collection::vec(any::<bool>(), 1..6),
        cut in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let fabric = leaf_spine(spines, picked.len(), 1);
        let mut health = Health::default();
        for trunk in cut.iter().map(|trunk| TrunkId(trunk.index(fabric.trunks().len()))) {
            if fabric.trunk(trunk).ends.iter().all(|end| end.switch != SwitchId(0)) {
                health.fail(Element::Trunk(trunk));
            }
        }
        let picked = picked.iter().enumerate().filter(|(_, picked)| **picked);
        let members: BTreeSet<SwitchId> = picked.map(|(leaf, _)| SwitchId(spines + leaf)).collect();
        prop_assume!(!members.is_empty());
        let routes = Routes::new(&fabric, health.clone());
        let tree = JobTree::choose(&fabric, &routes, &Load::new(&fabric), Weight::default(), &members);
        prop_assert_eq!(tree.map(|tree| tree.trunks().count()), fewest(&fabric, &health, &members));
    }
}
