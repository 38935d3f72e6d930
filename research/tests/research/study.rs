//! `ultima-research study tail-drop` and `recycling`: tiny studies end to end, again, and what they refuse.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn tail_drop(arguments: &[&str]) -> Output {
    study("tail-drop", arguments)
}

fn study(name: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ultima-research"))
        .args(["study", name])
        .args(arguments)
        .output()
        .expect("ultima runs")
}

/// Three ranks, two shares, few steps.
const TINY: [&str; 16] = [
    "--ranks",
    "3",
    "--shares",
    "0,0.2",
    "--seeds",
    "2",
    "--steps",
    "20",
    "--hidden",
    "64",
    "--bytes",
    "256k",
    "--operations",
    "10",
    "--algorithms",
    "tar,ring",
];

const FILES: [&str; 5] = [
    "completion.csv",
    "cdf.csv",
    "tail-drop.csv",
    "cdf.svg",
    "tail-drop.svg",
];

type Rows = Vec<BTreeMap<String, String>>;

fn rows(csv: &str) -> Rows {
    let mut table = csv::Reader::from_reader(csv.as_bytes());
    table.deserialize().map(|row| row.expect("a row")).collect()
}

#[test]
fn a_tiny_study_gives_tables_and_plots_and_gives_them_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |name: &str| {
        let out = folder.path().join(name);
        let path = out.to_str().expect("UTF-8");
        let output = tail_drop(&[&TINY[..], &["--out", path]].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(text.starts_with("SIMULATED"), "{text}");
        let files = FILES.map(|name| fs::read_to_string(out.join(name)).expect(name));
        (text, files)
    };
    let first = run("first");
    assert_eq!(run("again"), first);

    let [completion, distribution, cuts, cdf, plot] = &first.1;
    let number =
        |row: &BTreeMap<String, String>, name: &str| row[name].parse::<f64>().expect("a number");
    let completion = rows(completion);
    let algorithms: Vec<&str> = completion.iter().map(|row| &*row["algorithm"]).collect();
    assert_eq!(algorithms, ["tar", "ring"]);
    for row in &completion {
        let times = ["p50_ms", "p99_ms", "max_ms"].map(|name| number(row, name));
        assert!(0.0 < times[0] && times.is_sorted(), "{row:?}");
        assert_eq!(row["operations"], "20");
    }
    let distribution = rows(distribution);
    assert_eq!(distribution.len(), 200);
    assert_eq!(distribution[99]["ms"], completion[0]["max_ms"]);

    // Shares, dealings, variants.
    let cuts = rows(cuts);
    assert_eq!(cuts.len(), 2 * 2 * 4);
    for row in completion.iter().chain(&cuts) {
        assert_eq!(row["simulated"], "true");
    }
    let of = |row: &BTreeMap<String, String>, hadamard: &str, recycling: &str| {
        row["hadamard"] == hadamard && row["recycling"] == recycling
    };
    let (whole, cut) = cuts.split_at(8);
    for row in whole {
        assert_eq!(number(row, "speed_up"), 1.0);
        assert_eq!(number(row, "late_share"), 0.0);
        let plain = of(row, "false", "false");
        assert!(!plain || row["accuracy"] == row["exact"], "{row:?}");
    }
    for row in cut {
        assert!(number(row, "speed_up") > 1.0);
        assert!((0.15..0.25).contains(&number(row, "late_share")), "{row:?}");
        assert!(number(row, "replica_spread") > 0.0);
        let accuracy = ["accuracy_least", "accuracy", "accuracy_most"];
        assert!(accuracy.map(|name| number(row, name)).is_sorted());
    }

    assert!(cdf.contains("SIMULATED: completion times") && cdf.contains("ring"));
    assert!(plot.contains("by-class") && plot.contains("SIMULATED speed-up"));
}

#[test]
fn json_has_what_tables_have() {
    let arguments: Vec<&str> = TINY
        .iter()
        .map(|text| match *text {
            "2" => "1",
            "0,0.2" => "0.1",
            other => other,
        })
        .chain(["--output=json"])
        .collect();
    let output = tail_drop(&arguments);
    assert!(output.status.success(), "{output:?}");
    let study: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(study["simulated"], true);
    assert_eq!(study["completion"].as_array().map(Vec::len), Some(2));
    let rows = study["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    assert!(
        rows.iter()
            .all(|row| row["share"] == 0.1 && row["seeds"] == 1)
    );
}

#[test]
fn a_tiny_study_of_recycling_gives_a_table_and_a_plot_and_gives_them_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |name: &str| {
        let out = folder.path().join(name);
        let path = out.to_str().expect("UTF-8");
        let arguments = [
            "--ranks", "3", "--losses", "0,0.1:3", "--seeds", "2", "--steps", "40", "--hidden",
            "64", "--out", path,
        ];
        let output = study("recycling", &arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let files = ["recycling.csv", "recycling.svg"]
            .map(|name| fs::read_to_string(out.join(name)).expect(name));
        (text, files)
    };
    let first = run("first");
    assert_eq!(run("again"), first);
    let (text, [table, plot]) = first;
    assert!(text.contains("misses") && plot.contains("replicas at the end"));
    let rows = rows(&table);
    let number = |row: &BTreeMap<String, String>, name: &str| row[name].parse::<f64>().expect(name);
    let keys: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (&*row["loss"], &*row["shards"]))
        .collect();
    let losses = [
        ("0", "random"),
        ("0", "by-class"),
        ("0.1:3", "random"),
        ("0.1:3", "by-class"),
    ];
    assert_eq!(keys, losses);
    for row in &rows[..2] {
        assert_eq!(row["error_ratio"], "");
        assert!(number(row, "error_with") < 1e-10, "{row:?}");
    }
    for row in &rows[2..] {
        assert!(number(row, "error_ratio") < 0.5, "{row:?}");
        assert!(number(row, "spread_with") < number(row, "spread_without"));
        assert!(number(row, "step_error_with") > number(row, "step_error_without"));
        assert!(number(row, "exact_least") <= number(row, "exact_most"));
    }
}

#[test]
fn a_study_of_recycling_refuses_in_a_line() {
    for (arguments, wanted) in [
        (&["--losses", "0.01:6,often"][..], "loss `often`"),
        (&["--losses", "field:1:2:3..4"], "no loss by header field"),
        (&["--losses", "1.5"], "at most 1"),
        (&["--out", "/dev/null/here"], "/dev/null/here"),
    ] {
        let output = study("recycling", arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
    }
}

#[test]
fn bad_input_is_refused_in_a_line() {
    for (arguments, wanted) in [
        (&["--shares", "0,1"][..], "0 to under 1"),
        (&["--shares", "some"], "0 to under 1"),
        (&["--ranks", "1"], "from 2 to 64"),
        (&["--algorithms", "tar,best"], "best"),
        (&["--hidden", "0"], "1 to 4096"),
        (&["--hidden", "1,1,1,1,1,1,1,1,1"], "9 layers"),
        (&["--tail", "0.5"], "p99/p50"),
        (&["--bytes", "0"], "expected bytes"),
        (&["--seeds", "0"], "from 1 to 100"),
        (&["--steps", "0"], "from 1 to 100000"),
        (&["--out", "/dev/null/here"], "/dev/null/here"),
    ] {
        let output = tail_drop(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}
