//! `ultima wire`: a link with impairments.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;

use crate::common::{output, refused, ultima};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use serde_json::Value;

/// `ultima wire` between two sockets in a folder. Dropping it ends the process.
struct Wire {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The lines that it printed until it was ready.
    said: Vec<String>,
}

impl Wire {
    fn start(dir: &Path, options: &[&str]) -> Wire {
        let ends = ["a", "b"].map(|name| format!("unix:{}", dir.join(name).display()));
        let mut child = ultima(&["wire", "-i", &ends[0], "-i", &ends[1]])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut said: Vec<String> = Vec::new();
        while !said.last().is_some_and(|line| line.starts_with("joined ")) {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).expect("a line"), 0, "{said:?}");
            said.push(line.trim_end().to_owned());
        }
        Wire {
            child,
            stdout,
            said,
        }
    }

    /// Interrupts the process; returns its last output and its status.
    fn interrupt(mut self) -> (String, ExitStatus) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGINT).expect("it runs");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("text");
        (rest, self.child.wait().expect("it ends"))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects to the socket of this name.
fn peer(dir: &Path, name: &str) -> UnixDatagram {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket: OwnedFd =
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(&dir.join(name)).expect("an address");
    connect(socket.as_raw_fd(), &address).expect("connects");
    let socket = UnixDatagram::from(socket);
    let limit = Some(Duration::from_secs(10));
    socket.set_read_timeout(limit).expect("a timeout");
    socket
}

fn receive(peer: &UnixDatagram) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let len = peer.recv(&mut buffer).expect("a frame");
    buffer[..len].to_vec()
}

#[test]
fn a_wire_prints_its_counts_when_it_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let captures = dir.path().join("captures");
    let options = [
        "--delay",
        "1ms",
        "--a-to-b",
        "loss=field:12:2:0..1",
        "--output=json",
        "--pcap",
        captures.to_str().expect("UTF-8"),
    ];
    let wire = Wire::start(dir.path(), &options);
    assert_eq!(wire.said.len(), 1);
    let (a, b) = (peer(dir.path(), "a"), peer(dir.path(), "b"));
    // Frames of type 0 are lost from A to B only.
    let (lost, passed) = ([0; 60], [1; 100]);
    for _ in 0..3 {
        a.send(&lost).expect("sends");
        a.send(&passed).expect("sends");
        assert_eq!(receive(&b), passed);
    }
    b.send(&lost).expect("sends");
    assert_eq!(receive(&a), lost);
    let (printed, status) = wire.interrupt();
    assert!(status.success(), "{status}");
    let counts: Value = serde_json::from_str(&printed).expect("one object");
    let of = |direction: &str, names: &[&str]| -> Vec<u64> {
        let count = |name: &&str| counts[direction][*name].as_u64().expect(name);
        names.iter().map(count).collect()
    };
    let names = [
        "entered",
        "left",
        "lost",
        "queue_full",
        "no_peer",
        "in_flight",
    ];
    assert_eq!(of("a_to_b", &names), [6, 3, 3, 0, 0, 0]);
    assert_eq!(of("b_to_a", &names), [1, 1, 0, 0, 0, 0]);
    assert_eq!(of("a_to_b", &["entered_bytes", "left_bytes"]), [480, 300]);
    for file in ["1_in", "1_out", "2_in", "2_out"] {
        let path = captures.join(format!("{file}.pcap"));
        assert!(fs::metadata(&path).expect(file).len() > 24, "{file}");
    }
    assert!(!dir.path().join("a").exists(), "the sockets go with it");
}

#[test]
fn a_wire_prints_progress_and_accepts_new_settings_while_it_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut wire = Wire::start(dir.path(), &["--grpc", "127.0.0.1:0", "--stats", "20ms"]);
    let address = wire.said[0].strip_prefix("listening on ");
    let address = address.expect("an address").to_owned();
    let set = output(&[
        "switch", "tm", "set", "--grpc", &address, "--port", "2", "--rate", "1G", "--loss", "1",
    ]);
    assert!(set.status.success());
    let (a, _b) = (peer(dir.path(), "a"), peer(dir.path(), "b"));
    a.send(&[0; 60]).expect("sends");
    // Reads the lines of both directions until one has the loss.
    let mut lost = false;
    while !lost {
        let mut line = String::new();
        assert_ne!(wire.stdout.read_line(&mut line).expect("a line"), 0);
        assert!(
            line.contains("/a -> unix:") || line.contains("/b -> unix:"),
            "{line}"
        );
        assert!(line.contains("packets/s"), "{line}");
        lost = line.contains(" 1 lost");
    }
    let (printed, status) = wire.interrupt();
    assert!(status.success(), "{status}");
    assert!(printed.contains("QUEUE-FULL"), "{printed}");
}

#[test]
fn bad_input_is_rejected_in_one_line() {
    for (arguments, said) in [
        (
            &["wire", "-i", "v1"][..],
            "expected exactly two ends, such as -i veth0 -i veth1",
        ),
        (
            &["wire", "-i", "v1", "-i", "v2", "-i", "v3"],
            "expected exactly two ends",
        ),
        (
            &["wire", "-i", "a/b", "-i", "v2"],
            "`a/b` is not an interface name",
        ),
        (
            &["wire", "-i", "v1", "-i", "v2", "--a-to-b", "rate"],
            "`rate`: expected NAME=VALUE",
        ),
        (
            &["wire", "-i", "v1", "-i", "v2", "--rate", "x"],
            "invalid value 'x' for '--rate'",
        ),
        (
            &["wire", "-i", "v1", "-i", "v2", "--stats", "1us"],
            "--stats: expected at least 10ms",
        ),
        (
            &["wire", "-i", "v1", "-i", "v1"],
            "port 2: v1 is already attached to port 1",
        ),
        (
            &["wire", "-i", "nosuch0", "-i", "v2"],
            "port 1: cannot attach to nosuch0",
        ),
    ] {
        let error = refused(arguments);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_wire_rejects_commands_that_only_a_switch_serves() {
    let dir = tempfile::tempdir().expect("a folder");
    let wire = Wire::start(dir.path(), &["--grpc", "127.0.0.1:0"]);
    let address = wire.said[0].strip_prefix("listening on ");
    let address = address.expect("an address");
    for (command, service) in [
        (&["trace", "--port", "1"][..], "traces"),
        (&["port", "add", "3@unix:p3"], "port control"),
        (&["port", "remove", "1"], "port control"),
    ] {
        let error = refused(&[&["switch"], command, &["--grpc", address]].concat());
        let said = format!(
            "{address}: the server has no {service} service; expected a running `ultima switch`"
        );
        assert!(error.contains(&said), "{error}");
    }
    let list = output(&["switch", "port", "list", "--grpc", address]);
    assert!(list.status.success(), "{list:?}");
}
