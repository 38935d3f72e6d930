//! Calls that hang are given up while a reroute waits, and the switch completes them late.

use std::time::Duration;

use ultima_api::client::Client;
use ultima_api::v1::evict_member_request::Member;
use ultima_api::v1::membership_event::Kind;
use ultima_controller::server::Handle;
use ultima_p4runtime::v1::update::Type;

use crate::chaos::{Call, Fault, Held};
use crate::testbed::{
    LEAF1, NAMES, Testbed, check_jobs, names, spec, spec_on, until, until_event, whole,
};

/// The error of a change that was given up.
const GIVEN_UP: &str = "no answer before a reroute interrupted the call";

/// Starts a controller that audits and repairs only what its own calls may have left.
async fn begin() -> (Testbed, Handle, Client, Vec<Held>) {
    let mut testbed = Testbed::new(1, false).await;
    (testbed.looks_seldom, testbed.repairs) = (true, false);
    let handle = testbed.serve().await;
    let (client, base) = (testbed.client("a").await, testbed.held());
    (testbed, handle, client, base)
}

/// The leaf hangs at the next call of this kind until [`goes_on`].
fn hang(testbed: &Testbed, call: Call) {
    let leaf = &testbed.switches[LEAF1];
    leaf.state().keeps_hanging = true;
    leaf.fail(call, 0, Fault::Hang);
}

/// Completes the hanging calls. Returns the number of inserted entities.
async fn goes_on(testbed: &Testbed) -> usize {
    let leaf = &testbed.switches[LEAF1];
    leaf.take_log();
    leaf.state().keeps_hanging = false;
    testbed.calms_down().await;
    let log = leaf.take_log();
    log.iter().filter(|done| done.kind == Type::Insert).count()
}

#[tokio::test]
async fn a_write_completed_after_an_audit_is_reconciled() {
    let (testbed, handle, client, base) = begin().await;
    hang(&testbed, Call::Update);
    client.create_job(&spec("one")).await.unwrap();
    // The audit finds nothing of the hanging write.
    client.sync_fabric().await.unwrap();
    whole(handle.controller()).await;
    let states = client.switches().await.unwrap();
    assert!(states.iter().all(|it| !it.dirty));
    assert!(goes_on(&testbed).await > 0);
    check_jobs(handle.controller(), &client, &["one"], &base, &testbed).await;
}

/// The late write comes between the audit's read and its writes, and inserts some of the same entities.
#[tokio::test]
async fn a_write_completed_after_an_audit_blocks_no_job() {
    let (testbed, handle, client, base) = begin().await;
    hang(&testbed, Call::Update);
    testbed.switches[LEAF1].state().is_late_to_read = true;
    client.create_job(&spec("one")).await.unwrap();
    check_jobs(handle.controller(), &client, &["one"], &base, &testbed).await;
}

/// A hanging call of this kind is given up for a reroute, and the leaf stays connected.
async fn makes_way(call: Call, act: impl AsyncFn(&Client)) {
    let (testbed, handle, client, base) = begin().await;
    client.create_job(&spec("old")).await.unwrap();
    let streams = testbed.switches[LEAF1].streams();
    hang(&testbed, call);
    act(&client).await;
    assert_eq!(testbed.switches[LEAF1].streams(), streams);
    goes_on(&testbed).await;
    let names = names(&client).await;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check_jobs(handle.controller(), &client, &names, &base, &testbed).await;
}

#[tokio::test]
async fn a_creation_yields_to_a_reroute() {
    makes_way(Call::Update, async |client| {
        assert!(client.create_job(&spec("new")).await.unwrap().ready);
    })
    .await;
}

#[tokio::test]
async fn a_deletion_yields_to_a_reroute() {
    makes_way(Call::Update, async |client| {
        let left = client.delete_job("old").await.unwrap();
        assert_eq!(left, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_resize_yields_to_a_reroute() {
    makes_way(Call::Update, async |client| {
        let members = ["h1", "h3", "h8"].map(String::from);
        let wait = Duration::from_secs(60);
        let mut watch = client.watch_job("old").await.unwrap();
        let resized = client.resize_job("old", None, &members, wait, false).await;
        resized.unwrap();
        until_event(&mut watch, Kind::Installed).await;
    })
    .await;
}

#[tokio::test]
async fn an_eviction_yields_to_a_reroute() {
    makes_way(Call::Update, async |client| {
        let mut watch = client.watch_job("old").await.unwrap();
        let evicted = client.evict("old", Member::Host("h8".into()), "").await;
        evicted.unwrap();
        until_event(&mut watch, Kind::Installed).await;
    })
    .await;
}

#[tokio::test]
async fn an_audit_yields_to_a_reroute() {
    makes_way(Call::Read, async |client| {
        let audit = client.sync_fabric().await.unwrap();
        let leaf = audit.iter().find(|it| it.switch == NAMES[LEAF1]).unwrap();
        assert!(leaf.problem.contains(GIVEN_UP), "{}", leaf.problem);
    })
    .await;
}

/// The switch is brought up after the reroute.
#[tokio::test]
async fn a_reconnecting_switch_yields_to_a_reroute() {
    let mut testbed = Testbed::new(1, false).await;
    testbed.looks_seldom = true;
    let handle = testbed.serve().await;
    let (client, base) = (testbed.client("a").await, testbed.held());
    client
        .create_job(&spec_on("one", &["h1", "h4"]))
        .await
        .unwrap();
    let leaf = &testbed.switches[LEAF1];
    let (streams, key) = (leaf.streams(), leaf.held().into_keys().next().unwrap());
    leaf.state().held.remove(&key);
    hang(&testbed, Call::Update);
    leaf.cut();
    until(async || leaf.held().contains_key(&key)).await;
    assert!(leaf.hanging().any());
    assert_eq!(leaf.streams(), streams + 1);
    goes_on(&testbed).await;
    check_jobs(handle.controller(), &client, &["one"], &base, &testbed).await;
}
