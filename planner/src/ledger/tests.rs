use std::collections::VecDeque;

use proptest::prelude::*;
use ultima_p4::names::replica::TRUNK_RID;

use super::*;
use crate::fabric::{Element, Health, TrunkId};
use crate::job::Rank;
use crate::plan::{Entity, GroupReplica, SwitchPlan, table};
use crate::target::PortNumber;
use crate::testing::{Case, Planned, Site, cases, cross, host_of, leaf_spine, spec};

/// The ports that a job's packets passed, from a simulation of the switches' entries.
#[derive(Default)]
struct Trace {
    /// Each ingress port of a rank's packets.
    entered: BTreeSet<(SwitchPort, Rank)>,
    left: BTreeSet<SwitchPort>,
}

fn sources(plan: &SwitchPlan) -> impl Iterator<Item = &table::Source> {
    plan.admit.iter().map(|entity| match entity {
        Entity::Source(source) => source,
        other => panic!("{other:?} admits no rank"),
    })
}

fn replicas(plan: &SwitchPlan) -> Option<&[GroupReplica]> {
    plan.entities().find_map(|entity| match entity {
        Entity::Group(group) => Some(group.replicas.as_slice()),
        _ => None,
    })
}

impl Trace {
    fn admit(&mut self, (_, plan): &Planned, at: SwitchPort, rank: Rank) {
        let here = sources(&plan[&at.switch]);
        let mut here = here.map(|source| (source.ingress, source.rank));
        assert!(
            here.any(|row| row == (at.port, rank)),
            "{rank} is not admitted at {at:?}"
        );
        self.entered.insert((at, rank));
    }

    /// Simulates a multicast packet of `source`: how often each rank received it, and how often the
    /// sender's own replica was dropped.
    fn multicast(
        &mut self,
        site: &Site,
        planned: &Planned,
        source: Rank,
    ) -> (BTreeMap<Rank, u32>, u32) {
        let (job, plan) = planned;
        let from = site.fabric.host(host_of(job, source.0)).attached;
        let mut arriving = VecDeque::from([from]);
        let (mut delivered, mut own_copies, mut hops) = (BTreeMap::new(), 0, 0);
        while let Some(at) = arriving.pop_front() {
            hops += 1;
            assert!(
                hops <= site.fabric.switches().len(),
                "the packet goes round"
            );
            self.admit(planned, at, source);
            for replica in replicas(&plan[&at.switch]).expect("a group") {
                let leaving = SwitchPort {
                    switch: at.switch,
                    port: replica.port,
                };
                if replica.rid == TRUNK_RID {
                    if replica.port != at.port {
                        self.left.insert(leaving);
                        arriving.push_back(cross(site, leaving).expect("a trunk"));
                    }
                } else if replica.rid == source.0 {
                    own_copies += 1;
                } else {
                    let host = site.fabric.host(host_of(job, replica.rid));
                    assert_eq!(host.attached, leaving, "rank {} is elsewhere", replica.rid);
                    self.left.insert(leaving);
                    *delivered.entry(Rank(replica.rid)).or_default() += 1;
                }
            }
        }
        (delivered, own_copies)
    }

    /// Follows the routes from one member to another, and requires an entry at each switch.
    fn unicast(&mut self, site: &Site, planned: &Planned, source: Rank, to: Rank) {
        let (job, plan) = planned;
        let mut at = site.fabric.host(host_of(job, source.0)).attached;
        let (to, udp_port) = (host_of(job, to.0), job.members[usize::from(to.0)].udp_port);
        let ip = site.fabric.host(to).ip;
        for _ in site.fabric.switches() {
            self.admit(planned, at, source);
            let permitted = Entity::Destination(table::Destination {
                job: job.id,
                ip,
                udp_port,
            });
            assert!(
                plan[&at.switch]
                    .entities()
                    .any(|entity| *entity == permitted),
                "no destination at {at:?}"
            );
            let base = plan::of_fabric(&site.fabric, &site.routes, at.switch);
            let port = base.into_iter().find_map(|entity| match entity {
                Entity::Route(route) if route.to == ip => Some(route.port),
                _ => None,
            });
            let leaving = SwitchPort {
                switch: at.switch,
                port: port.expect("a route"),
            };
            self.left.insert(leaving);
            if leaving == site.fabric.host(to).attached {
                return;
            }
            at = cross(site, leaving).expect("a trunk");
        }
        panic!("rank {source} does not reach its peer in as many hops as there are switches");
    }
}

