//! The control API, used as its clients do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, select_all, try_join_all};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_types::StatusExt as _;
use ultima_api::address::Listen;
use ultima_api::client::{Client, ClientError};
use ultima_api::member_session::{Fixed, Prober};
use ultima_api::v1::control_client::ControlClient;
use ultima_api::v1::{self as api, MemberState};
use ultima_controller::server::{self, Config, Handle};
use ultima_planner::fabric;
use ultima_planner::job::{Gather, JobSpec};

use crate::bed::until;
use crate::chaos::ChaosSwitch;
use crate::target::{Target, on_each_target};

/// Longer than any wait in these tests.
const LONG: Duration = Duration::from_secs(60);

on_each_target!(
    jobs_are_created_listed_shown_and_deleted,
    a_group_over_the_limit_is_rejected_before_any_write,
    a_plan_opens_no_files,
    ports_are_configured_only_on_switches_with_a_front_panel,
);

/// Starts a controller of `topologies/star4.yaml` with one replacement, and a chaos switch.
async fn start_with(target: Target, (from, to): (&str, &str)) -> (ChaosSwitch, Handle, Client) {
    let switch = ChaosSwitch::start_as(target).await;
    let text = include_str!("../../../topologies/star4.yaml")
        .replace("127.0.0.1:9559", &switch.address().to_string());
    assert!(text.contains(from), "{from} in the topology");
    let fabric = target.fabric(&text.replace(from, to), "star.yaml");
    let listen = "127.0.0.1:0".parse().unwrap();
    let handle = server::serve(Config {
        listen,
        ..target.config(fabric)
    })
    .await
    .unwrap();
    let client = Client::connect(&handle.address().to_string())
        .await
        .unwrap();
    (switch, handle, client)
}

/// Starts a controller with room for two ranks on h1.
async fn start(target: Target) -> (ChaosSwitch, Handle, Client) {
    start_with(target, ("ip: 10.0.0.1 }", "ip: 10.0.0.1, ranks: 2 }")).await
}

