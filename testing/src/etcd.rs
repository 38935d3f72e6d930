//! A cluster of Debian's `etcd-server` on loopback, in a temporary folder.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::{signals, skipped};

/// Time limit for a member to start.
const START: Duration = Duration::from_secs(30);

/// A cluster with short timeouts: it grants leases of one second. Dropping it ends all members.
pub struct Etcd {
    folder: tempfile::TempDir,
    members: Vec<Member>,
    tls: Option<Tls>,
}

/// The files of a cluster that serves only clients with a certificate.
pub struct Tls {
    /// The members' certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of the clients' certificates.
    pub ca: PathBuf,
}

struct Member {
    client: u16,
    peer: u16,
    metrics: u16,
    process: Option<Child>,
}

impl Etcd {
    /// Starts a cluster. If etcd is not installed, reports a skipped test and returns `None`.
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
            metrics: free_port(),
            process: None,
        };
        let mut etcd = Etcd {
            // In memory, because leases expire on a slow disk.
            folder: tempfile::tempdir_in("/dev/shm").expect("a folder"),
            members: (0..members).map(member).collect(),
            tls: None,
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
    /// No member leads within 30 s.
    pub fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            let leads = |at: &usize| {
                let answer = get("/metrics", self.members[*at].metrics);
                answer.is_some_and(|text| text.contains("\netcd_server_is_leader 1\n"))
            };
            if let Some(at) = (0..self.members.len()).find(leads) {
                return at;
            }
            assert!(start.elapsed() < START, "no member of etcd leads");
            sleep(Duration::from_millis(50));
        }
    }

    /// Kills a member with SIGKILL.
    ///
    /// # Panics
    /// The member does not run.
    pub fn kill(&mut self, at: usize) {
        let mut process = self.members[at].process.take().expect("the member runs");
        process.kill().expect("the member runs");
        process.wait().expect("the member ends");
    }

    /// Pauses all members with SIGSTOP, or continues them.
    ///
    /// # Panics
    /// A member does not run.
    pub fn pause(&self, is_paused: bool) {
        let signal = match is_paused {
            true => Signal::SIGSTOP,
            false => Signal::SIGCONT,
        };
        for member in &self.members {
            let process = member.process.as_ref().expect("the member runs");
            signals::signal(process.id(), signal);
        }
    }

    /// Starts a killed member.
    pub fn restart(&mut self, at: usize) {
        self.run(at);
        self.wait(at);
    }

    /// Restarts all members with TLS.
    pub fn secure(&mut self, tls: Tls) {
        self.tls = Some(tls);
        for at in 0..self.members.len() {
            self.kill(at);
            self.restart(at);
        }
    }

    /// Writes a key of a cluster without TLS.
    pub fn put(&self, key: &str, value: &str) {
        let (key, value) = (base64(key), base64(value));
        let body = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        self.post("kv/put", &body);
    }

    /// Deletes a key of a cluster without TLS.
    pub fn delete(&self, key: &str) {
        let key = base64(key);
        self.post("kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
    }

    /// Raises or clears the alarm of a database that has reached its quota, in a cluster without TLS.
    pub fn fill(&self, is_full: bool) {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let body = format!(r#"{{"action":"{action}","alarm":"NOSPACE"}}"#);
        self.post("maintenance/alarm", &body);
    }

    /// Adds a user to a cluster without TLS, and requires authentication from then on. The user may read and write the keys from
    /// `first` up to `end`.
    pub fn require_user(&self, name: &str, password: &str, [first, end]: [&str; 2]) {
        let (first, end) = (base64(first), base64(end));
        for (path, body) in [
            (
                "auth/user/add",
                r#"{"name":"root","password":"root"}"#.to_owned(),
            ),
            ("auth/role/add", r#"{"name":"root"}"#.to_owned()),
            (
                "auth/user/grant",
                r#"{"user":"root","role":"root"}"#.to_owned(),
            ),
            (
                "auth/user/add",
                format!(r#"{{"name":"{name}","password":"{password}"}}"#),
            ),
            ("auth/role/add", format!(r#"{{"name":"{name}"}}"#)),
            (
                "auth/user/grant",
                format!(r#"{{"user":"{name}","role":"{name}"}}"#),
            ),
            (
                "auth/role/grant",
                format!(
                    r#"{{"name":"{name}","perm":{{"permType":"READWRITE","key":"{first}","range_end":"{end}"}}}}"#
                ),
            ),
            ("auth/enable", "{}".to_owned()),
        ] {
            self.post(path, &body);
        }
    }

    /// Makes a call of etcd's JSON gateway.
    fn post(&self, path: &str, body: &str) {
        let length = body.len();
        let head = format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}");
        let answer = exchange(&format!("{head}\r\n\r\n{body}"), self.members[0].client);
        let answer = answer.unwrap_or_default();
        assert!(answer.contains(" 200 OK"), "{path}: {answer}");
    }

    fn run(&mut self, at: usize) {
        let peers = self.members.iter().enumerate();
        let peers = peers.map(|(at, it)| format!("m{at}=http://127.0.0.1:{}", it.peer));
        let peers = peers.collect::<Vec<_>>().join(",");
        let Member {
            client,
            peer,
            metrics,
            ..
        } = &self.members[at];
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{client}");
        let metrics = format!("http://127.0.0.1:{metrics}");
        let peer = format!("http://127.0.0.1:{peer}");
        // etcd ends with this thread, even if the process is killed.
        let mut etcd = Command::new("setpriv");
        etcd.args(["--pdeathsig", "KILL", "etcd"]);
        if let Some(Tls { cert, key, ca }) = &self.tls {
            etcd.arg("--client-cert-auth").arg("--cert-file").arg(cert);
            etcd.arg("--key-file").arg(key);
            etcd.arg("--trusted-ca-file").arg(ca);
        }
        let process = etcd
            .args(["--name", &format!("m{at}"), "--data-dir"])
            .arg(self.folder.path().join(format!("m{at}")))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-metrics-urls", &metrics])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            // A cheap hash is enough for passwords of tests.
            .args(["--bcrypt-cost", "4"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.members[at].process = Some(process.expect("etcd starts"));
    }

    fn wait(&self, at: usize) {
        let start = Instant::now();
        let metrics = self.members[at].metrics;
        while get("/health", metrics).is_none_or(|text| !text.contains("\"true\"")) {
            assert!(start.elapsed() < START, "etcd does not start");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in self.members.iter_mut().filter_map(|it| it.process.as_mut()) {
            // The member may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A free port.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The answer to an HTTP request.
fn get(path: &str, port: u16) -> Option<String> {
    exchange(&format!("GET {path} HTTP/1.0\r\n\r\n"), port)
}

fn exchange(request: &str, port: u16) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Encodes bytes for etcd's JSON gateway (RFC 4648 §4).
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.as_bytes().chunks(3).flat_map(|bytes| {
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or_default());
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        [18, 12, 6, 0]
            .into_iter()
            .enumerate()
            .map(move |(at, shift)| match at <= bytes.len() {
                true => char::from(DIGITS[(all >> shift & 63) as usize]),
                false => '=',
            })
    });
    digits.collect()
}
