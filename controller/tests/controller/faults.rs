//! Injects faults into every operation of a controller: switches reject, delay, do half, disconnect, lose their state, or
//! hang while a link is down, so that the call is given up and done late. In a storm several switches fail.
//! Afterwards each job is installed completely or not at all, as the controller answered; switches hold nothing else; and
//! other jobs were not written.

use std::time::Duration;

use ultima_api::client::Client;
use ultima_api::v1::evict_member_request::Member;
use ultima_planner::job::JobSpec;

use crate::chaos::{CALLS, Call, FAULTS, Fault};
use crate::several::{named, several};
use crate::test_agents::TestAgents;
use crate::testbed::{
    Danger, SPINE1, Testbed, check_jobs, is_whole_but, names, spec, spec_on, until, whole,
    with_paths,
};
use ultima_testing::etcd::Etcd;

/// The seeds of each fault in a full run. Odd seeds are storms: several switches fail.
const SEEDS: usize = 4;

/// The calls of a change.
const WRITES: [Danger; 1] = [(Call::Update, 8)];
/// The calls of an audit with repairs.
const LOOKS: [Danger; 3] = [(Call::GetPipeline, 1), (Call::Read, 2), (Call::Update, 6)];
/// The calls to a switch that connects.
const CONNECTS: [Danger; 4] = [
    (Call::Arbitration, 1),
    (Call::GetPipeline, 1),
    (Call::Read, 2),
    (Call::Update, 6),
];

/// The name of a job on one leaf that no operation affects.
const KEPT: &str = "kept";

/// Runs `act` with every fault, once for each seed; in a quick run until the fault has happened once. The seed says where a
/// fault is injected. `act` returns true if the fault happened.
async fn with_every_fault(dangers: &[Danger], act: impl AsyncFn(Testbed, Fault, Danger) -> bool) {
    let seeds = SEEDS.max(dangers.len());
    let act = &act;
    let cases = FAULTS.into_iter().enumerate().map(|(number, fault)| {
        let case = async move {
            let mut happened = false;
            for round in 0..seeds {
                // A quick run starts most faults without a storm, and covers every danger.
                let seed = (number / 5 + round) % seeds;
                let danger = dangers[(number + seed) % dangers.len()];
                let name = format!("{fault:?}, seed {seed}, at {danger:?}");
                let testbed = Testbed::new(seed as u64, seed % 2 == 1).await;
                happened |= named(name, act(testbed, fault, danger)).await;
                if happened && !ultima_testing::full() {
                    break;
                }
            }
            assert!(happened, "{fault:?} never happened");
        };
        (format!("{fault:?}"), case)
    });
    several(cases).await;
}

/// Creates a job, and waits until it is ready, however long that takes.
async fn create(client: &Client, spec: JobSpec) {
    let created = with_paths(async || client.create_job(&spec).await).await;
    let job = created.unwrap();
    until(async || client.job(&job.name).await.unwrap().ready).await;
}

/// Creates a job that no operation affects.
async fn keep(testbed: &mut Testbed, client: &Client) {
    let before = testbed.held();
    create(client, spec_on(KEPT, &["h1", "h2"])).await;
    testbed.leave_alone(&before);
}

#[tokio::test]
async fn a_job_is_created_completely_or_not_at_all() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        testbed.fail(fault, danger);
        let created = with_paths(async || client.create_job(&spec("new")).await).await;
        let failed = testbed.has_failed();
        let jobs = match created {
            Ok(_) => vec![KEPT, "new"],
            Err(_) => vec![KEPT],
        };
        assert!(failed || created.is_ok(), "{created:?}");
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

/// As for the jobs of a grid.
#[tokio::test]
async fn jobs_of_one_request_are_created_together_or_not_at_all() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        testbed.fail(fault, danger);
        let together = [
            spec("row0"),
            spec_on("row1", &["h2", "h7"]),
            spec_on("column0", &["h1", "h2"]),
        ];
        let created = with_paths(async || client.create_jobs(&together, None).await).await;
        let failed = testbed.has_failed();
        let mut jobs = vec![KEPT];
        if created.is_ok() {
            jobs.extend(together.iter().map(|job| job.name.as_str()));
        }
        assert!(failed || created.is_ok(), "{created:?}");
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_deleted_job_leaves_nothing_behind() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        create(&client, spec("old")).await;
        testbed.fail(fault, danger);
        // Entries that stay on a switch are removed when it is back.
        client.delete_job("old").await.unwrap();
        let failed = testbed.has_failed();
        check_jobs(handle.controller(), &client, &[KEPT], &base, &testbed).await;
        failed
    })
    .await;
}