fn spec(name: &str, members: &[&str]) -> JobSpec {
    JobSpec {
        seed: Some(7),
        ..JobSpec::new(name, members.iter().copied())
    }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (Code, String) {
    match answer.unwrap_err() {
        ClientError::Refused { code, message, .. } => (code, message),
        other => panic!("{other}"),
    }
}

async fn jobs_are_created_listed_shown_and_deleted(target: Target) {
    let (_switch, _handle, client) = start(target).await;
    assert_eq!(client.jobs().await.unwrap(), []);
    let one = client
        .create_job(&spec("one", &["h1", "h2", "h1"]))
        .await
        .unwrap();
    assert_eq!(
        (one.id, one.epoch, one.seed, one.counter_index, one.group_id),
        (1, 1, 7, 1, 1)
    );
    assert_eq!(one.group_address, "239.85.0.1");
    assert_eq!(one.gather(), api::Gather::Multicast);
    assert_eq!(one.switches, ["s1"]);
    let last = api::Member {
        rank: 2,
        host: "h1".into(),
        mac: "02:00:00:00:00:01".into(),
        ip: "10.0.0.1".into(),
        udp_port: u32::from(ultima_wire::UDP_PORT) + 1,
        switch: "s1".into(),
        switch_port: target.port(1).into(),
        source_index: 3,
        cut_off: false,
        state: MemberState::Free.into(),
        switch_port_name: target.part("s1/1"),
    };
    assert_eq!(one.members[2], last);

    let unicast = JobSpec {
        gather: Gather::Unicast,
        seed: None,
        ..spec("two", &["h2", "h3"])
    };
    let two = client.create_job(&unicast).await.unwrap();
    assert_eq!((two.id, two.counter_index, two.group_id), (2, 2, 0));
    assert_eq!(
        (two.gather(), two.group_address.as_str()),
        (api::Gather::Unicast, "")
    );

    assert_eq!(client.jobs().await.unwrap(), [one.clone(), two.clone()]);
    assert_eq!(client.job("two").await.unwrap(), two);
    let [switch] = client.switches().await.unwrap().try_into().unwrap();
    assert_eq!(
        (switch.name.as_str(), switch.connected, switch.jobs),
        ("s1", true, vec!["one".into(), "two".into()])
    );

    assert_eq!(
        client.delete_job("one").await.unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(client.jobs().await.unwrap(), [two]);
    // Ids are not reused soon, table indexes are.
    let three = client
        .create_job(&spec("three", &["h1", "h4"]))
        .await
        .unwrap();
    assert_eq!((three.id, three.counter_index, three.group_id), (3, 1, 1));
}

#[tokio::test]
async fn invalid_job_requests_are_rejected_with_a_reason() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("one", &["h1", "h2"]))
        .await
        .unwrap();
    let create = |spec: JobSpec| {
        let client = client.clone();
        async move { refusal(client.create_job(&spec).await) }
    };
    assert_eq!(
        create(spec("one", &["h1", "h2"])).await,
        (
            Code::AlreadyExists,
            "job one already exists; delete it first, or choose another name".into()
        )
    );
    assert_eq!(
        create(spec("x", &["h1", "h7"])).await,
        (
            Code::NotFound,
            "job x: members[1]: unknown host \"h7\" (the fabric has h1, h2, h3, h4)".into()
        )
    );
    assert_eq!(
        create(spec("a b", &["h1", "h2"])).await.0,
        Code::InvalidArgument
    );
    assert_eq!(create(spec("x", &["h1"])).await.0, Code::InvalidArgument);
    assert_eq!(
        refusal(client.job("two").await),
        (
            Code::NotFound,
            "there is no job \"two\"; there is one".into()
        )
    );
    assert_eq!(refusal(client.delete_job("two").await).0, Code::NotFound);
    // A long name does not break the answer.
    let long = "x".repeat(30_000);
    let (code, message) = refusal(client.job(&long).await);
    assert_eq!(code, Code::NotFound);
    assert!(message.starts_with("there is no job \"xxx") && message.ends_with(" ..."));
    let (code, _) = refusal(client.create_job(&spec("x", &["h1", &long])).await);
    assert_eq!(code, Code::NotFound);
    assert_eq!(refusal(client.counters("two").await).0, Code::NotFound);
}

