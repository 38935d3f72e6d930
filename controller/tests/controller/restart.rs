//! Restarts of a controller that has jobs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ultima_api::client::Client;
use ultima_api::v1::{self as api, MemberState};
use ultima_controller::server::{self, Config, Handle, ServeError};
use ultima_controller::store::StoreError;
use ultima_p4runtime::v1::entity;
use ultima_planner::job::JobSpec;

use crate::chaos::{Call, ChaosSwitch, Fault};
use crate::target::{Target, on_each_target};
use crate::testbed::{create, creation_plan, until};

const TWO: &str = include_str!("../../../topologies/two-switches.yaml");

/// The fabric of two switches at these servers.
fn on(switches: &[ChaosSwitch; 2], text: &str) -> String {
    let [s1, s2] = switches
        .each_ref()
        .map(|switch| switch.address().to_string());
    text.replace("127.0.0.1:9559", &s1)
        .replace("127.0.0.1:9560", &s2)
        .replace("device_id: 2", "device_id: 1")
}

async fn serve(fabric: &str, state: &Path) -> Result<Handle, ServeError> {
    serve_on(Target::of_run(), fabric, state).await
}

fn config(target: Target, fabric: &str, state: &Path) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        startup_timeout: Duration::from_millis(500),
        state: Some(state.to_owned()),
        ..target.config_for(fabric, "two.yaml")
    }
}

async fn serve_on(target: Target, fabric: &str, state: &Path) -> Result<Handle, ServeError> {
    start(config(target, fabric, state)).await
}

