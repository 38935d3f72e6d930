//! `ultima sim`: what it prints, and that it prints it again.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ultima"))
        .arg("sim")
        .args(arguments)
        .output()
        .expect("ultima runs")
}

#[test]
fn json_has_the_figures_and_seeds_give_the_same_bytes() {
    let arguments = "--algorithm tar --ranks 16 --bytes 1M --slot 4k --tail 3 --loss 0.01:4 --operations 20 --seed 7 --json";
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
fn bad_input_is_refused_in_a_line() {
    for (arguments, wanted) in [
        (&["--algorithm", "best"][..], "tar"),
        (&["--ranks", "1"], "2 to 8192"),
        (&["--tail", "0.5"], "p99/p50"),
        (&["--bytes", "0"], "expected bytes"),
        (&["--slot", "100k"], "slots of 102400 bytes"),
        (&["--loss", "2"], "at most 1"),
        (&["--loss", "field:0:1:0..9"], "frames have no bytes"),
        (&["--topology", "leaf-spine:0:1"], "leaf-spine:32:4"),
        (&["--straggler", "0.1"], "0.01:5ms"),
        (&["--straggler", "2:1ms"], "at most 1"),
        (&["--compute-tail", "2"], "no time"),
        (&["--algorithm", "ring", "--payload"], "switch-aggregation"),
        (&["--t-s", "1ms"], "--t-b"),
        (&["--t-s", "2ms", "--t-b", "1ms"], "under t_B"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_has_an_example() {
    let output = sim(&["--help"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Example: ultima sim"));
}