/// The field that the rejection names, and the problem.
fn field<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Option<(String, String)> {
    match answer.unwrap_err() {
        ClientError::Refused { field, .. } => field.map(|it| (it.field, it.problem)),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_rejection_names_the_invalid_field() {
    let limit = "device_id: 1, limits: { group_replicas: 3 } }";
    let (_switch, handle, client) = start_with(Target::of_run(), ("device_id: 1 }", limit)).await;
    client
        .create_job(&spec("one", &["h1", "h2"]))
        .await
        .unwrap();
    let said = |field: &str, problem: &str| Some((field.to_owned(), problem.to_owned()));
    let no_host = "unknown host \"h7\" (the fabric has h1, h2, h3, h4)";
    let taken = "job one already exists; delete it first, or choose another name";
    for (spec, wanted) in [
        (spec("one", &["h1", "h2"]), said("name", taken)),
        (spec("x", &["h1", "h7"]), said("members[1]", no_host)),
        // The job as a whole is over a limit: no field is at fault.
        (spec("x", &["h1", "h2", "h3", "h4"]), None),
    ] {
        let refused = client.create_job(&spec).await;
        assert_eq!(field(refused.clone()), wanted);
        // A plan reports the same.
        let plan = client.plan_jobs(&[], vec![], &[spec]).await.unwrap();
        let code = Code::from_i32(plan.jobs[0].refused_code);
        assert_eq!(code, refusal(refused).0);
        let planned = plan.jobs[0].refused_field.clone();
        assert_eq!(planned.map(|it| (it.field, it.problem)), wanted);
    }
    let members = ["h1", "h7"].map(String::from);
    let terms = (Duration::ZERO, false);
    let resized = client.resize_job(("one", None), &members, terms).await;
    let (code, message) = refusal(resized.clone());
    let as_created = format!("job one: members[1]: {no_host}");
    assert_eq!((code, message), (Code::NotFound, as_created));
    assert_eq!(field(resized), said("members[1]", no_host));

    // Requests that our client cannot send.
    let endpoint = Endpoint::from_shared(format!("http://{}", handle.address())).unwrap();
    let mut rpc = ControlClient::new(endpoint.connect().await.unwrap());
    let asked = api::CreateJobRequest::from(&spec("x", &["h1", "h2"]));
    for (wrong, of) in [
        (
            api::CreateJobRequest {
                weight: Some(101),
                ..asked.clone()
            },
            "weight",
        ),
        (
            api::CreateJobRequest {
                evict_after_s: 86_401,
                ..asked.clone()
            },
            "evict_after_s",
        ),
        (api::CreateJobRequest { gather: 9, ..asked }, "gather"),
    ] {
        let status = rpc.create_job(wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_details_bad_request().expect("it names a field");
        assert_eq!(details.field_violations[0].field, of);
    }
}

#[tokio::test]
async fn several_jobs_are_created_together_or_not_at_all() {
    let (switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("one", &["h1", "h2"]))
        .await
        .unwrap();
    let updates = switch.updates();
    let near = || spec("near", &["h1", "h2"]);
    for (second, at) in [
        (spec("far", &["h1", "h9"]), "jobs[1].members[1]"),
        (spec("one", &["h3", "h4"]), "jobs[1].name"),
        // Both jobs of the request have the same name.
        (spec("near", &["h3", "h4"]), "jobs[1].name"),
    ] {
        let refused = client.create_jobs(&[near(), second], None).await;
        let (named, _) = field(refused).expect("it names the job");
        assert_eq!(named, at);
    }
    let nothing = refusal(client.create_jobs(&[] as &[JobSpec], None).await);
    assert_eq!(nothing.0, Code::InvalidArgument);
    assert_eq!(client.jobs().await.unwrap().len(), 1);
    assert_eq!(switch.updates(), updates, "nothing was written");

    // The second job gets what the first one leaves.
    let wanted = [near(), spec("far", &["h1", "h4"])];
    let created = client.create_jobs(&wanted, None).await.unwrap();
    let names = created.iter().map(|job| (job.name.as_str(), job.id));
    assert_eq!(names.collect::<Vec<_>>(), [("near", 2), ("far", 3)]);
    let ports = created.iter().map(|job| job.members[0].udp_port);
    let first = u32::from(ultima_wire::UDP_PORT);
    assert_eq!(ports.collect::<Vec<_>>(), [first + 1, first + 2]);
    assert_eq!(client.jobs().await.unwrap()[1..], created);
    let held = client.diff_fabric().await.unwrap();
    assert!(held[0].differences.is_empty(), "{held:?}");
    for job in ["near", "far", "one"] {
        assert_eq!(client.delete_job(job).await.unwrap(), [""; 0]);
    }
}

async fn a_group_over_the_limit_is_rejected_before_any_write(target: Target) {
    let limit = "device_id: 1, limits: { group_replicas: 3 } }";
    let (switch, _handle, client) = start_with(target, ("device_id: 1 }", limit)).await;
    let updates = switch.updates();
    assert_eq!(
        refusal(client.create_job(&spec("big", &["h1", "h2", "h3", "h4"])).await),
        (Code::ResourceExhausted, "job big: switch s1: the group needs 4 replicas, but the limit is 3 (group_replicas); use fewer members there, or `gather: unicast`".into())
    );
    assert_eq!(switch.updates(), updates);
}

#[tokio::test]
async fn members_learn_their_rank_when_all_have_joined() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2", "h1"]))
        .await
        .unwrap();
    let join = |host: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", host, LONG).await.unwrap() })
    };
    let joined = [join("h1"), join("h1"), join("h2")];
    let (mut ranks, mut leaves) = (Vec::new(), BTreeMap::new());
    for answer in joined {
        let answer = answer.await.unwrap();
        assert_eq!((answer.job_id, answer.epoch, answer.seed), (1, 1, 7));
        assert_eq!(
            (answer.group_address.as_str(), answer.group_mac.as_str()),
            ("239.85.0.1", "01:00:5e:55:00:01")
        );
        let hosts: Vec<&str> = answer
            .members
            .iter()
            .map(|member| member.host.as_str())
            .collect();
        assert_eq!(hosts, ["h1", "h2", "h1"]);
        assert!(
            answer
                .members
                .iter()
                .all(|member| member.state() == MemberState::Joined)
        );
        ranks.push(answer.rank);
        leaves.insert(answer.rank, answer.leave("train"));
    }
    assert_eq!(ranks[2], 1);
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);

    assert_eq!(
        refusal(client.join("train", "h2", LONG).await),
        (Code::FailedPrecondition, "job train has no free rank on host h2 (1 taken); evict a lost member with `ultima job evict train`, or free all places of members that left with `ultima job resize train --members ...` and all hosts".into())
    );
    // A rank that is left stays free after the job has begun.
    let leave = async |rank: u32| client.leave(leaves[&rank].clone()).await;
    leave(1).await.unwrap();
    assert_eq!(
        client.job("train").await.unwrap().members[1].state(),
        MemberState::Left
    );
    assert_eq!(
        refusal(client.join("train", "h2", LONG).await).0,
        Code::FailedPrecondition
    );
    leave(0).await.unwrap();
    leave(2).await.unwrap();
    assert_eq!(
        refusal(leave(1).await),
        (
            Code::FailedPrecondition,
            "rank 1 of job train has not joined in epoch 1".into()
        )
    );
    // When all have left, the next members start the job over.
    let joined = try_join_all(["h2", "h1", "h1"].map(join)).await.unwrap();
    assert_eq!(joined[0].rank, 1);
    for answer in joined {
        assert_eq!((answer.job_id, answer.epoch), (2, 2));
    }
    assert_eq!(client.jobs().await.unwrap().len(), 1);
}

