//! Switches that take so long for a call that it is given up, as a move waits, and do it all the same, late.

use std::time::Duration;

use ultima_controller::api::evict_member_request::Member;
use ultima_controller::client::Client;
use ultima_controller::server::Handle;
use ultima_p4runtime::v1::update::Type;

use crate::bed::{Bed, LEAF1, NAMES, names, settle, spec, spec_on, until, whole};
use crate::chaos::{Call, Fault, Held};

/// What a change says that was given up.
const GIVEN_UP: &str = "no answer before a reroute interrupted the call";

/// Nobody looks for anything here, or repairs anything, but for what may be the controller's own doing.
async fn begin() -> (Bed, Handle, Client, Vec<Held>) {
    let mut bed = Bed::new(1, false).await;
    (bed.looks_seldom, bed.repairs) = (true, false);
    let handle = bed.serve().await;
    let (client, base) = (bed.client("a").await, bed.held());
    (bed, handle, client, base)
}

/// A leaf hangs at the next call of this kind, for as long as nobody says otherwise.
fn hang(bed: &Bed, call: Call) {
    let leaf = &bed.switches[LEAF1];
    leaf.state().keeps_hanging = true;
    leaf.fail(call, 0, Fault::Hang);
}

/// The leaf does what hangs; what was inserted by that.
async fn goes_on(bed: &Bed) -> usize {
    let leaf = &bed.switches[LEAF1];
    leaf.take_log();
    leaf.state().keeps_hanging = false;
    bed.calms_down().await;
    let log = leaf.take_log();
    log.iter().filter(|done| done.kind == Type::Insert).count()
}

#[tokio::test]
async fn what_is_done_after_a_look_is_put_right() {
    let (bed, handle, client, base) = begin().await;
    hang(&bed, Call::Update);
    let refused = client.create_job(&spec("one")).await.unwrap_err();
    assert!(refused.to_string().contains(GIVEN_UP), "{refused}");
    // It is looked at, and nothing of that is there.
    client.sync_fabric().await.unwrap();
    whole(handle.controller()).await;
    let states = client.switches().await.unwrap();
    assert!(states.iter().all(|it| !it.in_doubt));
    assert!(goes_on(&bed).await > 0);
    settle(handle.controller(), &client, &[], &base, &bed).await;
}

/// It comes between the look at the leaf and what is written to it then, and has some of it there already.
#[tokio::test]
async fn what_is_done_after_a_look_is_in_nobodys_way() {
    let (bed, handle, client, base) = begin().await;
    hang(&bed, Call::Update);
    client.create_job(&spec("one")).await.unwrap_err();
    bed.switches[LEAF1].state().is_late_to_read = true;
    while let Err(refused) = client.create_job(&spec("one")).await {
        // The link is there again now, too.
        assert!(refused.to_string().contains(GIVEN_UP), "{refused}");
    }
    settle(handle.controller(), &client, &["one"], &base, &bed).await;
}

/// A call of this kind, by what is done then, makes way for a move, and costs the leaf no connection.
async fn makes_way(call: Call, act: impl AsyncFn(&Client)) {
    let (bed, handle, client, base) = begin().await;
    client.create_job(&spec("old")).await.unwrap();
    let streams = bed.switches[LEAF1].streams();
    hang(&bed, call);
    act(&client).await;
    assert_eq!(bed.switches[LEAF1].streams(), streams);
    goes_on(&bed).await;
    let names = names(&client).await;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    settle(handle.controller(), &client, &names, &base, &bed).await;
}

#[tokio::test]
async fn a_creation_makes_way() {
    makes_way(Call::Update, async |client| {
        let refused = client.create_job(&spec("new")).await.unwrap_err();
        assert!(refused.to_string().contains(GIVEN_UP), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn a_deletion_makes_way() {
    makes_way(Call::Update, async |client| {
        let left = client.delete_job("old").await.unwrap();
        assert_eq!(left, [NAMES[LEAF1]]);
    })
    .await;
}

#[tokio::test]
async fn a_resize_makes_way() {
    makes_way(Call::Update, async |client| {
        let members = ["h1", "h3", "h8"].map(String::from);
        let wait = (Duration::from_secs(60), false);
        let resized = client.resize_job(("old", None), &members, wait).await;
        let refused = resized.unwrap_err();
        assert!(refused.to_string().contains(GIVEN_UP), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn an_eviction_makes_way() {
    makes_way(Call::Update, async |client| {
        let evicted = client.evict("old", Member::Host("h8".into()), "").await;
        let refused = evicted.unwrap_err();
        assert!(refused.to_string().contains(GIVEN_UP), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn an_audit_makes_way() {
    makes_way(Call::Read, async |client| {
        let audit = client.sync_fabric().await.unwrap();
        let leaf = audit.iter().find(|it| it.switch == NAMES[LEAF1]).unwrap();
        assert!(leaf.problem.contains(GIVEN_UP), "{}", leaf.problem);
    })
    .await;
}

/// It is its turn again after the move.
#[tokio::test]
async fn a_switch_that_comes_back_makes_way() {
    let mut bed = Bed::new(1, false).await;
    bed.looks_seldom = true;
    let handle = bed.serve().await;
    let (client, base) = (bed.client("a").await, bed.held());
    client
        .create_job(&spec_on("one", &["h1", "h4"]))
        .await
        .unwrap();
    let leaf = &bed.switches[LEAF1];
    let (streams, key) = (leaf.streams(), leaf.held().into_keys().next().unwrap());
    leaf.state().held.remove(&key);
    hang(&bed, Call::Update);
    leaf.cut();
    until("what comes back gets what it should hold", async || {
        leaf.held().contains_key(&key)
    })
    .await;
    assert!(leaf.hanging().any());
    assert_eq!(leaf.streams(), streams + 1);
    goes_on(&bed).await;
    settle(handle.controller(), &client, &["one"], &base, &bed).await;
}
