//! Installs jobs on switches that reject updates and disconnect.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use ultima_api::client::Client;
use ultima_controller::server::{self, Config, Handle};
use ultima_p4runtime::v1::update::Type;
use ultima_planner::fabric::Fabric;
use ultima_planner::job::{Gather, JobPolicy, JobSpec, PolicyChange, Weight};

use crate::batches::client;
use crate::chaos::{Call, ChaosSwitch, Fault};
use crate::several::several;
use crate::target::{Target, on_each_target};
use crate::testbed::{create, until};

on_each_target!(
    jobs_divide_a_trunks_rate,
    a_job_is_installed_and_removed_completely,
    a_rejected_update_is_repeated,
    a_restarted_switch_gets_all_entries_again,
    a_restarted_controller_writes_only_differences,
    a_pipeline_of_another_version_is_replaced,
    each_foreign_change_is_reported_and_repaired_with_one_update,
);

/// Two switches with a trunk and two hosts each.
fn fabric_on(target: Target, switches: &[ChaosSwitch; 2]) -> Fabric {
    let [s1, s2] = [&switches[0], &switches[1]].map(ChaosSwitch::address);
    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("127.0.0.1:9559", &s1.to_string())
        .replace("127.0.0.1:9560", &s2.to_string())
        .replace("device_id: 2", "device_id: 1");
    target.fabric(&text, "two.yaml")
}

async fn serve(target: Target, switches: &[ChaosSwitch; 2]) -> Handle {
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..target.config(fabric_on(target, switches))
    };
    server::serve(config).await.unwrap()
}

async fn two_switches(target: Target) -> [ChaosSwitch; 2] {
    [
        ChaosSwitch::start_as(target).await,
        ChaosSwitch::start_as(target).await,
    ]
}

async fn start(target: Target) -> ([ChaosSwitch; 2], Handle) {
    let switches = two_switches(target).await;
    let handle = serve(target, &switches).await;
    (switches, handle)
}

fn spec(name: &str) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, ["h1", "h3", "h2", "h1", "h4"])
    }
}

/// Starts like [`start`], with a rate on the trunk.
async fn start_rated(target: Target) -> ([ChaosSwitch; 2], Handle) {
    let switches = two_switches(target).await;
    let [s1, s2] = [&switches[0], &switches[1]].map(ChaosSwitch::address);
    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("127.0.0.1:9559", &s1.to_string())
        .replace("127.0.0.1:9560", &s2.to_string())
        .replace("device_id: 2", "device_id: 1")
        .replace("[s1/9, s2/9] }", "[s1/9, s2/9], rate: 800M, queue: 256k }");
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..target.config_for(&text, "rated.yaml")
    };
    let handle = server::serve(config).await.unwrap();
    (switches, handle)
}

/// A job across the trunk, with this weight.
fn across(name: &str, weight: u32) -> JobSpec {
    JobSpec {
        members: ["h1", "h3"].map(String::from).to_vec(),
        policy: JobPolicy {
            weight: Weight::try_from(weight).unwrap(),
            ..JobPolicy::default()
        },
        ..spec(name)
    }
}

/// The rates of a switch's virtual queues in bytes per second, sorted.
fn rates(switch: &ChaosSwitch) -> Vec<i64> {
    let meters = switch.meters();
    assert!(meters.values().all(|meter| meter.cir == meter.pir));
    let mut rates: Vec<i64> = meters.values().map(|meter| meter.cir).collect();
    rates.sort_unstable();
    rates
}

/// 95 % of 800 Mbit/s.
const TRUNK: i64 = 95_000_000;

async fn jobs_divide_a_trunks_rate(target: Target) {
    let (switches, handle) = start_rated(target).await;
    let controller = handle.controller();
    let both = |expected: &[i64]| {
        for switch in &switches {
            let expected: Vec<i64> = expected.iter().map(|rate| target.rate(*rate)).collect();
            assert_eq!(rates(switch), expected);
        }
    };
    both(&[TRUNK]);
    create(controller, &across("one", 1)).await.unwrap();
    both(&[TRUNK]);
    create(controller, &across("two", 4)).await.unwrap();
    both(&[TRUNK / 5, TRUNK / 5 * 4, TRUNK]);

    // A restarted switch gets all rates again.
    let clients = switches[0].streams();
    switches[0].reboot();
    back(&handle, &switches[0], clients).await;
    both(&[TRUNK / 5, TRUNK / 5 * 4, TRUNK]);
    create(controller, &across("three", 5)).await.unwrap();
    both(&[TRUNK / 10, TRUNK / 10 * 4, TRUNK / 2, TRUNK]);

    controller.delete_job("two").await.unwrap();
    both(&[TRUNK / 6, TRUNK * 5 / 6, TRUNK]);
    controller.delete_job("three").await.unwrap();
    both(&[TRUNK]);
}

