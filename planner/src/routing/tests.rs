use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fabric::{Element, TrunkId};
use crate::job::{Gather, JobSpec};
use crate::testing::{Site, cases, fabric_of, leaf_spine, spec};

/// The number of remote hosts for which each port of a switch is chosen.
fn chosen(fabric: &Fabric, routes: &Routes, switch: SwitchId) -> BTreeMap<PortNumber, usize> {
    let trunks = fabric.trunks_of(switch).iter();
    let mut chosen: BTreeMap<PortNumber, usize> = trunks.map(|end| (end.port, 0)).collect();
    for host in fabric.host_ids() {
        if let Some(count) = routes
            .port(switch, host)
            .and_then(|port| chosen.get_mut(&port))
        {
            *count += 1;
        }
    }
    chosen
}

#[test]
fn leaves_spread_hosts_evenly_over_spines() {
    for (spines, leaves, hosts) in [(2, 4, 2), (3, 5, 1), (4, 4, 7), (8, 16, 3)] {
        let fabric = leaf_spine(spines, leaves, hosts);
        let routes = Routes::new(&fabric, Health::default());
        for leaf in (spines..spines + leaves).map(SwitchId) {
            let chosen = chosen(&fabric, &routes, leaf);
            let (least, most) = (
                chosen.values().min().unwrap(),
                chosen.values().max().unwrap(),
            );
            assert!(
                most - least <= 1,
                "{spines} spines, {leaves} leaves: {chosen:?}"
            );
        }
    }
}

/// The state of a host's port does not affect the paths to its switch.
#[test]
fn hosts_with_drained_ports_are_not_reached_over_drained_spines() {
    let fabric = leaf_spine(2, 2, 2);
    let parts = |host: HostId| {
        let port = Element::Port(fabric.host(host).attached);
        [port, Element::Transit(SwitchId(0))].into_iter().collect()
    };
    for host in fabric.host_ids() {
        let routes = Routes::new(&fabric, parts(host));
        for leaf in [SwitchId(2), SwitchId(3)] {
            assert_eq!(routes.port(leaf, host), None);
            let held = routes.held(leaf, host).unwrap();
            let mut trunks = fabric.trunks_of(leaf).iter();
            let trunk = trunks.find(|end| end.port == held);
            assert_ne!(trunk.map(|end| end.far.switch), Some(SwitchId(0)));
        }
    }
}

/// Two pods of two edge and two aggregation switches under four cores: traffic from an edge switch
/// over one aggregation switch goes on over both of its cores.
#[test]
fn the_second_tier_spreads_traffic_of_the_first() {
    let mut trunks = Vec::new();
    for pod in 0..2 {
        for (edge, aggregation) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            trunks.push((pod * 4 + edge, pod * 4 + aggregation, ""));
        }
        for (aggregation, core) in [(2, 8), (2, 9), (3, 10), (3, 11)] {
            trunks.push((pod * 4 + aggregation, core, ""));
        }
    }
    let hosts: Vec<(usize, u16)> = [0, 1, 4, 5]
        .iter()
        .flat_map(|edge| [(*edge, 1); 4])
        .collect();
    let fabric = fabric_of(12, &hosts, &trunks);
    let routes = Routes::new(&fabric, Health::default());
    let mut crossed = BTreeMap::new();
    for from in fabric.hosts() {
        for to in fabric.host_ids() {
            for passage in routes.path(&fabric, from.attached, to) {
                *crossed.entry(passage.leaving()).or_insert(0) += 1;
            }
        }
    }
    // 64 flows from pod to pod, in each direction, over eight trunks between aggregation switches
    // and cores.
    let to_cores = fabric
        .trunks()
        .iter()
        .filter(|trunk| trunk.ends[1].switch >= SwitchId(8));
    for trunk in to_cores {
        let up = crossed.get(&trunk.ends[0]).copied().unwrap_or_default();
        assert_eq!(up, 16, "{trunk:?}");
    }
}

#[test]
fn faster_trunks_get_more_hosts() {
    let hosts: Vec<(usize, u16)> = [(0, 1)].into_iter().chain([(1, 1); 11]).collect();
    let trunks = [(0, 1, "rate: 1G"), (0, 1, "rate: 10G")];
    let fabric = fabric_of(2, &hosts, &trunks);
    let routes = Routes::new(&fabric, Health::default());
    let chosen = chosen(&fabric, &routes, SwitchId(0));
    assert_eq!(chosen.into_values().collect::<Vec<_>>(), [1, 10]);
}

/// Only the hosts of a failed spine are rerouted, evenly over the others; after its recovery all
/// routes are as before.
#[test]
fn a_failed_spine_reroutes_its_hosts_only() {
    let fabric = leaf_spine(4, 4, 6);
    let before = Routes::new(&fabric, Health::default());
    let mut health = Health::default();
    health.fail(Element::Switch(SwitchId(0)));
    let after = Routes::new(&fabric, health.clone());
    for leaf in (4..8).map(SwitchId) {
        let to_failed = fabric.trunks_of(leaf)[0].port;
        for host in fabric.host_ids() {
            let (old, new) = (before.port(leaf, host), after.port(leaf, host));
            assert!(new.is_some() && new != Some(to_failed));
            assert!(old == new || old == Some(to_failed));
        }
        let mut chosen = chosen(&fabric, &after, leaf);
        assert_eq!(chosen.remove(&to_failed), Some(0));
        assert!(
            chosen.values().all(|hosts| (5..=7).contains(hosts)),
            "{chosen:?}"
        );
    }
    health.repair(Element::Switch(SwitchId(0)));
    assert_eq!(Routes::new(&fabric, health), before);
}

