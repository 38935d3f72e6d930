//! Requests while a switch is unreachable, and digests that no client reads.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::sleep;
use ultima_api::address::Listen;
use ultima_api::client::Client;
use ultima_api::member_session::{Fixed, Prober};
use ultima_api::v1::{self as api, Hop};
use ultima_controller::p4rt::SwitchClient;
use ultima_controller::server::{self, Config, Handle};
use ultima_planner::job::{Gather, JobSpec};

use crate::chaos::wire::Wire;
use crate::chaos::{Call, ChaosSwitch, Fault};
use crate::target::Target;
use crate::testbed::{creation_plan, until};

const TICK: Duration = Duration::from_millis(5);

/// Two switches with a trunk, and a job with one rank on each.
async fn two() -> ([ChaosSwitch; 2], Handle, Client) {
    let switches = [ChaosSwitch::start().await, ChaosSwitch::start().await];
    let [s1, s2] = &switches;
    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("127.0.0.1:9559", &s1.address().to_string())
        .replace("127.0.0.1:9560", &s2.address().to_string())
        .replace("device_id: 2", "device_id: 1");
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Target::of_run().config_for(&text, "two.yaml")
    };
    let handle = server::serve(config).await.unwrap();
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    let spec = JobSpec {
        gather: Gather::Unicast,
        seed: Some(7),
        ..JobSpec::new("train", ["h1", "h3"])
    };
    client.create_job(&spec).await.unwrap();
    (switches, handle, client)
}

/// Starts like [`two`], and stops s2.
async fn one_gone() -> (ChaosSwitch, Handle, Client) {
    let ([s1, s2], handle, client) = two().await;
    drop(s2);
    while client.switches().await.unwrap()[1].connected {
        sleep(TICK).await;
    }
    (s1, handle, client)
}

#[tokio::test]
async fn counters_and_telemetry_name_an_unreachable_switch() {
    let (_s1, _handle, client) = one_gone().await;
    let zero = Some(api::Count::default());
    let [s1, s2] = &client.counters("train").await.unwrap()[..] else {
        panic!("two switches")
    };
    assert_eq!((s1.received, s1.problem.as_str()), (zero, ""));
    assert_eq!((s2.switch.as_str(), s2.received), ("s2", None));
    assert!(
        !s2.problem.is_empty() && !s2.problem.contains('\n'),
        "{s2:?}"
    );

    let telemetry = client.telemetry("train").await.unwrap();
    let [s1, s2] = &telemetry.switches[..] else {
        panic!("two switches")
    };
    assert_eq!(s1.counters.as_ref().unwrap().received, zero);
    // The ports of h1 and of the trunk.
    assert_eq!((s1.ports.len(), s1.sources.len()), (2, 1));
    assert!(!s2.counters.as_ref().unwrap().problem.is_empty());
    assert_eq!((s2.ports.len(), s2.sources.len()), (0, 0));
}

/// The plan matches the real request. The absent switch delays only the job that needs it.
#[tokio::test]
async fn a_job_waits_for_an_unreachable_switch() {
    let (_s1, _handle, client) = one_gone().await;
    let near = JobSpec {
        gather: Gather::Unicast,
        ..JobSpec::new("near", ["h1", "h2"])
    };
    let far = JobSpec {
        name: "far".into(),
        members: vec!["h2".into(), "h3".into()],
        ..near.clone()
    };
    let both = [far.clone(), near.clone()];
    let plan = client.plan_jobs(creation_plan(&both)).await.unwrap();
    assert!(plan.jobs.iter().all(|it| it.refusal.is_empty()), "{plan:?}");
    let at_once = api::CreateJobRequest {
        wait_ms: Some(0),
        ..(&far).into()
    };
    let far = client.create_job(at_once).await.unwrap();
    assert!(!far.ready);
    assert!(client.create_job(&near).await.unwrap().ready);
    let far = client.job("far").await.unwrap();
    assert_eq!((far.ready, far.ready_switches), (false, Some(1)));
    let [condition] = &far.conditions[..] else {
        panic!("only s2: {far:?}")
    };
    assert_eq!(condition.kind(), api::JobConditionKind::Degraded);
    assert_eq!(condition.element, "s2");
    let reason = &condition.reason;
    assert!(reason.starts_with("not connected: "), "{reason}");
    assert!(condition.since > 0);
    assert_eq!(client.delete_job("far").await.unwrap(), ["s2"]);
    assert_eq!(client.delete_job("near").await.unwrap(), [""; 0]);
}

