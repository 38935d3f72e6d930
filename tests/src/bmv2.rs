//! BMv2: a process of `simple_switch_grpc`, whose program a controller installs.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use tokio::runtime::Runtime;

use crate::fabric::device_id;
use crate::testbed::RunningSwitch;

/// The deadline for BMv2 to listen.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A running BMv2. It ends when this is dropped or the test's process ends.
pub struct Bmv2 {
    process: Child,
    grpc: SocketAddr,
    folder: TempDir,
}

impl Bmv2 {
    /// Starts BMv2 as one of a fabric's switches, with ports (number, interface), and waits until it listens. The test needs its
    /// own network namespace: BMv2's Thrift server listens on all addresses.
    ///
    /// # Panics
    /// If BMv2 does not start. The message has its log.
    pub fn start(program: &Path, switch: usize, ports: &[(u16, String)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = File::create(folder.path().join("log")).expect("the folder is new");
        let number = u16::try_from(switch).expect("a fabric has few switches");
        let grpc = SocketAddr::from((Ipv4Addr::LOCALHOST, 9559 + number));

        let mut command = Command::new(program);
        command
            .arg("--no-p4")
            .args(["--device-id", &device_id(switch).to_string()]);
        command.args(["--thrift-port", &(9090 + number).to_string()]);
        for (port, interface) in ports {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        // Two switches with one device id would share the default name in /tmp.
        let notifications = folder.path().join("notifications");
        command.args([
            "--notifications-addr",
            &format!("ipc://{}", notifications.display()),
        ]);
        command.args(["--", "--grpc-server-addr", &grpc.to_string()]);
        command.stdin(Stdio::null());
        command
            .stdout(log.try_clone().expect("a file can be opened twice"))
            .stderr(log);
        // SAFETY: prctl(2) is async-signal-safe; nothing else runs between fork and exec.
        unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };

        let process = command.spawn().expect("BMv2 was found on the PATH");
        let mut bmv2 = Self {
            process,
            grpc,
            folder,
        };
        bmv2.wait_until_it_listens();
        bmv2
    }

    fn wait_until_it_listens(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while TcpStream::connect(self.grpc).is_err() {
            let ended = self.process.try_wait().expect("a child process");
            assert!(ended.is_none(), "BMv2 ended ({ended:?}):\n{}", self.log());
            assert!(
                Instant::now() < deadline,
                "BMv2 does not listen:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl RunningSwitch for Bmv2 {
    /// Does nothing: dropping the switch kills its process.
    fn end(self: Box<Self>, _: &Runtime) {}

    fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    fn process(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Bmv2 {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
