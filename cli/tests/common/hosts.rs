//! Hosts as network namespaces around one switch, with a management link to each; needs root.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::{panic, thread};

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Uid;

use super::{ultima, wait_until};

/// Runs `test` with `hosts` hosts h1, h2 …, each linked to the switch's port of its number. Everything is in
/// namespaces of the test's own and goes with them. Where that cannot be, the test says so and ends.
pub fn with_hosts(hosts: u8, test: impl FnOnce(&Hosts) + Send) {
    if !Uid::effective().is_root() {
        // Past the test harness, which shows what tests print only where they fail.
        let note = format!(
            "{}: skipped: needs root\n",
            thread::current().name().unwrap_or("test")
        );
        let _ = File::options()
            .append(true)
            .open("/proc/self/fd/2")
            .and_then(|mut stderr| stderr.write_all(note.as_bytes()));
        return;
    }
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root makes namespaces");
            test(&Hosts::build(hosts));
        });
        run.join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause));
    });
}

/// The hosts of a test, and what runs for them.
pub struct Hosts {
    namespaces: Vec<File>,
    /// The switch and the controller, last started last.
    servers: Vec<Child>,
    /// Where the controller listens, by host.
    pub controller_port: u16,
    pub controller: String,
    _directory: tempfile::TempDir,
}

impl Hosts {
    fn build(hosts: u8) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        ip("link set lo up");
        let namespaces: Vec<File> = (1..=hosts).map(namespace).collect();
        for n in 1..=hosts {
            wait_for_link(&format!("s{n}"));
            on(&namespaces[usize::from(n) - 1], || wait_for_link("eth0"));
        }
        let ports = (1..=hosts).flat_map(|n| ["-i".to_owned(), format!("{n}@s{n}")]);
        let mut switch = ultima(&["switch", "--grpc", "127.0.0.1:0"]);
        let (switch, grpc) = serve(switch.args(ports));

        let mut yaml = format!(
            "switches:\n  - {{ name: s1, target: v1model, grpc: \"{grpc}\", device_id: 1 }}\nhosts:\n"
        );
        for n in 1..=hosts {
            yaml += &format!(
                "  - {{ name: h{n}, mac: \"02:00:00:00:00:0{n}\", ip: 10.0.0.{n}, ranks: 2 }}\n"
            );
        }
        yaml += "links:\n";
        for n in 1..=hosts {
            yaml += &format!("  - {{ ends: [h{n}, s1/{n}] }}\n");
        }
        let fabric = directory.path().join("fabric.yaml");
        fs::write(&fabric, yaml).expect("a file");
        let fabric = fabric.to_str().expect("a plain path");
        let mut controller = ultima(&["controller", "serve", "--listen", "0.0.0.0:0", "--fabric"]);
        let (controller, address) = serve(controller.arg(fabric));
        let port = address.rsplit_once(':').expect("a port").1;
        Self {
            namespaces,
            servers: vec![switch, controller],
            controller_port: port.parse().expect("a port"),
            controller: format!("127.0.0.1:{port}"),
            _directory: directory,
        }
    }

    /// Creates a job, written in YAML.
    pub fn create(&self, yaml: &str) {
        let mut command = ultima(&["job", "--controller", &self.controller, "create", "-f", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(yaml.as_bytes()).expect("it reads");
        drop(stdin);
        assert!(child.wait().expect("it ends").success(), "{yaml}");
    }

    /// Runs a command of ours on a host; `CONTROLLER` among its arguments becomes the controller's address there.
    pub fn start(&self, host: u8, arguments: &[&str]) -> Child {
        let controller = format!("192.168.{host}.1:{}", self.controller_port);
        let arguments = arguments
            .iter()
            .map(|argument| argument.replace("CONTROLLER", &controller));
        let mut command = ultima(&[]);
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.on(host, || command.spawn().expect("it starts"))
    }

    /// Runs iproute2's `ip` on a host.
    pub fn ip(&self, host: u8, arguments: &str) {
        self.on(host, || ip(arguments));
    }

    /// Does something on a host.
    pub fn on<T: Send>(&self, host: u8, work: impl FnOnce() -> T + Send) -> T {
        on(&self.namespaces[usize::from(host) - 1], work)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for mut server in self.servers.drain(..).rev() {
            // It may have ended by itself, which the test then says.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Does something in a namespace.
fn on<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("root enters namespaces");
            work()
        });
        there
            .join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause))
    })
}

/// What a process printed, when it has ended.
pub fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

/// A namespace for host `n`, with a link to the switch and one to here.
fn namespace(n: u8) -> File {
    let namespace = thread::scope(|scope| {
        let host = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root makes namespaces");
            ip("link set lo up");
            ip(&format!(
                "link add eth0 address 02:00:00:00:00:0{n} type veth peer name s{n}"
            ));
            ip(&format!("link add mgmt type veth peer name m{n}"));
            File::open("/proc/thread-self/ns/net").expect("Linux has it")
        });
        host.join().expect("no panic")
    });
    // The far ends come here by descriptor, as the namespaces have no names.
    let here = File::open("/proc/thread-self/ns/net").expect("Linux has it");
    on(&namespace, || {
        for far in [format!("s{n}"), format!("m{n}")] {
            hand_over(&far, &here);
        }
        for up in ["eth0", "mgmt"] {
            ip(&format!("link set {up} up"));
        }
        ip(&format!("addr add 10.0.0.{n}/24 dev eth0"));
        ip(&format!("addr add 192.168.{n}.2/24 dev mgmt"));
        // Ranks of one host hear each other by the switch.
        fs::write("/proc/sys/net/ipv4/conf/eth0/accept_local", "1").expect("root sets it");
    });
    ip(&format!("link set s{n} up"));
    ip(&format!("link set m{n} up"));
    ip(&format!("addr add 192.168.{n}.1/24 dev m{n}"));
    namespace
}

/// Waits until an interface carries packets: until Linux has seen that its link is up, what is sent is dropped.
fn wait_for_link(interface: &str) {
    wait_until("the link comes up", || {
        let output = Command::new("ip")
            .args(["-o", "link", "show", "dev", interface])
            .output()
            .expect("iproute2 is installed");
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    });
}

/// Moves an interface to a namespace.
fn hand_over(interface: &str, to: &File) {
    use std::os::fd::AsRawFd;
    // iproute2 takes a path; ours is this process's descriptor.
    let path = format!("/proc/{}/fd/{}", std::process::id(), to.as_raw_fd());
    ip(&format!("link set {interface} netns {path}"));
}

/// Starts one of our servers; returns it and where it listens.
fn serve(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on ");
    (child, address.expect("it listens").to_owned())
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("iproute2 is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
}
