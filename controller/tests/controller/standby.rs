//! Several controllers share etcd: one leads, the others stand by and take over, and nothing that was committed is lost.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use prost::Message as _;
use ultima_api::address::Listen;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::membership_event::Kind;
use ultima_api::v1::{self as api, MemberState};
use ultima_controller::server::JobRequestError;
use ultima_planner::job::JobSpec;
use ultima_testing::etcd::Etcd;

use crate::chaos::wire::Wire;
use crate::group::{self, LEASE, Testbed, is_standby, names};
use crate::test_agents;
use crate::testbed::{TIMERS, create, until};

/// The standby knows everything that was committed, and writes nothing to switches.
#[tokio::test]
async fn a_standby_takes_over_and_the_first_controller_stands_by() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, second] = testbed.pair().await;
    let client = first.client().await;
    for name in ["one", "two", "gone"] {
        client.create_job(&group::spec(name)).await.unwrap();
    }
    client.join("one", "h2", Duration::ZERO).await.unwrap();
    client.delete_job("gone").await.unwrap();
    client.drain("s1", true).await.unwrap();
    let jobs = client.jobs().await.unwrap();
    let (held, updates) = (testbed.held(), testbed.updates());

    first.stop();
    let ended = Instant::now();
    second.leads().await;
    eprintln!("takeover of 2 jobs on 3 switches: {:?}", ended.elapsed());
    let client = second.client().await;
    assert_eq!(client.jobs().await.unwrap(), jobs);
    assert_eq!(jobs[0].members[1].state(), MemberState::Joined);
    assert_eq!(client.switches().await.unwrap()[0].health, "drained");
    assert_eq!(
        (testbed.held(), testbed.updates()),
        (held, updates),
        "nothing is written"
    );
    let first = testbed.start(0).await;
    first.knows(&second).await;
    client.create_job(&group::spec("three")).await.unwrap();
    drop(second);
    first.leads().await;
    assert_eq!(names(&first.client().await).await, ["one", "two", "three"]);
    first.is_whole().await;
}

/// A standby answers with the committed jobs; other calls get the leader's address.
#[tokio::test]
async fn standbys_answer_reads() {
    use api::control_client::ControlClient;
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, second] = testbed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    client.join("one", "h2", Duration::ZERO).await.unwrap();
    let address = format!("http://{}", second.handle().address());
    let mut standby = ControlClient::connect(address).await.unwrap();
    let read = standby.list_jobs(api::ListJobsRequest {}).await;
    let read = read.unwrap().into_inner().jobs;
    // A standby does not know the switches.
    let mut known = client.jobs().await.unwrap();
    for job in &mut known {
        assert!(job.ready && job.ready_switches.is_some());
        (job.ready, job.ready_switches) = (false, None);
    }
    assert_eq!(read, known);
    let get = |name: &str| api::GetJobRequest { name: name.into() };
    let one = standby.get_job(get("one")).await.unwrap().into_inner();
    assert_eq!(one, read[0]);
    let none = standby.get_job(get("none")).await.unwrap_err();
    assert_eq!(none.code(), tonic::Code::NotFound);
    client.drain("s1", true).await.unwrap();
    let fabric = standby.get_fabric(api::GetFabricRequest {}).await;
    assert_eq!(fabric.unwrap().into_inner(), client.fabric().await.unwrap());
    let read = standby.get_job(get("one")).await.unwrap().into_inner();
    let known = client.job("one").await.unwrap().conditions;
    assert!(
        read.conditions == known && known[0].reason.ends_with("which is drained"),
        "{known:?}"
    );
    let read = standby.list_switches(api::ListSwitchesRequest {}).await;
    let mut read = read.unwrap().into_inner().switches;
    let mut switches = client.switches().await.unwrap();
    assert!(switches[0].connected && switches[0].health == "drained");
    // Each controller reaches them at other addresses.
    read.iter_mut().for_each(|switch| switch.grpc.clear());
    for switch in &mut switches {
        switch.grpc.clear();
        switch.connected = false;
        switch.problem = "unknown: a standby is not connected to switches".into();
        switch.unknown = true;
    }
    assert_eq!(read, switches);
    let delete = api::DeleteJobRequest { name: "one".into() };
    let refused = standby.delete_job(delete).await.unwrap_err();
    let leader = first.handle().address().to_string();
    assert_eq!(
        refused.message(),
        format!("this controller is a standby; ask the leader at {leader}")
    );
    let metadata = refused.metadata().get("ultima-leader").unwrap();
    assert_eq!(metadata.to_str().unwrap(), leader);
    // A client with the standby's address alone finds the leader.
    let client = second.client().await;
    client.delete_job("one").await.unwrap();
    first.end().await;
    second.leads().await;
    assert_eq!(names(&second.client().await).await, [""; 0]);
    // A key without a lease, so that no controller leads. The first leader has stored its events.
    let key = format!("{}/leader", group::PREFIX);
    testbed.etcd.put(&key, "{}");
    until(async || is_standby(&second.standing().await)).await;
    let object = "switch/s1".to_owned();
    let events = standby.list_events(api::ListEventsRequest { object }).await;
    let events = events.unwrap().into_inner().events;
    let reasons = events.iter().map(|event| &*event.reason);
    assert_eq!(reasons.collect::<Vec<&str>>(), ["Drained"]);
}

