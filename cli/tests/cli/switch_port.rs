//! Ports of a running switch.

use crate::common::{Switch, refused};
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
fn ports_are_printed_as_json() {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = format!("7@unix:{}/p7", dir.path().display());
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
    assert_eq!(gone["connected"], false);
    assert_eq!(
        gone["drops"]["no_peer"],
        json!({ "packets": 0, "bytes": 0 })
    );
}

#[test]
fn impossible_ports_are_rejected() {
    let start =
        |options: &[&str]| refused(&[&["switch", "--grpc", "127.0.0.1:0"], options].concat());
    let said = start(&["-i", "1@lo", "-i", "2@lo"]);
    assert!(
        said.contains("port 2: lo is already attached to port 1"),
        "{said}"
    );
}
