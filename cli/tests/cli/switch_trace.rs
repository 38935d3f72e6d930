//! `ultima switch trace`: how a program handles a frame.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::common::{output, ultima};
use serde_json::Value;
use tempfile::TempDir;

const JSON: &[u8] = include_bytes!("../../../switch/tests/programs/testbed.json");
const P4INFO: &str = include_str!("../../../switch/tests/programs/testbed.p4info.txtpb");
/// A frame to 02:00:00:00:00:05 with a probe.
const FRAME: &str = "02:00:00:00:00:05 02:00:00:00:00:aa 88b5 07 00000009 ee";
const ENTRIES: &str = r#"
updates { type: INSERT entity { packet_replication_engine_entry { multicast_group_entry {
  multicast_group_id: 3 replicas { egress_port: 1 instance: 1 } replicas { egress_port: 2 instance: 2 }
} } } }
"#;

struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files {
            dir: tempfile::tempdir().unwrap(),
        };
        files.write("testbed.json", JSON);
        files.write("testbed.p4info.txtpb", P4INFO.as_bytes());
        files
    }

    fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `ultima switch trace` with the program and more options.
    fn trace(&self, options: &[&str]) -> std::process::Output {
        let (program, p4info) = (self.path("testbed.json"), self.path("testbed.p4info.txtpb"));
        let program = [
            "switch",
            "trace",
            "--program",
            &program,
            "--p4info",
            &p4info,
        ];
        output(&[&program, options].concat())
    }
}

/// A pcap file of Ethernet frames, little-endian, with microseconds.
fn pcap(frames: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(*frame);
    }
    file
}

/// Checks that a command fails with exit code 2; returns its one line.
fn refused(output: std::process::Output) -> String {
    refused_with(2, output)
}

fn refused_with(code: i32, output: std::process::Output) -> String {
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(
        output.stdout.is_empty() && text.lines().count() == 1,
        "{text}"
    );
    text
}

#[test]
fn a_program_is_traced_without_a_switch() {
    let files = Files::new();
    let page = files.trace(&["--port", "3", "--frame", FRAME]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(
        page.starts_with("20 bytes at port 3, 0.000000 s\n"),
        "{page}"
    );
    assert!(
        page.contains("\n    table IngressPipe.forward: miss  [testbed.p4:69]\n"),
        "{page}"
    );
    assert!(
        page.contains("\n  dropped: the program wants it\n"),
        "{page}"
    );

    let forward = P4INFO.lines().collect::<Vec<_>>().join("\n");
    let id = |name: &str| -> u32 {
        let at = forward.find(&format!("name: \"{name}\"")).unwrap();
        let line = forward[..at].trim_end().lines().last().unwrap();
        line.trim().strip_prefix("id: ").unwrap().parse().unwrap()
    };
    let (table, action) = (id("IngressPipe.forward"), id("IngressPipe.flood"));
    let entries = format!(
        r#"{ENTRIES} updates {{ type: INSERT entity {{ table_entry {{ table_id: {table}
        match {{ field_id: 1 exact {{ value: "\x02\x00\x00\x00\x00\x05" }} }}
        action {{ action {{ action_id: {action} params {{ param_id: 1 value: "\x03" }} }} }} }} }} }}"#
    );
    let entries = files.write("entries.txtpb", entries.as_bytes());
    let traced = files.trace(&[
        "--port",
        "3",
        "--frame",
        FRAME,
        "--entries",
        &entries,
        "--output=json",
    ]);
    assert!(
        traced.status.success(),
        "{}",
        String::from_utf8_lossy(&traced.stderr)
    );
    let text = String::from_utf8(traced.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&trace["version"], &trace["complete"]),
        (&2.into(), &true.into())
    );
    let copies: Vec<_> = trace["copies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|copy| {
            (
                copy["reason"].as_str(),
                copy["group"].as_u64(),
                copy["port"].as_u64(),
                copy["fate"].as_str(),
            )
        })
        .collect();
    let left = |port| (Some("multicast"), Some(3), Some(port), Some("left"));
    assert_eq!(copies, [left(2), left(1)]);
    let tables: Vec<_> = trace["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["text"].as_str()?.lines().next())
        .filter(|text| text.starts_with("table ") && text.contains(": hit"))
        .collect();
    assert_eq!(tables, ["table IngressPipe.forward: hit"]);
}