/// Waits until no job uses spine1.
async fn spine1_is_left(client: &Client) {
    until(async || {
        let jobs = client.jobs().await.unwrap();
        !jobs
            .iter()
            .any(|job| job.switches.contains(&"spine1".into()))
    })
    .await;
}

#[tokio::test]
async fn jobs_leave_a_drained_spine() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let client = testbed.client("a").await;
        client.drain("spine1", true).await.unwrap();
        let base = testbed.held();
        client.drain("spine1", false).await.unwrap();
        keep(&mut testbed, &client).await;
        for name in ["one", "two"] {
            create(&client, spec(name)).await;
        }
        testbed.fail(fault, danger);
        client.drain("spine1", true).await.unwrap();
        let failed = testbed.has_failed();
        // Old paths stay while a switch is disconnected.
        spine1_is_left(&client).await;
        let jobs = [KEPT, "one", "two"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn jobs_leave_a_failed_spine() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        for name in ["one", "two"] {
            create(&client, spec(name)).await;
        }
        testbed.fail(fault, danger);
        testbed.switches[SPINE1].refuse(true);
        spine1_is_left(&client).await;
        until(async || is_whole_but(handle.controller(), Some(SPINE1)).await).await;
        let failed = testbed.has_failed();
        testbed.switches[SPINE1].refuse(false);
        let jobs = [KEPT, "one", "two"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn foreign_changes_are_reconciled() {
    with_every_fault(&LOOKS, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        create(&client, spec("other")).await;
        testbed.damage();
        testbed.fail(fault, danger);
        client.sync_fabric().await.unwrap();
        let failed = testbed.has_failed();
        // Later audits repair what was rejected or lost.
        let jobs = [KEPT, "other"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

/// Injects a fault into each kind of call that brings up a switch again.
async fn begins_anew(begin: impl Fn(&Testbed, usize)) {
    let dangers = CALLS.map(|call| (call, if call == Call::Update { 8 } else { 1 }));
    with_every_fault(&dangers, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        create(&client, spec("other")).await;
        let at = testbed.any_switch();
        let emptied = testbed.switches[at].state().emptied;
        testbed.fail_on(at, fault, danger);
        begin(&testbed, at);
        until(async || testbed.switches[at].state().emptied > emptied + 1).await;
        whole(handle.controller()).await;
        let failed = testbed.has_failed();
        let jobs = [KEPT, "other"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_restarted_switch_is_reconciled() {
    begins_anew(|testbed, at| testbed.switches[at].reboot()).await;
}

#[tokio::test]
async fn a_switch_with_a_replaced_program_is_reconciled() {
    begins_anew(|testbed, at| testbed.switches[at].replace_program()).await;
}

#[tokio::test]
async fn a_first_start_survives_faults() {
    let dangers = CALLS.map(|call| (call, 1));
    with_every_fault(&dangers, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let base = testbed.held();
        handle.stop().await;
        // The switches run another program.
        for switch in &testbed.switches {
            switch.replace_program();
        }
        testbed.fail(fault, danger);
        // The controller retries transient faults.
        let handle = testbed.serve().await;
        let failed = testbed.has_failed();
        let client = testbed.client("a").await;
        check_jobs(handle.controller(), &client, &[], &base, &testbed).await;
        failed
    })
    .await;
}

/// The controller removes them before it installs its own program: a group id would clash otherwise.
#[tokio::test]
async fn a_controller_removes_groups_of_another_program() {
    let dangers = [(Call::Read, 1), (Call::Update, 1)];
    with_every_fault(&dangers, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        create(&client, spec("other")).await;
        handle.stop().await;
        for switch in &testbed.switches {
            switch.replace_program_alone();
        }
        testbed.fail(fault, danger);
        let handle = testbed.serve().await;
        let failed = testbed.has_failed();
        let client = testbed.client("a").await;
        check_jobs(handle.controller(), &client, &["other"], &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_restarted_controller_reconciles_switches() {
    with_every_fault(&CONNECTS, async |mut testbed, fault, danger| {
        let handle = testbed.serve().await;
        let base = testbed.held();
        let client = testbed.client("a").await;
        keep(&mut testbed, &client).await;
        create(&client, spec("other")).await;
        handle.stop().await;
        testbed.damage();
        testbed.fail(fault, danger);
        let handle = testbed.serve().await;
        let failed = testbed.has_failed();
        let client = testbed.client("a").await;
        let jobs = [KEPT, "other"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_standby_takes_over_and_reconciles_switches() {
    let Some(etcd) = Etcd::start(1) else { return };
    with_every_fault(&CONNECTS, async |mut testbed, fault, danger| {
        let first = testbed.serve_with(&etcd, "a").await;
        let client = testbed.client("a").await;
        // A controller leads without the switches that do not answer.
        until(async || match first.leader() {
            Some(controller) => is_whole_but(&controller, None).await,
            None => false,
        })
        .await;
        let base = testbed.held();
        let second = testbed.serve_with(&etcd, "b").await;
        keep(&mut testbed, &client).await;
        create(&client, spec("other")).await;
        testbed.damage();
        testbed.fail(fault, danger);
        drop(first);
        let client = testbed.client("b").await;
        let failed = testbed.has_failed();
        let mut leading = None;
        until(async || {
            leading = second.leader();
            match &leading {
                Some(controller) => is_whole_but(controller, None).await,
                None => false,
            }
        })
        .await;
        let controller = leading.unwrap();
        assert_eq!(names(&client).await, [KEPT, "other"]);
        let jobs = [KEPT, "other"];
        check_jobs(&controller, &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}

/// Waits until a job is only in this epoch, with these members.
async fn is_in(client: &Client, epoch: u32, hosts: &[&str]) {
    until(async || {
        let job = client.job("train").await.unwrap();
        job.epoch == epoch && job.next.is_none()
    })
    .await;
    let members = client.job("train").await.unwrap().members;
    assert!(
        members
            .iter()
            .map(|member| &*member.host)
            .eq(hosts.iter().copied())
    );
}

#[tokio::test]
async fn resizes_and_evictions_complete_or_change_nothing() {
    with_every_fault(&WRITES, async |mut testbed, fault, danger| {
        // A change that members do not answer in time is cancelled after it was accepted.
        testbed.waits_for_members = true;
        let handle = testbed.serve().await;
        let (client, base) = (testbed.client("a").await, testbed.held());
        keep(&mut testbed, &client).await;
        let (old, new) = (["h1", "h4", "h5"], ["h1", "h4", "h8"]);
        create(&client, spec_on("train", &old)).await;
        let mut agents = TestAgents::default();
        for host in old {
            agents.join(&client, host).await;
        }
        agents.run_in(1, &old).await;

        testbed.fail(fault, danger);
        let members = new.map(String::from);
        let wait = Duration::from_secs(60);
        let resize = async || {
            client
                .resize_job("train", None, &members, wait, false)
                .await
        };
        let resized = with_paths(resize).await;
        let (mut epoch, mut now) = (1, old.to_vec());
        if resized.is_ok() {
            agents.join(&client, "h8").await;
            agents.run_in(2, &new).await;
            is_in(&client, 2, &new).await;
            (epoch, now) = (2, new.to_vec());
        }
        let mut failed = testbed.has_failed();
        assert!(failed || resized.is_ok(), "{resized:?}");
        whole(handle.controller()).await;
        is_in(&client, epoch, &now).await;

        testbed.fail(fault, danger);
        let evict = async || client.evict("train", Member::Host("h4".into()), "").await;
        let evicted = with_paths(evict).await;
        if evicted.is_ok() {
            (epoch, now) = (epoch + 1, [now[0], now[2]].to_vec());
            agents.run_in(epoch, &now).await;
            is_in(&client, epoch, &now).await;
        }
        let failed_again = testbed.has_failed();
        assert!(failed_again || evicted.is_ok(), "{evicted:?}");
        failed |= failed_again;
        is_in(&client, epoch, &now).await;
        agents.epochs();
        drop(agents);
        let jobs = [KEPT, "train"];
        check_jobs(handle.controller(), &client, &jobs, &base, &testbed).await;
        failed
    })
    .await;
}
