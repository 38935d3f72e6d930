//! Reroutes jobs and routes when switches fail and come back, and when elements are drained. Whatever fails meanwhile, the
//! switches match the plan in the end.

use std::collections::BTreeSet;
use std::time::Duration;

use ultima_api::client::Client;
use ultima_controller::server::{self, Config, Handle, ServeError, Timers};
use ultima_controller::store::StoreError;
use ultima_p4runtime::v1::update::Type;
use ultima_planner::fabric::Element;
use ultima_planner::fabric::damping::DampingConfig;
use ultima_planner::job::{Gather, JobSpec};

use crate::chaos::{Call, ChaosSwitch, Fault};
use crate::several::several;
use crate::target::{Target, on_each_target};
use crate::testbed::{FOREVER, TIMERS, until};

/// Two spines and four leaves with two hosts each. The spines come first.
const TOPOLOGY: &str = include_str!("../../../topologies/leaf-spine.yaml");
const SPINE1: usize = 0;
const LEAF1: usize = 2;
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

/// Shorter times than an operator's.
const DAMPING: DampingConfig = DampingConfig {
    grace: Duration::from_millis(50),
    hold_first: Duration::from_millis(50),
    hold_most: Duration::from_secs(600),
    quiet: Duration::from_secs(600),
};
/// A change's time while a reroute waits.
const CHANGE: Duration = Duration::from_millis(40);

/// A grace longer than a test: an element that comes back was never down.
const LONG_GRACE: DampingConfig = DampingConfig {
    grace: Duration::from_secs(600),
    ..DAMPING
};

on_each_target!(
    links_are_drained_by_either_end_and_cut_off_hosts_named,
    a_job_leaves_a_link_whose_port_is_reported_down,
);

async fn start() -> (Vec<ChaosSwitch>, Handle, Client) {
    start_with(DAMPING).await
}

async fn start_with(damping: DampingConfig) -> (Vec<ChaosSwitch>, Handle, Client) {
    start_on(Target::of_run(), damping).await
}

async fn start_on(target: Target, damping: DampingConfig) -> (Vec<ChaosSwitch>, Handle, Client) {
    let (switches, config) = fabric_with(target, "").await;
    let (handle, client) = serve(Config { damping, ..config }).await;
    (switches, handle, client)
}

/// The switches, where spine2 has these `settings`, and the controller's configuration.
async fn fabric_with(target: Target, settings: &str) -> (Vec<ChaosSwitch>, Config) {
    let mut switches = Vec::new();
    let mut text = TOPOLOGY.to_owned();
    for name in NAMES {
        let switch = ChaosSwitch::start_as(target).await;
        let settings = if name == "spine2" { settings } else { "" };
        let address = switch.address();
        let entry = format!("name: {name}, grpc: \"{address}\", device_id: 1, {settings}");
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
        switches.push(switch);
    }
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        damping: DAMPING,
        timers: Timers {
            change: CHANGE,
            ..TIMERS
        },
        ..target.config_for(&text, "leaf-spine.yaml")
    };
    (switches, config)
}

async fn serve(config: Config) -> (Handle, Client) {
    let handle = loop {
        match server::serve(config.clone()).await {
            // Tasks of the stopped controller, which ran in this process, may still hold the store.
            Err(ServeError::Store(StoreError::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            served => break served.unwrap(),
        }
    };
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    (handle, client)
}

fn spec(name: &str) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, ["h1", "h4", "h5", "h8"])
    }
}

async fn health(client: &Client, switch: usize) -> String {
    client.switches().await.unwrap()[switch].health.clone()
}

async fn switches_of(client: &Client, job: &str) -> BTreeSet<String> {
    client
        .job(job)
        .await
        .unwrap()
        .switches
        .into_iter()
        .collect()
}

/// Returns true if all connected switches match the plan.
async fn is_whole(handle: &Handle) -> bool {
    let audit = handle.controller().audit(false).await;
    audit
        .iter()
        .all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
}

/// Waits until a switch is in use again and all switches match the plan.
async fn comes_back(handle: &Handle, client: &Client, switch: usize) {
    until(async || health(client, switch).await.is_empty()).await;
    until(async || is_whole(handle).await).await;
}

fn updates(switches: &[ChaosSwitch]) -> Vec<usize> {
    switches.iter().map(ChaosSwitch::updates).collect()
}

