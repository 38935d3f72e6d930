//! `ultima-research sim`: its output, and that equal options repeat it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ultima-research"))
        .arg("sim")
        .args(arguments)
        .output()
        .expect("ultima runs")
}

#[test]
fn json_has_the_figures_and_seeds_give_the_same_bytes() {
    let arguments = "--algorithm tar --ranks 16 --bytes 1M --slot 4k --tail 3 --loss 0.01:4 --operations 8 --seed 7 -o json";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let output = sim(&arguments);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["simulated"], true);
    let of = |value: &Value| value.as_f64().expect("a number");
    let completion = &report["completion_ms"];
    let [mean, p50, p99, max] = ["mean", "p50", "p99", "max"].map(|name| of(&completion[name]));
    assert!(0.0 < p50 && p50 <= p99 && p99 <= max && mean <= max);
    for share in ["arrived_share", "goodput_share_of_bound"] {
        assert!((0.01..1.0).contains(&of(&report[share])), "{report}");
    }
    assert_eq!(sim(&arguments).stdout, output.stdout);
}

#[test]
fn text_says_that_it_is_simulated() {
    let output = sim(&["--ranks", "4", "--bytes", "64k"]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("SIMULATED tar"));
}

#[test]
fn a_grid_is_reported() {
    let arguments = ["--algorithm", "tar-2d", "--ranks", "12", "--bytes", "64k"];
    let chosen = sim(&arguments);
    let text = String::from_utf8_lossy(&chosen.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("grid ")), "{text}");
    let least =
        |line: &str| line.starts_with("cheapest by the cost model") && line.ends_with("no groups");
    assert!(text.lines().any(least), "{text}");
    let asked = sim(&[&arguments[..], &["--groups", "4", "--output=json"]].concat());
    let report: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    assert_eq!(
        (&report["algorithm"], &report["groups"]),
        (&"tar-2d".into(), &4.into())
    );
    assert_eq!(report["arrived_share"], 1.0);
}