/// A standby plans jobs around the links that are down in the stored events, as the leader did.
#[tokio::test]
async fn a_standby_shows_paths_around_failures() {
    let Some(mut testbed) = Testbed::new(2).await else {
        return;
    };
    testbed.close_the_ring();
    let [first, second] = testbed.pair().await;
    let job = first.client().await.create_job(&group::spec("one")).await;
    let job = job.unwrap();
    let address = format!("http://{}", second.handle().address());
    let standby = api::control_client::ControlClient::connect(address).await;
    let mut standby = standby.unwrap();
    let mut tree = async || {
        let name = "one".into();
        let job = standby.get_job(api::GetJobRequest { name }).await;
        job.unwrap().into_inner().tree
    };
    assert_eq!(tree().await, job.tree);
    let [lost, ..] = &job.tree[..] else {
        panic!("a tree over three switches")
    };
    let end = |switch: &str, port| format!("{switch}/{port}");
    let (from, to) = (end(&lost.from, lost.from_port), end(&lost.to, lost.to_port));
    let event = api::Event {
        object: format!("link/{from}-{to}"),
        reason: "Down".into(),
        ..api::Event::default()
    };
    let events = api::ListEventsResponse {
        events: vec![event],
    };
    let events = String::from_utf8(events.encode_to_vec()).expect("short lengths are ASCII");
    testbed
        .etcd
        .put(&format!("{}/events", group::PREFIX), &events);
    let around = tree().await;
    assert!(around.len() == 2 && !around.contains(lost), "{around:?}");
}

