//! `ultima bench`: a tiny run, an interrupted one, and its bad input.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::Value;
use ultima_tests::needs;

use crate::common::{self, refused};
use crate::lab::stage::namespaces;

/// Two ranks, a cell and a training with each of two tails, both methods of Ultima and Gloo.
const TINY: [&str; 15] = [
    "bench",
    "--quick",
    "--ranks",
    "2",
    "--sizes",
    "4KB",
    "--tails",
    "1.5,3",
    "--methods",
    "ultima-multicast,ultima-unicast,gloo-ring",
    "--no-unlimited",
    "--mtu",
    "9000",
    "--time",
    "2s",
];

/// Starts a tiny bench that writes to `out`.
fn start(python: &Path, out: &Path) -> Child {
    let mut command = common::ultima(&TINY);
    command.arg("--python").arg(python).arg("--out").arg(out);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// Checks that no namespace, process or file of a bench is left.
fn is_gone(bench: u32) {
    let none: [String; 0] = [];
    assert_eq!(namespaces(&format!("bench-{bench}")), none);
    let folder = std::env::temp_dir().join(format!("ultima-bench-{bench}"));
    assert!(!folder.exists());
    let folder = folder.to_string_lossy().into_owned();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let left = lines.filter(|line| String::from_utf8_lossy(line).contains(&folder));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_tiny_bench_writes_its_report_and_leaves_nothing() {
    let Some(python) = needs::bench_python() else {
        return;
    };
    let out = tempfile::tempdir().expect("a folder");
    let bench = start(&python, out.path());
    let pid = bench.id();
    let output = bench.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    is_gone(pid);

    let read = |name: &str| fs::read_to_string(out.path().join(name)).expect(name);
    let report: Value = serde_json::from_str(&read("results.json")).expect("JSON");
    let cells = report["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2, "{report}");
    assert_eq!(cells[0]["bytes"], 4_000);
    assert_eq!(cells[0]["rate_bps"], 100_000_000);
    assert_eq!(cells[0]["mtu"], 9000);
    for (method, name) in ["ultima-multicast", "ultima-unicast", "gloo-ring"]
        .iter()
        .enumerate()
    {
        let measured = &cells[0]["methods"][method];
        assert_eq!(measured["method"], *name);
        // A burst, or a busy machine, may cost Ultima packets.
        if measured["not_in_time"] == 0 {
            assert!(
                measured["largest_error"].as_f64() < Some(1e-3),
                "{measured}"
            );
        }
        // Without a deadline factor, the slack beyond learned bounds alone is 0.6 s.
        let is_short = measured["deadline_s"]
            .as_f64()
            .map(|deadline| deadline < 0.6);
        let expected = (*name != "gloo-ring").then_some(true);
        assert_eq!(is_short, expected, "{measured}");
        let summary = &measured["summary"];
        let value = |field: &str| summary[field]["value"].as_f64().expect("a number");
        assert!(
            0.0 < value("p50_ms") && value("p50_ms") <= value("p99_ms"),
            "{summary}"
        );
        assert!(summary["share_of_bound"].as_f64() < Some(1.0), "{summary}");
        assert!(summary["cpu_s_per_gb"].as_f64() > Some(0.0), "{summary}");
    }
    let tail = &report["tails"][1];
    assert_eq!(
        (tail["tail"].as_f64(), tail["bytes"].as_u64()),
        (Some(3.0), Some(4_000))
    );
    assert!(tail["burst_bytes"].as_u64() > Some(0), "{tail}");
    assert!(tail["measured"]["value"].as_f64() >= Some(1.0), "{tail}");
    let trainings = report["trainings"].as_array().expect("trainings");
    let tails: Vec<_> = trainings.iter().map(|it| it["tail"].as_f64()).collect();
    assert_eq!(tails, [Some(1.5), Some(3.0)]);
    for (training, method) in trainings.iter().flat_map(|it| [(it, 0), (it, 1)]) {
        let trained = &training["methods"][method];
        let steps = trained["measured"]["seconds"].as_array().expect("steps");
        assert!(steps.len() >= 20, "{training}");
        assert_eq!(
            trained["accuracy"].as_array().map(Vec::len),
            Some(steps.len() / 5)
        );
    }
    let first = "Gloo ÷ Ultima, mean iteration time of training, tail 3";
    assert_eq!(report["targets"][0]["name"], first);

    let csv = read("results.csv");
    let columns = |line: &str| line.split(',').count();
    let header = csv.lines().next().expect("a header");
    assert!(
        csv.lines().all(|line| columns(line) == columns(header)),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 1 + 2 * (3 + 2));
    draws(&out.path().join("index.html"), 4);
}

/// Checks that a browser without a network draws the page's pictures.
fn draws(page: &Path, pictures: usize) {
    assert!(!fs::read_to_string(page).expect("the page").contains("src="));
    let Some(browser) = needs::chromium() else {
        return;
    };
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    // Its profile goes with the folder.
    let profile = page.with_file_name("profile");
    command.arg(format!("--user-data-dir={}", profile.display()));
    let output = command.arg(page).output().expect("it runs");
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains(&format!("data-drawn=\"{pictures}\"")), "{dom}");
    assert!(dom.contains("gloo-ring"), "{dom}");
}

#[test]
fn an_interrupted_bench_leaves_nothing() {
    let Some(python) = needs::bench_python() else {
        return;
    };
    let out = tempfile::tempdir().expect("a folder");
    let mut bench = start(&python, out.path());
    let stderr = BufReader::new(bench.stderr.take().expect("piped"));
    // The ranks run when it names the first cell.
    let mut lines = stderr.lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.starts_with("2 ranks")));
    let pid = bench.id();
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGINT).expect("it runs");
    assert_eq!(bench.wait().expect("it ends").code(), Some(130));
    assert!(lines.any(|line| line.contains("interrupted")));
    is_gone(pid);
    assert!(!out.path().join("results.json").exists());
}

#[test]
fn bad_options_are_rejected() {
    for (option, value, part) in [
        ("--ranks", "1", "2 to 16"),
        ("--sizes", "3KB", "4KB to 1GB"),
        ("--sizes", "4MBB3", "such as 400KB"),
        ("--tails", "0.5", "1 to 10"),
        ("--delay", "2s", "0s to 1s"),
        ("--deadline-factor", "0.5", "1 to 1000, or 0"),
        ("--loss", "1", "--loss"),
        ("--time", "10ms", "1s to 24h"),
        ("--switch", "tofino", "embedded or bmv2"),
        ("--methods", "nccl", "open-mpi"),
    ] {
        let line = refused(&["bench", option, value]);
        assert!(line.contains(part), "{option} {value}: {line}");
    }
    if Uid::effective().is_root() {
        let line = refused(&["bench", "--python", "/nowhere/python"]);
        assert!(line.contains("--python /nowhere/python"), "{line}");
        let line = refused(&["bench", "--python", "true"]);
        assert!(line.contains("is not a Python 3"), "{line}");
    } else {
        let line = refused(&["bench"]);
        assert!(line.contains("root"), "{line}");
    }
}