#[test]
fn a_frame_comes_from_a_capture() {
    let files = Files::new();
    let capture = pcap(&[&[1; 20], &[2; 30]]);
    let capture = files.write("seen.pcap", &capture);
    for (spec, bytes) in [(capture.clone(), 20), (format!("{capture}:2"), 30)] {
        let page = files.trace(&["--port", "1", "--pcap", &spec]);
        let page = String::from_utf8(page.stdout).unwrap();
        assert!(
            page.starts_with(&format!("{bytes} bytes at port 1")),
            "{page}"
        );
    }
    let line = refused(files.trace(&["--port", "1", "--pcap", &format!("{capture}:3")]));
    assert!(line.contains("no frame 3; the file has 2"), "{line}");
    let line = refused(files.trace(&["--port", "1", "--pcap", &format!("{capture}:x")]));
    assert!(line.contains("FILE:N"), "{line}");
    let other = files.write("other.pcap", b"not a capture, however long it may be");
    let line = refused(files.trace(&["--port", "1", "--pcap", &other]));
    assert!(line.contains("expected a pcap file"), "{line}");
}

#[test]
fn bad_input_is_rejected_in_one_line() {
    let files = Files::new();
    let says = |options: &[&str], part: &str| {
        let line = refused(files.trace(options));
        assert!(line.contains(part), "{options:?} says {line:?}");
    };
    says(&["--port", "1", "--frame", "02zz"], "hexadecimal");
    says(&["--port", "1", "--frame", ""], "hexadecimal");
    says(&["--port", "511", "--frame", "02"], "from 0 to 510");
    says(&["--port", "1"], "--frame or --pcap");
    says(&["--frame", "02"], "--port");
    let entries = files.write("entries.txtpb", b"updates { tipe: INSERT }");
    says(
        &["--port", "1", "--frame", "02", "--entries", &entries],
        "tipe",
    );
    let entries = files.write(
        "entries.txtpb",
        b"updates { type: INSERT entity { table_entry { table_id: 5 } } }",
    );
    says(
        &["--port", "1", "--frame", "02", "--entries", &entries],
        "update 1: ",
    );
    let line = refused(output(&[
        "switch", "trace", "--port", "1", "--match", "0800",
    ]));
    assert!(line.contains("OFFSET:HEX"), "{line}");
    let away = ["switch", "trace", "--port", "1", "--grpc", "127.0.0.1:1"];
    let line = refused_with(3, output(&away));
    assert!(line.contains("no switch answers at 127.0.0.1:1"), "{line}");
}

/// A running switch with one port at a Unix socket, and its gRPC address.
struct Running(Child, String);

impl Running {
    fn start(files: &Files) -> Running {
        let port = format!("4@unix:{}", files.path("p4.sock"));
        let (program, p4info) = (
            files.path("testbed.json"),
            files.path("testbed.p4info.txtpb"),
        );
        let mut child = ultima(&[
            "switch",
            "--grpc",
            "127.0.0.1:0",
            "--program",
            &program,
            "--p4info",
            &p4info,
            "-i",
            &port,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Running(child, address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_running_switch_is_traced() {
    let files = Files::new();
    let switch = Running::start(&files);
    let trace =
        |options: &[&str]| output(&[&["switch", "trace", "--grpc", &switch.1], options].concat());
    let traced = trace(&["--port", "4", "--frame", FRAME, "--output=json"]);
    let trace_of: Value = serde_json::from_slice(&traced.stdout).unwrap();
    assert_eq!(
        (&trace_of["port"], &trace_of["dropped"]),
        (&4.into(), &"program".into())
    );
    let page = trace(&["--port", "4", "--frame", FRAME]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.starts_with("20 bytes at port 4, "), "{page}");
    let line = refused_with(4, trace(&["--port", "7", "--frame", FRAME]));
    assert!(line.contains("unknown port 7; the switch has 4"), "{line}");
    let none = trace(&["--port", "4", "--wait", "20ms", "--count", "2"]);
    assert_eq!(none.status.code(), Some(1));
    let line = String::from_utf8(none.stderr).unwrap();
    assert_eq!(line, "error: 0 of 2 packets entered port 4 within 20ms\n");
}