/// A standby has no connections to switches: it shows the conditions of the leader's stored events.
#[tokio::test]
async fn a_standby_shows_stored_conditions() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [first, second] = testbed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    let address = format!("http://{}", second.handle().address());
    let standby = api::control_client::ControlClient::connect(address).await;
    let mut standby = standby.unwrap();
    let event = api::Event {
        object: "job/one".into(),
        reason: "Degraded".into(),
        message: "s1, s2; s2: not connected: no answer".into(),
        ..api::Event::default()
    };
    let of_switch = |switch: &str, reason: &str| api::Event {
        object: format!("switch/{switch}"),
        reason: reason.into(),
        message: "no answer".into(),
        ..api::Event::default()
    };
    let events = api::ListEventsResponse {
        events: vec![
            event,
            of_switch("s1", "NotReady"),
            of_switch("s2", "NotReady"),
            of_switch("s1", "Connected"),
            of_switch("s2", "Drained"),
        ],
    };
    let events = String::from_utf8(events.encode_to_vec()).expect("short lengths are ASCII");
    let key = format!("{}/events", group::PREFIX);
    testbed.etcd.put(&key, &events);
    let jobs = standby.list_jobs(api::ListJobsRequest {}).await.unwrap();
    let [job] = &jobs.into_inner().jobs[..] else {
        panic!("one job")
    };
    let condition = api::JobCondition {
        kind: api::JobConditionKind::Degraded.into(),
        element: "s1, s2".into(),
        reason: "not connected: no answer".into(),
        since: 0,
    };
    assert_eq!(job.conditions, [condition]);
    let name = "one".into();
    let one = standby.get_job(api::GetJobRequest { name }).await.unwrap();
    assert_eq!(one.into_inner(), *job);
    let switches = standby.list_switches(api::ListSwitchesRequest {}).await;
    let switches = switches.unwrap().into_inner().switches;
    let known = |it: &api::Switch| (it.unknown, it.problem.clone(), it.health.clone());
    let known: Vec<_> = switches.iter().map(known).collect();
    let unknown = "unknown: a standby is not connected to switches".to_owned();
    assert_eq!(known[0], (true, unknown, String::new()));
    assert_eq!(known[1], (false, "no answer".into(), String::new()));
}

/// The leader stops before its answer arrives; the next leader assigns the same rank.
#[tokio::test]
async fn a_rank_whose_answer_was_lost_is_assigned_again() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, second] = testbed.pair().await;
    let client = first.client().await;
    let sealed = JobSpec {
        sealed: true,
        ..group::spec("one")
    };
    client.create_job(&sealed).await.unwrap();
    let mut watch = client.watch_job("one").await.unwrap();

    let Listen::Tcp(address) = first.handle().address() else {
        panic!("an address")
    };
    let wire = Wire::start(*address).await;
    let both = format!("{},{}", wire.address(), second.handle().address());
    let member = Client::connect(&both).await.unwrap();
    let minute = Duration::from_secs(60);
    let joining = tokio::spawn(async move { member.join("one", "h1", minute).await });
    let rank = async || client.job("one").await.unwrap().members[0].state();
    until(async || rank().await != MemberState::Free).await;
    wire.swallow(true);
    let mut keys = Vec::new();
    for host in ["h2", "h3"] {
        let seat = client.join("one", host, Duration::ZERO).await.unwrap();
        keys.push(seat.key);
    }
    let mut joined = 0;
    while joined < 3 {
        let next = watch.next().await.unwrap().expect("more happens");
        joined += usize::from(next.event.is_some_and(|it| it.kind() == Kind::Joined));
    }
    first.stop();
    wire.refuse(true);
    let seat = joining.await.unwrap().unwrap();
    assert_eq!((seat.rank, seat.epoch), (0, 1));
    // The key of an epoch is the same.
    assert_eq!((keys[0].len(), &seat.key), (16, &keys[0]));
    assert_eq!(keys[1], keys[0]);
    assert!(second.is_leader());
}