#[tokio::test]
async fn jobs_leave_a_failed_spine_and_it_is_used_again_after_its_hold_time() {
    let (mut switches, handle, client) = start().await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let both: BTreeSet<String> = NAMES.map(String::from).into();
    assert_eq!(switches_of(&client, "one").await, both);
    let spine = switches.remove(SPINE1);
    spine.refuse(true);
    until(async || health(&client, SPINE1).await == "down").await;
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    let without: BTreeSet<String> = NAMES[1..].iter().map(ToString::to_string).collect();
    for name in ["one", "two"] {
        assert_eq!(switches_of(&client, name).await, without);
    }
    // A new job avoids the failed spine.
    client.create_job(&spec("three")).await.unwrap();
    assert_eq!(switches_of(&client, "three").await, without);

    spine.refuse(false);
    until(async || health(&client, SPINE1).await.is_empty()).await;
    until(async || switches_of(&client, "one").await == both).await;
    until(async || is_whole(&handle).await).await;
    // Trees stay on spine2; the next job takes spine1, which has none.
    assert!(groups(&spine) == 0 && groups(&switches[0]) == 3);
    client.create_job(&spec("four")).await.unwrap();
    assert_eq!(groups(&spine), 1);
}

/// A hanging switch closes no stream and accepts connections.
#[tokio::test]
async fn jobs_leave_a_spine_that_hangs() {
    let (switches, handle, client) = start().await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let spine = &switches[SPINE1];
    spine.swallow(true);
    until(async || health(&client, SPINE1).await == "down").await;
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    until(async || is_whole_but(&handle, SPINE1).await).await;
    let states = client.switches().await.unwrap();
    assert!(!states[SPINE1].connected && !states[SPINE1].problem.is_empty());

    spine.swallow(false);
    comes_back(&handle, &client, SPINE1).await;
}

#[tokio::test]
async fn a_hanging_leaf_does_not_block_a_reroute() {
    let (switches, handle, client) = start().await;
    client.create_job(&spec("one")).await.unwrap();
    let leaf = &switches[LEAF1];
    leaf.swallow(true);
    client.drain("spine1", true).await.unwrap();
    assert!(is_whole_but(&handle, LEAF1).await);
    until(async || !client.switches().await.unwrap()[LEAF1].connected).await;
    leaf.swallow(false);
    comes_back(&handle, &client, LEAF1).await;
}

/// The switch answers heartbeats.
#[tokio::test]
async fn a_leaf_that_takes_no_writes_does_not_block_a_reroute() {
    let (switches, handle, client) = start().await;
    // The jobs alternate between the spines.
    client.create_job(&spec("one")).await.unwrap();
    for name in ["two", "three"] {
        client.create_job(&elsewhere(name)).await.unwrap();
    }
    assert_eq!(on_spines(&switches), (2, 1));
    let leaf = &switches[LEAF1];
    leaf.state().stalls_writes = true;
    let drained = client.drain("spine1", true).await.unwrap();
    assert_eq!(drained.pending_switches, ["leaf1"]);
    // Only the leaf's job keeps its old path, in addition to the new one.
    assert_eq!(on_spines(&switches), (1, 3));
    assert!(client.switches().await.unwrap()[LEAF1].connected);
    leaf.state().stalls_writes = false;
    until(async || on_spines(&switches) == (0, 3)).await;
    until(async || is_whole(&handle).await).await;
}

/// The creation goes on after the reroute.
#[tokio::test]
async fn a_hanging_creation_does_not_block_a_reroute() {
    let (switches, handle, client) = start().await;
    client.create_job(&elsewhere("one")).await.unwrap();
    assert_eq!(on_spines(&switches), (1, 0));
    let leaf = &switches[LEAF1];
    // The spine itself still answers.
    let spine = element(&handle, "spine1");
    leaf.state().stalls_writes = true;
    let creates = client.clone();
    let creating = tokio::spawn(async move { creates.create_job(&spec("two")).await });
    until(async || leaf.state().stalled_writes > 0).await;
    handle.controller().observe(spine, false);
    until(async || on_spines(&switches) == (0, 2)).await;
    assert!(leaf.state().stalls_writes);
    assert!(!creating.is_finished());
    assert!(!switches_of(&client, "one").await.contains("spine1"));

    leaf.state().stalls_writes = false;
    handle.controller().observe(spine, true);
    comes_back(&handle, &client, SPINE1).await;
    creating.await.unwrap().unwrap();
    until(async || client.job("two").await.unwrap().ready).await;
    until(async || is_whole(&handle).await).await;
}

#[tokio::test]
async fn a_slowly_reconnecting_leaf_yields_to_a_reroute_and_stays_connected() {
    let (switches, handle, client) = start().await;
    client.create_job(&elsewhere("one")).await.unwrap();
    assert_eq!(on_spines(&switches), (1, 0));
    let leaf = &switches[LEAF1];
    {
        let mut state = leaf.state();
        state.held.pop_first().unwrap();
        state.stalls_writes = true;
    }
    leaf.cut();
    until(async || leaf.state().stalled_writes > 0).await;
    let streams = leaf.streams();
    let spine = element(&handle, "spine1");
    handle.controller().observe(spine, false);
    until(async || on_spines(&switches).1 == 1).await;
    leaf.state().stalls_writes = false;
    handle.controller().observe(spine, true);
    until(async || client.switches().await.unwrap()[LEAF1].connected).await;
    assert_eq!(leaf.streams(), streams);
    comes_back(&handle, &client, SPINE1).await;
}

