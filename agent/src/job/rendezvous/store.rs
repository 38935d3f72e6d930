//! A client of a `torch.distributed` TCPStore: what a rendezvous needs of its protocol.
//!
//! Integers are in the host's byte order, strings and values have a 64-bit length in front. Two protocols
//! exist, by `torch/csrc/distributed/c10d/TCPStore.cpp` (1.13) and `TCPStoreBackend.hpp` (2.1 and later):
//!
//! | request | 1.13 | 2.1 | arguments | answer |
//! | --- | --- | --- | --- | --- |
//! | VALIDATE | – | 0 | 0x3c85f7ce | none; must be the first request |
//! | SET | 0 | 1 | key, value | none |
//! | GET | 2 | 3 | key | value; the server closes the connection if there is none |
//! | ADD | 3 | 4 | key, 64-bit amount | 64-bit sum |
//! | CHECK | 4 | 5 | number of keys, keys | 0 if all are there, else 1 |
//! | WAIT | 5 | 6 | number of keys, keys | 0 as soon as all are there |
//! | GETNUMKEYS | 6 | 7 | | 64-bit number |
//!
//! torch puts `/` in front of the keys of its users, and so does this client.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

use backon::{BlockingRetryable as _, ConstantBuilder};

use super::super::JobError;
use super::notices::Notices;

/// A place where ranks leave values for each other.
pub trait Store {
    /// Sets the value of `key`.
    ///
    /// # Errors
    /// [`JobError::Store`].
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), JobError>;

    /// Waits until `key` has a value, and returns it. None at `deadline`.
    ///
    /// # Errors
    /// [`JobError::Store`].
    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, JobError>;

    /// Adds one to the number at `key`, which starts at 0, and returns the sum.
    ///
    /// # Errors
    /// [`JobError::Store`].
    fn count(&mut self, key: &str) -> Result<i64, JobError>;
}

/// A version of the protocol of torch's TCPStore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol of torch 1.13 and 2.0.
    V1,
    /// The protocol of torch 2.1 and later.
    V2,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" => Ok(Protocol::V1),
            "2" => Ok(Protocol::V2),
            other => Err(format!(
                "is {other:?}: expected 1 (torch 1.13 and 2.0) or 2 (torch 2.1 and later)"
            )),
        }
    }
}

/// The first request of version 2.
pub(super) const VALIDATE: u8 = 0;
/// The argument of VALIDATE.
pub(super) const MAGIC: u32 = 0x3c85_f7ce;

/// Requests, by their number in version 1. Version 2 has VALIDATE in front of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Set = 0,
    Get = 2,
    Add = 3,
    Check = 4,
    Wait = 5,
    Keys = 6,
}

impl Request {
    pub(super) const ALL: [Request; 6] = [
        Request::Set,
        Request::Get,
        Request::Add,
        Request::Check,
        Request::Wait,
        Request::Keys,
    ];

    pub(super) fn number(self, protocol: Protocol) -> u8 {
        match protocol {
            Protocol::V1 => self as u8,
            Protocol::V2 => self as u8 + 1,
        }
    }
}

/// Answer to WAIT: all keys have values.
pub(super) const STOP_WAITING: u8 = 0;
/// Answer to CHECK: all keys have values.
pub(super) const READY: u8 = 0;

/// The longest value that the client accepts.
const LONGEST: u64 = 64 << 20;
/// The pause between attempts to connect.
const AGAIN: Duration = Duration::from_millis(50);
/// The wait for a store after which the user gets a notice: ranks may start seconds apart.
const SILENT: Duration = Duration::from_secs(5);
/// The longest time that the server may take for an answer that depends on no other rank.
const ANSWER: Duration = Duration::from_secs(30);

/// What the user can do if there is no store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Advice {
    /// If no program accepts a connection.
    pub(super) absent: &'static str,
    /// If a program accepts connections, but does not answer as a store.
    pub(super) foreign: &'static str,
}

/// A failed attempt to connect.
#[derive(Debug)]
enum Failure {
    /// The host has no IPv4 address.
    Unresolved(JobError),
    /// No program accepts a connection.
    Absent(io::Error),
    /// A program accepts connections, but does not answer as a store.
    Foreign(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unresolved(error) => error.fmt(f),
            Failure::Foreign(error) if is_silent(error) => {
                f.write_str("a program there sends nothing")
            }
            Failure::Foreign(error) if error.kind() == ErrorKind::InvalidData => {
                f.write_str("a program there sends other data")
            }
            Failure::Foreign(error) if is_closed(error) => {
                f.write_str("a program there closes the connection")
            }
            Failure::Absent(error) | Failure::Foreign(error) => error.fmt(f),
        }
    }
}

