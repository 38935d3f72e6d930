//! `ultima simple-switch-grpc`: the switch in the place of BMv2's.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use pcap_file::pcap::PcapReader;
use serde_json::{Value, json};
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::text;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::stream_message_request;
use ultima_p4runtime::v1::{
    ForwardingPipelineConfig, MasterArbitrationUpdate, SetForwardingPipelineConfigRequest,
    StreamMessageRequest, Uint128, Update, WriteRequest,
};
use ultima_tests::{needs, netns};

use crate::common::{output, refused, wait_until};

const JSON: &[u8] = include_bytes!("../../../switch/tests/programs/testbed.json");
const P4INFO: &str = include_str!("../../../switch/tests/programs/testbed.p4info.txtpb");
const DST: u64 = 0x0200_0000_0005;

/// A frame to [`DST`] with a number in its probe header.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = DST.to_be_bytes()[2..].to_vec();
    frame.extend([2, 0, 0, 0, 0, 0xaa, 0x88, 0xb5, 7, 0, 0, 0, number]);
    frame.resize(60, 0xee);
    frame
}

/// A folder with the program and a link to the binary under BMv2's name.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        fs::write(folder.path("testbed.json"), JSON).expect("written");
        let link = folder.path("simple_switch_grpc");
        symlink(env!("CARGO_BIN_EXE_ultima"), link).expect("linked");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// BMv2's command with this command line, in this folder.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(self.path("simple_switch_grpc"));
        let words = line.split_whitespace();
        command.args(words).current_dir(self.0.path());
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("the binary runs")
    }

    /// Checks that the switch does not start; returns its one line.
    fn refused(&self, line: &str) -> String {
        let output = self.output(line);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{line}: {errors}");
        errors
    }

    /// Connects to the Unix socket of this name.
    fn peer(&self, name: &str) -> UnixDatagram {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket: OwnedFd =
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
        let address = UnixAddr::new(&self.path(name)).expect("an address");
        connect(socket.as_raw_fd(), &address).expect("connects");
        let socket = UnixDatagram::from(socket);
        let limit = Some(Duration::from_secs(10));
        socket.set_read_timeout(limit).expect("a timeout");
        socket
    }
}

/// A running process. Dropping it ends the process.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The lines of standard output so far.
    lines: Vec<String>,
}

impl Running {
    /// Starts a process and waits for a line with this beginning.
    fn start(mut command: Command, ready: &str) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut running = Running {
            child,
            stdout,
            lines: Vec::new(),
        };
        running.until(|line| line.starts_with(ready));
        running
    }

    /// Reads lines until one is wanted; returns that one.
    fn until(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line).expect("a line");
            if length == 0 {
                let mut errors = String::new();
                let mut stderr = self.child.stderr.take().expect("piped");
                stderr.read_to_string(&mut errors).expect("text");
                panic!("it ended: {:?}, {errors}", self.lines);
            }
            let line = line.trim_end().to_owned();
            self.lines.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
    }

    /// The address after `Server listening on`.
    fn address(&self) -> String {
        let listening =
            |line: &String| line.strip_prefix("Server listening on ").map(str::to_owned);
        self.lines.iter().find_map(listening).expect("an address")
    }

    /// Ends it as `kill` does, which must succeed; returns the rest of standard output, and standard error.
    fn terminate(mut self) -> (String, String) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        let (mut rest, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).expect("text");
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut errors).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {errors}");
        (rest, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// PI's message `p4.tmp.P4DeviceConfig` with the program, as p4runtime_lib of p4lang/tutorials encodes it.
fn device_config() -> Vec<u8> {
    // Field 1 (bool reassign) is true; field 3 (bytes device_data) is the program.
    let mut message = vec![1 << 3, 1, 3 << 3 | 2];
    let mut length = JSON.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(JSON);
    message
}

/// Sets the program as p4runtime_lib does, and sends frames for [`DST`] to port 2.
fn program(address: &str, device_id: u64) {
    let p4info: P4Info = text::parse(P4INFO).expect("P4Info");
    let names = Names::new(p4info.clone()).expect("sound P4Info");
    let table = names.table("IngressPipe.forward").expect("a table");
    let key = table.entry().exact("hdr.ethernet.dst", DST).expect("a key");
    let action = key.action("IngressPipe.send", &[("port", 2_u16.into())]);
    let entry = action.expect("an action").build().expect("an entry");
    let election_id = Some(Uint128 { high: 0, low: 1 });
    let arbitration = MasterArbitrationUpdate {
        device_id,
        election_id,
        ..MasterArbitrationUpdate::default()
    };
    let request = StreamMessageRequest {
        update: Some(stream_message_request::Update::Arbitration(arbitration)),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let address = format!("http://{address}");
        let mut client = P4RuntimeClient::connect(address).await.expect("connects");
        let requests = stream::iter([request]).chain(stream::pending());
        let responses = client.stream_channel(requests).await.expect("a stream");
        let mut responses = responses.into_inner();
        responses.message().await.expect("the primary");
        let request = SetForwardingPipelineConfigRequest {
            device_id,
            election_id,
            action: Action::VerifyAndCommit.into(),
            config: Some(ForwardingPipelineConfig {
                p4info: Some(p4info),
                p4_device_config: device_config(),
                cookie: None,
            }),
            ..SetForwardingPipelineConfigRequest::default()
        };
        let set = client.set_forwarding_pipeline_config(request).await;
        set.expect("committed");
        let request = WriteRequest {
            device_id,
            election_id,
            updates: vec![Update::insert(entry)],
            ..WriteRequest::default()
        };
        client.write(request).await.expect("written");
    });
}

