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

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

use backon::{BlockingRetryable as _, ConstantBuilder};

use super::super::JobError;

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
/// The longest time that the server may take for an answer that depends on no other rank.
const ANSWER: Duration = Duration::from_secs(30);

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
    /// detects the version. The error at `deadline` ends with `advice`.
    pub(super) fn connect(
        host: &str,
        port: u16,
        protocol: Option<Protocol>,
        deadline: Instant,
        advice: &str,
    ) -> Result<Self, JobError> {
        let began = Instant::now();
        let name = format!("{host}:{port}");
        let connect = || {
            let address = resolve("the rendezvous store's host", host, port)?;
            Self::open(address, &name, protocol, deadline)
        };
        let may_pass = |error: &JobError| !matches!(error, JobError::Ipv6 { .. });
        let pauses = ConstantBuilder::new().with_delay(AGAIN);
        let connected = connect.retry(pauses.without_max_times());
        let connected =
            connected.when(|error| may_pass(error) && Instant::now() + AGAIN < deadline);
        connected.call().map_err(|error| {
            let problem = match error {
                JobError::Ipv6 { .. } => return error,
                JobError::Store { problem, .. } => problem,
                error => error.to_string(),
            };
            let waited = began.elapsed();
            JobError::Store {
                address: name.clone(),
                problem: format!("no answer within {waited:.1?} ({problem}). {advice}"),
            }
        })
    }

    fn open(
        address: SocketAddrV4,
        name: &str,
        protocol: Option<Protocol>,
        deadline: Instant,
    ) -> Result<Self, JobError> {
        let fail = |error: io::Error| JobError::Store {
            address: name.to_owned(),
            problem: error.to_string(),
        };
        let open = |protocol| -> Result<Self, JobError> {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = left.clamp(AGAIN, ANSWER);
            let stream = TcpStream::connect_timeout(&address.into(), left).map_err(fail)?;
            stream.set_nodelay(true).map_err(fail)?;
            stream.set_read_timeout(Some(ANSWER)).map_err(fail)?;
            Ok(Self {
                stream,
                protocol,
                name: name.to_owned(),
                address,
            })
        };
        if protocol != Some(Protocol::V1) {
            let mut client = open(Protocol::V2)?;
            match client.validate() {
                Ok(()) => return Ok(client),
                Err(error) if protocol.is_none() && is_closed(&error) => {}
                Err(error) => return Err(fail(error)),
            }
        }
        let mut client = open(Protocol::V1)?;
        client.write(&[Request::Keys.number(Protocol::V1)])?;
        client.number()?;
        Ok(client)
    }

    /// Begins a connection of version 2.
    ///
    /// A server of version 1 takes the bytes for a SET with a key of 5 × 10^17 bytes, has no memory for that,
    /// and closes the connection. It needs all eight bytes of that length: with fewer it would wait for the
    /// rest, and serve no other client meanwhile. So the number of keys is requested four times.
    fn validate(&mut self) -> io::Result<()> {
        const TIMES: usize = 4;
        let mut request = vec![VALIDATE];
        request.extend(MAGIC.to_ne_bytes());
        request.extend([Request::Keys.number(Protocol::V2); TIMES]);
        self.stream.write_all(&request)?;
        self.stream.read_exact(&mut [0; 8 * TIMES])
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

    fn number(&mut self) -> Result<i64, JobError> {
        self.read().map(i64::from_ne_bytes)
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
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // The answer may still come, so the connection cannot be used for other requests.
                let again = Instant::now() + ANSWER;
                *self = Self::open(self.address, &self.name, Some(self.protocol), again)?;
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
        self.number()
    }
}

fn put(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend((bytes.len() as u64).to_ne_bytes());
    request.extend(bytes);
}

fn put_key(request: &mut Vec<u8>, key: &str) {
    put(request, format!("/{key}").as_bytes());
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

    fn connect(port: u16, protocol: Option<Protocol>) -> Client {
        let until = Instant::now() + ANSWER;
        Client::connect("127.0.0.1", port, protocol, until, "").expect("connects")
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