/// A connection to a store.
#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    protocol: Protocol,
    /// For errors, as the user gave it.
    name: String,
    address: SocketAddrV4,
}

impl Client {
    /// Connects to the store at `host:port`, again and again until `deadline`. Without a `protocol` it
    /// detects the version. Reports a long wait with `notice`. The error at `deadline` ends with part of `advice`.
    pub(super) fn connect(
        host: &str,
        port: u16,
        protocol: Option<Protocol>,
        deadline: Instant,
        advice: Advice,
        notice: fn(&str),
    ) -> Result<Self, JobError> {
        let began = Instant::now();
        let name = format!("{host}:{port}");
        let connect = || {
            let address = resolve("the rendezvous store's host", host, port);
            let address = address.map_err(Failure::Unresolved)?;
            Self::open(address, &name, protocol, deadline)
        };
        let may_pass =
            |failure: &Failure| !matches!(failure, Failure::Unresolved(JobError::Ipv6 { .. }));
        let pauses = ConstantBuilder::new().with_delay(AGAIN);
        let mut notices = Notices::new(SILENT, deadline, notice);
        let service = format!("the rendezvous store at {name}");
        let connected = connect.retry(pauses.without_max_times());
        let connected =
            connected.when(|failure| may_pass(failure) && Instant::now() + AGAIN < deadline);
        let connected =
            connected.notify(|failure, _| notices.failed(&service, &failure.to_string()));
        connected.call().map_err(|failure| {
            let (answer, advice) = match failure {
                Failure::Unresolved(error @ JobError::Ipv6 { .. }) => return error,
                Failure::Unresolved(_) | Failure::Absent(_) => ("no answer", advice.absent),
                Failure::Foreign(_) => ("no answer as a store", advice.foreign),
            };
            let waited = began.elapsed();
            JobError::Store {
                address: name.clone(),
                problem: format!("{answer} within {waited:.1?} ({failure}). {advice}"),
            }
        })
    }

