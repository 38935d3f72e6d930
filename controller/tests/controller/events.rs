//! The event log, across controllers.

use std::time::Duration;

use ultima_api::client::Client;
use ultima_controller::server::{self, Config, ServeError, Timers, serve_with_etcd};
use ultima_controller::store::StoreError;
use ultima_testing::etcd::Etcd;

use crate::group;
use crate::target::Target;
use crate::testbed::{LEAF1, SPINE1, TIMERS, Testbed, pause, until};

/// The port of h1, and the ports at the ends of a link.
const HOST_PORT: &str = "leaf1/1";
const ENDS: [&str; 2] = ["leaf1/101", "spine1/1"];

fn config(testbed: &Testbed) -> Config {
    Config {
        timers: Timers {
            events: Duration::from_millis(1),
            ..TIMERS
        },
        ..testbed.config("a")
    }
}

/// h1's port, and one or both ports of the link are reported as up or down.
fn report(testbed: &Testbed, host: bool, leaf: bool, spine: bool) {
    testbed.switches[LEAF1].port(Target::of_run().port(1), host);
    testbed.port(LEAF1, 0, leaf);
    testbed.port(SPINE1, 0, spine);
}

/// The events of ports, links and hosts so far: object, reason, count.
async fn events(client: &Client) -> Vec<(String, String, u32)> {
    let events = client.events("").await.unwrap().into_iter();
    let mut events: Vec<_> = events
        .filter(|it| ["Up", "Down"].contains(&&*it.reason))
        .map(|it| (it.object, it.reason, it.count))
        .collect();
    events.sort();
    events
}

/// The expected events, by `reason` and count, of the host's port and the link's ends.
fn expected(all: &[(&str, &str, u32)]) -> Vec<(String, String, u32)> {
    let mut events: Vec<_> = (all.iter())
        .map(|(object, reason, count)| {
            let (kind, name) = object.split_once('/').unwrap();
            let name = match kind {
                "host" => name.to_owned(),
                _ => Target::of_run().element(name),
            };
            (format!("{kind}/{name}"), (*reason).to_owned(), *count)
        })
        .collect();
    events.sort();
    events
}

/// Each leader of a sequence finds ports in another state than the one before it left them.
async fn each_change_is_logged_once<H>(
    testbed: &Testbed,
    start: impl AsyncFn() -> H,
    stop: impl AsyncFn(H),
) {
    let [leaf, spine] = ENDS;
    let link = format!("link/{leaf}-{spine}");
    let [host, leaf, spine] = [HOST_PORT, leaf, spine].map(|name| format!("port/{name}"));
    let down = [
        (&*host, "Down", 1),
        ("host/h1", "Down", 1),
        (&leaf, "Down", 1),
        (&spine, "Down", 1),
        // For each of its ports.
        (&link, "Down", 1),
        (&link, "Down", 1),
    ];
    let becomes = async |all: &[(&str, &str, u32)]| {
        let client = testbed.client("a").await;
        let all = expected(all);
        until(async || events(&client).await == all).await;
    };
    report(testbed, true, true, true);
    let leader = start().await;
    report(testbed, false, false, false);
    becomes(&down).await;
    stop(leader).await;

    // The same state is no event, and a link with one port is down.
    report(testbed, false, true, false);
    let leader = start().await;
    let one_end = [&down[..], &[(&*leaf, "Up", 1)]].concat();
    let client = testbed.client("a").await;
    let health = async || client.switches().await.unwrap().remove(SPINE1).health;
    until(async || health().await.contains("down")).await;
    becomes(&one_end).await;
    stop(leader).await;

    report(testbed, true, true, true);
    let leader = start().await;
    let up = [
        (&*host, "Up", 1),
        ("host/h1", "Up", 1),
        (&spine, "Up", 1),
        (&link, "Up", 1),
    ];
    let all = [&one_end[..], &up].concat();
    becomes(&all).await;
    // A port that goes down again is a change.
    testbed.port(SPINE1, 0, false);
    let mut again = all.clone();
    again.retain(|(object, reason, _)| (*object, *reason) != (&spine, "Down"));
    again.retain(|(object, reason, _)| (*object, *reason) != (&link, "Down"));
    again.extend([(&*spine, "Down", 2), (&link, "Down", 2), (&link, "Down", 1)]);
    becomes(&again).await;
    stop(leader).await;
}

#[tokio::test]
async fn each_change_of_a_port_is_logged_once_across_restarts() {
    let testbed = Testbed::new(1, false).await;
    let start = async || loop {
        match server::serve(config(&testbed)).await {
            // Tasks of the stopped controller may still hold the store.
            Err(ServeError::Store(StoreError::InUse { .. })) => pause().await,
            served => break served.unwrap(),
        }
    };
    each_change_is_logged_once(&testbed, start, server::Handle::stop).await;
}

#[tokio::test]
async fn each_change_of_a_port_is_logged_once_across_leaders() {
    let Some(etcd) = Etcd::start(1) else { return };
    let testbed = Testbed::new(1, false).await;
    let start = async || {
        let store = group::cluster(etcd.endpoints(), "events");
        let handle = serve_with_etcd(config(&testbed), store, None)
            .await
            .unwrap();
        until(async || handle.leader().is_some()).await;
        handle
    };
    each_change_is_logged_once(&testbed, start, server::CandidateHandle::stop).await;
}
