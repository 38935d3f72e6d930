use std::collections::HashSet;

use ultima_p4::names::{self, replica::TRUNK_RID};
use ultima_p4runtime::tofino::{Packing, TofinoProgram};

use super::*;
use crate::fabric::{self, Health, HostId, SwitchPort};
use crate::job::{Gather, JobPolicy, JobSpec, Rank, RefusalKind, Weight};
use crate::program::Program;
use crate::target::{ProgramForm, Target};
use crate::testing::{Planned, Site, spec};

fn two_switches() -> Fabric {
    fabric::parse(
        include_str!("../../../topologies/two-switches.yaml"),
        "two.yaml",
    )
    .unwrap()
}

/// Plans the first job on these hosts.
fn first(fabric: &Fabric, members: &[&str]) -> Planned {
    Site::new(fabric.clone()).add(&spec("train", members))
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
        other => panic!("{other:?} admits no rank"),
    })
}

fn copy(port: u16, rid: u16) -> GroupReplica {
    GroupReplica {
        port: PortNumber(port),
        rid,
    }
}

#[test]
fn jobs_on_one_switch_share_no_indices() {
    let mut site = Site::new(two_switches());
    let plans = ["one", "other"].map(|name| site.add(&spec(name, &["h1", "h2"])).1);
    let [one, other] = plans.map(|mut plan| {
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

/// Share indices are the lowest free ones of each switch, and each of a job's ports has one.
#[test]
fn share_indices_are_taken_per_switch() {
    let mut site = Site::new(two_switches());
    let first = site.add(&spec("one", &["h1", "h2", "h1"]));
    let (two, plan) = site.add(&spec("two", &["h1", "h3"]));
    // The first job is removed: its indices on the first switch are free, the second job's are not.
    site.remove(&first);
    let (one, (three, _)) = (first.0, site.add(&spec("three", &["h3", "h1"])));
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

    // Only the switch of a member's host counts its losses before that switch.
    let indices = |switch| -> Vec<Option<u16>> {
        sources(&plan[&SwitchId(switch)])
            .map(|source| source.index.map(|index| index.0))
            .collect()
    };
    assert_eq!(indices(0), [Some(4), None]);
    assert_eq!(indices(1), [None, Some(1)]);
}

#[test]
fn ranks_behind_one_port_have_a_replica_each() {
    let fabric = two_switches();
    let (_, plan) = first(&fabric, &["h1", "h2", "h1"]);
    let plan = &plan[&SwitchId(0)];
    assert_eq!(group(plan).replicas, [copy(1, 0), copy(2, 1), copy(1, 2)]);
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
fn a_trunk_carries_one_replica_for_all_ranks_behind_it() {
    let (_, plan) = first(&two_switches(), &["h1", "h3", "h4", "h3"]);
    assert_eq!(
        group(&plan[&SwitchId(0)]).replicas,
        [copy(9, TRUNK_RID), copy(1, 0)]
    );
    let far = group(&plan[&SwitchId(1)]);
    assert_eq!(
        far.replicas,
        [copy(9, TRUNK_RID), copy(1, 1), copy(2, 2), copy(1, 3)]
    );
    let admitted: Vec<_> = sources(&plan[&SwitchId(1)])
        .map(|source| (source.ingress.0, source.rank.0))
        .collect();
    assert_eq!(admitted, [(9, 0), (1, 1), (2, 2), (1, 3)]);
}

#[test]
fn switches_outside_the_job_hold_nothing() {
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
    let (_, plan) = first(&fabric, &["h2", "h3"]);
    assert_eq!(
        plan.keys().copied().collect::<Vec<_>>(),
        [0, 1, 2].map(SwitchId)
    );
    // The middle switch has only the two trunks.
    assert_eq!(
        group(&plan[&SwitchId(0)]).replicas,
        [copy(1, TRUNK_RID), copy(2, TRUNK_RID)]
    );
}

#[test]
fn unicast_jobs_have_no_group() {
    let spec = JobSpec {
        gather: Gather::Unicast,
        ..spec("train", &["h1", "h3"])
    };
    let (job, plan) = Site::new(two_switches()).add(&spec);
    assert_eq!(job.multicast, None);
    for plan in plan.values() {
        let multicast = |entity: &&Entity| matches!(entity, Entity::Group(_) | Entity::Replica(_));
        assert_eq!(plan.entities().find(multicast), None);
        assert_eq!(sources(plan).count(), 2);
    }
}

#[test]
fn the_program_supports_every_entity() {
    let fabric = two_switches();
    let program = Program::v1model().unwrap();
    let (_, plan) = first(&fabric, &["h1", "h3"]);
    let routes = Routes::new(&fabric, Health::default());
    let base = of_fabric(&fabric, &routes, SwitchId(0));
    for entity in base
        .iter()
        .chain(plan.values().flat_map(SwitchPlan::entities))
    {
        entity.creation(program.names()).unwrap();
        let stays = matches!(entity, Entity::Counter(_));
        assert_eq!(
            entity.removal(program.names()).unwrap().is_none(),
            stays,
            "{entity:?}"
        );
    }
}

/// The two switches, with rates of the trunk in both directions and toward h2.
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

/// Ports with a link rate have a meter, others do not. Queueing time is checked only if queues
/// drain at line rate.
#[test]
fn ports_have_the_virtual_queues_of_their_links() {
    let fabric = rated();
    let kept = |fabric: &Fabric, switch| -> Vec<Entity> {
        let routes = Routes::new(fabric, Health::default());
        let entities = of_fabric(fabric, &routes, SwitchId(switch)).into_iter();
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

/// Several jobs at a port with a rate divide it by weight. Elsewhere a job has no limit of its own.
#[test]
fn jobs_divide_shared_ports() {
    let fabric = rated();
    let mut site = Site::new(fabric.clone());
    let (one, _) = site.add(&spec("one", &["h1", "h3"]));
    let (two, _) = site.add(&JobSpec {
        policy: JobPolicy {
            weight: Weight::try_from(3).unwrap(),
            ..JobPolicy::default()
        },
        ..spec("two", &["h2", "h4"])
    });
    let (three, _) = site.add(&spec("three", &["h1", "h2"]));
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
    // h1's port, which the first and the last job share, has no rate.
    assert_eq!(divided(0, &[&one, &two, &three]), Division::from(expected));
    let expected = [
        (one.shares[&far], whole(far).part(1, 4)),
        (two.shares[&far], whole(far).part(3, 4)),
    ];
    assert_eq!(divided(1, &[&one, &two, &three]), Division::from(expected));
}

#[test]
fn exceeded_limits_name_the_numbers() {
    let text = include_str!("../../../topologies/two-switches.yaml");
    let with_limits = |limits: &str| {
        let text = text.replacen(
            "device_id: 1 }",
            &format!("device_id: 1, limits: {limits} }}"),
            1,
        );
        fabric::parse(&text, "f.yaml").unwrap()
    };
    let line = |fabric: &Fabric| {
        let mut site = Site::new(fabric.clone());
        site.add(&spec("first", &["h1", "h2"]));
        let second = site.propose(&spec("second", &["h1", "h2", "h3"]));
        second.err().map(|refusal| refusal.to_string())
    };
    assert_eq!(line(&two_switches()), None);
    assert_eq!(
        line(&with_limits("{ group_replicas: 2 }")).unwrap(),
        "switch s1: the group needs 3 replicas, but the limit is 2 (group_replicas); use fewer members there, or `gather: unicast`"
    );
    assert_eq!(
        line(&with_limits("{ groups: 1 }")).unwrap(),
        "switch s1: 2 multicast groups are needed, but the limit is 1 (groups); delete a job, or use `gather: unicast`"
    );
    assert_eq!(
        line(&with_limits("{ nodes: 4 }")).unwrap(),
        "switch s1: the groups need 5 replication nodes, but the limit is 4 (nodes); delete a job, or use `gather: unicast`"
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
    let line = |program: Program| {
        let mut site = Site::new(fabric.clone());
        // The first six counter indices are taken.
        for job in 0..6 {
            site.add(&spec(&format!("job{job}"), &["h3", "h4"]));
        }
        site.program = program;
        let refusal = site
            .propose(&spec("train", &["h1", "h2", "h1"]))
            .unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::NoRoom);
        refusal.to_string()
    };
    assert_eq!(
        line(sized(names::source::TABLE, 2)),
        "switch s1: table UltimaIngress.admission.source needs 3 entries, but its size in the program is 2"
    );
    assert_eq!(
        line(sized(names::counter::UNICAST, 7)),
        "switch s1: UltimaIngress.routing.unicast has 7 indices, but index 7 is needed; delete a job"
    );
    let meter = line(sized(names::share::METER, 2));
    assert!(
        meter.contains("UltimaEgress.queue.share_rate has 2 indices, but index 2 is needed"),
        "{meter}"
    );
    let routes = Routes::new(&fabric, Health::default());
    let error = check_fabric(
        &fabric,
        &routes,
        &sized(names::route::TABLE, 3),
        SwitchId(1),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "switch s2: table UltimaIngress.routing.route needs 4 entries, but its size in the program is 3"
    );
}

/// A job of all ranks of a 32-port testbed, on device ports of two pipes; and the limits that it
/// exceeds if another program uses part of the chip.
#[test]
fn a_testbed_job_is_limited_by_the_chip() {
    let text = include_str!("../../../topologies/tofino32.yaml");
    // All connectors except 16, which is device port 0.
    let members: Vec<String> = (1..=32)
        .filter(|host| *host != 16)
        .flat_map(|host| vec![format!("h{host:02}"); 8])
        .collect();
    let propose = |text: &str| {
        let site = Site::new(fabric::parse(text, "tofino32.yaml").unwrap());
        site.propose(&spec("train", &members))
    };
    let (_, plan) = propose(text).unwrap();
    let group = group(&plan[&SwitchId(0)]);
    assert_eq!((group.replicas.len(), group.nodes()), (248, 248));
    // Connectors 1 and 17 of a Wedge 100BF-32X.
    assert!(
        group
            .replicas
            .contains(&GroupReplica::to_rank(PortNumber(132), Rank(0)))
    );
    assert!(
        group
            .replicas
            .contains(&GroupReplica::to_rank(PortNumber(4), Rank(15 * 8)))
    );

    let limited = |limits: &str| {
        let text = text.replace(
            "speed: 100G\n",
            &format!("speed: 100G\n    limits: {limits}\n"),
        );
        propose(&text).unwrap_err().to_string()
    };
    assert_eq!(
        limited("{ nodes: 247 }"),
        "switch tofino1: the groups need 248 replication nodes, but the limit is 247 (nodes); delete a job, or use `gather: unicast`"
    );
    assert_eq!(
        limited("{ group_replicas: 100 }"),
        "switch tofino1: the group needs 248 replicas, but the limit is 100 (group_replicas); use fewer members there, or `gather: unicast`"
    );
}

/// The file may lower the chip's limits, but not raise them.
#[test]
fn limits_are_bounded_by_the_chip() {
    let text = include_str!("../../../topologies/tofino32.yaml");
    let line = |limits: &str| {
        let text = text.replace(
            "speed: 100G\n",
            &format!("speed: 100G\n    limits: {limits}\n"),
        );
        fabric::parse(&text, "f.yaml").unwrap_err().to_string()
    };
    assert!(
        line("{ nodes: 60000 }").ends_with("60000 is out of range; target tofino takes 1 to 52224")
    );
    assert!(
        line("{ groups: 65536 }")
            .ends_with("65536 is out of range; target tofino takes 1 to 65535")
    );
}

/// A chip's digest has 47 bytes for its members, which take whole bytes.
#[test]
fn digests_must_fit_the_chip() {
    let text = include_str!("../../../topologies/tofino32.yaml");
    let fabric = fabric::parse(text, "tofino32.yaml").unwrap();
    let routes = Routes::new(&fabric, Health::default());
    let own = Program::own(&fabric).unwrap();
    let code = TofinoProgram::unpack(&own.device_config(Packing::Stratum)).unwrap();
    // Instead of the last member's 32 bits of 208.
    let p4info = ultima_p4::tofino().p4info;
    let (digest, registers) = p4info.rsplit_once("operation_losses_t").unwrap();
    let (before, after) = digest.rsplit_once("bitwidth: 32").unwrap();
    let checked = |bits: usize| {
        let p4info = format!("{before}bitwidth: {bits}{after}operation_losses_t{registers}");
        let form = ProgramForm::Tofino;
        let program = Program::tofino(form, code.clone(), &p4info, "p4info").unwrap();
        check_fabric(&fabric, &routes, &program, SwitchId(0)).map_err(|error| error.to_string())
    };
    assert_eq!(checked(376 - 176), Ok(()));
    assert_eq!(
        checked(376 - 176 + 1),
        Err("switch tofino1: the program's digest has 384 bits (its members take whole bytes), but target tofino supports at most 376; use the program for tofino".into())
    );
}

/// A program that trims mirrored packets, such as Tofino's, has a table for it. Every port with a
/// link gets two sessions, except device port 0, for which Stratum accepts none.
#[test]
fn programs_that_trim_by_mirroring_get_sessions() {
    let text = include_str!("../../../topologies/tofino32.yaml");
    let fabric = fabric::parse(text, "tofino32.yaml").unwrap();
    let other = Program::v1model().unwrap();
    assert_eq!(cuts(&fabric, other.names(), SwitchId(0)), []);

    let program = Program::own(&fabric).unwrap();
    let cuts = cuts(&fabric, program.names(), SwitchId(0));
    assert_eq!(cuts.len(), 4 * 31);
    // Connector 17 has the lowest device port except 0, which is connector 16.
    let port = PortNumber(4);
    let session = |id, bytes| Entity::CutSession(CutSession { id, port, bytes });
    let row = |sealed, session| {
        Entity::Cut(table::Cut {
            egress: port,
            sealed,
            session,
        })
    };
    assert_eq!(
        cuts[..4],
        [
            session(2, 109),
            row(false, 2),
            session(3, 125),
            row(true, 3)
        ]
    );
    let written = cuts[2].creation(program.names()).unwrap();
    assert!(
        format!("{written:?}").contains("packet_length_bytes: 125"),
        "{written:?}"
    );
    for entity in &cuts {
        entity.creation(program.names()).unwrap();
        assert!(entity.removal(program.names()).unwrap().is_some());
    }

    assert_eq!(
        uncut(&fabric, program.names(), SwitchId(0)).unwrap(),
        "switch tofino1: port 16/0 is device port 0, for which Stratum accepts no mirror session, so its packets are never \
         trimmed; link the port to a host without jobs"
    );
    assert_eq!(uncut(&fabric, other.names(), SwitchId(0)), None);
    let lines = text.lines().filter(|line| !line.contains("storage"));
    let without = lines.collect::<Vec<_>>().join("\n");
    let fabric = fabric::parse(&without, "tofino32.yaml").unwrap();
    assert_eq!(uncut(&fabric, program.names(), SwitchId(0)), None);
}

/// A mirror session needs a packet length. It keeps the loss report of a packet that was trimmed
/// behind digest and tag; on v1model, without a length, it keeps the whole packet.
#[test]
fn the_loss_session_keeps_the_loss_report() {
    for (target, bytes) in [("v1model", 0), ("tofino", 125), ("tofino2", 125)] {
        let target = Target::by_name(target).unwrap();
        let written = LossSession::of(target).entry().unwrap();
        assert_eq!(written.packet_length_bytes, bytes, "{}", target.name);
    }
}
