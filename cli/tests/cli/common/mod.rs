//! Runs the binary `ultima` and reads its output.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use ultima_testing::signals;

pub fn ultima(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultima"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    ultima(arguments).output().expect("the binary runs")
}

/// Checks that a command rejects bad input with exit code 2; returns its one line.
pub fn refused(arguments: &[&str]) -> String {
    refused_with(2, arguments)
}

/// Checks that a command fails with one of the exit codes of docs/guide.md; returns its one line.
pub fn refused_with(code: i32, arguments: &[&str]) -> String {
    let output = output(arguments);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    assert!(text.starts_with("error: "), "{text}");
    text
}

/// A running `ultima switch`. Dropping it ends the process.
pub struct Switch {
    child: Child,
    /// The address of its gRPC server.
    pub address: String,
}

impl Switch {
    /// Starts a switch with these options and a free port for gRPC.
    pub fn start(options: &[&str]) -> Switch {
        let mut child = ultima(&["switch", "--grpc", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the switch starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.expect("it listens").to_owned();
        Switch { child, address }
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        signals::signal(self.child.id(), signal);
    }

    fn at_it<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        [&["switch"], command, &["--grpc", &self.address]].concat()
    }

    /// Runs `ultima switch COMMAND`, which must succeed; returns its output.
    pub fn done(&self, command: &[&str]) -> String {
        let output = output(&self.at_it(command));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs `ultima switch COMMAND`; returns its JSON document.
    pub fn json(&self, command: &[&str]) -> Value {
        let text = self.done(&[command, &["--output=json"]].concat());
        serde_json::from_str(&text).expect("JSON")
    }

    /// Runs `ultima switch COMMAND`, which must fail with exit code 2; returns its one line.
    pub fn refused(&self, command: &[&str]) -> String {
        self.refused_with(2, command)
    }

    /// Runs `ultima switch COMMAND`, which must fail with this exit code; returns its one line.
    pub fn refused_with(&self, code: i32, command: &[&str]) -> String {
        refused_with(code, &self.at_it(command))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the demo with these options, which must succeed; returns its report.
pub fn demo(options: &[&str]) -> Value {
    let output = output(&[&["demo", "--output=json"], options].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "demo {options:?} ended with {}: {errors}",
        output.status
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Returns the running children of `parent` with their command lines.
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

/// Waits until `done` returns true. Fails after two minutes.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
