//! Runs the binary as a user does.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub fn ultima(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultima"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    ultima(arguments).output().expect("the binary runs")
}

/// Runs the demo with `--json` and these options; it must succeed.
pub fn demo(options: &[&str]) -> Value {
    let output = output(&[&["demo", "--json"], options].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "demo {options:?} ended with {}: {errors}",
        output.status
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Processes that `parent` has started and that still run, with their command lines.
pub fn children(parent: u32) -> Vec<(i32, String)> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let pids = std::fs::read_to_string(path).unwrap_or_default();
    pids.split_whitespace()
        .map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (
                pid.parse().unwrap(),
                String::from_utf8_lossy(&line).replace('\0', " "),
            )
        })
        .collect()
}

/// Waits until `done`, or fails after half a minute.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