/// For each write of the new job that fails: it is repeated.
#[tokio::test]
async fn a_failed_write_leaves_right_rates() {
    let (switches, handle) = start_with_two().await;
    let updates = switches[1].updates();
    let three = across("three", 1);
    create(handle.controller(), &three).await.unwrap();
    let updates = switches[1].updates() - updates;
    let with_three = switches.each_ref().map(rates);
    handle.stop().await;

    let faults = [Fault::Refuse, Fault::Disconnect, Fault::DoAndDisconnect];
    several(in_parts(&faults, updates).map(|(fault, part)| {
        let name = format!("{fault:?} at updates {part:?}");
        let (three, with_three) = (&three, &with_three);
        let case = async move {
            let (switches, handle) = start_with_two().await;
            let controller = handle.controller();
            let before = switches.each_ref().map(ChaosSwitch::meters);
            for nth in some_of(part) {
                switches[1].fail_at(nth, fault);
                let created = create(controller, three).await.unwrap();
                assert!(created.status.unwrap().is_ready);
                assert_eq!(switches[1].armed(), 0, "{fault:?} at update {nth}");
                let now = switches.each_ref().map(rates);
                assert_eq!(now, *with_three, "after {fault:?} at update {nth}");
                controller.delete_job("three").await.unwrap();
                let meters = switches.each_ref().map(ChaosSwitch::meters);
                assert_eq!(meters, before, "after {fault:?} at update {nth}");
            }
        };
        (name, case)
    }))
    .await;
}

/// A policy changes with single updates: the job's row and the meters of shares. It is on no switch that is away, and comes there
/// with it.
#[tokio::test]
async fn a_policy_changes_in_place() {
    let (switches, handle) = start_with_two().await;
    let controller = handle.controller();
    let log = || switches.each_ref().map(|switch| switch.take_log());
    let before = switches.each_ref().map(ChaosSwitch::updates);
    let change = |weight, loss_threshold, evict_after_s| PolicyChange {
        weight,
        loss_threshold,
        evict_after_s,
    };
    log();
    let update = async |change| controller.update_job("one", change).await.unwrap();
    let state = update(change(Some(4), Some(9), None)).await;
    assert_eq!(state.status.as_ref().map(|it| it.conditions.len()), Some(0));
    let shared = [TRUNK / 5, TRUNK / 5 * 4, TRUNK].map(|rate| Target::of_run().rate(rate));
    for (switch, before) in switches.iter().zip(before) {
        assert_eq!(rates(switch), shared);
        assert_eq!(switch.updates() - before, 3, "a row and two meters");
    }
    let done = log();
    let mut done = done.iter().flatten();
    assert!(done.all(|done| done.kind == Type::Modify));
    // The policy of evictions is the controller's alone. The same policy is no change.
    let before = switches.each_ref().map(ChaosSwitch::updates);
    update(change(None, None, Some(60))).await;
    let state = update(change(Some(4), None, Some(60))).await;
    let policy = state.job.policy;
    assert_eq!((policy.loss_threshold, policy.eviction.seconds()), (9, 60));
    assert_eq!(switches.each_ref().map(ChaosSwitch::updates), before);
    let client = Client::connect(&handle.address().to_string()).await;
    let events = client.unwrap().events("job/one").await.unwrap();
    let changes = events.iter().filter(|event| event.reason == "Changed");
    let changes: Vec<&str> = changes.map(|event| &*event.message).collect();
    let change_to = |seconds| format!("weight 4, loss_threshold 9, evict_after_s {seconds}");
    assert_eq!(changes, [change_to(0), change_to(60)]);
    let refused = controller.update_job("one", change(Some(101), None, None));
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("use a weight of 1 to 100"), "{refused}");

    let clients = switches[0].streams();
    switches[0].refuse(true);
    switches[0].cut();
    update(change(Some(1), Some(0), None)).await;
    switches[0].refuse(false);
    back(&handle, &switches[0], clients).await;
    let halves = [TRUNK / 2, TRUNK / 2, TRUNK].map(|rate| Target::of_run().rate(rate));
    for switch in &switches {
        until(async || rates(switch) == halves).await;
    }
}

