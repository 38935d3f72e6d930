//! A spine ends under a running job.

use std::collections::BTreeMap;
use std::fs;
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_tests::needs;

use crate::common::wait_until;

use super::stage::{Lab, printed, topology};

/// The operation in progress loses packets, and ends when later ones show that. Ranks that had ended it lose packets of the
/// next one. The deadline is longer than a reroute on any machine, and is not learned.
#[test]
fn a_killed_spine_costs_only_the_operation_in_progress() {
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    let lab = Lab::of_file(&topology("leaf-spine.yaml"), &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4, h5, h6, h7, h8] }");
    let work =
        "--job train --output=json --allreduce 20000 --repeat 300 --deadline 5s --timeouts fixed";
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace").display().to_string();
    let agents: Vec<Child> = (1..=8)
        .map(|number| {
            let agent = [env!("CARGO_BIN_EXE_ultima"), "agent"];
            let mut command: Vec<&str> = agent.into_iter().chain(work.split(' ')).collect();
            if number == 1 {
                command.extend(["--trace", &trace]);
            }
            lab.start(&format!("h{number}"), &command)
        })
        .collect();
    wait_until("it has sent packets", || {
        fs::metadata(&trace).is_ok_and(|trace| trace.len() > 100_000)
    });
    let job = lab.job("train");
    let link = job["status"]["tree"][0].as_str().expect("a link");
    let (_, end) = link.split_once('-').expect("two ends");
    let spine = end.split('/').next().expect("a switch");
    let processes = lab.processes();
    let is_it = |(role, _): &&(String, i32)| *role == format!("switch-{spine}");
    let (_, pid) = processes.iter().find(is_it).expect("it runs");
    kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("it runs");

    // For each operation the number of ranks that lack values.
    let mut incomplete: BTreeMap<u64, usize> = BTreeMap::new();
    for agent in agents {
        let output = agent.wait_with_output().expect("it ends");
        let report: Value = serde_json::from_str(&printed(&output)).expect("one JSON object");
        let operations = report["ranks"][0]["operations"].as_array();
        let operations = operations.expect("operations");
        assert_eq!(operations.len(), 300);
        // Not those that are incomplete because the machine is busy: they end in the usual time, some 20 ms.
        let is_slow = |it: &&Value| it["ms"].as_f64() > Some(200.0);
        let lost = operations
            .iter()
            .filter(|it| it["whole"] == false)
            .filter(is_slow);
        for operation in lost {
            let step = operation["step"].as_u64().expect("a step");
            *incomplete.entry(step).or_default() += 1;
        }
    }
    let (first, ranks) = incomplete
        .first_key_value()
        .expect("the spine carried packets");
    // A second one only if a rank had all of the first one, and had begun the next.
    let last = if *ranks < 8 { first + 1 } else { *first };
    assert!(
        incomplete.keys().all(|step| *step <= last),
        "{incomplete:?}"
    );
    lab.down();
}
