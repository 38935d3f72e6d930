//! Resizes and plans.

use tonic::Code;
use ultima_api::v1 as api;
use ultima_planner::fabric;

use super::{LONG, refusal, spec, start};
use crate::target::{Target, on_each_target};

on_each_target!(a_plan_opens_no_files,);

#[tokio::test]
async fn a_resize_of_a_job_that_changed_meanwhile_is_rejected() {
    let (_switch, _handle, client) = start(Target::of_run()).await;
    let job = client
        .create_job(&spec("train", &["h1", "h2"]))
        .await
        .unwrap();
    let members = ["h1", "h2", "h3"].map(String::from);
    let stale = client.resize_job("train", Some(job.id + 1), &members, LONG, false);
    let (code, message) = refusal(stale.await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        message.contains("is in epoch 1, and its members have changed"),
        "{message}"
    );
    assert_eq!(client.job("train").await.unwrap(), job);
    let resized = client.resize_job("train", Some(job.id), &members, LONG, false);
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
    let planned = async |resize| {
        let request = api::PlanJobsRequest {
            resize: vec![resize],
            ..api::PlanJobsRequest::default()
        };
        client.plan_jobs(request).await.unwrap()
    };
    let plan = planned(resize(&["h1", "h2", "h3"])).await;
    let next = plan.jobs[0].job.as_ref().expect("it would be granted");
    assert_eq!((next.epoch, next.members.len()), (2, 3));
    let differences = &plan.switches[0].differences;
    assert!(
        differences.iter().all(|it| it.held.is_none()),
        "the old epoch stays: {plan:?}"
    );
    assert!(!differences.is_empty());
    assert_eq!(client.job("train").await.unwrap(), job, "nothing was done");

    let update = api::PlanJobsRequest {
        update: vec![api::UpdateJobRequest {
            job: "train".into(),
            loss_threshold: Some(9),
            ..api::UpdateJobRequest::default()
        }],
        ..api::PlanJobsRequest::default()
    };
    let plan = client.plan_jobs(update).await.unwrap();
    assert_eq!(plan.jobs[0].job.as_ref().unwrap().loss_threshold, 9);
    let [row] = &plan.switches[0].differences[..] else {
        panic!("the job's row alone: {plan:?}")
    };
    assert!(row.held.is_some() && row.wanted.is_some());
    assert_eq!(client.job("train").await.unwrap(), job, "nothing was done");

    let refused = async |resize, why: &str| {
        let plan = planned(resize).await;
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
    let text = include_str!("../../../../topologies/star4.yaml");
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