/// Follows every packet that a job's members can send. Each arrives at its destination only, all
/// admissions are used, and every egress port has a share.
fn follow(site: &Site, planned: &Planned) {
    let (job, plan) = planned;
    let home = |rank: Rank| site.fabric.host(host_of(job, rank.0)).attached;
    let mut trace = Trace::default();
    for (source, _) in job.ranks() {
        trace.entered.insert((home(source), source));
        if let Some(tree) = job.tree().filter(|tree| tree.contains(home(source).switch)) {
            let (delivered, own_copies) = trace.multicast(site, planned, source);
            let others = job
                .ranks()
                .map(|(rank, _)| rank)
                .filter(|rank| *rank != source);
            let in_tree = others.filter(|rank| tree.contains(home(*rank).switch));
            assert_eq!(delivered, in_tree.map(|rank| (rank, 1)).collect());
            assert_eq!(own_copies, 1);
        }
        for (to, _) in job.ranks().filter(|(to, _)| *to != source) {
            if site
                .routes
                .port(home(source).switch, host_of(job, to.0))
                .is_some()
            {
                trace.unicast(site, planned, source, to);
            }
        }
    }
    let mut admitted = BTreeSet::new();
    for (switch, plan) in plan {
        for source in sources(plan) {
            let at = SwitchPort {
                switch: *switch,
                port: source.ingress,
            };
            assert!(admitted.insert((at, source.rank)), "twice at {at:?}");
        }
        let in_tree = job.tree().is_some_and(|tree| tree.contains(*switch));
        assert_eq!(replicas(plan).is_some(), in_tree);
    }
    assert_eq!(admitted, trace.entered);
    let shares: BTreeSet<SwitchPort> = job.shares.keys().copied().collect();
    assert!(shares.is_superset(&trace.left));
    if site.routes.health().down().len() == 0 {
        assert_eq!(shares, trace.left);
    }
}

/// No two jobs have the same index on a switch.
fn numbers_differ(site: &Site, jobs: &[Planned]) {
    let (mut shares, mut sources, mut numbers) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (job, _) in jobs {
        for (at, share) in &job.shares {
            assert!(shares.insert((at.switch, *share)));
        }
        for (member, source) in job.members.iter().zip(&job.sources) {
            assert!(sources.insert((site.fabric.host(member.host).attached.switch, *source)));
        }
        assert!(numbers.insert(job.counter.0));
    }
}

fn install(case: &Case) -> (Site, Vec<Planned>) {
    let mut site = Site::new(case.fabric.clone());
    let jobs = case.jobs.iter().enumerate();
    let jobs = jobs.map(|(at, members)| site.add(&spec(&format!("job{at}"), members)));
    let jobs = jobs.collect();
    (site, jobs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(16, 1000)))]

    #[test]
    fn packets_reach_all_members_once_and_no_others(case in cases(30)) {
        let (site, jobs) = install(&case);
        jobs.iter().for_each(|planned| follow(&site, planned));
        numbers_differ(&site, &jobs);
        let (again, same) = install(&case);
        prop_assert_eq!(&jobs, &same);

        // All returned resources are free again.
        let mut site = again;
        jobs.iter().for_each(|planned| site.remove(planned));
        let first = spec("job0", &case.jobs[0]);
        let fresh = Site::new(case.fabric.clone()).propose(&first).unwrap();
        let (job, plan) = site.propose(&first).unwrap();
        prop_assert_eq!(&Job { id: fresh.0.id, ..job }, &fresh.0);
        prop_assert_eq!(plan.len(), fresh.1.len());
        let used = |site: &Site| site.ledger.switches.iter().map(|at| at.usage.clone()).collect::<Vec<_>>();
        let empty = Site::new(case.fabric.clone());
        prop_assert_eq!(&site.ledger.load, &empty.ledger.load);
        prop_assert_eq!(used(&site), used(&empty));
    }

    /// Elements fail one after the other. Members that can still reach each other do, and only jobs
    /// with broken trees get new ones. When all elements are back, no complete tree moves.
    #[test]
    fn failures_reroute_only_affected_jobs(case in cases(30)) {
        let (mut site, mut jobs) = install(&case);
        let mut health = Health::default();
        let mends = case.failures.iter().rev().map(|part| (*part, false));
        for (part, fails) in case.failures.iter().map(|part| (*part, true)).chain(mends) {
            if fails { health.fail(part) } else { health.repair(part) };
            site.routes = Routes::new(&site.fabric, health.clone());
            for planned in &mut jobs {
                let (before, _) = planned.clone();
                site.refit(planned);
                let (job, _) = &*planned;
                let tree = before.tree().unwrap();
                let all_in = before.members.iter().all(|member| tree.contains(site.fabric.host(member.host).attached.switch));
                if tree.is_up(&site.fabric, &health) && all_in {
                    prop_assert_eq!(job.tree(), before.tree());
                }
                for (port, share) in &job.shares {
                    prop_assert_eq!(before.shares.get(port).unwrap_or(share), share);
                }
                let unchanged = Job { multicast: before.multicast.clone(), shares: before.shares.clone(), ..job.clone() };
                prop_assert_eq!(unchanged, before);
            }
            numbers_differ(&site, &jobs);
        }
        jobs.iter().for_each(|planned| follow(&site, planned));
        site.routes = Routes::new(&site.fabric, case.health());
        for planned in &mut jobs {
            if site.refit(planned) {
                follow(&site, planned);
            }
        }
    }
}

