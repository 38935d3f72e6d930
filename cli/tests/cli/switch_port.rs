//! Ports of a running switch, and capture files as ports.

use crate::common::{Switch, output, refused};
use serde_json::json;

#[test]
fn ports_are_added_listed_and_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = format!("unix:{}", dir.path().join("p3").display());
    let spec = format!("3@{socket}");
    let switch = Switch::start(&[]);
    assert_eq!(switch.done(&["port", "list"]).lines().count(), 1);
    switch.done(&["port", "add", &spec, "--rate", "1G"]);
    let list = switch.done(&["port", "list"]);
    let row: Vec<&str> = list
        .lines()
        .nth(1)
        .expect("a port")
        .split_whitespace()
        .collect();
    assert_eq!(row, ["3", &socket, "no", "0", "0", "0", "0", "0"]);
    assert!(switch.refused(&["port", "add", &spec]).contains("port 3"));
    assert!(switch.done(&["tm", "show"]).contains("1G"));
    assert!(switch.done(&["port", "remove", "3"]).contains(&socket));
    let gone = switch.refused_with(4, &["port", "remove", "3"]);
    assert!(gone.contains("unknown port 3; the switch has "), "{gone}");
    assert!(switch.refused(&["port", "add", "4@fd:9"]).contains("fd:9"));
    assert!(switch.refused(&["port", "add", "511@eth0"]).contains("511"));
}

#[test]
fn the_error_for_a_damaged_capture_names_the_record() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("in.pcap");
    // A capture's header, and half of a record's header.
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
    let text = String::from_utf8(ended.stderr).expect("text");
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("in.pcap: record 1 is cut off"), "{text}");

    std::fs::write(&path, &file[..24]).expect("written");
    let ended = output(&arguments);
    assert!(
        ended.status.success(),
        "an empty capture is done at once: {ended:?}"
    );
}

#[test]
fn ports_are_printed_as_json() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("out.pcap");
    let spec = format!("7@pcap:,{}", output.display());
    let switch = Switch::start(&["-i", &spec]);
    switch.done(&[
        "port",
        "add",
        &format!("3@unix:{}/p3", dir.path().display()),
    ]);
    let ports = switch.json(&["port", "list"]);
    let numbers: Vec<_> = ports.as_array().expect("an array").iter().collect();
    let numbers: Vec<_> = numbers.iter().map(|port| &port["port"]).collect();
    assert_eq!(numbers, [3, 7]);
    let gone = switch.json(&["port", "remove", "7"]);
    assert_eq!(gone["attachment"], spec[2..]);
    assert_eq!(gone["connected"], true);
    assert_eq!(
        gone["drops"]["no_peer"],
        json!({ "packets": 0, "bytes": 0 })
    );
}

#[test]
fn impossible_ports_are_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = format!("1@unix:{}/p1", dir.path().display());
    let start =
        |options: &[&str]| refused(&[&["switch", "--grpc", "127.0.0.1:0"], options].concat());
    let said = start(&["-i", &socket, "--exit-when-done"]);
    assert!(said.contains("no port replays a pcap file"), "{said}");
    let said = start(&["-i", "1@lo", "-i", "2@lo"]);
    assert!(
        said.contains("port 2: lo is already attached to port 1"),
        "{said}"
    );
    let said = start(&["-i", "1@pcap:/dev/zero"]);
    assert!(
        said.contains("/dev/zero: expected a regular file"),
        "{said}"
    );
}