/// A write takes long, and the switch stays connected.
#[tokio::test]
async fn a_job_is_pending_while_a_switch_writes_it() {
    let ([s1, _s2], _handle, client) = two().await;
    s1.state().keeps_hanging = true;
    s1.fail(Call::Update, 0, Fault::Hang);
    let late = api::CreateJobRequest {
        wait_ms: Some(0),
        ..(&JobSpec::new("late", ["h1", "h3"])).into()
    };
    client.create_job(late).await.unwrap();
    let job = async || client.job("late").await.unwrap();
    until(async || job().await.ready_switches == Some(1)).await;
    let pending = job().await;
    let [condition] = &pending.conditions[..] else {
        panic!("only s1: {pending:?}")
    };
    assert!(!pending.ready);
    assert_eq!(condition.kind(), api::JobConditionKind::Pending);
    assert_eq!(condition.element, "s1");
    assert_eq!(condition.reason, "being written");
    assert!(condition.since > 0);
    s1.state().keeps_hanging = false;
    until(async || job().await.ready).await;
    assert_eq!(job().await.conditions, []);
    let events = client.events("job/late").await.unwrap();
    assert!(events.iter().all(|it| it.reason == "Created"), "{events:?}");
}

/// Twice. Each change is one event; a condition that stays is none.
#[tokio::test]
async fn a_job_that_is_degraded_and_ready_again_has_events() {
    let ([_s1, s2], _handle, client) = two().await;
    let events = async || {
        let mut events = client.events("job/train").await.unwrap();
        events.retain(|it| ["Degraded", "Ready"].contains(&&*it.reason));
        events
    };
    let until_last = async |reason: &str, count: u32| {
        until(async || {
            let last = events().await.pop();
            last.is_some_and(|it| it.reason == reason && it.count >= count)
        })
        .await;
    };
    assert_eq!(events().await, []);
    for count in 1..=2 {
        s2.swallow(true);
        until(async || {
            let events = events().await.into_iter();
            let lost = events.filter(|it| it.message.starts_with("s2"));
            lost.map(|it| it.count).sum::<u32>() >= count
        })
        .await;
        s2.swallow(false);
        until_last("Ready", count).await;
    }
    let all = events().await;
    let lost = all.iter().find(|it| it.message.starts_with("s2"));
    let message = &lost.unwrap().message;
    assert!(message.contains(": not connected: "), "{message}");
    let ready = all.last().unwrap();
    assert_eq!((ready.message.as_str(), ready.count), ("", 2));
    client.sync_fabric().await.unwrap();
    sleep(Duration::from_millis(300)).await;
    assert_eq!(events().await, all);
}

/// A member whose packets reach no other member.
struct Silent;

impl Prober for Silent {
    fn all_here(&mut self) {}

    fn begin(&mut self, _: &api::CheckRound, _: std::time::Duration) {}

    fn send(&mut self, _: &api::CheckRound) {}

    fn report<'a>(&'a mut self, round: &'a api::CheckRound) -> BoxFuture<'a, api::RoundReport> {
        let report = api::RoundReport {
            token: round.token,
            ..api::RoundReport::default()
        };
        async move { report }.boxed()
    }
}

#[tokio::test]
async fn a_check_reports_an_unreachable_switch_and_checks_the_rest() {
    let (_s1, _handle, client) = one_gone().await;
    let attending = ["h1", "h3"].map(|host| {
        let client = client.clone();
        tokio::spawn(async move {
            let seat = client.join("train", host, Duration::ZERO).await.unwrap();
            let attendance = api::Attendance {
                slot_bytes: 1408,
                ..seat.attendance("train")
            };
            client
                .attend(attendance, &mut Silent, &mut Fixed::default())
                .await
        })
    });
    let check = loop {
        let check = client.check("train").await.unwrap();
        if check.attending == [0, 1] {
            break check;
        }
        // Absent members do not hide the switch.
        assert_eq!(check.findings[0].hop(), Hop::Switch, "{check:?}");
    };
    let [switch, port] = &check.findings[..] else {
        panic!("one for each direction: {check:?}")
    };
    let path = |from, to| api::Path {
        from,
        to,
        by_group: false,
    };
    assert_eq!((switch.hop(), switch.switch.as_str()), (Hop::Switch, "s2"));
    assert_eq!(switch.paths, [path(1, 0)]);
    assert!(
        switch.what.starts_with("the controller cannot reach s2: "),
        "{switch:?}"
    );
    assert!(switch.advice.contains("log"), "{switch:?}");
    assert_eq!((port.hop(), port.switch.as_str()), (Hop::FirstPort, "s1"));
    assert_eq!(port.paths, [path(0, 1)]);
    attending.iter().for_each(|member| member.abort());
}