#[test]
fn jobs_of_a_failed_spine_move_to_the_others() {
    let mut site = Site::new(leaf_spine(2, 4, 2));
    let members: Vec<String> = (0..8).map(|host| format!("h{host}")).collect();
    let mut jobs: Vec<Planned> = (0..4)
        .map(|at| site.add(&spec(&format!("job{at}"), &members)))
        .collect();
    let spines = |jobs: &[Planned]| -> Vec<usize> {
        let spine = |job: &Job| job.tree().unwrap().junctions().next().unwrap().0;
        jobs.iter().map(|(job, _)| spine(job)).collect()
    };
    assert_eq!(spines(&jobs), [0, 1, 0, 1]);
    let mut health = Health::default();
    health.fail(Element::Switch(SwitchId(0)));
    for (health, expected) in [(health, [1; 4]), (Health::default(), [1; 4])] {
        site.routes = Routes::new(&site.fabric, health);
        assert!(jobs.iter_mut().all(|planned| site.refit(planned)));
        assert_eq!(spines(&jobs), expected);
        jobs.iter().for_each(|planned| follow(&site, planned));
    }
    // The spine is back, and the least loaded.
    assert_eq!(spines(&[site.add(&spec("new", &members))]), [0]);
}

/// SCATTER uses all spines although GATHER keeps to one: the other spines admit the members but
/// have no group.
#[test]
fn unicast_uses_spines_outside_the_tree() {
    let mut site = Site::new(leaf_spine(2, 2, 2));
    let planned = site.add(&spec("train", &["h0", "h1", "h2", "h3"]));
    let (job, plan) = &planned;
    assert_eq!(plan.len(), 4);
    let in_tree = |at: usize| job.tree().unwrap().contains(SwitchId(at));
    assert_eq!([in_tree(0), in_tree(1)], [true, false]);
    let other = &plan[&SwitchId(1)];
    assert_eq!((replicas(other), other.replicas()), (None, 0));
    assert_eq!(sources(other).count(), 4);
    let to = |entity: &&Entity| matches!(entity, Entity::Destination(_));
    assert_eq!(
        other.entities().filter(to).count(),
        2,
        "of each leaf one host is behind it"
    );
    follow(&site, &planned);
}

#[test]
fn jobs_across_a_gap_are_rejected() {
    let mut site = Site::new(leaf_spine(1, 2, 1));
    let mut health = Health::default();
    health.fail(Element::Trunk(TrunkId(1)));
    site.routes = Routes::new(&site.fabric, health);
    let mut asked = spec("train", &["h0", "h1"]);
    for gather in [Gather::Multicast, Gather::Unicast] {
        asked.gather = gather;
        assert_eq!(
            site.propose(&asked).unwrap_err().to_string(),
            "no path leads from switch s1 to host h1 while elements are down or drained; repair or undrain them, or leave the host out"
        );
    }
}

/// A job without room for another tree keeps its tree, and has all entries of the new routes.
#[test]
fn jobs_without_room_keep_their_tree_on_new_routes() {
    let text = include_str!("../../../topologies/leaf-spine.yaml");
    let text = text.replace(
        "{ name: spine2 }",
        "{ name: spine2, limits: { groups: 1 } }",
    );
    let mut site = Site::new(crate::fabric::parse(&text, "full.yaml").unwrap());
    let members = ["h1", "h3", "h5"];
    let mut first = site.add(&spec("first", &members));
    site.add(&spec("second", &members));
    let before = first.clone();
    let health: Health = [Element::Transit(SwitchId(0))].into_iter().collect();
    site.routes = Routes::new(&site.fabric, health);
    let names = site.program.names();
    let stays = (site.ledger).refit(&site.fabric, &site.routes, names, &before.0, &before.1);
    let Refitted {
        job, plan, stays, ..
    } = stays.unwrap();
    assert_eq!(
        stays.unwrap().to_string(),
        "switch spine2: 2 multicast groups are needed, but the limit is 1 (groups); delete a job, or use `gather: unicast`"
    );
    assert_eq!(job.tree(), before.0.tree());
    // The members' unicast goes over the other spine.
    first = (job, plan);
    let mut trace = Trace::default();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        trace.unicast(&site, &first, Rank(from), Rank(to));
    }
    let routed_over = |spine: usize| trace.entered.iter().any(|(at, _)| at.switch.0 == spine);
    assert!(routed_over(1) && !routed_over(0));

    site.routes = Routes::new(&site.fabric, Health::default());
    assert!(site.refit(&mut first));
    assert_eq!(first.1.len(), before.1.len());
    assert_eq!(site.add(&spec("third", &["h1", "h2"])).0.id, JobId(3));
}

