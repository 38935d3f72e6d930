//! Jobs whose members change while agents run, over kernel sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_testing::per_run;
use ultima_tests::needs;

use super::stage::{Lab, printed};
use crate::common::{children, wait_until};

/// Five hosts at one switch.
const FIVE: &str = "
switches:
  - { name: s1 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4 }
  - { name: h5, mac: '02:00:00:00:00:05', ip: 10.0.0.5 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s1/2] }
  - { ends: [h3, s1/3] }
  - { ends: [h4, s1/4] }
  - { ends: [h5, s1/5] }
";

/// Enough operations, of about an eighth of a second each, to change the members meanwhile.
fn long() -> [&'static str; 12] {
    let repeat = per_run("60", "250");
    [
        "--job",
        "train",
        "--verify",
        "--output=json",
        "--allreduce",
        "20000",
        "--repeat",
        repeat,
        "--rate",
        "5M",
        "--deadline",
        "2s",
    ]
}

fn agent(lab: &Lab, host: &str) -> Child {
    let agent = [env!("CARGO_BIN_EXE_ultima"), "agent"];
    lab.start(host, &[&agent[..], &long()].concat())
}

/// Sends a signal to an agent and its children.
pub fn signal(agent: &Child, signal: Signal) {
    let own = i32::try_from(agent.id()).expect("a process's number");
    let below = children(agent.id()).into_iter().map(|(pid, _)| pid);
    for pid in below.chain([own]) {
        // A child may end with its parent.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// The number of a job's ranks that have joined.
fn joined(lab: &Lab, name: &str) -> usize {
    let job = lab.job(name);
    let members = job["status"]["members"].as_array().expect("members");
    members.iter().filter(|it| it["state"] == "joined").count()
}

fn hosts(job: &Value) -> Vec<&Value> {
    let members = job["status"]["members"].as_array().expect("members").iter();
    members.map(|member| &member["host"]).collect()
}

fn done(lab: &Lab, arguments: &[&str]) -> String {
    printed(&lab.controlled(arguments).output().expect("it runs"))
}

/// Waits until the job is in an epoch; returns the job.
fn in_epoch(lab: &Lab, epoch: u64) -> Value {
    wait_until("the epoch has come", || {
        lab.job("train")["status"]["epoch"] == epoch
    });
    lab.job("train")
}

/// The agents' reports, by host.
fn reports(agents: BTreeMap<&str, Child>) -> BTreeMap<&str, Value> {
    let report = |(host, agent): (_, Child)| {
        let output = agent.wait_with_output().expect("it ends");
        (host, serde_json::from_str(&printed(&output)).expect("JSON"))
    };
    agents.into_iter().map(report).collect()
}

/// Checks that all ranks ran each operation in the same epoch, and that complete results are equal. Returns, by epoch, its
/// first operation and its number of ranks.
fn agreed(reports: &BTreeMap<&str, Value>) -> BTreeMap<u64, (u64, u64)> {
    let mut operations: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for report in reports.values() {
        for operation in report["ranks"][0]["operations"].as_array().expect("some") {
            let step = operation["step"].as_u64().expect("a number");
            operations.entry(step).or_default().push(operation);
        }
        assert_eq!(report["ranks"][0]["summary"]["wrong"], 0);
    }
    let mut epochs = BTreeMap::new();
    for (step, ran) in &operations {
        let of = |operation: &Value| {
            let number = |what: &str| operation[what].as_u64().expect("a number");
            (number("epoch"), number("ranks"))
        };
        let kinds: BTreeSet<(u64, u64)> = ran.iter().map(|operation| of(operation)).collect();
        assert_eq!(kinds.len(), 1, "operation {step}: {kinds:?}");
        let whole = ran.iter().filter(|operation| operation["whole"] == true);
        let results: BTreeSet<&str> = whole.map(|it| it["sha256"].as_str().unwrap()).collect();
        assert!(results.len() <= 1, "operation {step}: {results:?}");
        let (epoch, ranks) = of(ran[0]);
        epochs.entry(epoch).or_insert((*step, ranks));
    }
    epochs
}

#[test]
fn a_job_grows_shrinks_and_loses_a_killed_agent_while_it_runs() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(FIVE, &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4], evict_after_s: 1, sealed: true }");
    let mut agents: BTreeMap<&str, Child> = ["h1", "h2", "h3", "h4"]
        .map(|host| (host, agent(&lab, host)))
        .into();
    wait_until("all run", || joined(&lab, "train") == 4);

    let said = done(&lab, &["job", "resize", "train", "--add", "h5"]);
    assert_eq!(
        said,
        "job train: epoch 2 with 5 ranks is committed; waiting for rank 4 on h5 to join\n"
    );
    agents.insert("h5", agent(&lab, "h5"));
    let grown = in_epoch(&lab, 2);
    assert_eq!(grown["members"].as_array().map(Vec::len), Some(5));

    let resized = [
        "job",
        "resize",
        "train",
        "--members",
        "h5,h3,h2,h4",
        "--wait",
        "60s",
    ];
    let said = loop {
        let output = lab.controlled(&resized).output().expect("it runs");
        if output.status.success() {
            break printed(&output);
        }
        // A resize is rejected until the last operation of the first epoch is over.
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("is changing to epoch 2"), "{error}");
    };
    assert!(said.contains("epoch 3 starts with operation "), "{said}");
    assert!(
        said.ends_with("epoch 2 was removed from the switches\n"),
        "{said}"
    );

    // A crash.
    let mut crashed = agents.remove("h3").expect("it runs");
    signal(&crashed, Signal::SIGKILL);
    crashed.wait().expect("it has ended");
    let evicted = in_epoch(&lab, 4);
    assert_eq!(hosts(&evicted), ["h5", "h2", "h4"]);

    let epochs = agreed(&reports(agents));
    let ranks: Vec<(u64, u64)> = (epochs.iter())
        .map(|(epoch, (_, ranks))| (*epoch, *ranks))
        .collect();
    assert_eq!(ranks, [(1, 4), (2, 5), (3, 4), (4, 3)]);
    assert_eq!(evicted["status"]["first_operation"], epochs[&4].0);
    lab.down();
}

