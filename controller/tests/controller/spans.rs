//! Tracing spans: one for each operation on a job, and one for each write to a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use tracing_subscriber::{Layer, Registry};
use ultima_api::client::Client;
use ultima_api::v1::evict_member_request::Member;
use ultima_api::v1::membership_event::Kind;
use ultima_controller::server::{self, Config};
use ultima_planner::job::JobSpec;

use crate::chaos::ChaosSwitch;
use crate::target::Target;
use crate::test_agents::TestAgents;

/// A span.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<usize>,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// All spans, in the order of their creation.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

/// A span's index in the list.
#[derive(Clone, Copy)]
struct Place(usize);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let place = |of: SpanRef<'_, S>| of.extensions().get::<Place>().map(|place| place.0);
        let mut seen = Seen {
            name: attributes.metadata().name(),
            parent: span.parent().and_then(place),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        let mut all = self.0.lock().unwrap();
        span.extensions_mut().insert(Place(all.len()));
        all.push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(Place(at)) = span.extensions().get() {
            values.record(&mut self.0.lock().unwrap()[*at]);
        }
    }
}

impl Spans {
    /// The spans with this name, each with the switches of its children.
    fn named(&self, name: &str) -> Vec<(Seen, BTreeSet<String>)> {
        let all = self.0.lock().unwrap();
        let around = |inner: &Seen| {
            let outer = std::iter::successors(inner.parent, |at| all[*at].parent);
            outer.collect::<Vec<_>>()
        };
        let its_own = all.iter().enumerate().filter(|(_, span)| span.name == name);
        let with_switches = its_own.map(|(at, span)| {
            let inner = all.iter().filter(|inner| around(inner).contains(&at));
            let switches = inner.filter_map(|inner| inner.fields.get("switch").cloned());
            (span.clone(), switches.collect())
        });
        with_switches.collect::<Vec<_>>()
    }

    /// The switches that were written to since `seen` spans, in spans of their own. Updates `seen`.
    fn written(&self, seen: &mut usize) -> BTreeSet<String> {
        let all = self.0.lock().unwrap();
        let writes = all[*seen..].iter().filter(|span| span.name == "write");
        *seen = all.len();
        writes.map(|span| span.fields["switch"].clone()).collect()
    }

    /// The only span with this name: the values of `fields`, and its switches.
    fn only<const N: usize>(
        &self,
        name: &str,
        fields: [&str; N],
    ) -> ([String; N], BTreeSet<String>) {
        let [(span, switches)] = &self.named(name)[..] else {
            panic!("{name}: {:?}", self.named(name));
        };
        let of = |field| span.fields.get(field).cloned().unwrap_or_default();
        (fields.map(of), switches.clone())
    }
}

const TOPOLOGY: &str = include_str!("../../../topologies/leaf-spine.yaml");
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