fn receive(peer: &UnixDatagram) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    let length = peer.recv(&mut buffer).expect("a frame");
    buffer.truncate(length);
    buffer
}

/// The frames of a capture.
fn captured(path: &Path) -> Vec<Vec<u8>> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a packet").data.into_owned());
    }
    frames
}

/// A document of `ultima switch ...` about the switch at an address.
fn about(address: &str, command: &[&str]) -> Value {
    let all = [&["switch"], command, &["--grpc", address, "--output=json"]].concat();
    let output = output(&all);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.expect("iproute2 is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {line}: {errors}");
}

/// The command line of p4lang/tutorials' run_exercise.py, on a link to the binary: the switch starts, accepts its controller, and
/// leaves the files that the exercises read.
#[test]
fn the_command_line_of_the_tutorials_runs_unchanged() {
    if !needs::interfaces() {
        return;
    }
    netns::within(|| {
        let folder = Folder::new();
        for port in 1..=2 {
            ip(&format!(
                "link add s1-eth{port} type veth peer name h{port}"
            ));
            for end in [format!("s1-eth{port}"), format!("h{port}")] {
                // Without an address, the kernel sends nothing.
                ip(&format!("link set {end} addrgenmode none up"));
            }
        }
        fs::create_dir(folder.path("pcaps")).expect("created");
        let line = "-i 1@s1-eth1 -i 2@s1-eth2 --pcap pcaps --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0 testbed.json \
                    --log-console --thrift-port 9090 -- --grpc-server-addr 127.0.0.1:0";
        let mut switch = Running::start(folder.command(line), "Server listening on ");
        let address = switch.address();
        let wires: Vec<Running> = (1..=2)
            .map(|host| {
                let mut wire = Command::new(env!("CARGO_BIN_EXE_ultima"));
                let ends = [format!("h{host}"), format!("unix:{host}")];
                wire.args(["wire", "-i", &ends[0], "-i", &ends[1]]);
                wire.current_dir(folder.0.path());
                Running::start(wire, "joined ")
            })
            .collect();
        let hosts = [folder.peer("1"), folder.peer("2")];

        // The program of the command line runs before there is a P4Info; it drops the frame.
        hosts[0].send(&frame(1)).expect("sent");
        switch.until(|line| line == "  dropped: the program wants it");
        program(&address, 0);
        hosts[0].send(&frame(2)).expect("sent");
        assert_eq!(receive(&hosts[1]), frame(2));
        switch.until(|line| line.starts_with("    table IngressPipe.forward: hit"));
        switch.until(|line| line == "  left the port");
        let headline = |line: &&String| line.contains("] 60 bytes at port 1, ");
        assert_eq!(
            switch.lines.iter().filter(headline).count(),
            2,
            "{:#?}",
            switch.lines
        );

        let ports = about(&address, &["tm", "show"]);
        let queues: Vec<_> = (0..2).map(|at| &ports[at]["queue_packets"]).collect();
        assert_eq!(json!(queues), json!([64, 64]));
        let (_, warnings) = switch.terminate();
        let warnings: Vec<_> = warnings.lines().collect();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("warning: --thrift-port has no effect: "));
        assert!(warnings[1].starts_with("warning: --nanolog has no effect: "));
        let pcap = |name: &str| captured(&folder.path("pcaps").join(name));
        assert_eq!(pcap("s1-eth1_in.pcap"), [frame(1), frame(2)]);
        assert_eq!(pcap("s1-eth2_out.pcap"), [frame(2)]);
        assert!(pcap("s1-eth1_out.pcap").is_empty() && pcap("s1-eth2_in.pcap").is_empty());
        drop(wires);
    });
}