/// A leader without etcd steps down before its lease ends, and follows the new leader after that.
#[tokio::test]
async fn a_partitioned_leader_commits_nothing() {
    // A partition that breaks connections is noticed at once; one that holds back bytes is not.
    for &swallow in ultima_testing::per_run(&[true][..], &[true, false][..]) {
        let Some(testbed) = Testbed::new(2).await else {
            return;
        };
        let [old, new] = testbed.pair().await;
        let client_of_old = old.client().await;
        let before = client_of_old.create_job(&group::spec("before")).await;
        before.unwrap();
        let controller = old.handle().leader().unwrap();

        // The switches still answer it.
        testbed.partition_from_etcd(0, swallow);
        let parted = Instant::now();
        let asked = tokio::spawn(async move {
            let refused = create(&controller, &group::spec("late")).await;
            (refused, controller)
        });
        let led = async {
            while !new.is_leader() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Its deadline is a margin before the lease's end.
            assert!(!old.is_leader(), "two controllers lead");
            parted.elapsed()
        };
        // etcd chooses when it ends the lease: only what follows is the controller's own.
        let elected = async {
            let address = new.handle().address().to_string();
            until(async || new.is_leader() || new.standing().await.leader == address).await;
            parted.elapsed()
        };
        let (elected, led) = tokio::join!(elected, led);
        eprintln!("partition: elected after {elected:?}, leads after {led:?}");
        let takeover = led.saturating_sub(elected);
        assert!(takeover < Duration::from_secs(3), "{takeover:?}");
        let (refused, controller) = asked.await.unwrap();
        refused.unwrap_err();
        let client = new.client().await;
        assert_eq!(names(&client).await, ["before"]);
        client.create_job(&group::spec("after")).await.unwrap();
        let held = testbed.held();
        // A request that still holds the old leader's `Controller` changes nothing.
        for refused in [
            create(&controller, &group::spec("late")).await.map(drop),
            controller.delete_job("before").await.map(drop),
            controller.join("before", "h1", 0, None).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            let is_so = matches!(
                error,
                JobRequestError::Stopping | JobRequestError::NotLeader
            );
            assert!(is_so, "{error}");
        }
        controller.drain("s1", true).await.unwrap_err();

        testbed.heal(0);
        old.knows(&new).await;
        new.is_whole().await;
        assert_eq!(testbed.held(), held);
        assert_eq!(names(&client).await, ["before", "after"]);
        assert!(is_standby(&old.standing().await));
        // A client that is still connected to it takes no answer of a standby, and looks for the leader.
        let refused = client_of_old.jobs().await.unwrap_err();
        assert!(
            matches!(refused, ClientError::Deposed { .. }),
            "{refused:?}"
        );
        assert_eq!(
            client_of_old.jobs().await.unwrap(),
            client.jobs().await.unwrap()
        );
    }
}

/// Partitioned from switches and etcd, with a request in progress that etcd may or may not have applied.
#[tokio::test]
async fn an_isolated_leader_is_replaced_whole() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [old, new] = testbed.pair().await;
    let client = old.client().await;
    client.create_job(&group::spec("before")).await.unwrap();
    let controller = old.handle().leader().unwrap();
    let held = testbed.held();
    let asked = tokio::spawn(async move { create(&controller, &group::spec("half")).await });
    // The commit comes next, or is done.
    until(async || testbed.held() != held).await;
    testbed.partition(0, true);
    new.leads().await;
    let done = asked.await.unwrap().is_ok();
    new.is_whole().await;
    let names = names(&new.client().await).await;
    assert_eq!(names[0], "before");
    assert!(!done || names.contains(&"half".to_owned()), "{names:?}");
}

/// One of three leads at a time, and all committed jobs are there.
#[tokio::test]
async fn repeated_takeovers_lose_no_job() {
    let Some(testbed) = Testbed::new(3).await else {
        return;
    };
    let mut nodes = [
        testbed.start(0).await,
        testbed.start(1).await,
        testbed.start(2).await,
    ];
    let mut committed = Vec::new();
    for round in 0..ultima_testing::per_run(3, 8) {
        let leader = group::only_leader(&nodes).await;
        let client = nodes[leader].client().await;
        for part in ["a", "b"] {
            let name = format!("job{round}{part}");
            client.create_job(&group::spec(&name)).await.unwrap();
            committed.push(name);
        }
        if round > 0 {
            let gone = committed.remove(0);
            client.delete_job(&gone).await.unwrap();
        }
        assert_eq!(names(&client).await, committed);
        nodes[leader].stop();
        let next = group::only_leader(&nodes).await;
        assert_ne!(next, leader);
        nodes[leader] = testbed.start(leader).await;
    }
    let leader = group::only_leader(&nodes).await;
    assert_eq!(names(&nodes[leader].client().await).await, committed);
    nodes[leader].is_whole().await;
}