async fn start(config: Config) -> Result<Handle, ServeError> {
    loop {
        match server::serve(config.clone()).await {
            // Tasks of the stopped controller, which ran in this process, may still hold the store.
            Err(ServeError::Store(StoreError::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            served => return served,
        }
    }
}

on_each_target!(a_restart_with_another_fabric_moves_paths_and_shows_jobs_that_do_not_fit);

/// A controller that started with an empty store.
struct Begun {
    folder: tempfile::TempDir,
    /// The store's file.
    state: PathBuf,
    switches: [ChaosSwitch; 2],
    /// The fabric's YAML.
    text: String,
    handle: Handle,
}

async fn begin() -> Begun {
    begin_on(Target::of_run()).await
}

async fn begin_on(target: Target) -> Begun {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let switches = [
        ChaosSwitch::start_as(target).await,
        ChaosSwitch::start_as(target).await,
    ];
    let text = on(&switches, TWO);
    let handle = serve_on(target, &text, &state).await.unwrap();
    Begun {
        folder,
        state,
        switches,
        text,
        handle,
    }
}

async fn client(handle: &Handle) -> Client {
    Client::connect(&handle.address().to_string())
        .await
        .unwrap()
}

/// For each switch, true if it is connected.
async fn connected(client: &Client) -> Vec<bool> {
    let states = client.switches().await.unwrap();
    states.iter().map(|it| it.connected).collect()
}

fn spec(name: &str) -> JobSpec {
    JobSpec::new(name, ["h1", "h3", "h2"])
}

#[tokio::test]
async fn a_restart_restores_jobs_and_members_and_writes_nothing() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let before = client(&handle).await;
    before.create_job(&spec("gone")).await.unwrap();
    before.create_job(&spec("train")).await.unwrap();
    before.delete_job("gone").await.unwrap();
    let mut seats = Vec::new();
    for host in ["h3", "h1"] {
        seats.push(before.join("train", host, Duration::ZERO).await.unwrap());
    }
    let first = seats.iter().find(|seat| seat.rank == 0).unwrap();
    before.leave(first.leave("train")).await.unwrap();
    let update = api::UpdateJobRequest {
        job: "train".into(),
        loss_threshold: Some(9),
        weight: Some(7),
        evict_after_s: Some(60),
    };
    let mut job = before.update_job(update).await.unwrap();
    let policy = (job.loss_threshold, job.weight, job.evict_after_s);
    assert_eq!(policy, (9, 7, 60));
    // This is not stored.
    job.members[0].gave_up = false;
    handle.stop().await;
    let updates = switches.each_ref().map(ChaosSwitch::updates);

    let handle = serve(&text, &state).await.unwrap();
    let after = client(&handle).await;
    assert_eq!(after.jobs().await.unwrap(), std::slice::from_ref(&job));
    assert_eq!(switches.each_ref().map(ChaosSwitch::updates), updates);
    let seats: Vec<MemberState> = job.members.iter().map(|member| member.state()).collect();
    assert_eq!(
        seats,
        [MemberState::Free, MemberState::Joined, MemberState::Free]
    );
    // Joined members may open sessions; others get the free ranks, and after some time those of members without a session.
    let taken = after.join("train", "h3", Duration::ZERO).await.unwrap_err();
    let lost = "a rank on host h3 is given out again in";
    assert!(taken.to_string().contains(lost), "{taken}");
    // The member that left before knows the key of epoch 1.
    let again = after.join("train", "h1", Duration::ZERO).await.unwrap();
    assert_eq!((again.epoch, again.job_id), (2, 3));
    // Ids are not reused: late packets of a deleted job match no other job.
    let next = after.create_job(&spec("next")).await.unwrap();
    assert_eq!((job.id, next.id), (2, 4));
}

/// The client got no answer from the controller before.
#[tokio::test]
async fn a_request_that_is_repeated_after_a_restart_is_the_same_job() {
    let Begun {
        folder: _folder,
        state,
        switches: _switches,
        text,
        handle,
    } = begin().await;
    let keyed = |request| JobSpec {
        request,
        ..spec("train")
    };
    let created = create(handle.controller(), &keyed(5)).await.unwrap();
    handle.stop().await;
    let handle = serve(&text, &state).await.unwrap();
    let controller = handle.controller();
    let again = create(controller, &keyed(5)).await.unwrap();
    assert_eq!(created.job, again.job);
    let other = create(controller, &keyed(6)).await.unwrap_err();
    let refused = other.to_string();
    assert!(refused.starts_with("job train already exists"), "{refused}");
    assert_eq!(client(&handle).await.jobs().await.unwrap().len(), 1);
    // A job of the same name and key is another job if the first one was deleted.
    controller.delete_job("train").await.unwrap();
    let next = create(controller, &keyed(5)).await.unwrap();
    assert_ne!(created.job.uid, next.job.uid);
}

/// A switch that was given another P4 program while no controller ran is left alone, and plans say so.
#[tokio::test]
async fn a_plan_names_a_switch_with_another_program() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    // A controller without jobs does not start without each of its switches.
    client(&handle)
        .await
        .create_job(&spec("old"))
        .await
        .unwrap();
    handle.stop().await;
    {
        let mut s2 = switches[1].state();
        let pipeline = s2.pipeline.as_mut().unwrap();
        pipeline.cookie.as_mut().unwrap().cookie ^= 1;
        for table in &mut pipeline.p4info.as_mut().unwrap().tables {
            table.preamble.as_mut().unwrap().name.insert_str(0, "Other");
        }
    }
    let handle = serve(&text, &state).await.unwrap();
    let client = client(&handle).await;
    // It connects to the switch once more.
    until(async || {
        let switches = client.switches().await.unwrap();
        switches[1].problem.contains("another P4 program")
    })
    .await;
    let jobs = client.plan_jobs(creation_plan(&[spec("train")])).await;
    let fabric = client.plan_fabric(&text).await;
    for plan in [jobs, fabric] {
        let [s1, s2] = &plan.unwrap().switches[..] else {
            panic!("two switches")
        };
        assert_eq!(s1.problem, "");
        let start = "switch s2 runs another P4 program (with table Other";
        let end = "start the controller with --replace-pipeline to replace it";
        let problem = &s2.problem;
        assert!(
            problem.starts_with(start) && problem.ends_with(end),
            "{problem}"
        );
    }
}

