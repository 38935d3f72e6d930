//! Switches that go and come back, and parts that are drained: trees and routes follow, once, and whatever goes wrong in between
//! the switches end up as planned.

use std::collections::BTreeSet;
use std::time::Duration;

use ultima_controller::client::Client;
use ultima_controller::fabric::Part;
use ultima_controller::fabric::damping::Terms;
use ultima_controller::job::{Gather, JobSpec};
use ultima_controller::server::{self, Config, Handle, ServeError};
use ultima_controller::store::StoreError;
use ultima_p4runtime::v1::update::Type;

use crate::chaos::{Call, ChaosSwitch, Fault};
use crate::target::{Target, on_each_target};

/// Two spines over four leaves of two hosts each, in the file's order: the spines first.
const TOPOLOGY: &str = include_str!("../../../topologies/leaf-spine.yaml");
const SPINE1: usize = 0;
const LEAF1: usize = 2;
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

/// Less patient than a fabric's operator.
const TERMS: Terms = Terms {
    grace: Duration::from_millis(50),
    hold_first: Duration::from_millis(50),
    hold_most: Duration::from_secs(600),
    quiet: Duration::from_secs(600),
};
/// Nothing that comes back within a test was ever away.
const PATIENT: Terms = Terms {
    grace: FOREVER.saturating_mul(2),
    ..TERMS
};

on_each_target!(links_are_drained_by_either_end_and_hosts_that_have_no_other_are_named);

async fn start() -> (Vec<ChaosSwitch>, Handle, Client) {
    start_with(TERMS).await
}

async fn start_with(terms: Terms) -> (Vec<ChaosSwitch>, Handle, Client) {
    start_on(Target::of_run(), terms).await
}

async fn start_on(target: Target, terms: Terms) -> (Vec<ChaosSwitch>, Handle, Client) {
    let (switches, config) = fabric_with(target, "").await;
    let (handle, client) = serve(Config { terms, ..config }).await;
    (switches, handle, client)
}

/// The fabric's switches, where spine2 has settings of its own, and how its controller is started.
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
        terms: TERMS,
        ..target.config_for(&text, "leaf-spine.yaml")
    };
    (switches, config)
}