#[test]
fn bad_input_is_refused_in_a_line() {
    for (arguments, wanted) in [
        (&["--algorithm", "best"][..], "tar"),
        (&["--ranks", "1"], "2 to 8192"),
        (&["--tail", "0.5"], "p99/p50"),
        (&["--bytes", "0"], "expected bytes"),
        (&["--background", "1"], "expected more than 1"),
        (
            &[
                "--ranks",
                "2",
                "--bytes",
                "64k",
                "--background",
                "900",
                "--background-flow",
                "64k",
            ],
            "longer flows",
        ),
        (&["--slot", "100k"], "slots of 102400 bytes"),
        (&["--loss", "2"], "at most 1"),
        (&["--loss", "field:0:1:0..9"], "frames have no bytes"),
        (&["--topology", "leaf-spine:0:1"], "leaf-spine:32:4"),
        (&["--straggler", "0.1"], "0.01:5ms"),
        (&["--straggler", "2:1ms"], "at most 1"),
        (&["--compute-tail", "2"], "no time"),
        (&["--algorithm", "ring", "--payload"], "switch-aggregation"),
        (&["--groups", "2"], "groups for tar: expected"),
        (&["--algorithm", "tar-2d", "--groups", "3"], "divides 8"),
        (
            &["--algorithm", "tar-2d", "--groups", "1"],
            "from 2 to 65535",
        ),
        (
            &["--algorithm", "tar-2d", "--ranks", "7"],
            "no equal groups",
        ),
        (&["--t-s", "1ms"], "--t-b"),
        (&["--t-s", "2ms", "--t-b", "1ms"], "less than t_B"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

/// A file of experiments, and where its results go.
fn experiments(yaml: &str) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("e.yaml");
    fs::write(&file, yaml).expect("a file");
    let out = folder.path().join("out");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (file, out) = (text(&file), text(&out));
    (folder, file, out)
}

#[test]
fn a_file_of_experiments_gives_a_table_and_plots_and_gives_them_again() {
    let (_folder, file, out) = experiments(
        "title: Small & quick
all: { operations: 3, bytes: 256k }
experiments:
  ranks:
    x: ranks
    ranks: [4, 8]
    tail: [1.5, 3]
    algorithm: [tar, ring, switch-aggregation]
    seed: [1, 2]
  loss: { x: loss, loss: [0, 0.01:2], straggler: 0.2:1ms }
",
    );
    let arguments = ["run", &file, "--out", &out];
    let output = sim(&arguments);
    assert!(output.status.success(), "{output:?}");
    let names = ["results.csv", "summary.csv", "loss.svg", "ranks.svg"];
    let written = names.map(|name| format!("{out}/{name}\n")).concat();
    assert_eq!(String::from_utf8_lossy(&output.stdout), written);
    let read = || names.map(|name| fs::read_to_string(Path::new(&out).join(name)).expect(name));
    let first = read();

    let mut table = csv::Reader::from_reader(first[0].as_bytes());
    let rows: Vec<BTreeMap<String, String>> =
        table.deserialize().map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 2 + 2 * 2 * 3 * 2);
    for row in &rows {
        assert_eq!(row["simulated"], "true");
        let [p50, p99] = ["p50_ms", "p99_ms"].map(|name| row[name].parse::<f64>().expect(name));
        assert!(0.0 < p50 && p50 <= p99, "{row:?}");
        assert_eq!(
            row["straggler_share"].is_empty(),
            row["experiment"] == "ranks"
        );
    }
    // The output of a single run.
    let alone = "--ranks 8 --tail 3 --algorithm ring --seed 2 --operations 3 --bytes 256k -o json";
    let alone = sim(&alone.split(' ').collect::<Vec<_>>()).stdout;
    let alone: Value = serde_json::from_slice(&alone).expect("JSON");
    let of = |row: &&BTreeMap<String, String>| {
        ["ranks", "tail", "algorithm", "seed"].map(|name| row[name].clone())
            == ["8", "3.0", "ring", "2"]
    };
    let row = rows.iter().find(of).expect("it was run");
    assert_eq!(row["p99_ms"], alone["completion_ms"]["p99"].to_string());
    assert_eq!(row["events"], alone["events"].to_string());

    let mut summary = csv::Reader::from_reader(first[1].as_bytes());
    let summary: Vec<BTreeMap<String, String>> = summary
        .deserialize()
        .map(|row| row.expect("a row"))
        .collect();
    assert_eq!(summary.len(), 2 + 2 * 2 * 3);
    for row in &summary {
        let two_seeds = row["experiment"] == "ranks";
        assert_eq!(row["seeds"], if two_seeds { "2" } else { "1" });
        assert_eq!(row["p99_interval_ms"].is_empty(), !two_seeds);
        let number =
            |row: &BTreeMap<String, String>, name: &str| row[name].parse::<f64>().expect(name);
        let of = |run: &&BTreeMap<String, String>| {
            let settings = format!("tail {}", run["tail"].trim_end_matches(".0"));
            run["algorithm"] == row["algorithm"]
                && [&run["ranks"], &run["loss"]].contains(&&row["value"])
                && (!two_seeds || settings == row["settings"])
        };
        let runs = rows
            .iter()
            .filter(|run| run["experiment"] == row["experiment"]);
        let means: Vec<f64> = runs.filter(of).map(|run| number(run, "mean_ms")).collect();
        let expected = means.iter().sum::<f64>() / means.len() as f64;
        assert!(!means.is_empty() || row["value"] == "0", "{row:?}");
        assert!(means.is_empty() || (number(row, "mean_ms") - expected).abs() < 1e-9);
    }

    for (svg, panels) in [(&first[2], 2), (&first[3], 4)] {
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("SIMULATED: Small &amp; quick"), "{svg}");
        assert_eq!(svg.matches("completion time, ms").count(), panels);
    }
    assert!(first[3].contains("switch-aggregation") && first[3].contains("tail 1.5"));

    assert!(sim(&arguments).status.success());
    assert_eq!(read(), first);
}

