//! Requests for jobs.

use std::time::Duration;

use tonic::Code;
use tonic::transport::Endpoint;
use tonic_types::StatusExt as _;
use ultima_api::client::ClientError;
use ultima_api::v1::control_client::ControlClient;
use ultima_api::v1::{self as api, MemberState};
use ultima_planner::job::{Gather, JobSpec};

use super::{refusal, spec, start, start_with};
use crate::target::{Target, on_each_target};
use crate::testbed::creation_plan;

on_each_target!(
    jobs_are_created_listed_shown_and_deleted,
    a_group_over_the_limit_is_rejected_before_any_write,
);

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
        switch_port_name: target.element("s1/1"),
        gave_up: false,
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
        let plan = client.plan_jobs(creation_plan(&[spec])).await.unwrap();
        let code = Code::from_i32(plan.jobs[0].refused_code);
        assert_eq!(code, refusal(refused).0);
        let planned = plan.jobs[0].refused_field.clone();
        assert_eq!(planned.map(|it| (it.field, it.problem)), wanted);
    }
    let members = ["h1", "h7"].map(String::from);
    let resized = client
        .resize_job("one", None, &members, Duration::ZERO, false)
        .await;
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