async fn serve(config: Config) -> (Handle, Client) {
    let handle = loop {
        match server::serve(config.clone()).await {
            // Tasks of the controller that was stopped, which is in this process too, still end.
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

/// So long nothing here takes, on whatever machine.
const FOREVER: Duration = Duration::from_secs(60);

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let comes_true = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(FOREVER, comes_true).await;
    in_time.expect("it comes true");
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

/// Every switch that is connected holds what it should, and nobody had to be told.
async fn is_whole(handle: &Handle) -> bool {
    let audit = handle.controller().audit(false).await;
    audit
        .iter()
        .all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
}

/// Waits until a switch is trusted again and nothing is missing anywhere.
async fn comes_back(handle: &Handle, client: &Client, switch: usize) {
    until(async || health(client, switch).await.is_empty()).await;
    until(async || is_whole(handle).await).await;
}

fn updates(switches: &[ChaosSwitch]) -> Vec<usize> {
    switches.iter().map(ChaosSwitch::updates).collect()
}

#[tokio::test]
async fn a_spine_that_goes_is_left_and_used_again_when_it_is_trusted() {
    let (mut switches, handle, client) = start().await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let both: BTreeSet<String> = NAMES.map(String::from).into();
    assert_eq!(switches_of(&client, "one").await, both);
    let spine = switches.remove(SPINE1);
    // Nobody answers any more.
    spine.refuse(true);
    until(async || health(&client, SPINE1).await == "down").await;
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    let without: BTreeSet<String> = NAMES[1..].iter().map(ToString::to_string).collect();
    for name in ["one", "two"] {
        assert_eq!(switches_of(&client, name).await, without);
    }
    // What is created meanwhile does not need it.
    client.create_job(&spec("three")).await.unwrap();
    assert_eq!(switches_of(&client, "three").await, without);

    spine.refuse(false);
    until(async || health(&client, SPINE1).await.is_empty()).await;
    until(async || switches_of(&client, "one").await == both).await;
    until(async || is_whole(&handle).await).await;
    // Trees stayed where they were; the next job takes the spine that has none.
    assert!(groups(&spine) == 0 && groups(&switches[0]) == 3);
    client.create_job(&spec("four")).await.unwrap();
    assert_eq!(groups(&spine), 1);
}

/// One that hangs ends no stream, and new connections to it are made.
#[tokio::test]
async fn a_spine_that_hangs_is_left_as_one_that_goes() {
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

/// A switch that hangs in the middle of a move keeps no other from it.
#[tokio::test]
async fn a_leaf_that_hangs_keeps_nobody_from_moving() {
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

/// One that answers whether it is there, and takes nothing.
#[tokio::test]
async fn a_leaf_that_takes_no_writes_keeps_nobody_from_moving() {
    let (switches, handle, client) = start().await;
    // By turns on the first spine and on the second.
    client.create_job(&spec("one")).await.unwrap();
    for name in ["two", "three"] {
        client.create_job(&elsewhere(name)).await.unwrap();
    }
    assert_eq!(on_spines(&switches), (2, 1));
    let leaf = &switches[LEAF1];
    leaf.state().stalls_writes = true;
    let drained = client.drain("spine1", true).await.unwrap();
    assert_eq!(drained.pending_switches, ["leaf1"]);
    // Only the leaf's own job stays, and has its new ways beside the old ones.
    assert_eq!(on_spines(&switches), (1, 3));
    assert!(client.switches().await.unwrap()[LEAF1].connected);
    leaf.state().stalls_writes = false;
    until(async || on_spines(&switches) == (0, 3)).await;
    until(async || is_whole(&handle).await).await;
}

/// What asks such a switch for something makes way for a move, and is told.
#[tokio::test]
async fn a_creation_that_hangs_keeps_nobody_from_moving() {
    let (switches, handle, client) = start().await;
    client.create_job(&elsewhere("one")).await.unwrap();
    assert_eq!(on_spines(&switches), (1, 0));
    let leaf = &switches[LEAF1];
    // It answers all the same: nothing of what is created fails there.
    let spine = part(&handle, "spine1");
    leaf.state().stalls_writes = true;
    let creates = client.clone();
    let creating = tokio::spawn(async move { creates.create_job(&spec("two")).await });
    until(async || leaf.state().stalled_writes > 0).await;
    handle.controller().see(spine, false);
    let refused = creating.await.unwrap().unwrap_err().to_string();
    let says = [
        "switch leaf1 failed",
        "no answer before a reroute interrupted the call",
        "leaf1, which is cleaned up when it answers again; try again",
    ];
    assert!(says.iter().all(|it| refused.contains(it)), "{refused}");
    until(async || on_spines(&switches).1 == 1).await;
    assert!(leaf.state().stalls_writes);
    assert!(!switches_of(&client, "one").await.contains("spine1"));

    leaf.state().stalls_writes = false;
    handle.controller().see(spine, true);
    comes_back(&handle, &client, SPINE1).await;
    client.create_job(&spec("two")).await.unwrap();
    assert!(is_whole(&handle).await);
}

/// A switch that comes back and is slow then makes way as well, and has not failed by that: its connection stays.
#[tokio::test]
async fn a_leaf_that_comes_back_slowly_makes_way_and_is_not_lost_again() {
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
    let spine = part(&handle, "spine1");
    handle.controller().see(spine, false);
    until(async || on_spines(&switches).1 == 1).await;
    leaf.state().stalls_writes = false;
    handle.controller().see(spine, true);
    until(async || client.switches().await.unwrap()[LEAF1].connected).await;
    assert_eq!(leaf.streams(), streams);
    comes_back(&handle, &client, SPINE1).await;
}

/// A link that blinks moves nothing, and so nobody makes way for it.
#[tokio::test]
async fn a_creation_that_hangs_outlasts_what_blinks() {
    let (switches, handle, client) = start_with(PATIENT).await;
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

/// What is asked for while something has just gone begins when it is there again, or when all has been moved off it: it is in no move's way.
#[tokio::test]
async fn a_creation_waits_for_what_has_just_gone() {
    let (switches, handle, client) = start_with(PATIENT).await;
    let (controller, before) = (handle.controller(), updates(&switches));
    controller.see(a_link(&handle), false);
    let creates = client.clone();
    let creating = tokio::spawn(async move { creates.create_job(&spec("one")).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!creating.is_finished());
    assert_eq!(updates(&switches), before);
    controller.see(a_link(&handle), true);
    creating.await.unwrap().unwrap();

    // What is drained is not in use: nobody waits for it.
    client
        .drain(&Target::of_run().part("leaf2/101"), true)
        .await
        .unwrap();
    controller.see(a_link(&handle), false);
    client.create_job(&spec("two")).await.unwrap();
    assert!(is_whole(&handle).await);
}

/// Nor does anybody for a job that waits for room; for what is down by then all do.
#[tokio::test]
async fn a_creation_that_hangs_makes_way_for_moves_only() {
    let (switches, config) = fabric_with(Target::of_run(), "limits: { groups: 1 }").await;
    let (handle, client) = serve(config).await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let (leaf, spine) = (&switches[LEAF1], &switches[SPINE1]);
    spine.refuse(true);
    until(async || !client.job("one").await.unwrap().stays.is_empty()).await;
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
    handle.controller().see(a_link(&handle), false);
    let refused = creating.await.unwrap().unwrap_err().to_string();
    assert!(
        refused.contains("a reroute interrupted the call"),
        "{refused}"
    );
    leaf.state().stalls_writes = false;
    until(async || is_whole_but(&handle, SPINE1).await).await;
}

fn part(handle: &Handle, name: &str) -> Part {
    let fabric = handle.controller().fabric();
    fabric.part_named(&Target::of_run().part(name)).unwrap()
}

/// One between two switches.
fn a_link(handle: &Handle) -> Part {
    part(handle, "leaf2/101")
}

/// A link goes and comes back, and so much time goes by that whoever has to make way for that has.
async fn blink(handle: &Handle) {
    let (controller, link) = (handle.controller(), a_link(handle));
    for is_there in [false, true] {
        controller.see(link, is_there);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// A chip takes a minute for its program.
#[tokio::test]
async fn a_leaf_that_is_given_its_program_keeps_nobody_from_moving() {
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

/// A switch that was away during a move gets it when it is back, also where nothing else is repaired; until then the others keep what it
/// may still send by.
#[tokio::test]
async fn old_ways_stay_for_who_was_not_there() {
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
    // When it counts as down, too, the job is planned once more, and is to move for as long as that takes.
    until(async || switches_of(&client, "one").await.contains("spine1")).await;
    assert_eq!(on_spines(&switches), (1, 1));
    assert!(is_whole_but(&handle, LEAF1).await);
    // Whoever comes meanwhile uses nothing of it, and who goes takes all of it along.
    client.create_job(&elsewhere("two")).await.unwrap();
    assert_eq!(groups(&switches[0]), 1);

    leaf.refuse(false);
    until(async || !switches_of(&client, "one").await.contains("spine1")).await;
    until(async || is_whole(&handle).await).await;
    assert_eq!(on_spines(&switches), (0, 2));
}

/// A leaf refuses a move, and to be looked at after it. Whoever puts it right first, the old ways that were kept for it go then.
#[tokio::test]
async fn old_ways_go_whoever_puts_right_what_they_stay_for() {
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
        assert!(client.switches().await.unwrap()[LEAF1].in_doubt);
        match is_audited {
            true => drop(client.sync_fabric().await.unwrap()),
            false => drop(client.create_job(&spec("two")).await.unwrap()),
        }
        until(async || !switches_of(&client, "one").await.contains("spine1")).await;
        until(async || is_whole(&handle).await).await;
    }
}

#[tokio::test]
async fn a_job_whose_old_ways_stay_is_deleted_with_them() {
    let (switches, handle, client) = start().await;
    client.create_job(&spec("one")).await.unwrap();
    switches[LEAF1].refuse(true);
    until(async || !client.switches().await.unwrap()[LEAF1].connected).await;
    client.drain("spine1", true).await.unwrap();
    client.delete_job("one").await.unwrap();
    assert_eq!(on_spines(&switches), (0, 0));
    assert!(is_whole_but(&handle, LEAF1).await);
}

/// A job of hosts that are not on leaf1.
fn elsewhere(name: &str) -> JobSpec {
    JobSpec {
        members: ["h3", "h5", "h8"].map(String::from).to_vec(),
        ..spec(name)
    }
}

/// What would leave a job without room is not drained. Where it fails that job keeps its tree, and all others move; and so it is when
/// the controller is started again.
#[tokio::test]
async fn a_job_without_room_elsewhere_is_not_drained_and_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let (switches, config) = fabric_with(Target::of_run(), "limits: { groups: 1 }").await;
    let config = Config {
        state: Some(folder.path().join("state")),
        patience: Duration::from_millis(500),
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
    assert_eq!([&*jobs[0].stays, &*jobs[1].stays], [full, ""]);
    handle.stop().await;
    let before = updates(&switches[1..]);
    let (handle, client) = serve(config).await;
    assert_eq!(health(&client, SPINE1).await, "down");
    assert_eq!(client.jobs().await.unwrap()[0].stays, full);
    assert!(is_whole_but(&handle, SPINE1).await);
    // Nobody was sent back into what is down.
    assert_eq!(updates(&switches[1..]), before);
    // When there is room it moves.
    client.delete_job("two").await.unwrap();
    until(async || client.job("one").await.unwrap().stays.is_empty()).await;
    until(async || is_whole_but(&handle, SPINE1).await).await;
    assert_eq!(groups(&switches[1]), 1);
}

/// A controller that ended when new trees were in its store and on no switch yet.
#[tokio::test]
async fn a_move_that_only_the_store_knows_is_made_when_the_controller_is_back() {
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

/// How many multicast groups a switch has.
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

/// The same of the first spine and of the second.
fn on_spines(switches: &[ChaosSwitch]) -> (usize, usize) {
    (groups(&switches[0]), groups(&switches[1]))
}

#[tokio::test]
async fn a_drained_spine_has_nothing_and_gets_new_jobs_when_it_is_not() {
    let (switches, handle, client) = start().await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let whole: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    assert_eq!(client.drain("spine1", true).await.unwrap().part, "spine1");
    assert_eq!(health(&client, SPINE1).await, "drained");
    assert!(!switches_of(&client, "one").await.contains("spine1"));
    assert!(is_whole(&handle).await);
    assert_eq!(on_spines(&switches), (0, 2));
    // A second time is nothing.
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

async fn links_are_drained_by_either_end_and_hosts_that_have_no_other_are_named(target: Target) {
    let (_switches, handle, client) = start_on(target, TERMS).await;
    client.create_job(&spec("train")).await.unwrap();
    let name = target.part("leaf1/101-spine1/1");
    for part in ["leaf1/101", "spine1/1", "spine1/1-leaf1/101"] {
        let part = &target.part(part);
        assert_eq!(client.drain(part, true).await.unwrap().part, name);
        assert_eq!(health(&client, 2).await, format!("{name} drained"));
        assert_eq!(client.drain(part, false).await.unwrap().part, name);
    }
    // Both of leaf1's: its member has no other way, and keeps this one.
    let [one, other] = ["leaf1/101", "leaf1/102"].map(|part| target.part(part));
    client.drain(&one, true).await.unwrap();
    let before = switches_of(&client, "train").await;
    client.drain(&other, true).await.unwrap();
    let job = client.job("train").await.unwrap();
    let cut_off: Vec<bool> = job.members.iter().map(|member| member.cut_off).collect();
    assert_eq!(cut_off, [true, false, false, false]);
    assert!(switches_of(&client, "train").await.is_superset(&before));
    assert!(is_whole(&handle).await);
    client.drain(&other, false).await.unwrap();
    let job = client.job("train").await.unwrap();
    assert!(job.members.iter().all(|member| !member.cut_off));

    let unknown = client.drain("leaf9", true).await.unwrap_err().to_string();
    assert_eq!(
        unknown,
        "unknown element \"leaf9\": unknown switch leaf9; name a switch (s1), a port (s1/9) or a link between switches (s1/9-s2/9)"
    );
}

#[tokio::test]
async fn what_is_drained_is_so_still_when_the_controller_is_back() {
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
        let part = Target::of_run().part("s1/2");
        let is_drained = format!("{part} drained");
        let (before, after) = match drained {
            true => ("", is_drained.as_str()),
            false => (is_drained.as_str(), ""),
        };
        assert_eq!(health(&client, 0).await, before);
        client.drain(&part, drained).await.unwrap();
        assert_eq!(health(&client, 0).await, after);
        handle.stop().await;
    }
}

/// At whichever write of a move a leaf refuses, or breaks the connection, all ends as planned; and what is old goes nowhere before what
/// is new has come everywhere.
#[tokio::test]
async fn whatever_write_of_a_move_fails_all_ends_as_planned() {
    // A machine that has too much to do answers no heartbeats for a while: where a spine that is needed counted as down for that, there would be
    // another move, with an order of its own.
    let (switches, handle, client) = start_with(PATIENT).await;
    for name in ["one", "two"] {
        client.create_job(&spec(name)).await.unwrap();
    }
    let leaf = &switches[LEAF1];
    let before = leaf.updates();
    client.drain("spine1", true).await.unwrap();
    let count = leaf.updates() - before;
    assert!(count > 5, "{count}");
    let drained: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    client.drain("spine1", false).await.unwrap();
    let undrained: Vec<_> = switches.iter().map(ChaosSwitch::held).collect();
    let hold = |planned: &[_]| {
        switches
            .iter()
            .map(ChaosSwitch::held)
            .eq(planned.iter().cloned())
    };
    let took = async |fault, nth| {
        switches.iter().for_each(|switch| drop(switch.take_log()));
        leaf.fail_at(nth, fault);
        client.drain("spine1", true).await.unwrap();
        until(async || hold(&drained) && is_whole(&handle).await).await;
        let log: Vec<_> = switches.iter().flat_map(ChaosSwitch::take_log).collect();
        let of = |kind| log.iter().filter(move |it| it.kind == kind).map(|it| it.at);
        let (last, first) = (of(Type::Insert).max(), of(Type::Delete).min());
        assert!(last.unwrap() < first.unwrap(), "{fault:?} at {nth}");
        // It may have had less to write than the first time.
        leaf.forgive();
        client.drain("spine1", false).await.unwrap();
        // Where a switch was not there for a moment old ways have stayed, and what is still to go would go in the next round.
        until(async || hold(&undrained) && is_whole(&handle).await).await;
        // A leaf that flaps is only left alone as a way for others, of which it is none.
        assert_eq!(groups(&switches[1]), 2);
    };
    for fault in [Fault::Refuse, Fault::Disconnect, Fault::DoAndDisconnect] {
        for nth in 0..count {
            took(fault, nth).await;
        }
    }
}

/// On whatever target, a job says its links as requests take them.
#[tokio::test]
async fn a_link_is_drained_by_the_name_that_a_job_has_of_it() {
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

/// What is back within its grace was never away.
#[tokio::test]
async fn what_comes_and_goes_at_once_moves_nothing() {
    let (switches, handle, client) = start_with(PATIENT).await;
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

/// What fails while it is watched moves nothing either.
#[tokio::test]
async fn a_flap_storm_moves_nothing() {
    let terms = Terms {
        hold_first: 2 * FOREVER,
        ..TERMS
    };
    let (switches, handle, client) = start_with(terms).await;
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

/// Whether all switches but one hold what they should.
async fn is_whole_but(handle: &Handle, away: usize) -> bool {
    let audit = handle.controller().audit(false).await;
    let mut others = audit.iter().filter(|(id, _)| id.0 != away);
    others.all(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()))
}