/// etcd elects another member within the controllers' lease, or a standby takes over.
#[tokio::test]
async fn the_loss_of_etcds_leader_loses_no_job() {
    let Some(etcd) = Etcd::start(3) else { return };
    let Some(mut testbed) = Testbed::with(2, etcd).await else {
        return;
    };
    let nodes = [testbed.start(0).await, testbed.start(1).await];
    let both = nodes
        .each_ref()
        .map(|node| node.handle().address().to_string());
    let client = Client::connect(&both.join(",")).await.unwrap();
    let mut committed = Vec::new();
    for round in 0..2 {
        client
            .create_job(&group::spec(&format!("job{round}")))
            .await
            .unwrap();
        committed.push(format!("job{round}"));
        let lost = testbed.etcd.leader();
        testbed.etcd.kill(lost);
        let begun = Instant::now();
        // A request that comes too early is repeated.
        let name = format!("again{round}");
        until(
            async || match client.create_job(&group::spec(&name)).await {
                Ok(_) => true,
                Err(error) => error.to_string().contains("already exists"),
            },
        )
        .await;
        eprintln!(
            "etcd's leader was killed: {:?} to the next commit",
            begun.elapsed()
        );
        committed.push(name);
        testbed.etcd.restart(lost);
    }
    assert_eq!(names(&client).await, committed);
    let leader = group::only_leader(&nodes).await;
    nodes[leader].is_whole().await;
}

/// The controllers that have no etcd for a while.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// All of them: etcd pauses.
    Pause,
    /// All of them: their bytes to etcd are held back, or their connections break.
    Partition { swallow: bool },
    /// The leader alone. The standby takes over.
    PartitionOfLeader,
}

impl Outage {
    fn begin(self, testbed: &Testbed) {
        match self {
            Outage::Pause => testbed.etcd.pause(true),
            Outage::Partition { swallow } => {
                (0..2).for_each(|at| testbed.partition_from_etcd(at, swallow));
            }
            Outage::PartitionOfLeader => testbed.partition_from_etcd(0, true),
        }
    }

    fn end(self, testbed: &Testbed) {
        match self {
            Outage::Pause => testbed.etcd.pause(false),
            Outage::Partition { .. } | Outage::PartitionOfLeader => {
                (0..2).for_each(|at| testbed.heal(at));
            }
        }
    }
}

#[tokio::test]
async fn a_paused_etcd_loses_and_repeats_no_job() {
    an_outage_loses_and_repeats_no_job(Outage::Pause).await;
}

#[tokio::test]
async fn a_partition_from_etcd_loses_and_repeats_no_job() {
    for &swallow in ultima_testing::per_run(&[true][..], &[true, false][..]) {
        an_outage_loses_and_repeats_no_job(Outage::Partition { swallow }).await;
    }
}

#[tokio::test]
async fn a_partition_of_the_leader_loses_and_repeats_no_job() {
    an_outage_loses_and_repeats_no_job(Outage::PartitionOfLeader).await;
}