#[tokio::test]
async fn members_of_a_sealed_job_receive_its_key_and_the_path_limits() {
    let (_switch, _handle, client) = start_with(
        Target::of_run(),
        (
            "{ ends: [h2, s1/2] }",
            "{ ends: [h2, s1/2], mtu: 1400, a_to_b: { rate: 1G } }",
        ),
    )
    .await;
    let sealed = |name: &str, members: &[&str]| JobSpec {
        sealed: true,
        ..spec(name, members)
    };
    let mut keys = BTreeSet::new();
    for job in [
        sealed("one", &["h1", "h2"]),
        sealed("two", &["h3", "h4"]),
        sealed("again", &["h1", "h2"]),
        spec("open", &["h1", "h2"]),
    ] {
        let created = client.create_job(&job).await.unwrap();
        assert_eq!(created.sealed, job.sealed);
        let mut told = Vec::new();
        for host in &job.members {
            let seat = client.join(&job.name, host, Duration::ZERO).await.unwrap();
            let limits = seat.limits.unwrap();
            // From the narrowest link on any path.
            let rate = u64::from(host == "h2") * 1_000_000_000;
            assert_eq!((limits.rate, limits.mtu), (rate, 1400), "{host}");
            told.push(seat.key);
        }
        assert_eq!(told[0], told[1]);
        assert_eq!(told[0].len(), if job.sealed { 16 } else { 0 });
        // Each join, and each fetch of a key, leaves an event.
        let events = client.events(&format!("job/{}", job.name)).await.unwrap();
        let of = |reason: &str| events.iter().filter(|it| it.reason == reason).count();
        let fetched = if job.sealed { 2 } else { 0 };
        assert_eq!((of("Joined"), of("KeyFetched")), (2, fetched), "{events:?}");
        let shown = client.job(&job.name).await.unwrap();
        assert_eq!(shown.sealed, job.sealed);
        if job.sealed {
            assert!(keys.insert(told.remove(0)), "another job's key");
        }
        if job.name != "two" {
            client.delete_job(&job.name).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_member_that_stops_waiting_has_not_joined() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2", "h3"]))
        .await
        .unwrap();
    assert_eq!(
        refusal(client.join("train", "h1", Duration::from_millis(20)).await),
        (
            Code::DeadlineExceeded,
            "job train: after 0.02 s 2 of 3 members had not joined: rank 1 on h2, rank 2 on h3"
                .into()
        )
    );
    // A member whose call is dropped, as when its process dies.
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", "h2", LONG).await })
    };
    let state = |rank: usize| {
        let client = client.clone();
        async move { client.job("train").await.unwrap().members[rank].state() }
    };
    while state(1).await != MemberState::Joined {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.abort();
    while state(1).await != MemberState::Free {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A member that does not wait has joined at once, and may leave again.
    let answer = client.join("train", "h3", Duration::ZERO).await.unwrap();
    assert_eq!((answer.rank, state(2).await), (2, MemberState::Joined));
    client.leave(answer.leave("train")).await.unwrap();
    assert_eq!(state(2).await, MemberState::Free);
}

#[tokio::test]
async fn deleting_a_job_ends_pending_joins() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.join("train", "h1", LONG).await })
    };
    while client.job("train").await.unwrap().members[0].state() != MemberState::Joined {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.delete_job("train").await.unwrap();
    assert_eq!(
        refusal(waiting.await.unwrap()),
        (Code::Aborted, "job train was deleted meanwhile".into())
    );
}