/// Starts like [`start_rated`], with two jobs that share the trunk.
async fn start_with_two() -> ([ChaosSwitch; 2], Handle) {
    let (switches, handle) = start_rated(Target::of_run()).await;
    for name in ["one", "two"] {
        let created = create(handle.controller(), &across(name, 1)).await;
        created.unwrap();
    }
    (switches, handle)
}

/// A job is deleted while a switch is disconnected. The remaining job gets the whole trunk, also if the switch restarted.
#[tokio::test]
async fn rates_are_right_when_a_switch_reconnects() {
    let (switches, handle) = start_rated(Target::of_run()).await;
    let controller = handle.controller();
    let alone = switches.each_ref().map(ChaosSwitch::meters);
    for restarted in [false, true] {
        create(controller, &across("one", 1)).await.unwrap();
        create(controller, &across("two", 1)).await.unwrap();
        assert_ne!(switches.each_ref().map(ChaosSwitch::meters), alone);
        let clients = switches[0].streams();
        match restarted {
            true => switches[0].reboot(),
            false => switches[0].cut(),
        }
        controller.delete_job("two").await.unwrap();
        back(&handle, &switches[0], clients).await;
        let divided = async {
            while switches.each_ref().map(ChaosSwitch::meters) != alone {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let divided = tokio::time::timeout(Duration::from_secs(10), divided).await;
        divided.expect("the rates are those of one job");
        controller.delete_job("one").await.unwrap();
    }
}

/// Waits until the controller has connected to a switch again that had seen `clients` streams.
async fn back(handle: &Handle, switch: &ChaosSwitch, clients: u64) {
    while switch.streams() == clients {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    connected(handle).await;
}

/// Waits until the controller is connected to all switches, and leftovers are removed.
async fn connected(handle: &Handle) {
    while handle
        .controller()
        .switches()
        .iter()
        .any(|switch| switch.problem.is_some())
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_job_is_installed_and_removed_completely(target: Target) {
    let (switches, handle) = start(target).await;
    let base = switches.each_ref().map(ChaosSwitch::held);
    assert_eq!(
        base.each_ref().map(|held| held.len()),
        [10, 10],
        "a route and a neighbor per host; the session and the digest that report losses"
    );

    create(handle.controller(), &spec("train")).await.unwrap();
    // s1 has 3 of the 5 ranks: group, 3 replicas, 5 destinations, job, 5 sources; shares of 2 host ports and of the
    // trunk. s2 has 2 ranks.
    assert_eq!(
        switches.each_ref().map(|switch| switch.held().len()),
        [10 + 15 + 3, 10 + 14 + 3]
    );

    assert_eq!(handle.controller().delete_job("train").await.unwrap(), []);
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
}

async fn a_rejected_update_is_repeated(target: Target) {
    let (switches, handle) = start(target).await;
    let controller = handle.controller();
    let base = switches.each_ref().map(ChaosSwitch::held);
    let before = switches[1].updates();
    create(controller, &spec("train")).await.unwrap();
    let updates = switches[1].updates() - before;
    let sizes = switches.each_ref().map(|switch| switch.held().len());
    controller.delete_job("train").await.unwrap();
    assert!(updates > 14, "{updates} updates");

    for nth in some_of(0..updates) {
        switches[1].fail_at(nth, Fault::Refuse);
        let created = create(controller, &spec("train")).await.unwrap();
        let status = created.status.unwrap();
        assert_eq!((status.is_ready, status.conditions), (true, Vec::new()));
        assert_eq!(switches[1].armed(), 0);
        assert_eq!(
            switches.each_ref().map(|switch| switch.held().len()),
            sizes,
            "after update {nth} was refused"
        );
        assert_eq!(controller.delete_job("train").await.unwrap(), []);
        assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
    }
}

/// The job with the refused entries is degraded. Another one is created and deleted meanwhile.
#[tokio::test]
async fn a_switch_that_refuses_delays_only_its_jobs() {
    let (switches, handle) = start(Target::of_run()).await;
    let controller = handle.controller();
    let base = switches.each_ref().map(ChaosSwitch::held);
    // More updates than are tried.
    (0..100_000).for_each(|nth| switches[1].fail_at(nth, Fault::Refuse));
    let ids = controller.create_jobs(&[spec("train")]).await.unwrap();
    let states = controller
        .until_ready(&ids, Duration::from_millis(100))
        .await;
    let [state] = &states.unwrap()[..] else {
        panic!("one job")
    };
    let status = state.status.as_ref().unwrap();
    assert!(!status.is_ready);
    let [condition] = &status.conditions[..] else {
        panic!("only s2: {status:?}")
    };
    assert_eq!((condition.switch.0, condition.is_degraded), (1, true));
    let reason = &condition.reason;
    assert!(reason.starts_with("switch s2 refused "), "{reason}");
    assert!(
        reason.ends_with(": RESOURCE_EXHAUSTED: on purpose"),
        "{reason}"
    );
    let refused = controller.join("train", "h1", 1, None).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.starts_with("job train is not ready: switch s2: "),
        "{refused}"
    );

    let near = JobSpec {
        members: ["h1", "h2"].map(String::from).to_vec(),
        ..spec("near")
    };
    let created = create(controller, &near).await.unwrap();
    assert!(created.status.unwrap().is_ready);
    assert_eq!(controller.delete_job("near").await.unwrap(), []);

    assert!(switches[1].forgive() > 0);
    let states = controller.until_ready(&ids, Duration::from_secs(60)).await;
    assert!(states.unwrap()[0].status.as_ref().unwrap().is_ready);
    assert_eq!(controller.delete_job("train").await.unwrap(), []);
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
}

#[tokio::test]
async fn a_repeated_request_is_the_same_job() {
    let (_switches, handle) = start(Target::of_run()).await;
    let controller = handle.controller();
    let keyed = |request| JobSpec {
        request,
        ..spec("train")
    };
    let created = create(controller, &keyed(5)).await.unwrap();
    let again = create(controller, &keyed(5)).await.unwrap();
    assert_eq!(created.job, again.job);
    // A repeated request may come after an update.
    let change = PolicyChange {
        weight: Some(2),
        ..PolicyChange::default()
    };
    let updated = controller.update_job("train", change).await.unwrap();
    let again = create(controller, &keyed(5)).await.unwrap();
    assert_eq!(updated.job, again.job);
    let others = [
        (keyed(6), "job train already exists"),
        (keyed(0), "job train already exists"),
        (
            JobSpec {
                gather: Gather::Unicast,
                ..keyed(5)
            },
            "job train: this idempotency key has created job train with other settings",
        ),
    ];
    for (other, says) in others {
        let refused = create(controller, &other).await.unwrap_err();
        assert!(refused.to_string().starts_with(says), "{refused}");
    }
    controller.delete_job("train").await.unwrap();
    let created = create(controller, &keyed(5)).await.unwrap();
    assert_ne!(created.job.id, again.job.id);
}

#[tokio::test]
async fn a_write_is_repeated_after_a_broken_connection() {
    let (switches, handle) = start(Target::of_run()).await;
    let before = switches[0].updates();
    let created = create(handle.controller(), &spec("train")).await;
    created.unwrap();
    let updates = switches[0].updates() - before;
    let sizes = switches.each_ref().map(|switch| switch.held().len());
    handle.stop().await;

    let faults = [Fault::Disconnect, Fault::DoAndDisconnect];
    several(in_parts(&faults, updates).map(|(fault, part)| {
        let name = format!("{fault:?} at updates {part:?}");
        let case = async move {
            let (switches, handle) = start(Target::of_run()).await;
            let controller = handle.controller();
            let base = switches.each_ref().map(ChaosSwitch::held);
            for nth in some_of(part) {
                switches[0].fail_at(nth, fault);
                let created = create(controller, &spec("train")).await.unwrap();
                assert!(created.status.unwrap().is_ready);
                let held = switches.each_ref().map(|switch| switch.held().len());
                assert_eq!(held, sizes, "{fault:?} at update {nth}");
                assert_eq!(controller.delete_job("train").await.unwrap(), []);
                let held = switches.each_ref().map(ChaosSwitch::held);
                assert_eq!(held, base, "{fault:?} at update {nth}");
            }
        };
        (name, case)
    }))
    .await;
}

/// All of these indexes in a full run, else every fourth one and the last.
fn some_of(indexes: Range<usize>) -> impl Iterator<Item = usize> {
    let last = indexes.end - 1;
    indexes.filter(move |nth| ultima_testing::full() || nth % 4 == 0 || *nth == last)
}

/// Each fault with a quarter of the updates at a time.
fn in_parts(faults: &[Fault], updates: usize) -> impl Iterator<Item = (Fault, Range<usize>)> {
    const PARTS: usize = 4;
    assert!(updates >= PARTS);
    let parts = (0..PARTS).map(move |part| part * updates / PARTS..(part + 1) * updates / PARTS);
    (faults.iter()).flat_map(move |fault| parts.clone().map(|part| (*fault, part)))
}

/// Another client wrote an entry where the job's entry belongs. Without repairs, too, the job gets its own.
#[tokio::test]
async fn foreign_entries_in_a_jobs_place_are_replaced() {
    for repair in [true, false] {
        let switches = two_switches(Target::of_run()).await;
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            repair,
            audit_every: Duration::from_secs(600),
            ..Target::of_run().config(fabric_on(Target::of_run(), &switches))
        };
        let handle = server::serve(config).await.unwrap();
        let controller = handle.controller();
        create(controller, &spec("train")).await.unwrap();
        let admitted = switches[1].held();
        controller.delete_job("train").await.unwrap();
        let base = switches.each_ref().map(ChaosSwitch::held);

        // The next job gets other ids, but the same group and index.
        let is_group = |entity: &ultima_p4runtime::v1::Entity| {
            use ultima_p4runtime::v1::entity::Entity::PacketReplicationEngineEntry;
            matches!(&entity.entity, Some(PacketReplicationEngineEntry(_)))
        };
        let theirs = admitted
            .into_iter()
            .find(|(key, entity)| !base[1].contains_key(key) && is_group(entity))
            .unwrap();
        switches[1].state().held.insert(theirs.0.clone(), theirs.1);
        let created = create(controller, &spec("train")).await.unwrap();
        assert!(created.status.unwrap().is_ready);
        controller.delete_job("train").await.unwrap();
        assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
    }
}

/// A restarted switch may keep its program. It was not emptied on purpose, so it is filled without repairs, too.
#[tokio::test]
async fn an_empty_switch_is_filled_even_without_repairs() {
    let switches = two_switches(Target::of_run()).await;
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        repair: false,
        audit_every: Duration::from_secs(600),
        ..Target::of_run().config(fabric_on(Target::of_run(), &switches))
    };
    let handle = server::serve(config).await.unwrap();
    let job = spec("train");
    create(handle.controller(), &job).await.unwrap();
    let whole = switches[1].held();
    switches[1].state().held.clear();
    switches[1].cut();
    while switches[1].held() != whole {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_restarted_switch_gets_all_entries_again(target: Target) {
    let (switches, handle) = start(target).await;
    create(handle.controller(), &spec("train")).await.unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    switches[1].reboot();
    while switches[1].held() != whole[1] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    connected(&handle).await;
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), whole);
    handle.controller().delete_job("train").await.unwrap();
}

#[tokio::test]
async fn a_reconnected_switch_is_not_written_again() {
    let (switches, handle) = start(Target::of_run()).await;
    create(handle.controller(), &spec("train")).await.unwrap();
    let updates = switches[0].updates();
    switches[0].cut();
    while switches[0].streams() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    connected(&handle).await;
    assert_eq!(switches[0].updates(), updates);
}

/// A new controller keeps the program and removes only entries of unknown jobs.
async fn a_restarted_controller_writes_only_differences(target: Target) {
    let switches = two_switches(target).await;
    let handle = serve(target, &switches).await;
    let base = switches.each_ref().map(ChaosSwitch::held);
    let updates = switches.each_ref().map(ChaosSwitch::updates);
    handle.stop().await;
    let handle = serve(target, &switches).await;
    assert_eq!(switches.each_ref().map(ChaosSwitch::updates), updates);

    create(handle.controller(), &spec("train")).await.unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    handle.stop().await;
    let updates = switches.each_ref().map(ChaosSwitch::updates);
    let handle = serve(target, &switches).await;
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
    for at in [0, 1] {
        let stale = whole[at].len() - base[at].len();
        assert_eq!(switches[at].updates() - updates[at], stale, "one each");
    }
    create(handle.controller(), &spec("train")).await.unwrap();
}

/// The switch keeps its groups, as BMv2 does.
async fn a_pipeline_of_another_version_is_replaced(target: Target) {
    let (switches, handle) = start(target).await;
    create(handle.controller(), &spec("train")).await.unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    {
        let mut state = switches[1].state();
        let cookie = state.pipeline.as_mut().unwrap().cookie.as_mut().unwrap();
        cookie.cookie ^= 1;
        state.held.retain(|_, entity| {
            matches!(
                entity.entity,
                Some(ultima_p4runtime::v1::entity::Entity::PacketReplicationEngineEntry(_))
            )
        });
    }
    let clients = switches[1].streams();
    switches[1].cut();
    back(&handle, &switches[1], clients).await;
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), whole);
}