/// Controllers have no etcd for longer than the lease while clients create jobs. The clients repeat requests without an answer
/// with the same key.
async fn an_outage_loses_and_repeats_no_job(outage: Outage) {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let mut nodes = testbed.pair().await;
    let addresses = nodes.each_ref().map(|it| it.handle().address().to_string());
    let acknowledged = RefCell::new(Vec::new());
    let create = async |prefix: &str| {
        let client = Client::connect(&addresses.join(",")).await.unwrap();
        for number in 0..ultima_testing::per_run(8, 20) {
            let job = JobSpec {
                request: rand::random_range(1..=u64::MAX),
                ..group::spec(&format!("{prefix}{number}"))
            };
            until(async || client.create_job(&job).await.is_ok()).await;
            acknowledged.borrow_mut().push(job.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let count = || acknowledged.borrow().len();
    let interrupt = async {
        until(async || count() >= 4).await;
        outage.begin(&testbed);
        let begun = count();
        let rest = ultima_testing::per_run(300, 5000);
        tokio::time::sleep(LEASE + Duration::from_millis(rest)).await;
        assert!(!nodes[0].is_leader(), "leads without a lease");
        match outage {
            Outage::PartitionOfLeader => nodes[1].leads().await,
            Outage::Pause | Outage::Partition { .. } => {
                assert!(!nodes[1].is_leader(), "leads without a lease");
                // Each client may have had a request that was committed.
                assert!(count() <= begun + 4, "commits without etcd");
            }
        }
        outage.end(&testbed);
        begun
    };
    let (begun, ..) = tokio::join!(
        interrupt,
        create("a"),
        create("b"),
        create("c"),
        create("d")
    );
    eprintln!(
        "{outage:?}: {begun} of {} jobs were created before it",
        count()
    );
    assert!(begun + 4 < count(), "the outage came too late");
    let mut expected = acknowledged.take();
    expected.sort();
    let found = async |node: &group::Node| {
        let mut found = names(&node.client().await).await;
        found.sort();
        found
    };
    let leader = group::only_leader(&nodes).await;
    assert_eq!(found(&nodes[leader]).await, expected);
    nodes[leader].is_whole().await;
    // The next leader reads all of etcd.
    nodes[leader].end().await;
    nodes[1 - leader].leads().await;
    assert_eq!(found(&nodes[1 - leader]).await, expected);
}

/// A full etcd refuses all changes. The leader keeps its lease and its switches.
#[tokio::test]
async fn a_full_etcd_refuses_changes_and_loses_no_job() {
    let Some(testbed) = Testbed::new(1).await else {
        return;
    };
    let node = testbed.start(0).await;
    node.leads().await;
    let client = node.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    let (jobs, held) = (client.jobs().await.unwrap(), testbed.held());

    testbed.etcd.fill(true);
    for refused in [
        client.create_job(&group::spec("two")).await.map(drop),
        client.delete_job("one").await.map(drop),
        client.join("one", "h1", Duration::ZERO).await.map(drop),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("compact and defragment etcd"), "{text}");
    }
    assert_eq!(client.jobs().await.unwrap(), jobs);
    assert_eq!(testbed.held(), held);
    assert!(node.is_leader());

    testbed.etcd.fill(false);
    client.create_job(&group::spec("two")).await.unwrap();
    client.delete_job("one").await.unwrap();
    assert_eq!(names(&client).await, ["two"]);
    node.is_whole().await;
}

/// A takeover rewrites the switches for its own fabric, so all should have the same one.
#[tokio::test]
async fn a_standby_with_another_fabric_says_so() {
    let Some(mut testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, mut second] = testbed.pair().await;
    second.stop();
    testbed.close_the_ring();
    let second = testbed.start(1).await;
    second
        .says("the fabric differs from that of the leader")
        .await;
    assert!(first.is_leader());
    // The leader restarts last.
    first.stop();
    second.leads().await;
    let first = testbed.start(0).await;
    first.knows(&second).await;
    assert_eq!(first.standing().await.problem, "");
}

/// A controller with a mistyped prefix is elected, and knows none of the jobs on the switches.
#[tokio::test]
async fn a_mistyped_prefix_leaves_running_jobs_alone() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let mut first = testbed.start(0).await;
    first.leads().await;
    let base = testbed.held();
    let client = first.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    let (held, updates) = (testbed.held(), testbed.updates());
    let why = "has jobs of another controller's store (1), and is left alone; \
               start the controller with the --state that has them, or remove them with --take-over";

    let mut other = testbed.start_with(1, "mistyped", false).await;
    other.leads().await;
    other.says(why).await;
    assert_eq!(other.standing().await.switches_led, 0);
    assert_eq!((testbed.held(), testbed.updates()), (held, updates));
    // The first controller is still the primary of all switches.
    client.create_job(&group::spec("more")).await.unwrap();
    first.is_whole().await;
    first.stop();
    other.stop();

    let mut other = testbed.start_with(1, "mistyped", true).await;
    other.leads().await;
    other.is_whole().await;
    assert_eq!(testbed.held(), base);
    let client = other.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    other.stop();

    // Its jobs have the ids of the first one's.
    let held = testbed.held();
    let mut first = testbed.start(0).await;
    first.leads().await;
    first.says(why).await;
    assert_eq!(first.standing().await.switches_led, 0);
    assert_eq!(testbed.held(), held);
    first.stop();
    let first = testbed.start_with(0, group::PREFIX, true).await;
    first.leads().await;
    first.is_whole().await;
    assert_eq!(names(&first.client().await).await, ["train", "more"]);
}

/// A controller that cannot read its store says why, and leads once the store is repaired.
#[tokio::test]
async fn an_unreadable_record_is_a_problem_until_it_is_repaired() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let job = format!("{}/jobs/00001", group::PREFIX);
    testbed.etcd.put(&job, "{");
    let nodes = [testbed.start(0).await, testbed.start(1).await];
    for node in &nodes {
        node.says("cannot lead: etcd://").await;
        node.says("job 1 cannot be read").await;
    }
    testbed.etcd.delete(&job);
    let leader = group::only_leader(&nodes).await;
    let standby = &nodes[1 - leader];
    standby.knows(&nodes[leader]).await;
    until(async || standby.standing().await.problem.is_empty()).await;
    assert_eq!(nodes[leader].standing().await.problem, "");
}