/// The path of a packet over elements that are up; empty if no path exists.
fn path(fabric: &Fabric, routes: &Routes, from: SwitchPort, to: HostId) -> Vec<Passage> {
    let pass = |ingress: SwitchPort| {
        let egress = routes.port(ingress.switch, to)?;
        Some(Passage { ingress, egress })
    };
    let next = |passage: &Passage| fabric.across(passage.leaving()).and_then(pass);
    iter::successors(pass(from), next).collect()
}

#[test]
fn hosts_with_down_ports_have_no_route() {
    let fabric = leaf_spine(2, 2, 2);
    let mut health = Health::default();
    health.fail(Element::Port(fabric.host(HostId(3)).attached));
    let routes = Routes::new(&fabric, health);
    for switch in fabric.switch_ids() {
        assert_eq!(routes.port(switch, HostId(3)), None);
        assert!(routes.port(switch, HostId(2)).is_some());
    }
    let from = fabric.host(HostId(0)).attached;
    assert_eq!(path(&fabric, &routes, from, HostId(3)), []);
}

/// The lead of a path is bounded by the queues on it; with one path nothing is reordered.
#[test]
fn reordering_is_bounded_by_the_queues() {
    let rated = "rate: 1G, mtu: 9000, queue: 90140";
    let circle = |settings| {
        let trunks = [
            (0, 2, settings),
            (0, 3, settings),
            (1, 2, settings),
            (1, 3, settings),
        ];
        fabric_of(4, &[(0, 2), (1, 1)], &trunks)
    };
    let of = |fabric: Fabric, spec: &JobSpec| {
        let site = Site::new(fabric);
        let (job, _) = site.propose(spec).unwrap();
        reorder(&site.fabric, &site.routes, &job)
    };
    let across = spec("train", &["h0", "h1"]);
    assert_eq!(of(circle(rated), &across), 2 * 10 + 32);
    assert_eq!(
        of(circle("rate: 1G, queue_packets: 3"), &across),
        2 * 3 + 32
    );
    assert_eq!(of(circle(""), &across), 32);

    assert_eq!(of(circle(rated), &spec("train", &["h0", "h0"])), 0);
    assert_eq!(
        of(fabric_of(2, &[(0, 1), (1, 1)], &[(0, 1, rated)]), &across),
        0
    );
    let by_unicast = JobSpec {
        gather: Gather::Unicast,
        ..across
    };
    assert_eq!(of(circle(rated), &by_unicast), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(32, 2000)))]

    /// In any fabric after any failures, a shortest path leads to every reachable host.
    #[test]
    fn paths_are_shortest_and_lead_to_all_reachable_hosts(case in cases(30)) {
        let fabric = &case.fabric;
        let health = case.health();
        let before = Routes::new(fabric, Health::default());
        let routes = Routes::new(fabric, health.clone());
        prop_assert_eq!(&routes, &Routes::new(fabric, health.clone()));
        for switch in fabric.switch_ids() {
            let hops = hops_from(fabric, &health, switch);
            for host in fabric.host_ids() {
                let to = fabric.host(host).attached;
                let hops = hops[to.switch.0].filter(|_| health.port_is_up(to));
                let from = SwitchPort { switch, port: PortNumber(0) };
                let path = path(fabric, &routes, from, host);
                prop_assert_eq!(path.len(), hops.map_or(0, |hops| hops + 1));
                if let Some(last) = path.last() {
                    prop_assert_eq!(last.leaving(), to);
                }
                // Routes that can stay unchanged do.
                let old = before.port(switch, host);
                let on_old = old.and_then(|port| fabric.across(SwitchPort { switch, port }));
                let old_trunk = fabric.trunks_of(switch).iter().find(|end| Some(end.port) == old);
                let is_up = |trunk| health.trunk_is_up(fabric, trunk);
                if let (Some(far), Some(end), Some(hops)) = (on_old, old_trunk, hops)
                    && is_up(end.trunk)
                    && routes.distance(far.switch, to.switch).map(|far| far as usize + 1) == Some(hops)
                {
                    prop_assert_eq!(routes.port(switch, host), old);
                }
            }
        }
    }
}

/// The number of trunks from a switch to each other, by the Bellman–Ford algorithm.
fn hops_from(fabric: &Fabric, health: &Health, from: SwitchId) -> Vec<Option<usize>> {
    let mut hops = vec![None; fabric.switches().len()];
    hops[from.0] = health.switch_is_up(from).then_some(0);
    for round in 0..fabric.switches().len() {
        for (at, trunk) in fabric.trunks().iter().enumerate() {
            let [a, b] = trunk.ends.map(|end| end.switch.0);
            if !health.trunk_is_up(fabric, TrunkId(at)) {
                continue;
            }
            for (near, far) in [(a, b), (b, a)] {
                if hops[near] == Some(round) && hops[far].is_none() {
                    hops[far] = Some(round + 1);
                }
            }
        }
    }
    hops
}