    fn open(
        address: SocketAddrV4,
        name: &str,
        protocol: Option<Protocol>,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now());
            left.clamp(AGAIN, ANSWER)
        };
        let open = |protocol| -> io::Result<Self> {
            // A short attempt: a notice follows it.
            let stream = TcpStream::connect_timeout(&address.into(), left().min(SILENT))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(left()))?;
            Ok(Self {
                stream,
                protocol,
                name: name.to_owned(),
                address,
            })
        };
        if protocol != Some(Protocol::V1) {
            let client = open(Protocol::V2).map_err(Failure::Absent)?;
            match client.validated() {
                Ok(client) => return Ok(client),
                Err(error) if protocol.is_none() && is_closed(&error) => {}
                Err(error) => return Err(Failure::Foreign(error)),
            }
        }
        let client = open(Protocol::V1).map_err(Failure::Absent)?;
        client.validated().map_err(Failure::Foreign)
    }

    /// Checks that a store of this version answers, by its number of keys.
    fn validated(mut self) -> io::Result<Self> {
        let keys = match self.protocol {
            Protocol::V2 => self.validate()?,
            Protocol::V1 => {
                let request = self.request(Request::Keys);
                self.stream.write_all(&request)?;
                self.read_number()?
            }
        };
        // Other programs send text, which is a large number.
        if !(0..1 << 32).contains(&keys) {
            return Err(ErrorKind::InvalidData.into());
        }
        self.stream.set_read_timeout(Some(ANSWER))?;
        Ok(self)
    }

    /// Begins a connection of version 2.
    ///
    /// A server of version 1 takes the bytes for a SET with a key of 5 × 10^17 bytes, has no memory for that,
    /// and closes the connection. It needs all eight bytes of that length: with fewer it would wait for the
    /// rest, and serve no other client meanwhile. So the number of keys is requested four times.
    fn validate(&mut self) -> io::Result<i64> {
        const TIMES: usize = 4;
        let mut request = vec![VALIDATE];
        request.extend(MAGIC.to_ne_bytes());
        request.extend([Request::Keys.number(Protocol::V2); TIMES]);
        self.stream.write_all(&request)?;
        self.stream.read_exact(&mut [0; 8 * (TIMES - 1)])?;
        self.read_number()
    }

    fn read_number(&mut self) -> io::Result<i64> {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes)?;
        Ok(i64::from_ne_bytes(bytes))
    }

    /// The store's address.
    pub(super) fn address(&self) -> SocketAddrV4 {
        self.address
    }

    #[cfg(test)]
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn fail(&self, error: &io::Error) -> JobError {
        let problem = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                "it does not answer: check that it is a torch.distributed TCPStore".to_owned()
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "it closed the connection: check that rank 0 or torchrun's agent still runs, or set \
                 ULTIMA_STORE_PROTOCOL to 1 (torch 1.13 and 2.0) or 2 (torch 2.1 and later)"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        JobError::Store {
            address: self.name.clone(),
            problem,
        }
    }

    fn request(&self, request: Request) -> Vec<u8> {
        vec![request.number(self.protocol)]
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        let written = self.stream.write_all(bytes);
        written.map_err(|error| self.fail(&error))
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], JobError> {
        let mut bytes = [0; N];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|error| self.fail(&error)).map(|()| bytes)
    }

    /// True if `key` has a value.
    fn has(&mut self, key: &str) -> Result<bool, JobError> {
        let mut request = self.request(Request::Check);
        request.extend(1u64.to_ne_bytes());
        put_key(&mut request, key);
        self.write(&request)?;
        let [answer] = self.read()?;
        Ok(answer == READY)
    }

    /// Waits for a value at `key`. Returns false at `deadline`.
    fn wait(&mut self, key: &str, deadline: Instant) -> Result<bool, JobError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return self.has(key);
        }
        let mut request = self.request(Request::Wait);
        request.extend(1u64.to_ne_bytes());
        put_key(&mut request, key);
        self.write(&request)?;
        let set = |client: &Self, limit| {
            let set = client.stream.set_read_timeout(Some(limit));
            set.map_err(|error| client.fail(&error))
        };
        set(self, left)?;
        let mut answer = [0];
        match self.stream.read_exact(&mut answer) {
            Ok(()) => {
                set(self, ANSWER)?;
                Ok(answer[0] == STOP_WAITING)
            }
            Err(error) if is_silent(&error) => {
                // The answer may still come, so the connection cannot be used for other requests.
                let again = Instant::now() + ANSWER;
                let opened = Self::open(self.address, &self.name, Some(self.protocol), again);
                *self = opened.map_err(|failure| JobError::Store {
                    address: self.name.clone(),
                    problem: failure.to_string(),
                })?;
                Ok(false)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }
}

impl Store for Client {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), JobError> {
        let mut request = self.request(Request::Set);
        put_key(&mut request, key);
        put(&mut request, value);
        self.write(&request)
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, JobError> {
        if !self.wait(key, deadline)? {
            return Ok(None);
        }
        let mut request = self.request(Request::Get);
        put_key(&mut request, key);
        self.write(&request)?;
        let len = u64::from_ne_bytes(self.read()?);
        if len > LONGEST {
            return Err(JobError::Store {
                address: self.name.clone(),
                problem: format!(
                    "it answers with a value of {len} bytes: check that it is a torch.distributed TCPStore"
                ),
            });
        }
        let mut value = vec![0; len as usize];
        let read = self.stream.read_exact(&mut value);
        read.map_err(|error| self.fail(&error))?;
        Ok(Some(value))
    }

    fn count(&mut self, key: &str) -> Result<i64, JobError> {
        let mut request = self.request(Request::Add);
        put_key(&mut request, key);
        request.extend(1i64.to_ne_bytes());
        self.write(&request)?;
        self.read().map(i64::from_ne_bytes)
    }
}

fn put(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend((bytes.len() as u64).to_ne_bytes());
    request.extend(bytes);
}

fn put_key(request: &mut Vec<u8>, key: &str) {
    put(request, format!("/{key}").as_bytes());
}

