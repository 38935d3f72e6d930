use std::collections::{BTreeMap, HashSet, VecDeque};

use proptest::prelude::*;
use ultima_p4::names::{self, replica::TRUNK_RID};

use super::*;
use crate::fabric::{self, HostId, SwitchPort};
use crate::job::{
    CounterIndex, DEFAULT_LOSS_THRESHOLD, Epoch, Gather, GroupId, JobId, JobSpec, Rank, Weight,
    place,
};
use crate::program::Program;

fn two_switches() -> Fabric {
    fabric::parse(
        include_str!("../../../topologies/two-switches.yaml"),
        "two.yaml",
    )
    .unwrap()
}

/// A job whose numbers are all `number`, on the hosts called `members`, beside `others`.
fn job(fabric: &Fabric, number: u16, members: &[&str], others: &[&Job]) -> Job {
    let spec = JobSpec {
        name: format!("job{number}"),
        members: members.iter().map(|name| name.to_string()).collect(),
        gather: Gather::Multicast,
        seed: Some(1),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
    };
    let taken = others.iter().flat_map(|job| &job.members);
    let members = place(fabric, &spec, taken).unwrap();
    let numbers = super::number(fabric, &members, others.iter().copied()).unwrap();
    Job {
        id: JobId(number),
        name: spec.name.clone(),
        epoch: Epoch(1),
        seed: 1,
        counter: CounterIndex(number),
        group: Some(GroupId(number)),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
        members,
        shares: numbers.shares,
        sources: numbers.sources,
    }
}

fn group(plan: &SwitchPlan) -> &Group {
    let mut groups = plan.entities().filter_map(|entity| match entity {
        Entity::Group(group) => Some(group),
        _ => None,
    });
    let group = groups.next().expect("no group");
    assert_eq!(groups.next(), None, "a second group");
    group
}

fn sources(plan: &SwitchPlan) -> impl Iterator<Item = &table::Source> {
    plan.admit.iter().map(|entity| match entity {
        Entity::Source(source) => source,
        other => panic!("{other} admits nobody"),
    })
}

fn copy(port: u16, rid: u16) -> Copy {
    Copy {
        port: PortNumber(port),
        rid,
    }
}

#[test]
fn two_jobs_on_one_switch_share_nothing() {
    let fabric = two_switches();
    let one = job(&fabric, 1, &["h1", "h2"], &[]);
    let other = job(&fabric, 2, &["h1", "h2"], &[&one]);
    let [one, other] = [of_job(&fabric, &one), of_job(&fabric, &other)].map(|mut plan| {
        assert_eq!(plan.keys().copied().collect::<Vec<_>>(), [SwitchId(0)]);
        plan.remove(&SwitchId(0)).unwrap()
    });
    let program = Program::v1model().unwrap();
    let keys = |plan: &SwitchPlan| -> HashSet<String> {
        let removal = |entity: &Entity| entity.removal(program.names()).unwrap();
        plan.entities()
            .filter_map(removal)
            .map(|update| format!("{update:?}"))
            .collect()
    };
    assert!(keys(&one).is_disjoint(&keys(&other)));
    assert_ne!(group(&one).id, group(&other).id);
}