#[test]
fn a_queue_holds_64_packets() {
    let folder = Folder::new();
    let line = "--no-p4 -i 1@unix:1 -i 2@unix:2 -- --grpc-server-addr 127.0.0.1:0";
    let switch = Running::start(folder.command(line), "Server listening on ");
    let address = switch.address();
    program(&address, 0);
    // Also of a port that comes later.
    about(&address, &["port", "remove", "2"]);
    let mut add = Command::new(env!("CARGO_BIN_EXE_ultima"));
    add.args(["switch", "port", "add", "2@unix:2", "--grpc", &address]);
    let added = add.current_dir(folder.0.path()).status();
    assert!(added.expect("the binary runs").success());
    let (sender, _receiver) = (folder.peer("1"), folder.peer("2"));
    // One frame takes minutes, so that the others wait.
    about(&address, &["tm", "set", "--port", "2", "--rate", "1"]);
    for number in 0..100 {
        sender.send(&frame(number)).expect("sent");
    }
    let port = |at: usize| about(&address, &["port", "list"])[at].clone();
    wait_until("all frames enter", || port(0)["entered"]["packets"] == 100);
    let port = port(1);
    assert_eq!(port["queued"]["packets"], 64, "{port}");
    assert_eq!(port["drops"]["queue"]["packets"], 35, "{port}");
    switch.terminate();
}

#[test]
fn the_log_goes_to_files_that_rotate_and_has_the_level_asked_for() {
    let folder = Folder::new();
    let line = "-i 1@unix:1 testbed.json --log-file log --log-flush --log-file-max-size 1500 --log-file-max-files 2 \
                -- --grpc-server-addr 127.0.0.1:0";
    let switch = Running::start(folder.command(line), "Server listening on ");
    let sender = folder.peer("1");
    for number in 0..20 {
        sender.send(&frame(number)).expect("sent");
    }
    let log = |name: &str| fs::read_to_string(folder.path(name)).unwrap_or_default();
    wait_until("the log moves on twice", || !log("log.2.txt").is_empty());
    let (rest, _) = switch.terminate();
    assert_eq!(rest, "", "the log is not on standard output");
    assert!(
        log("log.txt").contains(" 60 bytes at port 1, "),
        "{}",
        log("log.txt")
    );
    assert!(log("log.1.txt").contains(" 60 bytes at port 1, "));
    assert!(log("log.2.txt").contains(" 60 bytes at port 1, "));
    assert!(!folder.path("log.3.txt").exists());

    let line = "-i 1@unix:1 testbed.json --log-console -L info -- --grpc-server-addr 127.0.0.1:0";
    let switch = Running::start(folder.command(line), "Server listening on ");
    let (address, sender) = (switch.address(), folder.peer("1"));
    sender.send(&frame(1)).expect("sent");
    let entered = || about(&address, &["port", "list"])[0]["entered"]["packets"] == 1;
    wait_until("the frame enters", entered);
    let (rest, _) = switch.terminate();
    assert!(!rest.contains("bytes at port"), "{rest}");
}

