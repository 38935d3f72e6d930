//! `ultima demo`: real processes, a real switch, and a count for every packet.

use std::path::Path;
use std::process::{Child, Stdio};

use crate::common::{children, demo, output, ultima, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcap::PcapReader;
use serde_json::Value;
use ultima_testing::{full_run, per_run};
use ultima_wire::{Header, frame};

/// A run without impairments, with a bound that a slow machine does not reach.
const QUIET: [&str; 6] = ["--loss", "0", "--straggler", "0:0", "--deadline", "20s"];

/// A run that a test ends.
const ENDLESS: [&str; 4] = ["--workers", "2", "--steps", "100000"];

fn count(phase: &Value, key: &str) -> u64 {
    phase[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {phase}"))
}

fn dropped(phase: &Value) -> u64 {
    phase["dropped"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum()
}

/// Checks that every copy was delivered in time, delivered late, or dropped.
fn check_copies(phase: &Value) {
    let delivered = count(phase, "delivered_in_time") + count(phase, "delivered_late");
    assert_eq!(
        count(phase, "copies"),
        delivered + dropped(phase),
        "{phase}"
    );
}

/// Checks what holds for every run that loses no worker.
fn check_accounts(report: &Value) {
    let operations = report["steps"].as_u64().unwrap() * report["workers"].as_u64().unwrap();
    let closed_by = report["closed_by"].as_object().unwrap();
    assert_eq!(
        closed_by.values().map(|n| n.as_u64().unwrap()).sum::<u64>(),
        operations
    );
    for phase in ["scatter", "gather"].map(|name| &report[name]) {
        check_copies(phase);
        assert_eq!(
            count(phase, "slots"),
            count(phase, "sent") + count(phase, "never_sent"),
            "{phase}"
        );
        for cause in ["before_switch", "receiver", "not_copied", "no_peer"] {
            assert!(phase["dropped"].get(cause).is_none(), "{cause} in {phase}");
        }
    }
}

#[test]
fn without_impairments_replicas_are_identical_and_runs_repeat() {
    let steps = per_run("5", "20");
    let run = |seed: &str| {
        let options = ["--workers", "3", "--steps", steps, "--seed", seed];
        demo(&[&QUIET[..], &options].concat())
    };
    let (first, second) = (run("7"), run("7"));
    for report in [&first, &second] {
        check_accounts(report);
        assert_eq!(report["replica_spread"], 0.0);
        assert!(report["update_error"].as_f64().unwrap() < 1e-11, "{report}");
        assert_eq!(report["closed_by"]["complete"], per_run(15, 60));
        let (scatter, gather) = (&report["scatter"], &report["gather"]);
        assert_eq!(count(scatter, "sent"), count(scatter, "delivered_in_time"));
        assert_eq!(count(gather, "copies"), 2 * count(gather, "sent"));
        assert_eq!(count(gather, "copies"), count(gather, "delivered_in_time"));
        assert_eq!(report["unicast_equivalent"], gather["copies"]);
    }
    assert_eq!(first["parameters_sha256"], second["parameters_sha256"]);
    assert_ne!(first["parameters_sha256"], run("8")["parameters_sha256"]);
}

#[test]
fn every_copy_is_accounted_for_under_impairments() {
    let runs: [&[&str]; 6] = [
        &["--burst-loss", "0.05:6", "--shards", "by-class"],
        &["--multicast", "unicast", "--loss", "0.02"],
        &[
            "--link-rate",
            "50M",
            "--link-delay",
            "1ms",
            "--queue",
            "16k",
        ],
        // Another test of every change has each of the options below.
        &["--loss", "0.1", "--workers", "5"],
        &[
            "--straggler",
            "0.1:60",
            "--deadline",
            "40ms",
            "--loss",
            "0.02",
        ],
        &["--workers", "2", "--no-hadamard"],
    ];
    for &run in &runs[..per_run(3, 6)] {
        let report = demo(&[run, &["--steps", "12"]].concat());
        check_accounts(&report);
        if run.contains(&"--loss") || run.contains(&"--burst-loss") {
            assert!(
                count(&report["scatter"]["dropped"], "wire") > 0,
                "{run:?}: {report}"
            );
        }
        if run.contains(&"unicast") {
            assert_eq!(report["gather"]["copies"], report["gather"]["sent"]);
        }
    }
}

/// With independent loss *p* among *N* ranks, *K* = 1 + Bin(*N*−1, 1−*p*) contributions reach an owner, whose own is never
/// lost. Over owners, those *K* are a sample without replacement, so their mean misses the exact one by
/// (1/*K* − 1/*N*)·*N*/(*N*−1) of the gradients' dispersion; a receiver takes zero for a share *p*·(*N*−1)/*N* of the result.
#[test]
fn the_update_error_is_what_theory_says() {
    let (loss, ranks, steps) = (0.1_f64, 4_u32, per_run("30", "60"));
    let report = demo(&[
        "--loss",
        "0.1",
        "--straggler",
        "0:0",
        "--deadline",
        "20s",
        "--steps",
        steps,
        // Recycling adds residuals of earlier steps to an update.
        "--recycling",
        "off",
    ]);
    let others = ranks - 1;
    let n = f64::from(ranks);
    let binomial = |k: u32| {
        let ways: f64 = (0..k)
            .map(|i| f64::from(others - i) / f64::from(i + 1))
            .product();
        ways * (1.0 - loss).powi(k.cast_signed()) * loss.powi((others - k).cast_signed())
    };
    let sampling: f64 = (0..=others)
        .map(|k| binomial(k) * (1.0 / f64::from(k + 1) - 1.0 / n))
        .sum();
    let dispersion = report["gradient_dispersion"].as_f64().unwrap();
    let owner = sampling * n / (n - 1.0) * dispersion;
    let missed = loss * (n - 1.0) / n;
    let expected = missed + (1.0 - missed) * owner;
    let measured = report["update_error"].as_f64().unwrap();
    println!("update error {measured:.4}, in theory {expected:.4}");
    // The measurement has a spread of about 1 % in 54,000 slots, which are 60 steps, and of 1.4 % in 30.
    assert!(
        (measured / expected - 1.0).abs() < 0.06,
        "{measured} instead of {expected}"
    );
}

/// With burst losses and stragglers, recycling makes the error of the whole run ten times smaller.
#[test]
fn recycling_makes_the_error_of_a_run_ten_times_smaller() {
    let run = |recycling| {
        let options = ["--burst-loss", "0.05:6", "--straggler", "0.02:100"];
        // Residuals make up for losses over many steps.
        let run = ["--steps", "60", "--recycling", recycling];
        let report = demo(&[&options[..], &run].concat());
        check_accounts(&report);
        report["run_error"].as_f64().unwrap()
    };
    let (with, without) = (run("on"), run("off"));
    println!("error of the run: {with:.2e} with recycling, {without:.2e} without");
    assert!(with <= without / 10.0, "{with} and {without}");
}

/// Without recycling the replicas diverge. The workers average them exactly, over links that lose packets.
#[test]
fn diverged_replicas_are_averaged() {
    let report = demo(&[
        "--recycling",
        "off",
        "--loss",
        "0.05",
        "--straggler",
        "0:0",
        "--deadline",
        "20s",
        "--steps",
        "20",
        "--drift-every",
        "10",
        "--drift-bound",
        "1e-5",
    ]);
    check_accounts(&report);
    let drift = &report["agreements"]["drift"];
    assert_eq!(drift["measured"], 2);
    let healed = drift["healed"].as_array().unwrap();
    assert_eq!(healed.len(), 2, "{drift}");
    for healed in healed {
        assert!(healed["before"].as_f64().unwrap() > 1e-5, "{drift}");
        assert_eq!(healed["after"], 0.0, "{drift}");
    }
    // The last step was followed by an average.
    assert_eq!(report["replica_spread"], 0.0);
}

/// Every update loses a packet, so no worker applies it.
#[test]
fn updates_are_skipped_by_all_or_none() {
    let options = ["--loss", "0.05", "--straggler", "0:0", "--deadline", "20s"];
    let report = demo(&[&options[..], &["--steps", "5", "--skip-loss", "0"]].concat());
    check_accounts(&report);
    assert_eq!(report["agreements"]["skipped_updates"], 5);
    assert_eq!(report["replica_spread"], 0.0);
    assert_eq!(report["update_error"], 1.0);
    if !full_run() {
        return;
    }
    let stopped = start(&[&options[..], &["--steps", "50", "--stop-loss", "0:3"]].concat());
    let output = stopped.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("the job stops at step 2: in each of the last 3 updates"),
        "{text}"
    );
}

/// Rank 2 sleeps for longer than the others wait: the report shows its weight, and the rank skips steps.
#[test]
fn the_report_shows_a_worker_that_is_always_late() {
    let options = ["--loss", "0", "--straggler", "0:0", "--drift-every", "0"];
    let late = ["--steps", per_run("30", "60"), "--late", "2:700"];
    let report = demo(&[&options[..], &late].concat());
    check_accounts(&report);
    let weights = report["weights"].as_array().unwrap();
    let weight = |rank: usize| weights[rank].as_f64().unwrap();
    assert!(weight(2) < 0.125, "{weights:?}");
    assert!((weights.iter().map(|w| w.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-3);
    assert!(report["passed_steps"][2].as_u64().unwrap() > 0, "{report}");
    assert!(report["agreements"]["drift"].is_null());
}

#[test]
fn workers_write_traces() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("traces");
    let folder = folder.to_str().expect("a plain path");
    let options = ["--workers", "2", "--steps", "3", "--straggler", "0:0"];
    demo(&[&options[..], &["--trace", folder]].concat());
    for rank in 0..2 {
        let file = format!("{folder}/rank{rank}.jsonl");
        let list = output(&["trace", &file, "--list"]);
        let list = String::from_utf8(list.stdout).expect("text");
        assert_eq!(list.lines().count(), 4, "{list}");
    }
}

#[test]
fn losing_the_same_slots_always_hurts_less_with_the_transform() {
    let options = [
        &["--straggler", "0:0", "--deadline", "20s"][..],
        &[
            "--drop-slots",
            "3..9",
            "--steps",
            "15",
            "--recycling",
            "off",
            "--drift-every",
            "5",
        ],
    ]
    .concat();
    let coded = demo(&options);
    let plain = demo(&[&options[..], &["--no-hadamard"]].concat());
    for report in [&coded, &plain] {
        check_accounts(report);
        // In each step, 6 slots of each of 4 shards are lost from 3 sources, and to 3 receivers.
        assert_eq!(report["scatter"]["dropped"]["wire"], 6 * 4 * 3 * 15);
        assert_eq!(report["gather"]["dropped"]["wire"], 6 * 4 * 3 * 15);
        // Votes arrive. Averaging the replicas would need the lost slots, so no run waits for that.
        assert_eq!(report["agreements"]["drift"]["measured"], 3);
        assert_eq!(report["agreements"]["ended"], Value::Null);
    }
    // The replicas diverge enough that averaging was due.
    assert!(plain["agreements"]["drift"]["largest"].as_f64().unwrap() > 0.005);
    // Without the transform, the same parameters are never updated, and the replicas diverge for good.
    let spread = |report: &Value| report["replica_spread"].as_f64().unwrap();
    assert!(
        spread(&plain) > spread(&coded),
        "{} and {}",
        spread(&plain),
        spread(&coded)
    );
}

/// `programs/drop_gather_slot/` is the project's program with one more condition: ingress drops GATHER packets of slot 5.
#[test]
fn a_program_that_drops_a_slot_changes_the_counts_by_that_slot() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let file = |name: &str| programs.join(name).to_str().unwrap().to_owned();
    let (program, p4info) = (
        file("drop_gather_slot.json"),
        file("drop_gather_slot.p4info.txtpb"),
    );
    let own = [
        "--program",
        &program,
        "--p4info",
        &p4info,
        "--steps",
        "10",
        "--workers",
        "4",
    ];
    let report = demo(&[&QUIET[..], &own].concat());
    check_accounts(&report);
    let gather = &report["gather"];
    assert_eq!(gather["dropped"]["ingress_program"], 10 * 4 * 3);
    assert_eq!(dropped(gather), 10 * 4 * 3);
    assert_eq!(dropped(&report["scatter"]), 0);
}

/// Every packet of a sealed run has a tag, and no worker rejects a packet.
#[test]
fn every_packet_of_a_sealed_run_has_a_tag() {
    let folder = tempfile::tempdir().expect("a folder");
    let captures = folder.path().to_str().expect("text");
    let short = ["--steps", "10", "--workers", "3", "--pcap", captures];
    let options = [&QUIET[..], &short].concat();
    let seen = |options: &[&str]| {
        let report = demo(options);
        check_accounts(&report);
        assert_eq!(dropped(&report["scatter"]) + dropped(&report["gather"]), 0);
        let sealed = report["sealed"].as_bool().expect("it says so");
        let mut packets = [0, 0];
        for file in std::fs::read_dir(folder.path()).expect("captures") {
            let file = std::fs::File::open(file.expect("a file").path()).expect("a capture");
            let mut capture = PcapReader::new(file).expect("a capture");
            while let Some(packet) = capture.next_packet() {
                let packet = packet.expect("a whole one");
                let Ok((_, datagram)) = frame::parse(&packet.data) else {
                    continue;
                };
                let (header, _) = Header::parse(datagram).expect("one of ours");
                packets[usize::from(header.auth.is_some())] += 1;
            }
        }
        (sealed, packets)
    };
    let (sealed, [open, closed]) = seen(&[&options[..], &["--unsealed"]].concat());
    assert!(!sealed && open > 100 && closed == 0, "{open}, {closed}");
    let (sealed, [open, closed]) = seen(&options);
    assert!(sealed && open == 0 && closed > 100, "{open}, {closed}");
}

fn start(options: &[&str]) -> Child {
    ultima(&[&["demo", "--output=json"], options].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the workers train; returns all processes of the demo with their command lines.
fn trains(parent: &Child, workers: usize) -> Vec<(i32, String)> {
    let started = || {
        let all = children(parent.id());
        let workers_up = all
            .iter()
            .filter(|(_, line)| line.contains("demo-worker"))
            .count();
        (workers_up == workers).then_some(all)
    };
    wait_until("all workers run", || started().is_some());
    let all = started().unwrap();
    // A worker starts to compute when all have joined.
    let (worker, _) = all
        .iter()
        .find(|(_, line)| line.contains("demo-worker"))
        .unwrap();
    wait_until("they train", || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let user_ticks = after_name
            .split_whitespace()
            .nth(11)
            .and_then(|t| t.parse::<u64>().ok());
        user_ticks.is_some_and(|ticks| ticks > 5)
    });
    all
}

#[test]
fn a_killed_worker_does_not_stop_the_others() {
    let demo = start(&[
        "--loss",
        "0",
        "--straggler",
        "0:0",
        "--deadline",
        "20ms",
        "--steps",
        per_run("80", "200"),
    ]);
    let all = trains(&demo, 4);
    let workers: Vec<_> = all
        .iter()
        .filter(|(_, line)| line.contains("demo-worker"))
        .collect();
    kill(Pid::from_raw(workers[2].0), Signal::SIGKILL).unwrap();
    let output = demo.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["lost_workers"].as_array().unwrap().len(),
        1,
        "{report}"
    );
    for phase in ["scatter", "gather"].map(|name| &report[name]) {
        check_copies(phase);
    }
}

#[test]
fn an_interrupt_leaves_no_process() {
    let mut demo = start(&ENDLESS);
    let all = trains(&demo, 2);
    assert_eq!(all.len(), 4, "{all:?}");
    kill(Pid::from_raw(demo.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    for (pid, line) in all {
        let gone = !Path::new(&format!("/proc/{pid}/cmdline")).exists();
        assert!(gone, "{line} still runs");
    }
}

#[test]
fn the_demo_fails_when_its_switch_ends() {
    let demo = start(&ENDLESS);
    let all = trains(&demo, 2);
    let (switch, _) = all
        .iter()
        .find(|(_, line)| line.contains(" switch "))
        .unwrap();
    kill(Pid::from_raw(*switch), Signal::SIGKILL).unwrap();
    let output = demo.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(
        text.lines().last(),
        Some("error: the switch ended before the training was complete")
    );
}

#[test]
fn all_processes_end_when_the_main_process_is_killed() {
    let mut demo = start(&ENDLESS);
    let all = trains(&demo, 2);
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_until("all are gone", || {
        // A zombie has an empty command line.
        all.iter().all(|(pid, _)| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .unwrap_or_default()
                .is_empty()
        })
    });
}

/// Workers vote for the transform when losses exceed `--hadamard-above`, and never without losses.
#[test]
fn workers_vote_for_the_transform_when_losses_exceed_its_share() {
    let voted = |loss: &str| {
        let steps = per_run("20", "30");
        let common = ["--workers", "3", "--steps", steps, "--straggler", "0:0"];
        let bound = ["--deadline", "20s"];
        let rule = ["--hadamard-above", "0.02", "--loss", loss];
        let report = demo(&[&common[..], &bound, &rule].concat());
        report["agreements"]["coding"].clone()
    };
    let lossy = voted("0.1");
    assert_eq!(lossy[0]["on"], true, "{lossy}");
    let step = lossy[0]["step"].as_u64().expect("a step");
    assert_eq!(step % 10, 9, "votes are every ten steps: {lossy}");
    assert_eq!(voted("0"), serde_json::json!([]));
}
