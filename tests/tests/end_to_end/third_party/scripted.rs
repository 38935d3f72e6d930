//! Scripts in `clients/` that control an embedded switch with a third-party P4Runtime client. A script asks the test, line by
//! line, to send a frame into a port or to expect one.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tokio::runtime::Runtime;
use ultima_switch::{Attach, PortConfig, Switch, SwitchConfig, WireConfig};

use super::counter_client::NOT_INSTALLED;
use ultima_tests::needs;

/// The switch's ports.
const PORTS: [u16; 2] = [1, 2];
/// Its port for controllers.
const CPU_PORT: u16 = 64;
/// The deadline for a frame on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The program that a client installs.
pub struct Pushed<'a> {
    /// Its P4Info in text format.
    pub p4info: &'a str,
    /// The output of p4c's BMv2 backend.
    pub json: &'a [u8],
}

/// Runs the script `name` with `python` and a switch without a program. If `package` is missing, reports a skipped test.
///
/// # Panics
/// If the script fails, or a package is missing and `ULTIMA_REQUIRE_PYTHON=1`.
pub fn run(name: &str, package: &str, python: &str, program: &Pushed) {
    let runtime = Runtime::new().expect("a runtime");
    let (ports, ends): (Vec<_>, Vec<_>) = PORTS.map(port).into_iter().unzip();
    let config = SwitchConfig {
        grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ports,
        cpu_port: Some(CPU_PORT),
        ..SwitchConfig::default()
    };
    let device_id = config.device_id.to_string();
    let switch = runtime.block_on(Switch::start(config));
    let switch = switch.unwrap_or_else(|error| panic!("{error}"));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let [p4info, json] = ["p4info.txtpb", "program.json"].map(|file| folder.path().join(file));
    fs::write(&p4info, program.p4info).expect("written");
    fs::write(&json, program.json).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(name);
    let started = Command::new(python)
        .arg("-B")
        .arg(script)
        .args([switch.grpc_addr().to_string(), device_id])
        .args([p4info, json])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut client = match started {
        Ok(client) => client,
        Err(error) => return needs::python_missing(&format!("cannot run {python}: {error}")),
    };
    let commands = BufReader::new(client.stdout.take().expect("a pipe"));
    let mut answers = client.stdin.take().expect("a pipe");
    for command in commands.lines() {
        let answer = match run_command(&ends, &command.expect("the client writes text")) {
            Ok(()) => "ok".to_owned(),
            Err(problem) => problem,
        };
        // The exit code of a client that has ended shows the reason.
        let _ = writeln!(answers, "{answer}");
    }
    let status = client.wait().expect("a child process");
    match status.code() {
        Some(0) => {}
        Some(NOT_INSTALLED) => needs::python_missing(&format!("PyPI's {package} is not installed")),
        _ => panic!("{name} failed: {status}"),
    }
    runtime
        .block_on(switch.stop())
        .expect("the switch has not failed");
}

fn port(number: u16) -> (PortConfig, (u16, UnixDatagram)) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
    let (ours, theirs): (OwnedFd, OwnedFd) = pair.expect("a pair of sockets");
    let end = UnixDatagram::from(theirs);
    end.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let port = PortConfig {
        number,
        attach: Attach::Socket(ours.into()),
        wire: WireConfig::default(),
    };
    (port, (number, end))
}

/// Runs a client's command: `send PORT FRAME` or `expect PORT FRAME`.
fn run_command(ends: &[(u16, UnixDatagram)], command: &str) -> Result<(), String> {
    let [verb, port, frame] = command.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("`{command}` is not VERB PORT FRAME"));
    };
    let end = ends.iter().find(|(number, _)| Ok(*number) == port.parse());
    let (_, end) = end.ok_or_else(|| format!("there is no port {port}"))?;
    let frame = bytes(frame).ok_or_else(|| format!("`{frame}` is not hexadecimal"))?;
    match verb {
        "send" => {
            let sent = end.send(&frame).map_err(|error| error.to_string())?;
            assert_eq!(sent, frame.len(), "a message is sent whole");
            Ok(())
        }
        "expect" => {
            let mut buffer = vec![0; 70_000];
            let len = end
                .recv(&mut buffer)
                .map_err(|error| format!("no frame: {error}"))?;
            match buffer[..len] == frame {
                true => Ok(()),
                false => Err(format!("another frame: {:02x?}", &buffer[..len])),
            }
        }
        _ => Err(format!("unknown command `{verb}`")),
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