/// Places are the lowest that are free on each switch by itself, and all of a job's ports have one.
#[test]
fn places_are_taken_on_each_switch() {
    let fabric = two_switches();
    let one = job(&fabric, 1, &["h1", "h2", "h1"], &[]);
    let two = job(&fabric, 2, &["h1", "h3"], &[&one]);
    // The first has gone: what it had on the first switch is free, what the second has there is not.
    let three = job(&fabric, 3, &["h3", "h1"], &[&two]);
    let places = |job: &Job| -> Vec<(usize, u16, u16)> {
        let shares = job.shares.iter();
        shares
            .map(|(at, share)| (at.switch.0, at.port.0, share.0))
            .collect()
    };
    assert_eq!(places(&one), [(0, 1, 1), (0, 2, 2)]);
    assert_eq!(places(&two), [(0, 1, 3), (0, 9, 4), (1, 1, 1), (1, 9, 2)]);
    assert_eq!(places(&three), [(0, 1, 1), (0, 9, 2), (1, 1, 3), (1, 9, 4)]);
    let own = |job: &Job| -> Vec<u16> { job.sources.iter().map(|source| source.0).collect() };
    assert_eq!(own(&one), [1, 2, 3]);
    assert_eq!(own(&two), [4, 1]);
    assert_eq!(own(&three), [2, 1]);

    // Only the switch of a member's host counts what it lost on the way there.
    let plan = of_job(&fabric, &two);
    let indices = |switch| -> Vec<Option<u16>> {
        sources(&plan[&SwitchId(switch)])
            .map(|source| source.index.map(|index| index.0))
            .collect()
    };
    assert_eq!(indices(0), [Some(4), None]);
    assert_eq!(indices(1), [None, Some(1)]);
}

#[test]
fn ranks_behind_one_port_have_a_copy_each() {
    let fabric = two_switches();
    let job = job(&fabric, 1, &["h1", "h2", "h1"], &[]);
    let plan = &of_job(&fabric, &job)[&SwitchId(0)];
    assert_eq!(group(plan).copies, [copy(1, 0), copy(2, 1), copy(1, 2)]);
    let admitted: Vec<_> = sources(plan)
        .map(|source| (source.ingress.0, source.rank.0))
        .collect();
    assert_eq!(admitted, [(1, 0), (2, 1), (1, 2)]);
    let addressed: Vec<_> = (plan.prepare.iter())
        .filter_map(|entity| match entity {
            Entity::Replica(replica) => Some((replica.rank.0, replica.ip, replica.udp_port)),
            _ => None,
        })
        .collect();
    let [h1, h2] = [0, 1].map(|host| fabric.host(HostId(host)).ip);
    let port = ultima_wire::UDP_PORT;
    assert_eq!(addressed, [(0, h1, port), (1, h2, port), (2, h1, port + 1)]);
}

#[test]
fn a_trunk_carries_one_copy_for_all_behind_it() {
    let fabric = two_switches();
    let job = job(&fabric, 1, &["h1", "h3", "h4", "h3"], &[]);
    let plan = of_job(&fabric, &job);
    assert_eq!(
        group(&plan[&SwitchId(0)]).copies,
        [copy(9, TRUNK_RID), copy(1, 0)]
    );
    let far = group(&plan[&SwitchId(1)]);
    assert_eq!(
        far.copies,
        [copy(9, TRUNK_RID), copy(1, 1), copy(2, 2), copy(1, 3)]
    );
    let admitted: Vec<_> = sources(&plan[&SwitchId(1)])
        .map(|source| (source.ingress.0, source.rank.0))
        .collect();
    assert_eq!(admitted, [(9, 0), (1, 1), (2, 2), (1, 3)]);
}

#[test]
fn switches_without_members_or_paths_between_them_hold_nothing() {
    let text = r#"
switches:
  - { name: s1, target: v1model, grpc: "127.0.0.1:9559", device_id: 1 }
  - { name: s2, target: v1model, grpc: "127.0.0.1:9560", device_id: 1 }
  - { name: s3, target: v1model, grpc: "127.0.0.1:9561", device_id: 1 }
  - { name: s4, target: v1model, grpc: "127.0.0.1:9562", device_id: 1 }
hosts:
  - { name: h2, mac: "02:00:00:00:00:02", ip: 10.0.0.2 }
  - { name: h3, mac: "02:00:00:00:00:03", ip: 10.0.0.3 }
links:
  - { ends: [s1/1, s2/1] }
  - { ends: [s1/2, s3/1] }
  - { ends: [s1/3, s4/1] }
  - { ends: [h2, s2/2] }
  - { ends: [h3, s3/2] }
"#;
    let fabric = fabric::parse(text, "f.yaml").unwrap();
    let plan = of_job(&fabric, &job(&fabric, 1, &["h2", "h3"], &[]));
    assert_eq!(
        plan.keys().copied().collect::<Vec<_>>(),
        [0, 1, 2].map(SwitchId)
    );
    // The switch in the middle has no member, only the two trunks.
    assert_eq!(
        group(&plan[&SwitchId(0)]).copies,
        [copy(1, TRUNK_RID), copy(2, TRUNK_RID)]
    );
}

