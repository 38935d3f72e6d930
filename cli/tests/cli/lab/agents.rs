//! `ultima agent` as one process per host, over kernel sockets.

use std::collections::HashSet;
use std::fs;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use ultima_agent::job::{Controller, Job};
use ultima_host::Report;
use ultima_testing::per_run;
use ultima_tests::needs;

use crate::common::wait_until;

use super::epochs::signal;
use super::stage::{Lab, topology};

/// Operations of each rank.
const REPEAT: u64 = 5;
/// The bound is wide enough for a busy machine. An agent serves repairs for as long after its last operation.
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
/// Work that BMv2 carries without loss at any speed: what a host sends in an operation fits a port's input of 32 frames,
/// and what it receives fits a port's queue of 64.
pub const SMALL: [&str; 4] = ["--allreduce", "2800", "--rate", "10M"];
/// Work that the embedded switch carries without loss, at the speed that flow control allows.
pub const LARGE: [&str; 2] = ["--allreduce", "60K"];

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

/// Checks the reports of ranks 0 to `ranks`: every packet arrived at every receiver, and every result is complete, correct
/// and equal on all ranks.
pub fn all_agree(reports: &[Value], ranks: u64) {
    agree(reports, ranks, false);
}

/// As [`all_agree`], for a fabric in which GATHER and SCATTER take several paths. If a busy machine runs the switches of one path
/// later than those of another, packets overtake each other by more than the controller expects. Then an operation may end
/// before they arrive, until the ranks have learned how far they do.
pub fn all_agree_over_several_paths(reports: &[Value], ranks: u64) {
    agree(reports, ranks, true);
}

fn agree(reports: &[Value], ranks: u64, may_overtake: bool) {
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
            (count("operations"), count("wrong")),
            (REPEAT, 0),
            "{rank:#}"
        );
        let lost = ["lost_contributions", "lost_aggregates"];
        let causes = lost.map(|what| summary[what].as_object().expect(what));
        let mut causes = causes.into_iter().flatten();
        assert!(
            causes.all(|(cause, lost)| *lost == 0 || may_overtake && cause == "overtaken"),
            "{rank:#}"
        );
        assert!(
            count("whole") == REPEAT || may_overtake && count("whole") >= 2,
            "{rank:#}"
        );
        // For a slot of its shard, a rank receives a packet from each other rank and multicasts one. For any other slot it
        // sends a packet to the owner and receives one. All shards have the same number of slots.
        assert_eq!(
            count("packets_received") * ranks,
            count("packets_sent") * 2 * (ranks - 1),
            "{rank:#}"
        );
        let operations = rank["operations"].as_array().expect("operations").iter();
        for operation in operations.filter(|operation| operation["whole"] == true) {
            assert!(operation["error"].as_f64() < Some(1e-10), "{operation}");
        }
    }
    for step in 0..REPEAT as usize {
        let of_step = all.iter().map(|rank| &rank["operations"][step]);
        if of_step.clone().any(|operation| operation["whole"] == false) {
            continue;
        }
        let digests: HashSet<&str> = of_step
            .map(|operation| operation["sha256"].as_str().expect("a digest"))
            .collect();
        assert_eq!(digests.len(), 1, "step {step}: {digests:?}");
    }
}

/// Runs one process with one rank on each host of star4.
fn four_ranks(switch: &str, work: &[&str]) {
    let lab = Lab::of_file(&topology("star4.yaml"), &["--switch", switch]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 1));
    all_agree(&lab.agents(&hosts, &[&OPTIONS, work].concat()), 4);
    lab.down();
}

/// Runs one process with two ranks on each host.
fn two_ranks_on_each_of_four_hosts(switch: &str, work: &[&str]) {
    let lab = Lab::of_text(EIGHT_RANKS, &["--switch", switch]);
    lab.create("{ name: train, members: [h1, h1, h2, h2, h3, h3, h4, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 2));
    all_agree(&lab.agents(&hosts, &[&OPTIONS, work].concat()), 8);
    lab.down();
}

#[test]
fn one_rank_runs_on_each_of_four_hosts() {
    // Two ranks per host do the same and more.
    if needs::full_run() && needs::interfaces() {
        four_ranks("embedded", &LARGE);
    }
}

#[test]
fn one_rank_runs_on_each_of_four_hosts_on_bmv2() {
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

/// Two processes with one rank each share a host.
#[test]
fn two_agents_run_on_one_host() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(EIGHT_RANKS, &[]);
    lab.create("{ name: train, members: [h1, h2, h2] }");
    let hosts = [("h1", 1), ("h2", 1), ("h2", 1)];
    all_agree(&lab.agents(&hosts, &[&OPTIONS[..], &LARGE].concat()), 3);
    lab.down();
}

#[test]
fn four_ranks_lose_nothing_without_a_rate() {
    four_ranks_lose_nothing("");
}

/// Packets of 7,668 bytes leave the switch through a packet socket.
#[test]
fn four_ranks_lose_nothing_in_large_packets() {
    four_ranks_lose_nothing(", mtu: 9000");
}

/// Each rank has more to send than the switch's receive ring holds. `links` are settings of links in YAML.
fn four_ranks_lose_nothing(links: &str) {
    if !needs::interfaces() {
        return;
    }
    let star4 = std::fs::read_to_string(topology("star4.yaml")).expect("it is there");
    let lab = Lab::of_text(&star4.replace("] }", &format!("]{links} }}")), &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 1));
    let work = [
        "--allreduce",
        "3000000",
        "--repeat",
        "2",
        "--deadline",
        "10s",
    ];
    let options = [&["--job", "train", "--output=json"][..], &work].concat();
    for report in lab.agents(&hosts, &options) {
        let summary = &report["ranks"][0]["summary"];
        assert_eq!(summary["closed_by"]["complete"], 2, "{summary}");
    }

    lab.create("{ name: buckets, members: [h1, h2, h3, h4] }");
    let controller = lab.controller();
    let ranks = hosts.map(|(host, _)| {
        let rendezvous = Controller::new(&controller, "buckets", host);
        lab.within(host, move || average_buckets(rendezvous))
    });
    for rank in ranks {
        let totals = rank.join().expect("no panic").totals;
        let lost = totals.lost.scatter.total() + totals.lost.gather.total();
        assert_eq!((lost, totals.rejected.total()), (0, 0), "{totals:?}");
        for phase in [totals.phases.scatter, totals.phases.gather] {
            let wrong = (phase.late, phase.duplicates, phase.refused);
            assert_eq!(wrong, (0, 0, 0), "{totals:?}");
        }
    }
    lab.down();
}

