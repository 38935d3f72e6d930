//! Jobs whose members change while their agents run, over kernel sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_tests::needs;

use crate::common::{children, wait_until};
use crate::stage::{Lab, printed};

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

/// So many operations, paced to about an eighth of a second each, that there is time to change the members meanwhile.
const LONG: [&str; 12] = [
    "--job",
    "train",
    "--verify",
    "--json",
    "--allreduce",
    "20000",
    "--repeat",
    "250",
    "--rate",
    "5M",
    "--deadline",
    "2s",
];

fn agent(lab: &Lab, host: &str) -> Child {
    let agent = [env!("CARGO_BIN_EXE_ultima"), "agent"];
    lab.start(host, &[&agent[..], &LONG].concat())
}

fn job(lab: &Lab) -> Value {
    let shown = lab.controlled(&["job", "show", "train", "--json"]).output();
    serde_json::from_str(&printed(&shown.expect("it runs"))).expect("one JSON object")
}

fn done(lab: &Lab, arguments: &[&str]) -> String {
    printed(&lab.controlled(arguments).output().expect("it runs"))
}

/// Waits until the job is in an epoch, and nothing else is on the switches.
fn in_epoch(lab: &Lab, epoch: u64) -> Value {
    wait_until("the epoch has come", || job(lab)["epoch"] == epoch);
    job(lab)
}

/// What agents report, by host.
fn reports(agents: BTreeMap<&str, Child>) -> BTreeMap<&str, Value> {
    let report = |(host, agent): (_, Child)| {
        let output = agent.wait_with_output().expect("it ends");
        (host, serde_json::from_str(&printed(&output)).expect("JSON"))
    };
    agents.into_iter().map(report).collect()
}

/// All who ran an operation ran it in the same epoch, over as many ranks as were to; where nothing was lost, with the same result, which is
/// the mean over these. The first operation of each epoch, and how many ranks it has.
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
    lab.create("{ name: train, members: [h1, h2, h3, h4], evict_after_s: 1 }");
    let mut agents: BTreeMap<&str, Child> = ["h1", "h2", "h3", "h4"]
        .map(|host| (host, agent(&lab, host)))
        .into();
    wait_until("all run", || {
        let job = job(&lab);
        let members = job["members"].as_array().expect("members").clone();
        members.iter().all(|member| member["state"] == "joined")
    });

    let said = done(&lab, &["job", "resize", "train", "--add", "h5"]);
    assert_eq!(
        said,
        "epoch 2 of train is installed, with 5 ranks; it waits for rank 4 on h5 to join\n"
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
        // The first epoch is on the switches until its last operation is over.
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("is changing to epoch 2"), "{error}");
    };
    assert!(said.contains("epoch 3 begins with operation "), "{said}");
    assert!(said.ends_with("epoch 2 is off the switches\n"), "{said}");

    // As a crash would end it.
    let mut crashed = agents.remove("h3").expect("it runs");
    let own = i32::try_from(crashed.id()).expect("a process's number");
    let below: Vec<i32> = children(crashed.id())
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    for pid in below.into_iter().chain([own]) {
        // One may end with the other.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    crashed.wait().expect("it has ended");
    let evicted = in_epoch(&lab, 4);
    let hosts: Vec<&Value> = (evicted["members"].as_array().expect("members").iter())
        .map(|member| &member["host"])
        .collect();
    assert_eq!(hosts, ["h5", "h2", "h4"]);

    let epochs = agreed(&reports(agents));
    let ranks: Vec<(u64, u64)> = (epochs.iter())
        .map(|(epoch, (_, ranks))| (*epoch, *ranks))
        .collect();
    assert_eq!(ranks, [(1, 4), (2, 5), (3, 4), (4, 3)]);
    assert_eq!(evicted["first_operation"], epochs[&4].0);
    lab.down();
}