#[test]
fn a_job_that_gathers_by_unicast_has_no_group() {
    let fabric = two_switches();
    let job = Job {
        group: None,
        ..job(&fabric, 1, &["h1", "h3"], &[])
    };
    for plan in of_job(&fabric, &job).values() {
        let multicast = |entity: &&Entity| matches!(entity, Entity::Group(_) | Entity::Replica(_));
        assert_eq!(plan.entities().find(multicast), None);
        assert_eq!(sources(plan).count(), 2);
    }
}

#[test]
fn every_entity_has_its_place_in_the_program() {
    let fabric = two_switches();
    let program = Program::v1model().unwrap();
    let plan = of_job(&fabric, &job(&fabric, 1, &["h1", "h3"], &[]));
    let base = of_fabric(&fabric, SwitchId(0));
    for entity in base
        .iter()
        .chain(plan.values().flat_map(SwitchPlan::entities))
    {
        entity.creation(program.names()).unwrap();
        let stays = matches!(entity, Entity::Counter(_));
        assert_eq!(
            entity.removal(program.names()).unwrap().is_none(),
            stays,
            "{entity}"
        );
    }
}

/// The two switches with rates: of the trunk both ways, and toward h2.
fn rated() -> Fabric {
    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("[s1/9, s2/9] }", "[s1/9, s2/9], rate: 100M, queue: 64k }")
        .replace(
            "[h2, s1/2] }",
            "[h2, s1/2], mtu: 9000, b_to_a: { rate: 1G } }",
        )
        .replace("[h3, s2/1] }", "[h3, s2/1], a_to_b: { rate: 1G } }");
    fabric::parse(&text, "rated.yaml").unwrap()
}

fn port(switch: usize, port: u16) -> SwitchPort {
    SwitchPort {
        switch: SwitchId(switch),
        port: PortNumber(port),
    }
}

/// Ports whose links have a rate out of the switch have a meter, others none; and what packets are queued is looked at only
/// where queues drain at line rate.
#[test]
fn ports_have_what_their_links_carry() {
    let fabric = rated();
    let kept = |fabric: &Fabric, switch| -> Vec<Entity> {
        let entities = of_fabric(fabric, SwitchId(switch)).into_iter();
        let is_limit = |entity: &Entity| matches!(entity, Entity::Meter(_) | Entity::QueueTime(_));
        entities.filter(is_limit).collect()
    };
    let queue = |at| division::virtual_queue(&fabric, at).unwrap();
    let meter = |at: SwitchPort| Entity::Meter(MeterCell::of_port(at.port, queue(at)));
    let [trunk, h2, far] = [port(0, 9), port(0, 2), port(1, 9)];
    assert_eq!(kept(&fabric, 0), [meter(h2), meter(trunk)]);
    assert_eq!(kept(&fabric, 1), [meter(far)]);
    assert_eq!(division::virtual_queue(&fabric, port(0, 1)), None);
    assert_eq!(division::virtual_queue(&fabric, port(1, 1)), None);

    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("[s1/9, s2/9] }", "[s1/9, s2/9], rate: 100M, queue: 64k }")
        .replace("device_id: 2 }", "device_id: 2, line_rate_queues: true }");
    let draining = fabric::parse(&text, "draining.yaml").unwrap();
    let row = Entity::QueueTime(table::QueueTime {
        egress: far.port,
        queue: queue(far),
    });
    assert_eq!(kept(&draining, 0), [meter(trunk)]);
    assert_eq!(kept(&draining, 1), [meter(far), row.clone()]);
    let program = Program::v1model().unwrap();
    for entity in [meter(far), row] {
        entity.creation(program.names()).unwrap();
        assert!(entity.removal(program.names()).unwrap().is_some());
    }
}