#[tokio::test]
async fn hosts_outside_the_job_cannot_join() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    assert_eq!(
        refusal(client.join("train", "h3", LONG).await),
        (
            Code::NotFound,
            "job train has no member on host h3; its members are on h1, h2".into()
        )
    );
    assert_eq!(
        refusal(client.join("train", "h9", LONG).await),
        (
            Code::NotFound,
            "unknown host \"h9\" (the fabric has h1, h2, h3, h4)".into()
        )
    );
    assert_eq!(
        refusal(client.join("tram", "h1", LONG).await).0,
        Code::NotFound
    );
}

#[tokio::test]
async fn counters_start_at_zero() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let zero = Some(api::Count::default());
    let expected = api::SwitchCounters {
        switch: "s1".into(),
        received: zero,
        rejected: zero,
        replicated: zero,
        unicast: zero,
        delivered: zero,
        own_copy: zero,
        unknown_rank: zero,
        reflected: zero,
        late: zero,
        trimmed: zero,
        cut_sealed: zero,
        undeliverable: zero,
        problem: String::new(),
    };
    assert_eq!(client.counters("train").await.unwrap(), [expected]);
}

#[tokio::test]
async fn telemetry_is_sent_at_the_requested_interval() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let every = Duration::from_millis(100);
    let refused = async |job: Option<&str>, every: Duration| {
        let watch = client.watch_telemetry(job, every).await;
        watch.expect_err("it is refused").to_string()
    };
    for wrong in [Duration::from_millis(99), Duration::from_millis(60_001)] {
        let error = refused(None, wrong).await;
        assert!(error.contains("expected 100 to 60000"), "{error}");
    }
    let error = refused(Some("train"), every).await;
    assert!(error.contains("there is no job"), "{error}");

    let mut all = client.watch_telemetry(None, every).await.unwrap();
    assert_eq!(all.next().await.unwrap(), Some(vec![]));
    client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let mut one = client.watch_telemetry(Some("train"), every).await.unwrap();
    let said = one.next().await.unwrap().expect("the controller runs");
    assert_eq!(said.len(), 1);
    let telemetry = client.telemetry("train").await.unwrap();
    assert_eq!(said[0].telemetry.as_ref(), Some(&telemetry));
    while all.next().await.unwrap().expect("it runs").is_empty() {}

    // There may be 64 watches.
    let mut others = Vec::new();
    for _ in 2..64 {
        others.push(client.watch_telemetry(None, every).await.unwrap());
    }
    let error = refused(None, every).await;
    assert!(
        error.contains("64 clients watch telemetry already"),
        "{error}"
    );
    drop(others);
    while client.watch_telemetry(None, every).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // The watch ends with the job, and with the controller.
    client.delete_job("train").await.unwrap();
    let error = loop {
        if let Err(error) = one.next().await {
            break error.to_string();
        }
    };
    assert!(error.contains("there is no job"), "{error}");
    handle.stop().await;
    while let Ok(Some(_)) = all.next().await {}
}