#[test]
fn invalid_and_unsupported_options_are_refused() {
    let folder = Folder::new();
    for (line, said) in [
        (
            "",
            "error: the following required arguments were not provided",
        ),
        (
            "--speed 3 testbed.json",
            "error: unexpected argument '--speed'",
        ),
        (
            "testbed.json -- --speed 3",
            "error: after --: unexpected argument '--speed'",
        ),
        (
            "testbed.json --cpu-port 5",
            "error: unexpected argument '--cpu-port'",
        ),
        (
            "testbed.json --log-console --log-file x",
            "error: the argument '--log-console' cannot be used with",
        ),
        (
            "testbed.json --log-level loud",
            "error: invalid value 'loud' for '--log-level",
        ),
        (
            "testbed.json -i veth1",
            "error: invalid value 'veth1' for '--interface",
        ),
        (
            "testbed.json --packet-in ipc:///tmp/x",
            "error: --packet-in is not supported",
        ),
        (
            "testbed.json --use-files 2",
            "error: --use-files is not supported; ",
        ),
        (
            "testbed.json --restore-state x",
            "error: --restore-state is not supported",
        ),
        (
            "testbed.json -- --dp-grpc-server-addr :1",
            "error: --dp-grpc-server-addr is not supported",
        ),
        (
            "testbed.json -- --load-modules x.so",
            "error: --load-modules is not supported",
        ),
        (
            "testbed.json -- --drop-port 5",
            "error: --drop-port 5: expected 511",
        ),
        ("testbed.json -- --cpu-port 0", "error: after --: "),
        ("testbed.json -- --priority-queues 9", "error: after --: "),
        ("testbed.json -- --grpc-server-ssl", "error: after --: "),
        ("none.json", "error: none.json: "),
        ("simple_switch_grpc", "error: simple_switch_grpc: "),
    ] {
        let error = folder.refused(line);
        assert!(error.starts_with(said), "{line}: {error}");
    }
    // The subcommand has the same options.
    let error = refused(&["simple-switch-grpc", "--no-p4", "--speed"]);
    assert!(
        error.starts_with("error: unexpected argument '--speed'"),
        "{error}"
    );
}

#[test]
fn options_without_an_effect_are_named_and_versions_printed() {
    let folder = Folder::new();
    let line = "testbed.json --no-p4 --debugger --notifications-addr x --dump-packet-data 64 --max-port-count 8 --log-flush \
                -- --grpc-server-addr 127.0.0.1:0 --max-mc-groups 9 --max-l1-entries 9 --max-l2-entries 9 --disable-swap \
                --drop-port 511 --priority-queues 8 --cpu-port 510";
    let switch = Running::start(folder.command(line), "Server listening on ");
    let (_, errors) = switch.terminate();
    let options: Vec<_> = errors
        .lines()
        .filter_map(|line| line.strip_prefix("warning: ")?.split_once(" has no effect"))
        .map(|(option, _)| option)
        .collect();
    assert_eq!(
        options,
        [
            "--notifications-addr",
            "--debugger",
            "--dump-packet-data",
            "--max-port-count",
            "the JSON file",
            "--log-flush",
            "--max-mc-groups",
            "--max-l1-entries and --max-l2-entries",
            "--disable-swap",
        ]
    );
    assert_eq!(errors.lines().count(), options.len(), "{errors}");
    for (line, printed) in [
        ("--version", env!("CARGO_PKG_VERSION")),
        ("--json-version", "2.23"),
    ] {
        let output = folder.output(line);
        assert!(output.status.success(), "{line}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), printed);
    }
    let help = String::from_utf8(folder.output("--help").stdout).expect("text");
    assert!(
        help.contains("--grpc-server-addr") && help.contains("--thrift-port"),
        "{help}"
    );
}

#[test]
fn scripts_find_the_process_by_bmv2_s_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultima"));
    command.args([
        "simple-switch-grpc",
        "--no-p4",
        "--",
        "--grpc-server-addr",
        "127.0.0.1:0",
    ]);
    let switch = Running::start(command, "Server listening on ");
    let name = fs::read_to_string(format!("/proc/{}/comm", switch.child.id()));
    // The kernel keeps 15 bytes of a name.
    assert_eq!(name.expect("it runs"), "simple_switch_g\n");
    switch.terminate();
}

/// A shell's `exec -a` gives the binary BMv2's name, as a wrapper without a link does.
#[test]
fn the_name_alone_decides() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ultima"));
    command.arg0("simple_switch_grpc").arg("--json-version");
    let output = command.output().expect("the binary runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2.23\n");
}