/// The controller stopped before it committed the job, when entries were already installed.
#[tokio::test]
async fn entries_of_uncommitted_jobs_are_removed() {
    let Begun {
        folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let base = switches.each_ref().map(ChaosSwitch::held);
    let before = client(&handle).await;
    // As after a kill: the store is as before the job.
    std::fs::copy(&state, folder.path().join("copy")).unwrap();
    before.create_job(&spec("train")).await.unwrap();
    assert_ne!(switches.each_ref().map(ChaosSwitch::held), base);
    handle.stop().await;
    std::fs::rename(folder.path().join("copy"), &state).unwrap();

    let handle = serve(&text, &state).await.unwrap();
    assert_eq!(client(&handle).await.jobs().await.unwrap(), []);
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
}

/// A controller with a new store does not know the jobs on the switches, and they may be running.
#[tokio::test]
async fn a_new_store_leaves_the_jobs_of_another_alone() {
    let Begun {
        folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let base = switches.each_ref().map(ChaosSwitch::held);
    let before = client(&handle).await;
    before.create_job(&spec("train")).await.unwrap();
    handle.stop().await;
    // The second switch does not keep the mark.
    for entity in switches[1].state().held.values_mut() {
        if let Some(entity::Entity::TableEntry(row)) = &mut entity.entity {
            row.metadata.clear();
        }
    }
    let held = switches.each_ref().map(ChaosSwitch::held);
    let updates = switches.each_ref().map(ChaosSwitch::updates);
    let other = folder.path().join("other");
    for missing in [0, 1] {
        let elsewhere = std::mem::take(&mut switches[missing].state().held);
        let refused = serve(&text, &other).await.err().unwrap().to_string();
        assert!(
            refused.contains("has jobs of another controller's store (1), and is left alone"),
            "{refused}"
        );
        switches[missing].state().held = elsewhere;
    }
    let handle = serve(&text, &state).await.unwrap();
    let known = client(&handle).await.jobs().await.unwrap();
    assert_eq!(known.len(), 1);
    handle.stop().await;
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), held);
    assert_eq!(switches.each_ref().map(ChaosSwitch::updates), updates);

    let config = Config {
        take_over: true,
        ..config(Target::of_run(), &text, &other)
    };
    let handle = start(config).await.unwrap();
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), base);
    drop(handle);
}

/// The controller starts without the switch, and fills it when it is back.
#[tokio::test]
async fn a_restart_with_a_missing_switch_waits_for_it() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    client(&handle)
        .await
        .create_job(&spec("train"))
        .await
        .unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    handle.stop().await;
    switches[1].fail_at(0, Fault::Disconnect);
    switches[1].reboot();
    // No process listens at first.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = silent.local_addr().unwrap().to_string();
    drop(silent);
    let away = text.replace(&switches[1].address().to_string(), &elsewhere);
    let handle = serve(&away, &state).await.unwrap();
    assert_eq!(connected(&client(&handle).await).await, [true, false]);
    handle.stop().await;

    // The first write breaks the connection, and the controller connects again.
    let handle = serve(&text, &state).await.unwrap();
    while switches.each_ref().map(ChaosSwitch::held) != whole {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(handle);
}

/// The other switches are brought up meanwhile.
#[tokio::test]
async fn a_switch_that_rejects_writes_is_retried_while_others_work() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let before = client(&handle).await;
    before.create_job(&spec("train")).await.unwrap();
    // A job that has members is ready.
    let joined = before.join("train", "h2", Duration::ZERO).await;
    joined.unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    handle.stop().await;
    switches[1].reboot();
    // More faults than retries in this test.
    (0..10_000).for_each(|nth| switches[1].fail(Call::SetPipeline, nth, Fault::Refuse));
    let handle = serve(&text, &state).await.unwrap();
    let after = client(&handle).await;
    assert_eq!(connected(&after).await, [true, false]);
    after.join("train", "h1", Duration::ZERO).await.unwrap();
    switches[1].forgive();
    while switches.each_ref().map(ChaosSwitch::held) != whole {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reasons = async || {
        let events = after.events("switch/s2").await.unwrap();
        let mut reasons: Vec<_> = events.into_iter().map(|event| event.reason).collect();
        reasons.dedup();
        reasons
    };
    until(async || reasons().await == ["NotReady", "Connected"]).await;
    assert_eq!(after.events("switch/s1").await.unwrap(), []);
}