/// A link flap within the grace reroutes nothing, so no change yields.
#[tokio::test]
async fn a_hanging_creation_survives_a_link_flap() {
    let (switches, handle, client) = start_with(LONG_GRACE).await;
    let leaf = &switches[LEAF1];
    leaf.state().stalls_writes = true;
    let creates = client.clone();
    let creating = tokio::spawn(async move { creates.create_job(&spec("one")).await });
    until(async || leaf.state().stalled_writes > 0).await;
    blink(&handle).await;
    leaf.state().stalls_writes = false;
    creating.await.unwrap().unwrap();
    assert!(is_whole(&handle).await);
}

/// A job that waits for room is no reason to yield; a failed link is.
#[tokio::test]
async fn a_hanging_creation_yields_to_reroutes_only() {
    let (switches, config) = fabric_with(Target::of_run(), "limits: { groups: 1 }").await;
    let (handle, client) = serve(config).await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let (leaf, spine) = (&switches[LEAF1], &switches[SPINE1]);
    spine.refuse(true);
    until(async || !client.job("one").await.unwrap().remaining.is_empty()).await;
    assert!(is_whole_but(&handle, SPINE1).await);
    leaf.state().stalls_writes = true;
    let creates = client.clone();
    let three = JobSpec {
        gather: Gather::Unicast,
        ..spec("three")
    };
    let creating = tokio::spawn(async move { creates.create_job(&three).await });
    until(async || leaf.state().stalled_writes > 0).await;
    blink(&handle).await;
    assert!(!creating.is_finished());
    handle.controller().observe(a_link(&handle), false);
    // Is answered after the reroute, and changes nothing itself.
    let link = Target::of_run().element("leaf2/101");
    client.drain(&link, false).await.unwrap();
    assert!(leaf.state().stalls_writes);
    leaf.state().stalls_writes = false;
    creating.await.unwrap().unwrap();
    until(async || is_whole_but(&handle, SPINE1).await).await;
}

fn element(handle: &Handle, name: &str) -> Element {
    let fabric = handle.controller().fabric();
    fabric
        .element_named(&Target::of_run().element(name))
        .unwrap()
}

/// A link between two switches.
fn a_link(handle: &Handle) -> Element {
    element(handle, "leaf2/101")
}

/// A link flaps, and enough time passes for a change to be given up.
async fn blink(handle: &Handle) {
    let (controller, link) = (handle.controller(), a_link(handle));
    for is_up in [false, true] {
        controller.observe(link, is_up);
    }
    outlast_a_change().await;
}

/// Waits for longer than a change may take while a reroute waits for it, and than its undoing.
async fn outlast_a_change() {
    tokio::time::sleep(5 * CHANGE / 2).await;
}

/// A chip needs up to a minute to install a program.
#[tokio::test]
async fn a_leaf_that_installs_its_program_does_not_block_a_reroute() {
    let (switches, handle, client) = start().await;
    client.create_job(&elsewhere("one")).await.unwrap();
    assert!(switches_of(&client, "one").await.contains("spine1"));
    let (leaf, spine) = (&switches[LEAF1], &switches[SPINE1]);
    leaf.state().stalls_pipelines = true;
    leaf.reboot();
    until(async || !client.switches().await.unwrap()[LEAF1].connected).await;
    spine.refuse(true);
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    until(async || groups(&switches[1]) == 1).await;
    assert!(!client.switches().await.unwrap()[LEAF1].connected);

    leaf.state().stalls_pipelines = false;
    spine.refuse(false);
    comes_back(&handle, &client, SPINE1).await;
}

/// A switch that is disconnected during a reroute gets it when it is back, also without repairs. Until then the others
/// keep the old paths, which it still uses.
#[tokio::test]
async fn old_paths_stay_until_a_missing_switch_is_updated() {
    let (switches, config) = fabric_with(Target::of_run(), "").await;
    let config = Config {
        repair: false,
        ..config
    };
    let (handle, client) = serve(config).await;
    client.create_job(&spec("one")).await.unwrap();
    let leaf = &switches[LEAF1];
    leaf.refuse(true);
    until(async || !client.switches().await.unwrap()[LEAF1].connected).await;
    let drained = client.drain("spine1", true).await.unwrap();
    assert_eq!(drained.pending_switches, ["leaf1"]);
    // When the leaf counts as down, the job is planned again, and is pending until the leaf is back.
    until(async || switches_of(&client, "one").await.contains("spine1")).await;
    assert_eq!(on_spines(&switches), (1, 1));
    assert!(is_whole_but(&handle, LEAF1).await);
    // A new job does not use the old path.
    client.create_job(&elsewhere("two")).await.unwrap();
    assert_eq!(groups(&switches[0]), 1);

    leaf.refuse(false);
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    until(async || is_whole(&handle).await).await;
    assert_eq!(on_spines(&switches), (0, 2));
}