/// Indices that a job returns during a change of routes are not given out before all jobs are
/// rerouted.
#[test]
fn returned_indices_are_free_after_the_reroute() {
    let mut site = Site::new(leaf_spine(2, 2, 2));
    let mut jobs: Vec<Planned> = (0..2)
        .map(|at| site.add(&spec(&format!("job{at}"), &["h0", "h1", "h2", "h3"])))
        .collect();
    let numbers = |jobs: &[Planned]| -> BTreeSet<(SwitchId, ShareIndex)> {
        let shares = jobs.iter().flat_map(|(job, _)| &job.shares);
        shares.map(|(at, share)| (at.switch, *share)).collect()
    };
    let without: Health = [Element::Transit(SwitchId(0))].into_iter().collect();
    for health in [without, Health::default()] {
        site.routes = Routes::new(&site.fabric, health);
        let had = jobs.clone();
        let names = site.program.names();
        for ((job, plan), before) in jobs.iter_mut().zip(&had) {
            let ports = |job: &Job| job.shares.keys().copied().collect::<BTreeSet<_>>();
            let refitted = (site.ledger).refit(&site.fabric, &site.routes, names, job, plan);
            let refitted = refitted.unwrap();
            (*job, *plan) = (refitted.job, refitted.plan);
            for at in ports(job).difference(&ports(&before.0)) {
                assert!(!numbers(&had).contains(&(at.switch, job.shares[at])));
            }
        }
        site.ledger.free_returned();
        numbers_differ(&site, &jobs);
    }
}

/// A job that could not be rerouted gets its old resources back after a restart, in any order of
/// jobs.
#[test]
fn jobs_without_room_are_restored_with_their_tree() {
    let text = include_str!("../../../topologies/leaf-spine.yaml");
    let text = text.replace(
        "{ name: spine2 }",
        "{ name: spine2, limits: { groups: 1 } }",
    );
    let mut site = Site::new(crate::fabric::parse(&text, "full.yaml").unwrap());
    let members = ["h1", "h3", "h5"];
    let mut jobs: Vec<Planned> = ["first", "second"]
        .map(|name| site.add(&spec(name, &members)))
        .into();
    let health: Health = [Element::Transit(SwitchId(0))].into_iter().collect();
    site.routes = Routes::new(&site.fabric, health);
    let moved: Vec<bool> = jobs.iter_mut().map(|it| site.refit(it)).collect();
    assert_eq!(moved, [false, true]);
    let mut again = Ledger::new(&site.fabric, &site.routes);
    let kept: Vec<Job> = jobs.iter().map(|(job, _)| job.clone()).collect();
    let names = site.program.names();
    let restored = again.restore(&site.fabric, &site.routes, names, &kept, JobId(2));
    let restored = restored.unwrap();
    for (restored, (job, plan)) in restored.iter().zip(&jobs) {
        assert_eq!((&restored.job, &restored.plan), (job, plan));
    }
    let stays: Vec<bool> = restored.iter().map(|it| it.stays.is_some()).collect();
    assert_eq!(stays, [true, false]);
}

#[test]
fn ports_on_both_sides_of_a_gap_keep_their_indices() {
    let mut site = Site::new(leaf_spine(1, 3, 1));
    let mut planned = site.add(&spec("train", &["h0", "h1", "h2"]));
    let before = planned.0.clone();
    let mut health = Health::default();
    health.fail(Element::Switch(SwitchId(3)));
    for health in [health, Health::default()] {
        site.routes = Routes::new(&site.fabric, health.clone());
        assert_eq!(site.refit(&mut planned), health == Health::default());
        assert_eq!(planned.0, before);
    }
    follow(&site, &planned);
    let own = SwitchPort {
        switch: SwitchId(1),
        port: PortNumber(2),
    };
    assert!(before.shares.contains_key(&own));
}
