//! Two network namespaces with a veth pair between them.

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

/// A veth pair that is up, with an address at each end. The kernel removes it with its namespaces when their files are closed,
/// even if the process is killed.
pub struct Veth {
    namespaces: [File; 2],
}

impl Veth {
    /// Creates the pair. Returns `None` if this process may not create namespaces.
    ///
    /// # Panics
    /// If iproute2's `ip` is missing, or the pair is not up in time.
    pub fn new() -> Option<Self> {
        let namespace = || {
            // A namespace belongs to a thread.
            let made = thread::spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).ok()?;
                File::open("/proc/thread-self/ns/net").ok()
            });
            made.join().expect("no panic")
        };
        let veth = Self {
            namespaces: [namespace()?, namespace()?],
        };
        let descriptor = veth.namespaces[1].as_raw_fd();
        let peer = format!("/proc/{}/fd/{descriptor}", std::process::id());
        let pair = ["link", "add", "veth0", "type", "veth", "peer", "veth0"];
        veth.ip(0, &[&pair[..], &["netns", &peer]].concat());
        for end in 0..2 {
            let address = format!("{}/24", Self::address(end));
            veth.ip(end, &["address", "add", &address, "dev", "veth0"]);
            veth.ip(end, &["link", "set", "veth0", "up"]);
            veth.ip(end, &["link", "set", "lo", "up"]);
        }
        // The kernel drops frames until it has detected the carrier.
        let latest = Instant::now() + Duration::from_secs(10);
        while !(0..2).all(|end| veth.is_up(end)) {
            assert!(Instant::now() < latest, "the veth pair is not up");
            thread::sleep(Duration::from_millis(5));
        }
        Some(veth)
    }

    /// Makes the kernel resolve both addresses. If the first packets of a job waited for the resolution, later packets could
    /// overtake them.
    ///
    /// # Panics
    /// If no packet crosses the pair.
    pub fn resolve(&self) {
        let bind = |end| {
            let socket = self.at(end, || UdpSocket::bind((Self::address(end), 0)));
            let socket = socket.expect("binds");
            let timeout = Some(Duration::from_millis(100));
            socket.set_read_timeout(timeout).expect("a timeout");
            socket
        };
        let sockets = [bind(0), bind(1)];
        for [from, to] in [[0, 1], [1, 0]] {
            let address = sockets[to].local_addr().expect("bound");
            let crosses = || {
                sockets[from].send_to(&[0], address).expect("sends");
                sockets[to].recv(&mut [0]).is_ok()
            };
            assert!((0..100).any(|_| crosses()), "no packet crosses the pair");
        }
    }

    /// The address of an end, 0 or 1.
    pub fn address(end: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1 + end as u8)
    }

    /// Sets the MTU of both ends, in bytes.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn set_mtu(&self, mtu: u32) {
        for end in 0..2 {
            self.ip(end, &["link", "set", "veth0", "mtu", &mtu.to_string()]);
        }
    }

    /// Limits each end to a rate such as "100mbit" and a queue of this many bytes. Returns false if the kernel cannot.
    ///
    /// # Panics
    /// If iproute2's `tc` is missing.
    pub fn shape(&self, rate: &str, queue: u32) -> bool {
        let queue = queue.to_string();
        let bucket = ["root", "tbf", "rate", rate, "burst", "16k", "limit", &queue];
        let add = [&["qdisc", "add", "dev", "veth0"][..], &bucket].concat();
        (0..2).all(|end| self.run(end, "tc", &add).status.success())
    }

    /// Moves the calling thread, and threads and processes that it starts, to one end.
    ///
    /// # Panics
    /// If the thread does not run as root.
    pub fn enter(&self, end: usize) {
        setns(&self.namespaces[end], CloneFlags::CLONE_NEWNET).expect("setns needs root");
    }

    /// Runs `work` on a thread at one end.
    fn at<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
        let work = || {
            self.enter(end);
            work()
        };
        thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
    }

    fn is_up(&self, end: usize) -> bool {
        let shown = self.ip(end, &["link", "show", "veth0"]);
        String::from_utf8_lossy(&shown.stdout).contains("state UP")
    }

    fn ip(&self, end: usize, arguments: &[&str]) -> Output {
        let output = self.run(end, "ip", arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments:?}: {errors}");
        output
    }

    fn run(&self, end: usize, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        let output = self.at(end, || command.output());
        output.expect("iproute2 is installed")
    }
}