/// A leaf rejects a reroute and the audits after it. Either an audit or the next change reconciles it.
#[tokio::test]
async fn old_paths_are_removed_when_the_failed_switch_is_reconciled() {
    for is_audited in [true, false] {
        let (switches, config) = fabric_with(Target::of_run(), "").await;
        let audit_every = FOREVER * 2;
        let (handle, client) = serve(Config {
            audit_every,
            ..config
        })
        .await;
        client.create_job(&spec("one")).await.unwrap();
        let leaf = &switches[LEAF1];
        leaf.fail_at(0, Fault::Refuse);
        (0..20).for_each(|nth| leaf.fail(Call::Read, nth, Fault::Refuse));
        let drained = client.drain("spine1", true).await.unwrap();
        assert_eq!(drained.pending_switches, ["leaf1"]);
        assert!(leaf.forgive() > 0);
        assert!(client.switches().await.unwrap()[LEAF1].dirty);
        match is_audited {
            true => drop(client.sync_fabric().await.unwrap()),
            false => drop(client.create_job(&spec("two")).await.unwrap()),
        }
        until(async || !switches_of(&client, "one").await.contains("spine1")).await;
        until(async || is_whole(&handle).await).await;
    }
}

/// A job with a member on h2, the other host on leaf1.
fn with_h2(name: &str) -> JobSpec {
    JobSpec {
        members: ["h2", "h5", "h8"].map(String::from).to_vec(),
        ..spec(name)
    }
}

/// The leaf refuses to insert, or to delete, all entries for h2, except for the address itself.
fn refuse_h2(leaf: &ChaosSwitch, kind: Type) {
    leaf.state().refuses = Some((kind, vec![10, 0, 1, 2]));
}

/// Why a job is not on all of its switches, by switch.
fn conditions(handle: &Handle, job: &str) -> Vec<String> {
    let status = handle.controller().job(job).unwrap().status.unwrap();
    let conditions = status.conditions.into_iter();
    conditions.map(|it| it.reason).collect()
}

/// Waits until the leaf has refused an entry of a job.
async fn is_refused(handle: &Handle, job: &str) {
    until(async || {
        let mut reasons = conditions(handle, job).into_iter();
        reasons.any(|it| it.starts_with("switch leaf1 refused "))
    })
    .await;
}

#[tokio::test]
async fn a_jobs_refused_entry_delays_no_other_job() {
    let (switches, handle, client) = start_with(LONG_GRACE).await;
    let leaf = &switches[LEAF1];
    client.create_job(&spec("one")).await.unwrap();
    refuse_h2(leaf, Type::Insert);
    let refused = [with_h2("refused")];
    client.create_jobs(&refused, Some(0)).await.unwrap();
    is_refused(&handle, "refused").await;
    assert_eq!(on_spines(&switches), (1, 1));

    // Only the job with the refused entry keeps its old paths.
    let drained = client.drain("spine1", true).await.unwrap();
    assert_eq!(drained.pending_switches, ["leaf1"]);
    // Not before the leaf was compared, which follows the refusal.
    until(async || on_spines(&switches) == (0, 2)).await;
    until(async || conditions(&handle, "one").is_empty()).await;
    assert!(!switches_of(&client, "one").await.contains("spine1"));
    assert!(client.create_job(&spec("two")).await.unwrap().ready);
    let drained = client.drain("spine1", false).await.unwrap();
    assert_eq!(drained.pending_switches, ["leaf1"]);
    assert!(switches_of(&client, "one").await.contains("spine1"));

    // The leaf reconnects, and refuses the entry again.
    let streams = leaf.streams();
    leaf.cut();
    let is_back = async || client.switches().await.unwrap()[LEAF1].connected;
    until(async || leaf.streams() > streams && is_back().await).await;
    is_refused(&handle, "refused").await;
    assert!(client.create_job(&spec("three")).await.unwrap().ready);

    leaf.state().refuses = None;
    until(async || client.job("refused").await.unwrap().ready).await;
    until(async || is_whole(&handle).await).await;
}

#[tokio::test]
async fn a_refused_removal_delays_no_reroute() {
    let (switches, handle, client) = start_with(LONG_GRACE).await;
    let leaf = &switches[LEAF1];
    client.create_job(&spec("one")).await.unwrap();
    client.create_job(&with_h2("old")).await.unwrap();
    refuse_h2(leaf, Type::Delete);
    assert_eq!(client.delete_job("old").await.unwrap(), ["leaf1"]);

    let drained = client.drain("spine1", true).await.unwrap();
    assert_eq!(drained.pending_switches, [""; 0]);
    assert_eq!(on_spines(&switches), (0, 1));
    assert!(!switches_of(&client, "one").await.contains("spine1"));
    assert_eq!(conditions(&handle, "one"), [""; 0]);
    assert!(client.create_job(&spec("two")).await.unwrap().ready);
    assert_eq!(client.delete_job("two").await.unwrap(), [""; 0]);

    leaf.state().refuses = None;
    until(async || is_whole(&handle).await).await;
}

