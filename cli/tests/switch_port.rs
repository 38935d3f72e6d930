//! Ports of a switch that runs, and files that are replayed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};

use common::{output, ultima};

/// `ultima switch`, stopped at the end.
struct Switch {
    child: Child,
    address: String,
}

impl Switch {
    fn start(options: &[&str]) -> Switch {
        let mut child = ultima(&["switch", "--grpc", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the switch starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.expect("it listens").to_owned();
        Switch { child, address }
    }

    fn port(&self, arguments: &[&str]) -> Output {
        let (verb, rest) = arguments.split_first().expect("a verb");
        output(&[&["switch", "port", verb, "--grpc", &self.address], rest].concat())
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.port(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.port(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // It may have ended by itself, which the test then says.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ports_are_added_listed_and_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = format!("unix:{}", dir.path().join("p3").display());
    let spec = format!("3@{socket}");
    let switch = Switch::start(&[]);
    assert_eq!(switch.done(&["list"]).lines().count(), 1);
    switch.done(&["add", &spec, "--rate", "1G"]);
    let list = switch.done(&["list"]);
    let row: Vec<&str> = list
        .lines()
        .nth(1)
        .expect("a port")
        .split_whitespace()
        .collect();
    assert_eq!(row, ["3", &socket, "no", "0", "0", "0", "0", "0"]);
    assert!(switch.refused(&["add", &spec]).contains("port 3"));
    let tm = output(&["switch", "tm", "show", "--grpc", &switch.address]);
    assert!(String::from_utf8_lossy(&tm.stdout).contains("1G"), "{tm:?}");
    assert!(switch.done(&["remove", "3"]).contains(&socket));
    let gone = switch.refused(&["remove", "3"]);
    assert!(gone.contains("port 3 is not there"), "{gone}");
    assert!(switch.refused(&["add", "4@fd:9"]).contains("fd:9"));
    assert!(switch.refused(&["add", "511@eth0"]).contains("511"));
}

#[test]
fn a_damaged_file_ends_the_switch_with_a_line_that_says_where() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("in.pcap");
    // A header for Ethernet in microseconds, and half of a record's.
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1, 7, 7] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    std::fs::write(&path, &file).expect("written");
    let spec = format!("1@pcap:{}", path.display());
    let arguments = [
        "switch",
        "--grpc",
        "127.0.0.1:0",
        "-i",
        &spec,
        "--exit-when-done",
    ];
    let ended = output(&arguments);
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert!(text.contains("in.pcap: record 1 is cut off"), "{text}");

    std::fs::write(&path, &file[..24]).expect("written");
    let ended = output(&arguments);
    assert!(
        ended.status.success(),
        "an empty capture is done at once: {ended:?}"
    );
}