/// A first start names the missing switch. A later start goes on without a drained switch.
#[tokio::test]
async fn a_drained_switch_may_be_off_at_the_start() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    handle.stop().await;
    switches[1].refuse(true);
    let error = serve(&text, &state).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("switch s2"), "{error}");
    switches[1].refuse(false);
    let handle = serve(&text, &state).await.unwrap();
    client(&handle).await.drain("s2", true).await.unwrap();
    handle.stop().await;
    switches[1].refuse(true);
    let handle = serve(&text, &state).await.unwrap();
    assert_eq!(connected(&client(&handle).await).await, [true, false]);
}

async fn a_restart_with_another_fabric_moves_paths_and_shows_jobs_that_do_not_fit(target: Target) {
    let Begun {
        folder: _folder,
        state,
        switches: _switches,
        text,
        handle,
    } = begin_on(target).await;
    let job = client(&handle)
        .await
        .create_job(&spec("train"))
        .await
        .unwrap();
    handle.stop().await;

    let without = text
        .replace("name: h3,", "name: h9,")
        .replace("[h3,", "[h9,");
    assert_ne!(without, text);
    let handle = serve_on(target, &without, &state).await.unwrap();
    let lacking = client(&handle).await;
    let unfit = lacking.job("train").await.unwrap();
    assert_eq!(
        unfit.unfit,
        "job train: its host h3 is not in the fabric; put the host back and restart, or delete the job"
    );
    assert_eq!((unfit.id, unfit.epoch), (job.id, job.epoch));
    let hosts = |job: &ultima_api::v1::Job| {
        let hosts = job.members.iter().map(|member| member.host.clone());
        hosts.collect::<Vec<_>>()
    };
    assert_eq!(hosts(&unfit), hosts(&job));
    assert_eq!(lacking.jobs().await.unwrap(), std::slice::from_ref(&unfit));
    let counters = lacking.counters("train").await.unwrap_err();
    assert_eq!(counters.to_string(), unfit.unfit);
    // Its name and numbers are taken, and it can be deleted.
    lacking.create_job(&spec("train")).await.unwrap_err();
    let both = [spec("train"), JobSpec::new("other", ["h1", "h2"])];
    lacking.create_jobs(&both, None).await.unwrap_err();
    let deletion = api::PlanJobsRequest {
        delete: vec!["train".into()],
        ..creation_plan(&both)
    };
    let deletion = lacking.plan_jobs(deletion).await;
    let refusals = deletion.unwrap().jobs.into_iter().map(|job| job.refusal);
    let refusals: Vec<String> = refusals.collect();
    assert!(
        refusals[0].contains("unknown host") && refusals[1].is_empty(),
        "{refusals:?}"
    );
    let other = JobSpec::new("other", ["h1", "h2"]);
    let other = lacking.create_job(&other).await.unwrap();
    assert_ne!(other.counter_index, job.counter_index);
    let ports = |job: &ultima_api::v1::Job, host: &str| {
        let there = job.members.iter().filter(|member| member.host == host);
        there.map(|member| member.udp_port).collect::<BTreeSet<_>>()
    };
    for host in ["h1", "h2"] {
        assert!(
            ports(&other, host).is_disjoint(&ports(&job, host)),
            "{other:?}"
        );
    }
    lacking.delete_job("other").await.unwrap();
    let copy = state.with_extension("copy");
    handle.stop().await;
    std::fs::copy(&state, &copy).unwrap();
    let handle = serve_on(target, &without, &copy).await.unwrap();
    let lacking = client(&handle).await;
    lacking.delete_job("train").await.unwrap();
    assert_eq!(lacking.jobs().await.unwrap(), []);
    let events = lacking.events("job/train").await.unwrap();
    let reasons: Vec<&str> = events.iter().map(|it| &*it.reason).collect();
    assert_eq!(reasons, ["Created", "Deleted"]);
    handle.stop().await;

    // The trunk is on other ports now.
    let moved = text.replace("s1/9", "s1/7").replace("s2/9", "s2/8");
    let handle = serve_on(target, &moved, &state).await.unwrap();
    let now = client(&handle).await.job("train").await.unwrap();
    assert_eq!((now.id, now.epoch, now.seed), (job.id, job.epoch, job.seed));
    let ports = |job: &ultima_api::v1::Job| {
        let mut ports: Vec<_> = job
            .shares
            .iter()
            .map(|it| (it.switch.clone(), it.port))
            .collect();
        ports.sort();
        ports
    };
    let [old, on_s1, on_s2] = [("s1", 9), ("s1", 7), ("s2", 8)]
        .map(|(switch, port)| (switch.to_owned(), u32::from(target.port(port))));
    assert!(ports(&job).contains(&old) && !ports(&now).contains(&old));
    assert!(ports(&now).contains(&on_s1) && ports(&now).contains(&on_s2));
}