/// Where several jobs use a port with a rate they divide it by weight; elsewhere a job has no limit of its own.
#[test]
fn jobs_divide_the_ports_that_they_share() {
    let fabric = rated();
    let one = job(&fabric, 1, &["h1", "h3"], &[]);
    let two = Job {
        weight: Weight::try_from(3).unwrap(),
        ..job(&fabric, 2, &["h2", "h4"], &[&one])
    };
    let three = job(&fabric, 3, &["h1", "h2"], &[&one, &two]);
    let divided = |switch, jobs: &[&Job]| divide(&fabric, SwitchId(switch), jobs.iter().copied());
    assert_eq!(divided(0, &[&one]), Division::new());
    assert_eq!(divided(0, &[&two, &three]).len(), 2, "h2's port");

    let whole = |at| division::virtual_queue(&fabric, at).unwrap();
    let (trunk, h2, far) = (port(0, 9), port(0, 2), port(1, 9));
    let expected = [
        (one.shares[&trunk], whole(trunk).part(1, 4)),
        (two.shares[&trunk], whole(trunk).part(3, 4)),
        (two.shares[&h2], whole(h2).part(3, 4)),
        (three.shares[&h2], whole(h2).part(1, 4)),
    ];
    // h1's port, which the first and the last share, has no rate.
    assert_eq!(divided(0, &[&one, &two, &three]), Division::from(expected));
    let expected = [
        (one.shares[&far], whole(far).part(1, 4)),
        (two.shares[&far], whole(far).part(3, 4)),
    ];
    assert_eq!(divided(1, &[&one, &two, &three]), Division::from(expected));
}