/// One entry is removed and another one changed at a time.
async fn each_foreign_change_is_reported_and_repaired_with_one_update(target: Target) {
    let (switches, handle) = start(target).await;
    let controller = handle.controller();
    create(controller, &spec("train")).await.unwrap();
    let whole = switches[0].held();
    let all = || async {
        let audit = controller.audit(false).await;
        let names = target.program();
        let of = |(_, diff): &(_, Result<ultima_planner::reconcile::Diff, String>)| {
            let diff = diff.as_ref().unwrap();
            let texts = diff
                .differences()
                .iter()
                .map(|it| it.describe(names.names()).to_string());
            texts.collect::<Vec<_>>()
        };
        audit.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(all().await, [[""; 0], []]);

    let keys: Vec<Vec<u8>> = whole.keys().cloned().collect();
    for at in some_of(0..keys.len()) {
        let key = &keys[at];
        // One entry is removed, and the next one has another action.
        spoil(&switches[0], key, &keys[(at + 1) % keys.len()]);
        let differences = all().await;
        assert!((1..=2).contains(&differences[0].len()), "{differences:?}");
        assert!(
            differences[0]
                .iter()
                .any(|text| text.contains(": missing, expected ")),
            "{differences:?}"
        );
        assert_eq!(differences[1].len(), 0);

        let updates = switches[0].updates();
        let mended = controller.audit(true).await;
        assert_eq!(
            mended[0].1.as_ref().unwrap().differences().len(),
            differences[0].len()
        );
        assert_eq!(switches[0].updates() - updates, differences[0].len());
        assert_eq!(switches[0].held(), whole);
    }
    assert_eq!(all().await, [[""; 0], []]);
}

#[tokio::test]
async fn one_comparison_answers_all_waiting_requests() {
    let (switches, handle) = start(Target::of_run()).await;
    let controller = handle.controller();
    let reads = || switches[0].calls(Call::Read);
    let before = reads();
    controller.audit(false).await;
    let one = reads() - before;
    let all = join_all((0..32).map(|_| controller.audit(false))).await;
    let is_clean = |(_, diff): &(_, Result<ultima_planner::reconcile::Diff, String>)| {
        diff.as_ref().is_ok_and(|it| it.is_empty())
    };
    assert!(all.iter().flatten().all(is_clean), "{all:?}");
    // One for the first request, and one for those that came meanwhile.
    let reads = reads() - before - one;
    assert!(reads <= 2 * one, "{reads} reads, {one} for one comparison");
}

/// Without repairs, changes stay until `audit` is asked to repair them.
#[tokio::test]
async fn foreign_changes_are_repaired_only_with_repairs() {
    for repair in [true, false] {
        let switches = two_switches(Target::of_run()).await;
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            repair,
            audit_every: Duration::from_millis(20),
            ..Target::of_run().config(fabric_on(Target::of_run(), &switches))
        };
        let handle = server::serve(config).await.unwrap();
        let controller = handle.controller();
        create(controller, &spec("train")).await.unwrap();
        let switch = &switches[0];
        let whole = switch.held();
        let keys: Vec<Vec<u8>> = whole.keys().cloned().collect();
        spoil(switch, &keys[0], &keys[1]);
        let spoilt = switch.held();
        match repair {
            true => {
                while switch.held() != whole {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            false => {
                // With repairs one audit suffices.
                let looks = switch.calls(Call::Read);
                while switch.calls(Call::Read) < looks + 20 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(switch.held(), spoilt);
                controller.audit(true).await;
                assert_eq!(switch.held(), whole);
            }
        }
    }
}

/// Removes one entry of a switch, and changes the action of another one.
fn spoil(switch: &ChaosSwitch, gone: &Vec<u8>, other: &Vec<u8>) {
    use ultima_p4runtime::v1::{entity, table_action};
    let mut state = switch.state();
    state.held.remove(gone);
    let other = state.held.get_mut(other).and_then(|it| it.entity.as_mut());
    if let Some(entity::Entity::TableEntry(entry)) = other
        && let Some(action) = entry.action.as_mut().and_then(|it| it.r#type.as_mut())
        && let table_action::Type::Action(action) = action
    {
        action.action_id ^= 1;
    }
}

/// A periodic audit repairs the change.
#[tokio::test]
async fn switches_are_audited_periodically() {
    let switches = two_switches(Target::of_run()).await;
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        audit_every: Duration::from_millis(20),
        ..Target::of_run().config(fabric_on(Target::of_run(), &switches))
    };
    let handle = server::serve(config).await.unwrap();
    create(handle.controller(), &spec("train")).await.unwrap();
    let whole = switches[0].held();
    switches[0].state().held.pop_first().unwrap();
    while switches[0].held() != whole {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_second_controller_is_rejected() {
    let (switches, handle) = start(Target::of_run()).await;
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        startup_timeout: Duration::from_millis(300),
        ..Target::of_run().config(fabric_on(Target::of_run(), &switches))
    };
    let error = server::serve(config)
        .await
        .map(|_| ())
        .unwrap_err()
        .to_string();
    let s1 = switches[0].address();
    assert_eq!(
        error,
        format!(
            "switch s1 at {s1} has another primary: the election id is in use; stop the other controller first"
        )
    );
    create(handle.controller(), &spec("train")).await.unwrap();
}

#[tokio::test]
async fn a_client_with_a_higher_election_id_is_noticed() {
    let (switches, handle) = start(Target::of_run()).await;
    let other = client(&switches[0], u128::MAX).await;
    let controller = handle.controller();
    let ids = controller.create_jobs(&[spec("train")]).await.unwrap();
    let noticed = || {
        let status = controller.job("train").unwrap().status.unwrap();
        let reasons = status.conditions.into_iter().map(|it| it.reason);
        reasons
            .into_iter()
            .any(|reason| reason.contains("another client is"))
    };
    while !noticed() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(other);
    let ready = controller.until_ready(&ids, Duration::from_secs(60)).await;
    assert!(ready.unwrap()[0].status.as_ref().unwrap().is_ready);
}

#[tokio::test]
async fn each_unusable_switch_is_reported_in_one_line() {
    let switches = two_switches(Target::of_run()).await;
    let good = fabric_on(Target::of_run(), &switches);
    let s1 = switches[0].address().to_string();
    let text = format!(
        "switches:\n  - {{ name: s1, target: v1model, grpc: \"{s1}\", device_id: 9 }}\nhosts: []\nlinks: []"
    );
    let config = |fabric| Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        startup_timeout: Duration::from_millis(300),
        ..Target::of_run().config(fabric)
    };
    let line = |config| async {
        server::serve(config)
            .await
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };

    assert_eq!(
        line(config(Target::of_run().fabric(&text, "f"))).await,
        format!(
            "{s1} has no device 9: there is no device 9; correct the `device_id` of switch s1 in the fabric file"
        )
    );

    // A port without a listener.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let text = text.replace(&s1, &silent);
    assert_eq!(
        line(config(Target::of_run().fabric(&text, "f"))).await,
        format!(
            "switch s1 at {silent} does not answer within 0.3 s: Connection refused (os error 111); start it, or correct its `grpc` or `tls` in the fabric file"
        )
    );

    // A server that accepts connections and sends nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let text = text.replace(&silent, &address);
    assert_eq!(
        line(config(Target::of_run().fabric(&text, "f"))).await,
        format!(
            "switch s1 at {address} does not answer within 0.3 s: no answer to a read of its program or jobs; start it, or correct its `grpc` or `tls` in the fabric file"
        )
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    assert_eq!(
        line(Config {
            listen: listen.into(),
            ..config(good)
        })
        .await,
        format!(
            "cannot listen on {listen}: Address already in use (os error 98); choose another address with --listen"
        )
    );
}