#[test]
fn new_members_join_again_when_a_resize_leaves_out_a_lost_member() {
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    let lab = Lab::of_text(FIVE, &[]);
    lab.create("{ name: train, members: [h1, h2, h3] }");
    let mut agents: BTreeMap<&str, Child> = ["h1", "h2", "h3"]
        .map(|host| (host, agent(&lab, host)))
        .into();
    wait_until("all run", || joined(&lab, "train") == 3);

    // A stopped process answers nothing. Until it is suspected, operations wait for it, and a new member would wait alone.
    let mut lost = agents.remove("h3").expect("it runs");
    signal(&lost, Signal::SIGSTOP);
    wait_until("it is suspected", || {
        lab.job("train")["status"]["members"][2]["state"] == "suspected"
    });
    let resize = ["job", "resize", "train"];
    done(
        &lab,
        &[&resize[..], &["--add", "h4", "--evict-unresponsive"]].concat(),
    );
    agents.insert("h4", agent(&lab, "h4"));
    let without = in_epoch(&lab, 2);
    assert_eq!(hosts(&without), ["h1", "h2", "h4"]);
    signal(&lost, Signal::SIGKILL);
    lost.wait().expect("it has ended");

    let epochs = agreed(&reports(agents));
    let ranks: Vec<(u64, u64)> = (epochs.iter())
        .map(|(epoch, (_, ranks))| (*epoch, *ranks))
        .collect();
    assert_eq!(ranks, [(1, 3), (2, 3)]);
    assert_eq!(without["status"]["first_operation"], epochs[&2].0);
    lab.down();
}

#[test]
fn a_rank_that_loses_its_place_before_the_first_operation_leaves_the_other_ranks_running() {
    if !needs::interfaces() {
        return;
    }
    let two = "ip: 10.0.0.1, ranks: 2 }";
    let lab = Lab::of_text(&FIVE.replace("ip: 10.0.0.1 }", two), &[]);
    let start = |job: &str, host: &str, ranks: &str| {
        let agent = [env!("CARGO_BIN_EXE_ultima"), "agent", "--job", job];
        let options = [
            "--ranks",
            ranks,
            "--repeat",
            "3",
            "--verify",
            "--output=json",
        ];
        let patient = ["--deadline", "2s"];
        lab.start(host, &[&agent[..], &options, &patient].concat())
    };
    lab.create("{ name: train, members: [h1, h1, h2], gather: unicast }");
    lab.create("{ name: other, members: [h1, h2, h3] }");
    let agent = start("train", "h1", "2");
    wait_until("its ranks have joined", || joined(&lab, "train") == 2);
    let resize = [
        "job",
        "resize",
        "train",
        "--members",
        "h1,h2",
        "--wait",
        "60s",
    ];
    let said = done(&lab, &resize);
    let line = "rank 1 on h1 of epoch 1 is not in the next epoch: the job was resized without it\n";
    assert!(said.contains(line), "{said}");
    // The message does not name rank 2, which keeps its place.
    assert!(!said.contains("rank 2 on h2"), "{said}");
    let late = start("train", "h2", "1");
    let ran = agent.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let line = "rank 1 of job train was removed: the job was resized without it";
    assert!(said.contains(line), "{said}");
    let report: Value = serde_json::from_str(&printed(&ran)).expect("JSON");
    let ranks = report["ranks"].as_array().expect("ranks");
    let operations = ranks[0]["operations"].as_array().expect("operations");
    assert_eq!((ranks.len(), operations.len()), (1, 3));
    printed(&late.wait_with_output().expect("it ends"));

    // An agent whose only rank loses its place.
    let agent = start("other", "h1", "1");
    wait_until("it has joined", || joined(&lab, "other") == 1);
    done(&lab, &["job", "resize", "other", "--members", "h2,h3"]);
    let ran = agent.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(5), "{said}");
    let why = "error: rank 0 of job other was removed: the job was resized without it\n";
    assert_eq!(said, why);
    lab.down();
}