#[tokio::test]
async fn deleting_a_job_removes_its_old_paths() {
    let (switches, handle, client) = start().await;
    client.create_job(&spec("one")).await.unwrap();
    switches[LEAF1].refuse(true);
    until(async || !client.switches().await.unwrap()[LEAF1].connected).await;
    client.drain("spine1", true).await.unwrap();
    client.delete_job("one").await.unwrap();
    assert_eq!(on_spines(&switches), (0, 0));
    assert!(is_whole_but(&handle, LEAF1).await);
}

/// A job without hosts on leaf1.
fn elsewhere(name: &str) -> JobSpec {
    JobSpec {
        members: ["h3", "h5", "h8"].map(String::from).to_vec(),
        ..spec(name)
    }
}

/// A drain that would leave a job without room is rejected. When the spine fails, that job keeps its tree and all others
/// are rerouted, also after a restart of the controller.
#[tokio::test]
async fn a_drain_without_room_elsewhere_is_rejected_and_the_job_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (switches, config) = fabric_with(Target::of_run(), "limits: { groups: 1 }").await;
    let config = Config {
        state: Some(folder.path().join("state")),
        startup_timeout: Duration::from_millis(500),
        ..config
    };
    let (handle, client) = serve(config.clone()).await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let before = updates(&switches);
    let refused = client.drain("spine1", true).await.unwrap_err().to_string();
    let full = "switch spine2: 2 multicast groups are needed, but the limit is 1 (groups); delete a job, or use `gather: unicast`";
    assert!(
        refused.contains("job one") && refused.contains(full),
        "{refused}"
    );
    assert_eq!(updates(&switches), before);
    assert_eq!(health(&client, SPINE1).await, "");

    switches[SPINE1].refuse(true);
    until(async || health(&client, SPINE1).await == "down").await;
    until(async || is_whole_but(&handle, SPINE1).await).await;
    let jobs = client.jobs().await.unwrap();
    assert_eq!([&*jobs[0].remaining, &*jobs[1].remaining], [full, ""]);
    handle.stop().await;
    let before = updates(&switches[1..]);
    let (handle, client) = serve(config).await;
    assert_eq!(health(&client, SPINE1).await, "down");
    assert_eq!(client.jobs().await.unwrap()[0].remaining, full);
    assert!(is_whole_but(&handle, SPINE1).await);
    // No job was routed back over the failed spine.
    assert_eq!(updates(&switches[1..]), before);
    // The job is rerouted when there is room.
    client.delete_job("two").await.unwrap();
    until(async || client.job("one").await.unwrap().remaining.is_empty()).await;
    until(async || is_whole_but(&handle, SPINE1).await).await;
    assert_eq!(groups(&switches[1]), 1);
}

/// The controller stopped when new trees were stored and not yet installed.
#[tokio::test]
async fn a_stored_reroute_is_carried_out_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (switches, config) = fabric_with(Target::of_run(), "").await;
    let config = Config {
        state: Some(folder.path().join("state")),
        ..config
    };
    let (handle, client) = serve(config.clone()).await;
    client.create_job(&spec("one")).await.unwrap();
    let before: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    client.drain("spine1", true).await.unwrap();
    let after: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    handle.stop().await;
    for (switch, held) in switches.iter().zip(before) {
        switch.state().held = held;
    }
    let (_handle, client) = serve(config).await;
    assert!(switches.iter().map(ChaosSwitch::held).eq(after));
    assert_eq!(groups(&switches[SPINE1]), 0);
    assert!(!switches_of(&client, "one").await.contains("spine1"));
}