/// Averages several buckets at a time as one rank, one of them in parts, with default settings except for the deadline: a busy machine may stop a
/// rank for longer.
fn average_buckets(rendezvous: Controller) -> Report {
    let mut builder = Job::builder().rendezvous(rendezvous);
    builder.settings_mut().t_b = Duration::from_secs(60);
    let job = builder.start().expect("it starts");
    for _ in 0..per_run(5, 500) {
        let pending: Vec<_> = (0..)
            .zip([300_000, 5, 1_600_000])
            .map(|(bucket, len)| job.all_reduce_bucket(bucket, vec![1.0; len]))
            .collect();
        for pending in pending {
            let outcome = pending.wait().expect("it ends").outcome;
            assert!(outcome.is_whole(), "{outcome:?}");
        }
    }
    job.finish(Duration::from_millis(50)).expect("it finishes")
}

/// With default settings every packet of thousands of multicast operations arrives, once and in time.
#[test]
fn operations_through_the_group_lose_nothing() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 1));
    let repeat = per_run(50, 10_000);
    let text = repeat.to_string();
    let work = [
        "--allreduce",
        "10000",
        "--repeat",
        &text,
        "--deadline",
        "5s",
    ];
    let options = [&["--job", "train", "--output=json"][..], &work].concat();
    for report in lab.agents(&hosts, &options) {
        let summary = &report["ranks"][0]["summary"];
        assert_eq!(summary["whole"], repeat, "{summary}");
        assert_eq!(summary["closed_by"]["complete"], repeat, "{summary}");
        assert_eq!(summary["rejected"], serde_json::json!({}), "{summary}");
        let count = |what: &str| summary[what].as_u64().expect(what);
        assert_eq!((count("send_errors"), count("too_long")), (0, 0));
        // As in `agree`.
        assert_eq!(
            count("packets_received") * 4,
            count("packets_sent") * 2 * 3,
            "{summary}"
        );
    }
    lab.down();
}

/// A stopped process costs the others its own contributions, and nothing after it has returned.
#[test]
fn a_stopped_agent_costs_only_its_own_contributions() {
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let agent = |host, more: &[&str]| {
        let options = ["--job", "train", "--output=json", "--deadline", "2s"];
        let work = ["--allreduce", "20000", "--repeat", "1000"];
        let command = [
            &[env!("CARGO_BIN_EXE_ultima"), "agent"][..],
            &options,
            &work,
            more,
        ];
        lab.start(host, &command.concat())
    };
    let others: Vec<Child> = ["h1", "h2", "h3"].map(|host| agent(host, &[])).into();
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace").display().to_string();
    let stopped = agent("h4", &["--trace", &trace]);
    let state = || lab.job("train")["status"]["members"][3]["state"].clone();
    wait_until("it has sent packets", || {
        fs::metadata(&trace).is_ok_and(|trace| trace.len() > 10_000)
    });
    signal(&stopped, Signal::SIGSTOP);
    wait_until("it is suspected", || state() == "suspected");
    signal(&stopped, Signal::SIGCONT);

    for agent in others {
        let output = agent.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let operations = report["ranks"][0]["operations"]
            .as_array()
            .expect("operations");
        // The controller may suspect it earlier than this rank does.
        let is_suspected = operations.iter().any(|it| it["suspected"].is_array());
        let expected = Some(i32::from(is_suspected));
        assert_eq!(output.status.code(), expected, "{errors}");
        let incomplete = (operations.iter()).filter(|operation| operation["whole"] == false);
        let incomplete: Vec<&Value> = incomplete.collect();
        for from in incomplete.iter().map(|it| it["missing_from"].as_array()) {
            let ranks = from.into_iter().flatten().map(|from| &from["rank"]);
            assert!(ranks.clone().all(|rank| *rank == 3), "{from:?}");
        }
        let last = incomplete.last().expect("it was never waited for");
        assert!(last["step"].as_u64() < Some(900), "{last}");
    }
    stopped.wait_with_output().expect("it ends");
    lab.down();
}