#[tokio::test]
async fn a_resize_of_a_job_that_changed_meanwhile_is_rejected() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let job = client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let members = ["h1", "h2", "h3"].map(String::from);
    let terms = (LONG, false);
    let stale = client.resize_job(("train", Some(job.id + 1)), &members, terms);
    let (code, message) = refusal(stale.await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        message.contains("is in epoch 1, and its members have changed"),
        "{message}"
    );
    assert_eq!(client.job("train").await.unwrap(), job);
    let resized = client.resize_job(("train", Some(job.id)), &members, terms);
    let next = resized.await.unwrap().next.expect("another epoch");
    assert_eq!((next.epoch, next.members.len()), (2, 3));
}

#[tokio::test]
async fn a_plan_shows_the_effect_of_a_resize() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let job = client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let resize = |members: &[&str]| api::ResizeJobRequest {
        job: "train".into(),
        members: members.iter().map(|host| host.to_string()).collect(),
        job_id: job.id,
        ..api::ResizeJobRequest::default()
    };
    let more = vec![resize(&["h1", "h2", "h3"])];
    let plan = client.plan_jobs(&[], more, &[]).await.unwrap();
    let next = plan.jobs[0].job.as_ref().expect("it would be granted");
    assert_eq!((next.epoch, next.members.len()), (2, 3));
    let differences = &plan.switches[0].differences;
    assert!(
        differences.iter().all(|it| it.held.is_none()),
        "the old epoch stays: {plan:?}"
    );
    assert!(!differences.is_empty());
    assert_eq!(client.job("train").await.unwrap(), job, "nothing was done");

    let refused = async |resize, why: &str| {
        let plan = client.plan_jobs(&[], vec![resize], &[]).await.unwrap();
        let [planned] = &plan.jobs[..] else {
            panic!("one job: {plan:?}")
        };
        assert_eq!((&planned.job, &plan.switches[..]), (&None, &[][..]));
        assert!(planned.refusal.contains(why), "{}", planned.refusal);
    };
    refused(resize(&["h1", "h9"]), "unknown host").await;
    // h3 has room for one rank.
    refused(resize(&["h1", "h3", "h3"]), "h3").await;
    let stale = api::ResizeJobRequest {
        job_id: job.id + 1,
        ..resize(&["h1", "h3"])
    };
    refused(stale, "its members have changed").await;
}

/// The paths are of the client's machine, and any user may send them.
async fn a_plan_opens_no_files(target: Target) {
    let (_switch, _handle, client) = start(target).await;
    let text = include_str!("../../../topologies/star4.yaml");
    let tls = "device_id: 1, tls: { ca: no.pem, cert: no.pem, key: no.pem } }";
    let named = text.replace("device_id: 1 }", tls);
    let opened = fabric::parse(&named, "star.yaml").unwrap_err().to_string();
    assert!(opened.contains("no.pem"), "{opened}");
    let plan = async |yaml: &str| {
        let plan = client.plan_fabric(yaml).await;
        plan.map_err(|error| error.to_string())
    };
    let planned = plan(&named).await;
    assert_eq!(planned, plan(text).await);
    // The controller's program for Tofinos does not fit this fabric.
    assert_eq!(planned.is_ok(), target.chip().is_none(), "{planned:?}");
}

