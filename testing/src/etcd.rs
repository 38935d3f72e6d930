//! A cluster of Debian's `etcd-server` on loopback, in a temporary folder.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::skipped;

/// How long a member may take to start.
const START: Duration = Duration::from_secs(30);

/// A cluster with short timeouts: it grants leases of one second. Dropping it ends all members.
pub struct Etcd {
    folder: tempfile::TempDir,
    members: Vec<Member>,
}

struct Member {
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Etcd {
    /// Starts a cluster; prints that the test is skipped if etcd is not installed.
    ///
    /// # Panics
    /// A member does not start.
    pub fn start(members: usize) -> Option<Self> {
        let version = Command::new("etcd").arg("--version").output();
        if version.is_err() {
            let required = std::env::var("ULTIMA_REQUIRE_PACKAGES").is_ok_and(|it| it == "1");
            assert!(
                !required,
                "etcd is not installed, and ULTIMA_REQUIRE_PACKAGES=1 requires it"
            );
            skipped("etcd is not installed; on Debian: apt install etcd-server");
            return None;
        }
        let member = |_| Member {
            client: free_port(),
            peer: free_port(),
            process: None,
        };
        let mut etcd = Etcd {
            // In memory: a slow disk would end leases.
            folder: tempfile::tempdir_in("/dev/shm").expect("a folder"),
            members: (0..members).map(member).collect(),
        };
        (0..members).for_each(|at| etcd.run(at));
        (0..members).for_each(|at| etcd.wait(at));
        Some(etcd)
    }

    /// HOST:PORT of each member.
    pub fn endpoints(&self) -> Vec<String> {
        let endpoint = |member: &Member| format!("127.0.0.1:{}", member.client);
        self.members.iter().map(endpoint).collect()
    }

    /// The index of the member that leads the cluster.
    ///
    /// # Panics
    /// None leads within 30 s.
    pub fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let leads = |at: &usize| {
                let answer = get("/metrics", self.members[*at].client);
                answer.is_some_and(|text| text.contains("\netcd_server_is_leader 1\n"))
            };
            if let Some(at) = (0..self.members.len()).find(leads) {
                return at;
            }
            assert!(begun.elapsed() < START, "no member of etcd leads");
            sleep(Duration::from_millis(50));
        }
    }

    /// Ends a member with SIGKILL.
    ///
    /// # Panics
    /// It does not run.
    pub fn kill(&mut self, at: usize) {
        let mut process = self.members[at].process.take().expect("it runs");
        process.kill().expect("it runs");
        process.wait().expect("it ends");
    }

    /// Starts a killed member.
    pub fn restart(&mut self, at: usize) {
        self.run(at);
        self.wait(at);
    }

    fn run(&mut self, at: usize) {
        let peers = self.members.iter().enumerate();
        let peers = peers.map(|(at, it)| format!("m{at}=http://127.0.0.1:{}", it.peer));
        let peers = peers.collect::<Vec<_>>().join(",");
        let Member { client, peer, .. } = &self.members[at];
        let client = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        // It ends with this thread, also if the process is killed.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "etcd"])
            .args(["--name", &format!("m{at}"), "--data-dir"])
            .arg(self.folder.path().join(format!("m{at}")))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.members[at].process = Some(process.expect("etcd starts"));
    }

    fn wait(&self, at: usize) {
        let begun = Instant::now();
        let client = self.members[at].client;
        while get("/health", client).is_none_or(|text| !text.contains("\"true\"")) {
            assert!(begun.elapsed() < START, "etcd does not start");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|it| it.process.as_mut()) {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A port that was free just now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The answer to an HTTP request.
fn get(path: &str, port: u16) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}