/// The number of a switch's multicast groups.
fn groups(switch: &ChaosSwitch) -> usize {
    use ultima_p4runtime::v1::{entity, packet_replication_engine_entry::Type};
    let held = switch.held();
    let is_group = |it: &&ultima_p4runtime::v1::Entity| match &it.entity {
        Some(entity::Entity::PacketReplicationEngineEntry(entry)) => {
            matches!(entry.r#type, Some(Type::MulticastGroupEntry(_)))
        }
        _ => false,
    };
    held.values().filter(is_group).count()
}

/// The number of multicast groups of spine1 and of spine2.
fn on_spines(switches: &[ChaosSwitch]) -> (usize, usize) {
    (groups(&switches[0]), groups(&switches[1]))
}

#[tokio::test]
async fn a_drained_spine_is_empty_and_gets_jobs_again_when_undrained() {
    let (switches, handle, client) = start().await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let whole: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    assert_eq!(
        client.drain("spine1", true).await.unwrap().element,
        "spine1"
    );
    assert_eq!(health(&client, SPINE1).await, "drained");
    assert!(!switches_of(&client, "one").await.contains("spine1"));
    assert!(is_whole(&handle).await);
    assert_eq!(on_spines(&switches), (0, 2));
    // A second drain writes nothing.
    let before = updates(&switches);
    client.drain("spine1", true).await.unwrap();
    assert_eq!(updates(&switches), before);

    client.drain("spine1", false).await.unwrap();
    assert_eq!(health(&client, SPINE1).await, "");
    assert!(is_whole(&handle).await);
    assert_eq!(on_spines(&switches), (0, 2));
    client.delete_job("one").await.unwrap();
    client.create_job(&spec("one")).await.unwrap();
    assert_eq!(on_spines(&switches), (1, 1));
    client.delete_job("one").await.unwrap();
    client.delete_job("two").await.unwrap();
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let count = |all: &[std::collections::BTreeMap<Vec<u8>, _>]| {
        all.iter().map(|it| it.len()).collect::<Vec<_>>()
    };
    let now: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    assert_eq!(count(&now), count(&whole));
}

async fn links_are_drained_by_either_end_and_cut_off_hosts_named(target: Target) {
    let (_switches, config) = fabric_with(target, "").await;
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        state: Some(folder.path().join("state")),
        ..config
    };
    let (handle, client) = serve(config.clone()).await;
    client.create_job(&spec("train")).await.unwrap();
    let name = target.element("leaf1/101-spine1/1");
    for alias in ["leaf1/101", "spine1/1", "spine1/1-leaf1/101"] {
        let element = &target.element(alias);
        assert_eq!(client.drain(element, true).await.unwrap().element, name);
        assert_eq!(health(&client, 2).await, format!("{name} drained"));
        assert_eq!(client.drain(element, false).await.unwrap().element, name);
    }
    // With both links of leaf1 drained, its member has no other path and keeps this one.
    let [one, other] = ["leaf1/101", "leaf1/102"].map(|element| target.element(element));
    client.drain(&one, true).await.unwrap();
    let before = switches_of(&client, "train").await;
    client.drain(&other, true).await.unwrap();
    // A new job there is refused, and certainly not created.
    let refused = client.create_job(&spec("other")).await.unwrap_err();
    assert!(refused.to_string().contains("no path leads"), "{refused}");
    assert!(!refused.may_be_done(), "{refused:?}");
    let job = client.job("train").await.unwrap();
    let cut_off: Vec<bool> = job.members.iter().map(|member| member.cut_off).collect();
    assert_eq!(cut_off, [true, false, false, false]);
    let conditions = job.conditions.iter();
    let conditions: Vec<_> = conditions.map(|it| (&*it.element, &*it.reason)).collect();
    assert_eq!(conditions, [("h1", "rank 0 has no path to all others")]);
    let since = job.conditions[0].since;
    assert!(since >= job.created_at, "{since}");
    let events = client.events("job/train").await.unwrap();
    let kept = "no path to rank 0, whose old paths are kept";
    let mut messages = events.iter().map(|it| &*it.message);
    assert!(messages.any(|it| it.ends_with(kept)), "{events:?}");
    assert!(switches_of(&client, "train").await.is_superset(&before));
    assert!(is_whole(&handle).await);
    // Another controller knows the condition since it has the job.
    handle.stop().await;
    let (_handle, client) = serve(config).await;
    let again = client.job("train").await.unwrap().conditions;
    assert_eq!(again[0].reason, job.conditions[0].reason);
    assert!(again[0].since >= since, "{again:?}");
    client.drain(&other, false).await.unwrap();
    let job = client.job("train").await.unwrap();
    assert!(job.members.iter().all(|member| !member.cut_off));

    let unknown = client.drain("leaf9", true).await.unwrap_err().to_string();
    assert_eq!(
        unknown,
        "unknown element \"leaf9\": unknown switch leaf9; name a switch (s1), a port (s1/9) or a link between switches (s1/9-s2/9)"
    );
}