/// The client's kernel acknowledges, but the client reads nothing.
#[tokio::test]
async fn a_client_that_reads_nothing_does_not_delay_the_stop() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let job = spec("train", &["h1", "h2"]);
    client.create_job(&job).await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", handle.address())).unwrap();
    // The window is too small for one answer.
    let endpoint = endpoint.initial_stream_window_size(1);
    let rpc = ControlClient::new(endpoint.connect().await.unwrap());
    let watches_telemetry = api::WatchTelemetryRequest {
        job: String::new(),
        interval_ms: 100,
    };
    let _telemetry = rpc
        .clone()
        .watch_telemetry(watches_telemetry)
        .await
        .unwrap();
    let watches_job = api::WatchJobRequest {
        name: "train".into(),
    };
    let _members = rpc.clone().watch_job(watches_job).await.unwrap();
    let stopped = tokio::time::timeout(LONG, handle.stop()).await;
    stopped.expect("it stops");
}

#[tokio::test]
async fn an_unreachable_controller_is_named() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = Client::connect(&silent.to_string())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!(
            "the controller at {silent} does not answer: Connection refused (os error 111); start it with `ultima controller serve`, or \
             correct the address; if it runs on another machine, start it there with --listen ADDRESS:9555, an address that this \
             machine reaches, and use --controller ADDRESS:9555 here"
        )
    );

    let (_switch, handle, client) = start(Target::of_run()).await;
    let address = handle.address().clone();
    handle.stop().await;
    let error = client.jobs().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the controller at {address} does not answer: ")),
        "{error}"
    );
}

/// A member that reports when all are here, and sends nothing.
struct Listener(watch::Sender<bool>);

impl Prober for Listener {
    fn all_here(&mut self) {
        self.0.send_replace(true);
    }

    fn begin(&mut self, _: &api::CheckRound, _: Duration) {}

    fn send(&mut self, _: &api::CheckRound) {}

    fn report<'a>(&'a mut self, round: &'a api::CheckRound) -> BoxFuture<'a, api::RoundReport> {
        let token = round.token;
        async move {
            api::RoundReport {
                token,
                ..api::RoundReport::default()
            }
        }
        .boxed()
    }
}

/// Starts a member's session. Returns its end, and whether all members are here.
fn attend(
    client: &Client,
    attendance: api::Attendance,
) -> (JoinHandle<Result<(), ClientError>>, watch::Receiver<bool>) {
    let client = client.clone();
    let (here, all_here) = watch::channel(false);
    let attending = tokio::spawn(async move {
        client
            .attend(attendance, &mut Listener(here), &mut Fixed::default())
            .await
    });
    (attending, all_here)
}

#[tokio::test]
async fn sessions_last_until_members_leave_or_the_controller_stops() {
    let (_switch, handle, client) = start(Target::of_run()).await;
    let job = client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let attend = |seat: &api::JoinResponse| {
        let attendance = api::Attendance {
            slot_bytes: 1408,
            ..seat.attendance("train")
        };
        attend(&client, attendance)
    };
    let unjoined = api::JoinResponse {
        epoch: job.epoch,
        job_id: job.id,
        ..api::JoinResponse::default()
    };
    let (early, _) = attend(&unjoined);
    assert_eq!(refusal(early.await.unwrap()).0, Code::FailedPrecondition);

    let mut seats = Vec::new();
    for host in ["h1", "h2"] {
        seats.push(client.join("train", host, Duration::ZERO).await.unwrap());
    }
    let (one, mut one_told) = attend(&seats[0]);
    let (other, mut other_told) = attend(&seats[1]);
    for told in [&mut one_told, &mut other_told] {
        told.wait_for(|told| *told).await.unwrap();
    }
    client.leave(seats[1].leave("train")).await.unwrap();
    other.await.unwrap().unwrap();
    handle.stop().await;
    // Either the stream ends in order, or the connection breaks first.
    let _ = one.await.unwrap();
}

