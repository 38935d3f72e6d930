//! Agents that send more than links carry: what is cut is known at once, and operations end by that.

use std::thread;

use serde_json::Value;
use ultima_tests::needs;

use crate::common;
use crate::stage::{Lab, printed};

/// Four hosts behind links of 50 Mbit/s.
const SLOW: &str = "
switches:
  - { name: s1 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4 }
links:
  - { ends: [h1, s1/1], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h2, s1/2], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h3, s1/3], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h4, s1/4], b_to_a: { rate: 50M, queue: 64k } }
";
const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// Each rank sends at this rate, and so is sent an eighth more than its link carries.
const RATE: &str = "56M";
const REPEAT: usize = 5;

/// Runs an agent on every host; what each reports.
fn agents(lab: &Lab) -> Vec<Value> {
    let repeat = REPEAT.to_string();
    let agent = [
        env!("CARGO_BIN_EXE_ultima"),
        "agent",
        "--job",
        "train",
        "--allreduce",
        "400000",
        "--repeat",
        &repeat,
        "--rate",
        RATE,
        // Long enough for a machine that does other things too: nothing here may end by it.
        "--deadline",
        "10s",
        "--verify",
        "--json",
    ];
    thread::scope(|scope| {
        let running = HOSTS.map(|host| scope.spawn(move || printed(&lab.exec(host, &agent))));
        let reports = running.map(|agent| agent.join().expect("an agent's report"));
        let parse = |report: String| serde_json::from_str(&report).expect("one JSON object");
        reports.into_iter().map(parse).collect()
    })
}

#[test]
fn operations_end_by_what_is_known_to_be_cut() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(SLOW, &[]);
    let controller = format!("unix:/run/ultima/labs/{}/controller.sock", lab.name);
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.yaml");
    let members = "name: train\nmembers: [h1, h2, h3, h4]\n";
    std::fs::write(&job, members).expect("written");
    let job = job.to_string_lossy();
    let create = ["job", "create", "-f", &job, "--controller", &controller];
    printed(&common::output(&create));

    let reports = agents(&lab);
    let ranks = (reports.iter()).flat_map(|report| report["ranks"].as_array().expect("ranks"));
    let ranks: Vec<&Value> = ranks.collect();
    assert_eq!(ranks.len(), HOSTS.len());
    let (mut cut, mut came) = (0, 0);
    for rank in ranks {
        let operations = rank["operations"].as_array().expect("operations");
        assert_eq!(operations.len(), REPEAT);
        for operation in operations {
            let by = operation["closed_by"].as_str().expect("a word");
            assert!(by == "known loss" || by == "complete", "{operation}");
        }
        let summary = &rank["summary"];
        for phase in ["lost_contributions", "lost_aggregates"] {
            assert_eq!(summary[phase]["overdue"], 0, "{summary}");
        }
        let count = |field: &str| summary[field].as_u64().expect("a number");
        assert_eq!(count("wrong"), 0, "{summary}");
        cut += count("packets_cut");
        came += count("packets_received") + count("packets_cut");
    }
    assert!(cut * 20 >= came, "{cut} of {came} packets were cut");
    lab.down();
}