fn on(switches: &[&str]) -> BTreeSet<String> {
    switches.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn each_operation_and_each_write_to_a_switch_has_a_span() {
    let (spans, mut seen) = (Spans::default(), 0);
    // Concurrent tests have no subscriber. With a single dispatcher tracing would disable a span for good that one of them
    // creates first; with two it asks both.
    let _beside = Dispatch::new(NoSubscriber::new());
    // All tasks of this test run on this thread.
    let _log = tracing::subscriber::set_default(Registry::default().with(spans.clone()));
    let (mut switches, mut text) = (Vec::new(), TOPOLOGY.to_owned());
    for name in NAMES {
        let switch = ChaosSwitch::start().await;
        let entry = format!("name: {name}, grpc: \"{}\", device_id: 1", switch.address());
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
        switches.push(switch);
    }
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Target::of_run().config_for(&text, "leaf-spine.yaml")
    };
    let handle = server::serve(config).await.unwrap();
    let address = handle.address().to_string();
    let client = Client::connect(&address).await.unwrap();
    let spec = JobSpec {
        seed: Some(7),
        ..JobSpec::new("train", ["h1", "h3", "h5"])
    };
    client.create_job(&spec).await.unwrap();
    let here = client.job("train").await.unwrap().switches;
    let here: BTreeSet<String> = here.into_iter().collect();
    let of_job = |name, fields| spans.only(name, fields);
    let said = of_job("create", ["job", "id", "epoch", "switches"]);
    let count = here.len().to_string();
    let job = |id: &str, epoch: &str| ["train", id, epoch, &count].map(String::from);
    assert_eq!(said, (job("1", "1"), on(&[])));
    assert_eq!(spans.written(&mut seen), here);

    let mut agents = TestAgents::default();
    for host in ["h1", "h3", "h5"] {
        agents.join(&client, host).await;
    }
    agents.run_in(1, &["h1", "h3", "h5"]).await;
    let joined = spans.named("join");
    let said = |(span, _): &(Seen, _)| ["job", "epoch", "rank"].map(|it| span.fields[it].clone());
    let joined: Vec<[String; 3]> = joined.iter().map(said).collect();
    let members = ["0", "1", "2"].map(|rank| ["train", "1", rank].map(String::from));
    assert_eq!(joined, members);
    let mut watch = client.watch_job("train").await.unwrap();
    let h3 = Member::Host("h3".into());
    client.evict("train", h3, "").await.unwrap();
    let fenced = async {
        while let Some(next) = watch.next().await.unwrap() {
            if next.event.is_some_and(|event| event.kind() == Kind::Fenced) {
                break;
            }
        }
    };
    fenced.await;
    let evicted = client.job("train").await.unwrap().switches;
    let evicted: BTreeSet<String> = evicted.into_iter().collect();
    let (said, _) = of_job("evict", ["job", "id", "epoch", "switches"]);
    assert_eq!(said[..3], job("2", "2")[..3]);
    let (said, _) = spans.only("decide", ["job", "id", "epoch"]);
    assert_eq!(said, ["train", "2", "2"]);
    let (said, _) = spans.only("fence", ["job", "id", "epoch"]);
    assert_eq!(said, ["train", "1", "1"]);
    let both: BTreeSet<String> = here.union(&evicted).cloned().collect();
    assert_eq!(spans.written(&mut seen), both);

    let members = ["h1", "h5", "h7"].map(String::from);
    let resized = client
        .resize_job("train", None, &members, Duration::from_millis(10), false)
        .await;
    resized.unwrap();
    let (said, _) = spans.only("resize", ["job", "id", "epoch"]);
    assert_eq!(said, ["train", "3", "3"]);
    while client.job("train").await.unwrap().next.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (said, _) = spans.only("cancel", ["job", "id", "epoch"]);
    assert_eq!(said, ["train", "3", "3"]);

    for spine in ["spine1", "spine2"] {
        client.drain(spine, true).await.unwrap();
        client.drain(spine, false).await.unwrap();
    }
    let drains = spans.named("drain");
    let said = |(span, _): &(Seen, _)| ["element", "drained"].map(|it| span.fields[it].clone());
    let drains: Vec<[String; 2]> = drains.iter().map(said).collect();
    let drained = |element: &str, drained: &str| [element, drained].map(String::from);
    assert_eq!(
        drains[..2],
        [drained("spine1", "true"), drained("spine1", "false")]
    );
    client.sync_fabric().await.unwrap();
    let (said, on_switches) = spans.only("sync", ["mend"]);
    assert_eq!((said, on_switches), (["true".into()], on(&NAMES)));
    let moves = spans.named("reroute");
    let moved = |(span, switches): &(Seen, BTreeSet<String>)| {
        span.fields["jobs"] == "1" && switches.is_superset(&on(&["leaf1", "leaf3"]))
    };
    assert!(moves.iter().any(moved), "{moves:?}");

    switches[2].reboot();
    while spans.named("restore").is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (said, on_switches) = spans.only("restore", ["switch"]);
    assert_eq!((said, on_switches), (["leaf1".into()], on(&["leaf1"])));

    // Waits until the switch is connected.
    while !client.switches().await.unwrap()[2].connected {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let last = client.job("train").await.unwrap().switches;
    spans.written(&mut seen);
    client.delete_job("train").await.unwrap();
    let (said, _) = spans.only("delete", ["job"]);
    assert_eq!(said, ["train"]);
    let last: BTreeSet<String> = last.into_iter().collect();
    assert!(spans.written(&mut seen).is_superset(&last));
}
