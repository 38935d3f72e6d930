//! `ultima trace`: lists, summarizes and draws the traces that simulations write.

use std::fs;
use std::path::Path;

use crate::common::{output, refused};
use serde_json::Value;
use ultima_host::trace::{Sink, TraceFile, WhenFull};
use ultima_link::Loss;
use ultima_sim::{Algorithm, Experiment};

fn done(arguments: &[&str]) -> String {
    let output = output(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Writes the trace of rank 3 in a simulation of 8 ranks with loss.
fn traced(path: &Path) {
    let mut experiment = Experiment::new(Algorithm::Tar, 8);
    experiment.bytes = 1 << 20;
    experiment.slot = 2048;
    experiment.tail = 3.0;
    experiment.operations = 6;
    experiment.seed = 5;
    experiment.network.loss = Some(Loss::Independent { probability: 0.01 });
    let trace = TraceFile::create(path, &experiment.trace_head(), WhenFull::Wait).expect("a file");
    let sink: Box<dyn Sink> = Box::new(trace.sink());
    let report = experiment.run_traced(Some((3, sink)), &mut |_| {});
    report.expect("a simulation");
    trace.finish().expect("written");
}

#[test]
fn a_trace_of_a_simulation_is_listed_summarized_and_drawn() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("rank3.jsonl");
    let file = path.to_str().expect("a plain path");
    traced(&path);
    let text = fs::read_to_string(&path).expect("written");
    let head: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!(head["schema"], "ultima-trace");
    assert_eq!(head["clock"], "simulated");
    assert_eq!(head["ranks"], 8);

    let list = done(&["trace", file, "--list"]);
    // The header, and a row for each operation.
    assert_eq!(list.lines().count(), 7, "{list}");
    let lost: u64 = list
        .lines()
        .skip(1)
        .flat_map(|row| row.split_whitespace().rev().take(2))
        .map(|count| count.parse::<u64>().expect("a count"))
        .sum();
    assert!(lost > 0, "{list}");

    let svg = directory.path().join("operation.svg");
    let drawn = svg.to_str().expect("a plain path");
    let summary = done(&["trace", file, "--operation", "2", "--svg", drawn]);
    assert!(summary.starts_with("SIMULATED: "), "{summary}");
    assert!(
        summary.contains("step 2 bucket 0 at rank 3 of 8"),
        "{summary}"
    );
    // 1 MiB in slots of 2,048 bytes for 8 ranks: each shard has 64 slots, and goes to the 7 other ranks.
    let phase = |name: &str| -> Vec<u64> {
        let row = summary.lines().find(|line| line.starts_with(name));
        let row = row.expect("a row").split_whitespace().skip(1);
        row.map(|count| count.parse().expect("a count")).collect()
    };
    for row in [phase("scatter "), phase("gather ")] {
        let [_, owed, in_time, cut, .., never] = row[..] else {
            panic!("{summary}");
        };
        assert_eq!(owed, 7 * 64);
        assert!(in_time + cut + never >= owed, "{summary}");
        assert!(in_time >= owed * 9 / 10, "{summary}");
    }

    let picture = fs::read_to_string(&svg).expect("drawn");
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    for part in [
        "SIMULATED: ",
        "own shard closed",
        "ended: ",
        "trimmed by a switch",
        "rank 7",
    ] {
        assert!(picture.contains(part), "{part}");
    }
    // Every element is closed, and every number is finite.
    let opened = picture.matches('<').count();
    assert_eq!(opened, picture.matches('>').count());
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
    // Without --operation, the command shows the slowest operation.
    let longest = done(&["trace", file]);
    assert!(longest.starts_with("SIMULATED: "), "{longest}");
}

#[test]
fn errors_in_a_trace_name_file_and_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.jsonl");
    let file = path.to_str().expect("a plain path");
    traced(&path);
    let good = fs::read_to_string(&path).expect("written");
    let lines: Vec<&str> = good.lines().collect();
    let with = |text: &str| fs::write(&path, text).expect("a file");
    let says = |part: &str| {
        let text = refused(&["trace", file]);
        assert!(text.contains(part), "{text}");
    };
    with("");
    says("t.jsonl:1: empty file");
    with("name: train\n");
    says("t.jsonl:1: not a trace (docs/trace.md): not JSON\n");
    fs::write(&path, [0x7f, b'E', 0xff, 0xfe]).expect("a file");
    says("t.jsonl:1: not a trace (docs/trace.md): not UTF-8\n");
    with("{}\n");
    let no_trace = "t.jsonl:1: not a trace (docs/trace.md): ";
    says(&format!("{no_trace}missing field `schema`\n"));
    with(&good.replacen("\"version\":1", "\"version\":2", 1));
    let version = "schema \"ultima-trace\" version 2; expected \"ultima-trace\" version 1";
    says(&format!("{no_trace}{version}"));
    with(&good.replacen("\"slot_values\":512", "\"slot_values\":0", 1));
    says(&format!("{no_trace}8 ranks with slots of 0 values"));
    with(&[lines[0], lines[1], "nonsense\n"].join("\n"));
    says("t.jsonl:3: not JSON\n");
    with(&[lines[0], &lines[1].replace("\"rank\":3", "\"rank\":8"), ""].join("\n"));
    says("t.jsonl:2: rank is 8; expected a number below 8");
    let sent = "{\"time\":1,\"rank\":3,\"step\":0,\"bucket\":0,\"event\":\"sent\",\"kind\":\"gather\",\"to\":null,\"owner\":3,\"slot\":99,\"last\":false}";
    with(&[lines[0], lines[1], sent, ""].join("\n"));
    says("t.jsonl:3: slot out of range");
    with(&[lines[0], ""].join("\n"));
    says("t.jsonl: the trace contains no start of an operation");
    with(&format!("{}\n{}\n", lines[0], "x".repeat(100_000)));
    says("t.jsonl:2: line longer than 65536 bytes");
    // A killed writer leaves half a line.
    with(&good[..good.len() - 9]);
    done(&["trace", file]);
    fs::write(&path, &good).expect("a file");
    let text = refused(&["trace", file, "--operation", "99"]);
    assert!(
        text.contains(
            "no such operation; the trace has step 0 bucket 0 to step 5 bucket 0, at rank 3"
        ),
        "{text}"
    );
    let text = refused(&["trace", file, "--rank", "0"]);
    assert!(text.contains("at rank 3"), "{text}");
    refused(&["trace", file, "--svg", "/nowhere/at/all.svg"]);
    refused(&["trace", "/nowhere/at/all.jsonl"]);
}