/// The switch reports its ports over gNMI, by their numbers on the target.
async fn a_job_leaves_a_link_whose_port_is_reported_down(target: Target) {
    let (switches, config) = fabric_with(target, "").await;
    let leaf = &switches[LEAF1];
    let [to_spine1, to_spine2] = [101, 102].map(|port| target.port(port));
    leaf.port(to_spine1, true);
    leaf.port(to_spine2, true);
    let (handle, client) = serve(config).await;
    client.create_job(&spec("one")).await.unwrap();
    let link = target.element("leaf1/101-spine1/1");
    let ends: Vec<&str> = link.split('-').collect();
    let is_used = async || {
        let job = client.job("one").await.unwrap();
        let mut trunks = job.tree.iter();
        trunks.any(|it| {
            [&it.from_name, &it.to_name]
                .iter()
                .all(|end| ends.contains(&end.as_str()))
        })
    };
    assert!(is_used().await);

    leaf.port(to_spine1, false);
    let down = format!("{} down", target.element("leaf1/101"));
    until(async || health(&client, LEAF1).await == down).await;
    until(async || !is_used().await).await;
    until(async || is_whole(&handle).await).await;
    leaf.port(to_spine1, true);
    until(async || health(&client, LEAF1).await.is_empty()).await;

    // A host's port changes no route.
    let has_host_down = async || {
        let fabric = client.fabric().await.unwrap();
        let down = (fabric.hosts.iter()).filter(|host| host.port_down);
        down.map(|host| host.name.clone()).collect::<Vec<_>>()
    };
    let to_host = target.port(1);
    leaf.port(to_host, false);
    until(async || has_host_down().await == ["h1"]).await;
    assert!(health(&client, LEAF1).await.is_empty());
    leaf.port(to_host, true);
    until(async || has_host_down().await.is_empty()).await;
    let [port, host_port] = ["leaf1/101", "leaf1/1"].map(|element| target.element(element));
    for object in [
        format!("link/{link}"),
        format!("port/{port}"),
        format!("port/{host_port}"),
        "host/h1".to_owned(),
    ] {
        let reasons = async || {
            let events = client.events(&object).await.unwrap();
            events.into_iter().map(|it| it.reason).collect::<Vec<_>>()
        };
        until(async || reasons().await == ["Down", "Up"]).await;
    }
}

/// The next leader plans jobs around ports that are still down, so running jobs keep their paths.
#[tokio::test]
async fn a_restart_with_ports_down_writes_nothing_and_logs_nothing() {
    let target = Target::of_run();
    let folder = tempfile::tempdir().unwrap();
    let (switches, config) = fabric_with(target, "").await;
    let config = Config {
        state: Some(folder.path().join("state")),
        ..config
    };
    let leaf = &switches[LEAF1];
    let [to_spine1, to_spine2, to_host] = [101, 102, 1].map(|port| target.port(port));
    leaf.port(to_spine2, true);
    for port in [to_spine1, to_host] {
        leaf.port(port, true);
    }
    let (handle, client) = serve(config.clone()).await;
    client.create_job(&spec("one")).await.unwrap();
    for port in [to_spine1, to_host] {
        leaf.port(port, false);
    }
    let down = format!("{} down", target.element("leaf1/101"));
    until(async || health(&client, LEAF1).await == down).await;
    let events = async |client: &Client| {
        let events = client.events("job/one").await.unwrap();
        events
            .iter()
            .map(|it| (it.reason.clone(), it.count))
            .collect::<Vec<_>>()
    };
    let is_degraded = async |client: &Client| {
        events(client)
            .await
            .iter()
            .any(|(reason, _)| reason == "Degraded")
    };
    until(async || is_degraded(&client).await && is_whole(&handle).await).await;
    let before = (updates(&switches), events(&client).await);
    let tree = client.job("one").await.unwrap().tree;
    handle.stop().await;

    let (handle, client) = serve(config).await;
    assert_eq!(client.job("one").await.unwrap().tree, tree);
    // The next event of a port comes after those of the first ones.
    leaf.port(to_host, true);
    until(async || client.job("one").await.unwrap().conditions.is_empty()).await;
    assert_eq!(updates(&switches), before.0);
    let mut expected = before.1;
    until(async || events(&client).await.len() > expected.len()).await;
    expected.push(("Ready".to_owned(), 1));
    assert_eq!(events(&client).await, expected);
    assert!(is_whole(&handle).await);
}

#[tokio::test]
async fn drains_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let switch = ChaosSwitch::start().await;
    let text = include_str!("../../../topologies/star4.yaml")
        .replace("127.0.0.1:9559", &switch.address().to_string());
    for drained in [true, false] {
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            state: Some(folder.path().join("state")),
            ..Target::of_run().config_for(&text, "star.yaml")
        };
        let handle = server::serve(config).await.unwrap();
        let client = Client::connect(&handle.address().to_string())
            .await
            .unwrap();
        let element = Target::of_run().element("s1/2");
        let is_drained = format!("{element} drained");
        let (before, after) = match drained {
            true => ("", is_drained.as_str()),
            false => (is_drained.as_str(), ""),
        };
        assert_eq!(health(&client, 0).await, before);
        client.drain(&element, drained).await.unwrap();
        assert_eq!(health(&client, 0).await, after);
        handle.stop().await;
    }
}