#[test]
fn a_wrong_file_of_experiments_is_refused_before_anything_is_run() {
    for (yaml, wanted) in [
        (
            "experiments: {a: {x: ranks, ranks: [4, few]}}",
            ":1:40: experiments.a.ranks: invalid",
        ),
        (
            "experiments: {a: {x: ranks}}",
            ":1:18: experiments.a: x is ranks",
        ),
        ("experiments: [", ":1:"),
    ] {
        let (_folder, file, out) = experiments(yaml);
        let output = sim(&["run", &file, "--out", &out]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(&format!("{file}{wanted}")), "{error}");
        assert!(output.stdout.is_empty() && !Path::new(&out).exists());
    }
    for (arguments, wanted) in [
        (&["run"][..], "--out"),
        (
            &["run", "/nowhere.yaml", "--out", "/nowhere"],
            "/nowhere.yaml",
        ),
        (
            &["--ranks", "4", "run", "e.yaml", "--out", "o"],
            "cannot be used with",
        ),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains(wanted) && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn background_flows_are_calibrated_with_a_ring() {
    let options = "--ranks 4 --bytes 1M --slot 32k --rate 10G --background 2 --background-flow 1M --compute 1ms";
    let options: Vec<&str> = options.split(' ').collect();
    let text = sim(&options);
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("background, asked p99/p50   "), "{text}");
    assert!(text.contains("background, p99/p50 of the ring "), "{text}");

    let ring = ["--algorithm", "ring", "--operations", "200", "-o", "json"];
    let report = sim(&[&options[..], &ring].concat());
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let of = |value: &Value| value.as_f64().expect("a number");
    let calibration = &report["background"]["calibration"];
    assert!((0.01..0.9).contains(&of(&calibration["load"])), "{report}");
    let ratio = of(&calibration["ring_ratio"]);
    assert!((ratio / 2.0 - 1.0).abs() < 0.1, "{report}");
    // Other seeds meet other flows of the same load.
    let completion = &report["completion_ms"];
    let seen = of(&completion["p99"]) / of(&completion["p50"]);
    assert!((1.3..3.0).contains(&seen), "{report}");
    assert!(of(&report["completion_ms"]["p50"]) > 1.1 * of(&report["bound_ms"]));
}

#[test]
fn help_has_an_example() {
    let output = sim(&["--help"]);
    assert!(
        String::from_utf8_lossy(&output.stdout)
            .contains("Examples:\n  ultima-research sim --algorithm tar")
    );
}

#[test]
fn a_trace_changes_no_figure_and_the_same_seed_writes_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        "--ranks 8 --bytes 1M --slot 2048 --tail 3 --loss 0.01 --operations 6 --seed 5 -o json";
    let options: Vec<&str> = options.split(' ').collect();
    let traced = |name: &str| {
        let path = folder.path().join(name);
        let trace = ["--trace", path.to_str().expect("text"), "--trace-rank", "3"];
        let output = sim(&[&options[..], &trace].concat());
        assert!(output.status.success(), "{output:?}");
        (output.stdout, fs::read(&path).expect("written"))
    };
    let first = traced("first.jsonl");
    assert_eq!(first.0, sim(&options).stdout);
    assert!(first == traced("again.jsonl"));
}

#[test]
fn bad_trace_options_are_rejected_before_the_simulation_runs() {
    let refused = |options: &[&str]| {
        let output = sim(options);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let with = |options: &[&str]| refused(&[&["--trace", "/dev/null"], options].concat());
    assert!(with(&["--algorithm", "ring"]).contains("--algorithm tar, not ring"));
    assert!(with(&["--ranks", "4", "--trace-rank", "4"]).contains("no rank 4; expected 0 to 3"));
    let text = refused(&["--trace", "/nowhere/at/all.jsonl"]);
    assert!(text.contains("/nowhere/at/all.jsonl"), "{text}");
}