/// A switch that sends this number of digest lists with this number of bytes, and a client that has received all.
async fn digests_of(lists: u64, bytes: usize) -> (ChaosSwitch, SwitchClient) {
    let switch = ChaosSwitch::start().await;
    {
        let mut state = switch.state();
        (state.digest_lists, state.digest_bytes) = (lists, bytes);
    }
    let client = SwitchClient::connect(switch.device(), 1, Duration::from_secs(60))
        .await
        .unwrap();
    while switch.state().acknowledged < lists {
        sleep(TICK).await;
    }
    (switch, client)
}

#[tokio::test]
async fn digest_lists_beyond_the_queue_are_dropped_and_counted() {
    /// The size of a client's queue, and the number of further lists.
    const ROOM: u64 = 256;
    const MORE: u64 = 44;
    let (_switch, client) = digests_of(ROOM + MORE, 40).await;
    assert_eq!(client.digest_lists_dropped(), MORE);
    let mut lists = client.digests().unwrap();
    for list_id in 0..ROOM {
        assert_eq!(lists.recv().await.unwrap().list_id, list_id);
    }
}

/// Longer lists than the program's would fill the queue's memory.
#[tokio::test]
async fn oversized_digest_lists_are_dropped() {
    let (_switch, client) = digests_of(3, 1 << 20).await;
    assert_eq!(client.digest_lists_dropped(), 3);
}

/// The stream stays open while another client replaces the program; an audit notices it.
#[tokio::test]
async fn a_replaced_program_is_noticed_and_installed_again() {
    let ([s1, _s2], _handle, client) = two().await;
    let held = s1.held();
    s1.replace_program();
    let diff = client.diff_fabric().await.unwrap();
    assert_eq!(
        (diff[0].problem.as_str(), diff[1].problem.as_str()),
        ("switch s1 runs another program; reconnecting", "")
    );
    while s1.held() != held || !client.switches().await.unwrap()[0].connected {
        sleep(TICK).await;
    }
    assert_eq!(client.diff_fabric().await.unwrap()[0].problem, "");
}

/// The stream stays open.
#[tokio::test]
async fn an_unresponsive_switch_is_disconnected_and_used_again_when_it_answers() {
    let ([s1, _s2], _handle, client) = two().await;
    s1.swallow(true);
    let diff = client.diff_fabric().await.unwrap();
    assert_eq!(
        diff[0].problem,
        "cannot read the entries of switch s1: the connection was lost: no answer for 600 ms"
    );
    while client.switches().await.unwrap()[0].connected {
        sleep(TICK).await;
    }
    s1.swallow(false);
    while !client.switches().await.unwrap()[0].connected {
        sleep(TICK).await;
    }
    assert_eq!(client.diff_fabric().await.unwrap()[0].differences, []);
}

/// A session is silent while nothing changes; the client's keepalive notices the loss.
#[tokio::test]
async fn members_notice_that_the_controller_is_gone() {
    // The keepalive takes 8 s.
    if !ultima_testing::full_run() {
        return;
    }
    let (_switches, handle, _client) = two().await;
    let Listen::Tcp(address) = handle.address() else {
        panic!("an address")
    };
    let wire = Wire::start(*address).await;
    let client = Client::connect(&wire.address().to_string()).await.unwrap();
    let seat = client.join("train", "h1", Duration::ZERO).await.unwrap();
    let attendance = api::Attendance {
        slot_bytes: 1408,
        ..seat.attendance("train")
    };
    let (mut prober, mut member) = (Silent, Fixed::default());
    let attends = client.attend(attendance, &mut prober, &mut member);
    let vanishes = async {
        while client.check("train").await.unwrap().attending != [0] {
            sleep(TICK).await;
        }
        wire.swallow(true);
    };
    let (attended, ()) = tokio::join!(attends, vanishes);
    assert!(!attended.unwrap_err().is_over());
}