/// A write to a leaf is rejected or breaks the connection. No old entry is removed before all new entries are installed.
#[tokio::test]
async fn a_reroute_completes_whichever_write_fails() {
    let faults = [Fault::Refuse, Fault::Disconnect, Fault::DoAndDisconnect];
    let cases = faults.into_iter().enumerate();
    several(cases.map(|(number, fault)| (format!("{fault:?}"), fail_writes(number, fault)))).await;
}

/// Injects a fault into each write of a drain to a leaf; in a quick run into one of nine, and each fault into others.
async fn fail_writes(number: usize, fault: Fault) {
    // A busy machine delays heartbeats. If a spine counted as down for that, another reroute would follow, in its own order.
    let (switches, handle, client) = start_with(LONG_GRACE).await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let leaf = &switches[LEAF1];
    let before = leaf.updates();
    client.drain("spine1", true).await.unwrap();
    let count = leaf.updates() - before;
    assert!(count > 6, "{count}");
    let drained: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    client.drain("spine1", false).await.unwrap();
    let undrained: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    let hold = |planned: &[_]| {
        switches
            .iter()
            .map(ChaosSwitch::held)
            .eq(planned.iter().cloned())
    };
    let took = async |nth| {
        switches.iter().for_each(|switch| drop(switch.take_log()));
        leaf.fail_at(nth, fault);
        client.drain("spine1", true).await.unwrap();
        until(async || hold(&drained) && is_whole(&handle).await).await;
        let log: Vec<_> = switches.iter().flat_map(ChaosSwitch::take_log).collect();
        let of = |kind| log.iter().filter(move |it| it.kind == kind).map(|it| it.at);
        let (last, first) = (of(Type::Insert).max(), of(Type::Delete).min());
        assert!(last.unwrap() < first.unwrap(), "{fault:?} at {nth}");
        // The fault may not have happened: this reroute may need fewer writes than the first one.
        leaf.forgive();
        client.drain("spine1", false).await.unwrap();
        // After a disconnect old paths may still be there; waits until they are removed.
        until(async || hold(&undrained) && is_whole(&handle).await).await;
        // A leaf that flaps is avoided as a transit switch only, and a leaf is none.
        assert_eq!(groups(&switches[1]), 2);
    };
    let (first, step) = ultima_testing::per_run((3 * number, 9), (0, 1));
    for nth in (first..count).step_by(step) {
        took(nth).await;
    }
}

#[tokio::test]
async fn a_link_is_drained_by_the_name_in_a_jobs_tree() {
    let (_switches, handle, client) = start().await;
    let before = client.create_job(&spec("one")).await.unwrap().tree;
    let name = format!("{}-{}", before[0].from_name, before[0].to_name);
    let drained = client.drain(&name, true).await.unwrap();
    assert!(drained.pending_switches.is_empty());
    let after = client.job("one").await.unwrap().tree;
    assert!(
        !after.is_empty() && !after.contains(&before[0]),
        "{after:?}"
    );
    assert!(is_whole(&handle).await);
}

/// A switch that is back within the grace was never down.
#[tokio::test]
async fn short_disconnects_reroute_nothing() {
    let (switches, handle, client) = start_with(LONG_GRACE).await;
    client.create_job(&spec("one")).await.unwrap();
    let spine = &switches[SPINE1];
    let before = updates(&switches);
    for _ in 0..10 {
        let streams = spine.streams();
        spine.cut();
        let is_back = async || client.switches().await.unwrap()[SPINE1].connected;
        until(async || spine.streams() > streams && is_back().await).await;
    }
    assert!(is_whole(&handle).await);
    assert_eq!(updates(&switches), before);
}

/// A switch that fails during its hold time is not in use.
#[tokio::test]
async fn a_flapping_switch_reroutes_nothing() {
    let damping = DampingConfig {
        hold_first: 2 * FOREVER,
        ..DAMPING
    };
    let (switches, handle, client) = start_with(damping).await;
    client.create_job(&spec("one")).await.unwrap();
    let (spine, leaves) = (&switches[SPINE1], &switches[2..]);
    let is_in_use = async || switches_of(&client, "one").await.contains("spine1");
    spine.refuse(true);
    until(async || health(&client, SPINE1).await == "down" && !is_in_use().await).await;
    until(async || is_whole_but(&handle, SPINE1).await).await;
    let before = updates(leaves);
    for _ in 0..3 {
        spine.refuse(false);
        until(async || health(&client, SPINE1).await == "back, not trusted yet").await;
        spine.refuse(true);
        until(async || health(&client, SPINE1).await == "down").await;
    }
    assert_eq!(updates(leaves), before);
}

/// Returns true if all switches but one match the plan.
async fn is_whole_but(handle: &Handle, away: usize) -> bool {
    let audit = handle.controller().audit(false).await;
    let mut others = audit.iter().filter(|(id, _)| id.0 != away);
    others.all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
}
