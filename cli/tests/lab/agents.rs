//! `ultima agent` as one process on each host, over kernel sockets.

use std::collections::HashSet;

use serde_json::Value;
use ultima_tests::needs;

use crate::stage::{Lab, topology};

/// Operations of each rank.
const REPEAT: u64 = 5;
/// A bound long enough for a machine that does other things too.
pub const OPTIONS: [&str; 8] = [
    "--job",
    "train",
    "--verify",
    "--output=json",
    "--repeat",
    "5",
    "--deadline",
    "5s",
];
/// What BMv2 takes without loss however slow it is: all that a host sends in one operation fits its port's input, 32 frames,
/// and all that a host gets its port's queue, 64.
pub const SMALL: [&str; 4] = ["--allreduce", "2800", "--rate", "10M"];
/// What the embedded switch takes.
pub const LARGE: [&str; 4] = ["--allreduce", "60000", "--rate", "200M"];

/// Four hosts with two ranks each.
pub const EIGHT_RANKS: &str = "
switches:
  - { name: s1 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1, ranks: 2 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2, ranks: 2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3, ranks: 2 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4, ranks: 2 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s1/2] }
  - { ends: [h3, s1/3] }
  - { ends: [h4, s1/4] }
";

/// Agents' reports are of ranks 0 to `ranks`; every packet of every rank arrived wherever it should, and every result of
/// every rank has all contributions, is right, and is the same at all.
pub fn all_agree(reports: &[Value], ranks: u64) {
    let all: Vec<&Value> = reports
        .iter()
        .flat_map(|report| report["ranks"].as_array().expect("ranks"))
        .collect();
    let mut numbers: Vec<u64> = all.iter().map(|r| r["rank"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..ranks).collect::<Vec<_>>());
    for rank in &all {
        let summary = &rank["summary"];
        let count = |what: &str| summary[what].as_u64().expect(what);
        assert_eq!(
            (count("operations"), count("whole"), count("wrong")),
            (REPEAT, REPEAT, 0),
            "{rank:#}"
        );
        // Of a slot in its shard a rank gets a packet from each other one, and sends one to all; of the others' slots it sends
        // one to its owner, and gets one from there. Shards have equal numbers of slots.
        assert_eq!(
            count("packets_received") * ranks,
            count("packets_sent") * 2 * (ranks - 1),
            "{rank:#}"
        );
        assert!(summary["largest_error"].as_f64() < Some(1e-10), "{summary}");
    }
    for step in 0..REPEAT as usize {
        let of_step = all.iter().map(|rank| &rank["operations"][step]);
        let digests: HashSet<&str> = of_step
            .map(|operation| operation["sha256"].as_str().expect("a digest"))
            .collect();
        assert_eq!(digests.len(), 1, "step {step}: {digests:?}");
    }
}

/// One process and one rank on each host of star4.
fn four_ranks(switch: &str, work: &[&str]) {
    let lab = Lab::of_file(&topology("star4.yaml"), &["--switch", switch]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 1));
    all_agree(&lab.agents(&hosts, &[&OPTIONS, work].concat()), 4);
    lab.down();
}

/// One process for each host, with two ranks in each.
fn two_ranks_on_each_of_four_hosts(switch: &str, work: &[&str]) {
    let lab = Lab::of_text(EIGHT_RANKS, &["--switch", switch]);
    lab.create("{ name: train, members: [h1, h1, h2, h2, h3, h3, h4, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 2));
    all_agree(&lab.agents(&hosts, &[&OPTIONS, work].concat()), 8);
    lab.down();
}

#[test]
fn a_collective_runs_as_one_process_per_host() {
    if needs::interfaces() {
        four_ranks("embedded", &LARGE);
    }
}

#[test]
fn a_collective_runs_as_one_process_per_host_on_bmv2() {
    if needs::bmv2().is_some() {
        four_ranks("bmv2", &SMALL);
    }
}

#[test]
fn two_ranks_run_on_each_of_four_hosts() {
    if needs::interfaces() {
        two_ranks_on_each_of_four_hosts("embedded", &LARGE);
    }
}

#[test]
fn two_ranks_run_on_each_of_four_hosts_on_bmv2() {
    if needs::bmv2().is_some() {
        two_ranks_on_each_of_four_hosts("bmv2", &SMALL);
    }
}

/// Two processes of one rank each share a host as two ranks of one process do.
#[test]
fn a_host_runs_its_ranks_as_processes_too() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(EIGHT_RANKS, &[]);
    lab.create("{ name: train, members: [h1, h2, h2] }");
    let hosts = [("h1", 1), ("h2", 1), ("h2", 1)];
    all_agree(&lab.agents(&hosts, &[&OPTIONS[..], &LARGE].concat()), 3);
    lab.down();
}