/// A switch that answers no reads does not delay the takeover of others.
#[tokio::test]
async fn a_stuck_switch_does_not_delay_a_takeover() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, second] = testbed.pair().await;
    // A new store would be checked before the role is asked for.
    let client = first.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    testbed.switches[2].state().stalls_reads = true;
    first.stop();
    second.leads().await;
    // A controller that had waited for the answer would have disconnected the switch.
    let switches = second.client().await.switches().await.unwrap();
    assert!(
        switches[2].problem.contains("not brought up within"),
        "{switches:?}"
    );
    testbed.switches[2].state().stalls_reads = false;
    second.is_whole().await;
}

/// Members find a new leader at different times.
#[tokio::test]
async fn members_that_find_the_new_leader_late_are_not_suspected() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let [mut first, second] = testbed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    let mut attendances = Vec::new();
    for host in ["h1", "h2", "h3"] {
        let seat = client.join("train", host, Duration::ZERO).await.unwrap();
        attendances.push(api::Attendance {
            slot_bytes: 1408,
            ..seat.attendance("train")
        });
    }
    first.stop();
    second.leads().await;
    let client = second.client().await;
    attendances.pop();
    for attendance in attendances {
        let client = client.clone();
        tokio::spawn(async move { test_agents::hold_session(&client, attendance).await });
    }
    // A member that had a session is suspected by then. The new leader waits longer for one that had none.
    assert!(TIMERS.members.takeover / 2 > TIMERS.members.suspicion);
    tokio::time::sleep(TIMERS.members.takeover * 3 / 4).await;
    let job = client.job("train").await.unwrap();
    let states = job.members.iter().map(api::Member::state);
    assert!(states.eq([MemberState::Joined; 3]), "{:?}", job.members);
}

/// A controller with another store would not know the jobs on the switches.
#[tokio::test]
async fn a_controller_without_etcd_does_not_take_over() {
    let Some(testbed) = Testbed::new(2).await else {
        return;
    };
    let mut first = testbed.start(0).await;
    first.leads().await;
    let refused = async || testbed.serve_alone(1).await.err().unwrap().to_string();
    let why = "had a later primary, elected in etcd's revision";
    let error = refused().await;
    assert!(error.contains(why), "{error}");
    first.stop();
    let error = refused().await;
    assert!(error.contains(why), "{error}");
}