#[test]
fn limits_name_the_number_that_is_over() {
    let text = include_str!("../../../topologies/two-switches.yaml");
    let with_limits = |limits: &str| {
        let text = text.replacen(
            "device_id: 1 }",
            &format!("device_id: 1, limits: {limits} }}"),
            1,
        );
        fabric::parse(&text, "f.yaml").unwrap()
    };
    let program = Program::v1model().unwrap();
    let line = |fabric: &Fabric| {
        let first = job(fabric, 1, &["h1", "h2"], &[]);
        let second = job(fabric, 2, &["h1", "h2", "h3"], &[&first]);
        let [first, second] = [first, second].map(|job| of_job(fabric, &job));
        check_job(fabric, program.names(), [], &first).unwrap();
        check_job(fabric, program.names(), [&first], &second)
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(line(&two_switches()), None);
    assert_eq!(
        line(&with_limits("{ group_replicas: 2 }")).unwrap(),
        "switch s1: the group would have 3 replicas, and its limit is 2 (group_replicas); use fewer members there, or `gather: unicast`"
    );
    assert_eq!(
        line(&with_limits("{ groups: 1 }")).unwrap(),
        "switch s1: it would hold 2 multicast groups, and its limit is 1 (groups); delete a job, or use `gather: unicast`"
    );
    assert_eq!(
        line(&with_limits("{ nodes: 4 }")).unwrap(),
        "switch s1: its groups would need 5 nodes of the replication engine, and its limit is 4 (nodes); delete a job, or use `gather: unicast`"
    );
}

#[test]
fn table_and_counter_sizes_come_from_the_program() {
    let program = ultima_p4::v1model();
    let sized = |name: &str, size: u64| {
        let start = program.p4info.find(&format!("name: \"{name}\"")).unwrap();
        let (before, after) = program.p4info.split_at(start);
        let line = after.find("  size: ").unwrap();
        let end = line + after[line..].find('\n').unwrap();
        let text = format!("{before}{}  size: {size}{}", &after[..line], &after[end..]);
        Program::new(Vec::new(), &text, "p4info").unwrap()
    };
    let fabric = two_switches();
    let plan = of_job(&fabric, &job(&fabric, 7, &["h1", "h2", "h1"], &[]));
    let line = |program: Program| {
        check_job(&fabric, program.names(), [], &plan)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        line(sized(names::source::TABLE, 2)),
        "switch s1: table UltimaIngress.admission.source would hold 3 entries, and its size in the program is 2"
    );
    assert_eq!(
        line(sized(names::counter::UNICAST, 7)),
        "switch s1: counter index 7 is needed, and UltimaIngress.routing.unicast has 7; delete a job"
    );
    let error = check_fabric(&fabric, sized(names::route::TABLE, 3).names(), SwitchId(1));
    assert_eq!(
        error.unwrap_err().to_string(),
        "switch s2: table UltimaIngress.routing.route would hold 4 entries, and its size in the program is 3"
    );
}

/// A fabric of up to eight switches in any connected graph, with hosts anywhere, and the names of
/// a job's members.
fn fabric_and_members() -> impl Strategy<Value = (Fabric, Vec<String>)> {
    (1usize..=8, 1usize..=8)
        .prop_flat_map(|(switches, hosts)| {
            let parents = proptest::collection::vec(any::<prop::sample::Index>(), switches - 1);
            let extra = proptest::collection::vec((0..switches, 0..switches), 0..6);
            let hosts = proptest::collection::vec((0..switches, 1u16..=3), hosts);
            (parents, extra, hosts).prop_flat_map(move |(parents, extra, hosts)| {
                let mut trunks: Vec<(usize, usize)> = (parents.iter().enumerate())
                    .map(|(child, parent)| (parent.index(child + 1), child + 1))
                    .collect();
                trunks.extend(extra.into_iter().filter(|(a, b)| a != b));
                let fabric = fabric_of(switches, &hosts, &trunks);
                let seats: Vec<String> = (hosts.iter().enumerate())
                    .flat_map(|(host, (_, ranks))| vec![format!("h{host}"); usize::from(*ranks)])
                    .collect();
                let most = seats.len();
                let members =
                    proptest::sample::subsequence(seats, 2.min(most)..=most).prop_shuffle();
                (Just(fabric), members)
            })
        })
        .prop_filter("a job has two members", |(_, members)| members.len() >= 2)
}

fn fabric_of(switches: usize, hosts: &[(usize, u16)], trunks: &[(usize, usize)]) -> Fabric {
    use std::fmt::Write as _;
    let mut next_port = vec![0; switches];
    let mut port = |switch: usize| {
        next_port[switch] += 1;
        format!("s{switch}/{}", next_port[switch])
    };
    let mut text = String::from("switches:\n");
    for switch in 0..switches {
        let grpc = format!("127.0.0.1:{}", 10_000 + switch);
        writeln!(
            text,
            "  - {{ name: s{switch}, target: v1model, grpc: \"{grpc}\", device_id: 1 }}"
        )
        .unwrap();
    }
    text.push_str("hosts:\n");
    for (host, (_, ranks)) in hosts.iter().enumerate() {
        writeln!(text, "  - {{ name: h{host}, mac: \"02:00:00:00:00:{host:02x}\", ip: 10.0.0.{}, ranks: {ranks} }}", host + 1).unwrap();
    }
    text.push_str("links:\n");
    for (a, b) in trunks {
        writeln!(text, "  - {{ ends: [{}, {}] }}", port(*a), port(*b)).unwrap();
    }
    for (host, (switch, _)) in hosts.iter().enumerate() {
        writeln!(text, "  - {{ ends: [h{host}, {}] }}", port(*switch)).unwrap();
    }
    fabric::parse(&text, "random.yaml").unwrap()
}

/// The far ends of trunks.
fn across(fabric: &Fabric) -> BTreeMap<SwitchPort, SwitchPort> {
    fabric
        .trunks()
        .iter()
        .flat_map(|trunk| {
            [
                (trunk.ends[0], trunk.ends[1]),
                (trunk.ends[1], trunk.ends[0]),
            ]
        })
        .collect()
}

fn admits(plan: &SwitchPlan, ingress: PortNumber, rank: Rank) -> bool {
    sources(plan).any(|source| (source.ingress, source.rank) == (ingress, rank))
}

/// What becomes of one multicast packet of `source`, as the program treats it: how often each rank
/// got it, and how often the sender's own copy was dropped.
fn multicast(
    fabric: &Fabric,
    job: &Job,
    plan: &JobPlan,
    source: Rank,
) -> (BTreeMap<Rank, u32>, u32) {
    let far_ends = across(fabric);
    let from = fabric
        .host(job.members[usize::from(source.0)].host)
        .attached;
    let mut arriving = VecDeque::from([from]);
    let (mut delivered, mut own_copies, mut hops) = (BTreeMap::new(), 0, 0);
    while let Some(at) = arriving.pop_front() {
        hops += 1;
        assert!(hops <= fabric.switches().len(), "the packet goes round");
        let here = &plan[&at.switch];
        assert!(admits(here, at.port, source), "not admitted at {at:?}");
        for copy in &group(here).copies {
            if copy.rid == TRUNK_RID {
                if copy.port != at.port {
                    let leaving = SwitchPort {
                        switch: at.switch,
                        port: copy.port,
                    };
                    arriving.push_back(far_ends[&leaving]);
                }
            } else if copy.rid == source.0 {
                own_copies += 1;
            } else {
                let host = fabric.host(job.members[usize::from(copy.rid)].host);
                let leaving = SwitchPort {
                    switch: at.switch,
                    port: copy.port,
                };
                assert_eq!(host.attached, leaving, "rank {} is elsewhere", copy.rid);
                *delivered.entry(Rank(copy.rid)).or_default() += 1;
            }
        }
    }
    (delivered, own_copies)
}

/// Follows the routes from one member to another and requires a rule at each switch.
fn unicast(fabric: &Fabric, job: &Job, plan: &JobPlan, source: Rank, to: Rank) {
    let far_ends = across(fabric);
    let [from, to] = [source, to].map(|rank| job.members[usize::from(rank.0)]);
    let mut at = fabric.host(from.host).attached;
    let ip = fabric.host(to.host).ip;
    for _ in fabric.switches() {
        let here = &plan[&at.switch];
        assert!(admits(here, at.port, source), "not admitted at {at:?}");
        let permitted = Entity::Destination(table::Destination {
            job: job.id,
            ip,
            udp_port: to.udp_port,
        });
        assert!(
            here.entities().any(|entity| *entity == permitted),
            "no destination at {at:?}"
        );
        let port = of_fabric(fabric, at.switch)
            .into_iter()
            .find_map(|entity| match entity {
                Entity::Route(route) if route.to == ip => Some(route.port),
                _ => None,
            })
            .expect("no route");
        let leaving = SwitchPort {
            switch: at.switch,
            port,
        };
        if leaving == fabric.host(to.host).attached {
            return;
        }
        at = far_ends[&leaving];
    }
    panic!("rank {source} does not reach its peer in as many hops as there are switches");
}

proptest! {
    #[test]
    fn trees_reach_all_members_once_and_nobody_else((fabric, members) in fabric_and_members()) {
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let job = job(&fabric, 1, &members, &[]);
        let plan = of_job(&fabric, &job);
        for (source, _) in job.ranks() {
            let (delivered, own_copies) = multicast(&fabric, &job, &plan, source);
            let others: BTreeMap<Rank, u32> =
                job.ranks().filter(|(rank, _)| *rank != source).map(|(rank, _)| (rank, 1)).collect();
            prop_assert_eq!(delivered, others);
            prop_assert_eq!(own_copies, 1);
            for (to, _) in job.ranks() {
                unicast(&fabric, &job, &plan, source, to);
            }
        }
        // A tree: one trunk less than switches, each named from both of its ends.
        let trunk_copies: usize = plan.values().map(|plan| group(plan).copies.iter().filter(|copy| copy.rid == TRUNK_RID).count()).sum();
        prop_assert_eq!(trunk_copies, 2 * (plan.len() - 1));
        // No switch at its edge without a member.
        for (switch, plan) in &plan {
            let copies = &group(plan).copies;
            prop_assert!(copies.len() > 1 || copies[0].rid != TRUNK_RID, "{:?} leads nowhere", switch);
        }
    }
}