fn is_silent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// The first IPv4 address of `host`, which is `what`.
pub(super) fn resolve(what: &'static str, host: &str, port: u16) -> Result<SocketAddrV4, JobError> {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = plain.parse::<IpAddr>() {
        return match address {
            IpAddr::V4(ip) => Ok(SocketAddrV4::new(ip, port)),
            IpAddr::V6(ip) => Err(ipv6(what, &ip.to_string())),
        };
    }
    let fail = |error| JobError::Resolve {
        what,
        name: host.to_owned(),
        error,
    };
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(fail)?.collect();
    // Addresses on loopback last: Debian gives the host's own name 127.0.1.1.
    found.sort_by_key(|address| address.ip().is_loopback());
    let v4 = found.iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(*address),
        SocketAddr::V6(_) => None,
    });
    match (v4, found.first()) {
        (Some(address), _) => Ok(address),
        (None, Some(v6)) => Err(ipv6(what, &format!("{host} ({})", v6.ip()))),
        (None, None) => Err(fail(io::Error::from(ErrorKind::NotFound))),
    }
}

/// The error for an IPv6 address.
pub(super) fn ipv6(what: &str, address: &str) -> JobError {
    JobError::Ipv6 {
        what: what.to_owned(),
        address: address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// A turn of a scripted server: it receives exactly the first bytes, then answers with the second.
    type Turn = (&'static [u8], &'static [u8]);

    /// A 64-bit little-endian number, as torch's stores have on common hosts.
    const ONE: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

    /// Serves one connection for each script, and closes it at the script's end.
    fn scripted(scripts: &'static [&'static [Turn]]) -> (u16, thread::JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let server = thread::spawn(move || {
            for script in scripts {
                let (mut connection, _) = listener.accept().expect("a client");
                for (expected, answer) in *script {
                    let mut came = vec![0; expected.len()];
                    connection.read_exact(&mut came).expect("a request");
                    assert_eq!(came, *expected);
                    connection.write_all(answer).expect("answers");
                }
            }
        });
        (port, server)
    }

    const NO_ADVICE: Advice = Advice {
        absent: "",
        foreign: "",
    };

    fn connect(port: u16, protocol: Option<Protocol>) -> Client {
        let until = Instant::now() + ANSWER;
        Client::connect("127.0.0.1", port, protocol, until, NO_ADVICE, |_| ()).expect("connects")
    }

    fn use_it(mut client: Client) {
        client.set("k", b"v").expect("sets");
        assert_eq!(client.count("n").expect("adds"), 1);
        let until = Instant::now() + ANSWER;
        let value = client.get("k", until).expect("gets");
        assert_eq!(value.as_deref(), Some(&b"v"[..]));
        let past = Instant::now();
        assert_eq!(client.get("x", past).expect("checks"), None);
    }

    /// By `TCPStoreBackend.hpp` of torch 2.1 and later: VALIDATE with its magic, then every command one higher
    /// than in 1.13.
    #[test]
    fn version_2_is_spoken_to_the_letter() {
        const KEYS: [u8; 32] = [0; 32];
        const SCRIPT: [Turn; 6] = [
            (b"\x00\xce\xf7\x85\x3c\x07\x07\x07\x07", &KEYS),
            (b"\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v", b""),
            (b"\x04\x02\0\0\0\0\0\0\0/n\x01\0\0\0\0\0\0\0", &ONE),
            (b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k", b"\0"),
            (b"\x03\x02\0\0\0\0\0\0\0/k", b"\x01\0\0\0\0\0\0\0v"),
            (b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/x", b"\x01"),
        ];
        let (port, server) = scripted(&[&SCRIPT]);
        let client = connect(port, None);
        assert_eq!(client.protocol(), Protocol::V2);
        use_it(client);
        server.join().expect("the client kept to the script");
    }

    /// By `TCPStore.cpp` of torch 1.13, which closes a connection that begins with VALIDATE.
    #[test]
    fn version_1_is_detected_and_spoken_to_the_letter() {
        const REFUSES: [Turn; 1] = [(b"\x00\xce\xf7\x85\x3c\x07\x07\x07\x07", b"")];
        const SCRIPT: [Turn; 6] = [
            (b"\x06", &ONE),
            (b"\x00\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v", b""),
            (b"\x03\x02\0\0\0\0\0\0\0/n\x01\0\0\0\0\0\0\0", &ONE),
            (b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k", b"\0"),
            (b"\x02\x02\0\0\0\0\0\0\0/k", b"\x01\0\0\0\0\0\0\0v"),
            (b"\x04\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/x", b"\x01"),
        ];
        let (port, server) = scripted(&[&REFUSES, &SCRIPT]);
        let client = connect(port, None);
        assert_eq!(client.protocol(), Protocol::V1);
        use_it(client);
        server.join().expect("the client kept to the script");
    }
}