/// Also one that joins a running job, whose members are still in the epoch before.
#[tokio::test]
async fn a_member_with_other_settings_is_refused() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let hosts = ["h1", "h2"];
    client.create_job(&spec("train", &hosts)).await.unwrap();
    let attendance = |seat: &api::JoinResponse, element: &str| api::Attendance {
        slot_bytes: 1408,
        settings: [("element".into(), element.into())].into(),
        ..seat.attendance("train")
    };
    let attend = |attendance| attend(&client, attendance);
    let mut members = Vec::new();
    for host in hosts {
        let seat = client.join("train", host, Duration::ZERO).await.unwrap();
        if !members.is_empty() {
            let (attending, _) = attend(attendance(&seat, "bf16"));
            let refused = attending.await.unwrap();
            assert!(refused.as_ref().is_err_and(ClientError::is_invalid));
            let (_, said) = refusal(refused);
            let expected = "rank 1 of job train has element bf16, its other members have f32: \
                            start all ranks with the same settings";
            assert_eq!(said, expected);
        }
        members.push(attend(attendance(&seat, "f32")));
        until(async || {
            let attending = client.check("train").await.unwrap().attending;
            attending.len() == members.len()
        })
        .await;
    }
    for (_, all_here) in &mut members {
        all_here.wait_for(|told| *told).await.unwrap();
    }

    let more = ["h1", "h2", "h3"].map(str::to_owned);
    let resizes = client.resize_job(("train", None), &more, (Duration::from_secs(60), false));
    resizes.await.unwrap();
    let seat = client
        .join("train", "h3", Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(seat.epoch, 2);
    let (attending, _) = attend(attendance(&seat, "bf16"));
    let (code, said) = refusal(attending.await.unwrap());
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        said.contains("has element bf16, its other members have f32"),
        "{said}"
    );
}

#[tokio::test]
async fn the_control_api_is_served_on_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("controller.sock");
    // A killed server leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let switch = ChaosSwitch::start().await;
    let text = include_str!("../../../topologies/star4.yaml")
        .replace("127.0.0.1:9559", &switch.address().to_string());
    let config = || Config {
        listen: Listen::Unix(path.clone()),
        ..Target::of_run().config_for(&text, "star.yaml")
    };
    let handle = server::serve(config()).await.unwrap();
    let address = format!("unix:{}", path.display());
    assert_eq!(handle.address().to_string(), address);
    let client = Client::connect(&address).await.unwrap();
    assert!(client.jobs().await.unwrap().is_empty());

    // The socket of a running server is not replaced.
    let error = server::serve(config()).await.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!(
            "cannot listen on {address}: Address already in use"
        )),
        "{error}"
    );
    assert!(client.jobs().await.unwrap().is_empty());
    handle.stop().await;
    assert!(!path.exists());
    let error = Client::connect(&address).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the controller at {address} does not answer: ")),
        "{error}"
    );
}

/// v1model has no front panel, and the emulated Tofino here serves no gNMI Set.
async fn ports_are_configured_only_on_switches_with_a_front_panel(target: Target) {
    let (_switch, _handle, client) = start(target).await;
    let (code, said) = refusal(client.configure_ports("s1").await);
    match target.chip() {
        None => assert_eq!(code, Code::FailedPrecondition, "{said}"),
        Some(_) => assert_eq!(code, Code::Aborted, "{said}"),
    }
    assert_eq!(
        refusal(client.configure_ports("s9").await),
        (
            Code::NotFound,
            "unknown switch \"s9\" (the fabric has s1)".into()
        )
    );
}

/// Two concurrent pushes would interfere.
#[tokio::test]
async fn a_switch_receives_its_ports_from_one_request_at_a_time() {
    // A v1model switch has no front panel.
    let (switch, _handle, client) = start(Target::Tofino).await;
    switch.swallow(true);
    let asked: Vec<_> = (0..2)
        .map(|_| client.configure_ports("s1").boxed())
        .collect();
    let (second, _, first) = select_all(asked).await;
    let (code, said) = refusal(second);
    assert_eq!(code, Code::FailedPrecondition, "{said}");
    let taken = "another request is configuring the ports of switch s1";
    assert!(said.starts_with(taken), "{said}");
    switch.swallow(false);
    // The chaos switch serves no gNMI Set.
    for first in first {
        assert_eq!(refusal(first.await).0, Code::Aborted);
    }
    assert_eq!(refusal(client.configure_ports("s1").await).0, Code::Aborted);
}