#[tokio::test]
async fn pending_requests_change_nothing_after_a_stop() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let before = client(&handle).await;
    before.create_job(&spec("train")).await.unwrap();
    let whole = switches.each_ref().map(ChaosSwitch::held);
    let controller = std::sync::Arc::clone(handle.controller());
    let waiting = tokio::spawn({
        let before = before.clone();
        async move { before.join("train", "h1", Duration::from_secs(60)).await }
    });
    while before.job("train").await.unwrap().members[0].state() == MemberState::Free {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    handle.stop().await;
    assert!(waiting.await.unwrap().is_err());

    let stopping = "the controller is stopping; try again when it is back";
    let error = create(&controller, &spec("other")).await.unwrap_err();
    assert_eq!(error.to_string(), stopping);
    let error = controller.delete_job("train").await.unwrap_err();
    assert_eq!(error.to_string(), stopping);
    for (_, audited) in controller.audit(true).await {
        assert_eq!(audited.unwrap_err(), stopping);
    }
    assert_eq!(switches.each_ref().map(ChaosSwitch::held), whole);
    drop(controller);

    // A member that only waited has no committed rank.
    let handle = serve(&text, &state).await.unwrap();
    let seats = client(&handle).await.job("train").await.unwrap().members;
    assert!(
        seats
            .iter()
            .all(|member| member.state() == MemberState::Free)
    );
}

/// Its call ends while it waits; other members join meanwhile.
#[tokio::test]
async fn a_member_that_stopped_waiting_has_no_rank_after_a_restart() {
    let Begun {
        folder: _folder,
        state,
        switches: _switches,
        text,
        handle,
    } = begin().await;
    let before = client(&handle).await;
    before.create_job(&spec("train")).await.unwrap();
    let waiting = tokio::spawn({
        let before = before.clone();
        async move { before.join("train", "h1", Duration::from_millis(300)).await }
    });
    while before.job("train").await.unwrap().members[0].state() == MemberState::Free {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    before.join("train", "h3", Duration::ZERO).await.unwrap();
    assert!(waiting.await.unwrap().is_err());
    handle.stop().await;

    let handle = serve(&text, &state).await.unwrap();
    let after = client(&handle).await;
    let seats = |job: &ultima_api::v1::Job| {
        job.members
            .iter()
            .map(|member| member.state())
            .collect::<Vec<_>>()
    };
    let job = after.job("train").await.unwrap();
    assert_eq!(
        seats(&job),
        [MemberState::Free, MemberState::Joined, MemberState::Free]
    );
    after.join("train", "h1", Duration::ZERO).await.unwrap();
}

/// The host is on another switch now, where its job's index is taken. The new index is stored.
#[tokio::test]
async fn a_host_on_another_port_takes_no_other_jobs_index() {
    let Begun {
        folder: _folder,
        state,
        switches,
        text,
        handle,
    } = begin().await;
    let before = client(&handle).await;
    before.create_job(&spec("train")).await.unwrap();
    before.create_job(&spec("other")).await.unwrap();
    handle.stop().await;

    let moved = text.replace("s2/1", "s1/5");
    assert_ne!(moved, text);
    let handle = serve(&moved, &state).await.unwrap();
    let jobs = client(&handle).await.jobs().await.unwrap();
    let mut numbers: Vec<(String, u32)> = (jobs.iter().flat_map(|job| &job.members))
        .map(|member| (member.switch.clone(), member.source_index))
        .collect();
    assert_eq!(numbers.len(), 6);
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 6, "{jobs:?}");
    handle.stop().await;
    let updates = switches.each_ref().map(ChaosSwitch::updates);
    let handle = serve(&moved, &state).await.unwrap();
    assert_eq!(client(&handle).await.jobs().await.unwrap(), jobs);
    assert_eq!(switches.each_ref().map(ChaosSwitch::updates), updates);
}
