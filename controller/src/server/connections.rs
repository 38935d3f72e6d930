//! The control API's open connections: how many there are, and how long one may stay silent.
//!
//! A connection has [`FIRST_REQUEST`] to carry its first request, TLS handshake included. Where no room is left, the oldest
//! connection without a request ends for a new one, so idle connections keep no client out. Agents and viewers leave some places to
//! operators. Later on, a connection ends when it has had no request in progress for a while (`Timers::connection`).
//!
//! Data that a client sends after a TLS handshake that the server refuses must not make the system reset the connection before the
//! client has read why (the alert), so such a connection is read until the client closes it, for at most [`LINGER`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use futures_util::{FutureExt as _, future};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::transport::server::Connected;

use super::lock::lock;

/// Time in which a connection must carry its first request.
pub const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// Time for a client to read why it was refused.
const LINGER: Duration = Duration::from_secs(1);

/// The most connections from one address, if the system allows so many files.
const MOST_FROM_ONE: usize = 4096;

/// The most connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections of all clients.
    pub total: usize,
    /// The most connections from one IP address.
    pub from_one: usize,
    /// The most connections of agents and viewers. The other places are for operators.
    pub shared: usize,
}

impl Limits {
    /// The limits of a process that may have `files` files open. An eighth, and at least 16, is left for switches and the
    /// store.
    pub fn of(files: usize) -> Self {
        let total = files.saturating_sub((files / 8).max(16)).max(4);
        Limits {
            total,
            from_one: total.div_ceil(2).min(MOST_FROM_ONE),
            shared: total - total.div_ceil(4),
        }
    }
}

/// The open connections of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct Connections {
    limits: Limits,
    /// The longest time without a request in progress.
    idle: Duration,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// The number of connections so far.
    count: u64,
    /// By age.
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    from: Option<IpAddr>,
    requests: Weak<AtomicU64>,
    /// True if it has one of the places of agents and viewers.
    is_shared: bool,
    /// Dropping it ends the connection.
    _end: oneshot::Sender<Infallible>,
}

impl Open {
    /// Ends the oldest connection without a request, of one address or of all. Returns false if there is none.
    fn evict(&mut self, from: Option<IpAddr>) -> bool {
        let is_silent = |entry: &Entry| count(&entry.requests) == 0;
        let of_it = |entry: &Entry| from.is_none() || entry.from == from;
        let silent = (self.entries.iter()).find(|(_, entry)| of_it(entry) && is_silent(entry));
        let serial = silent.map(|(serial, _)| *serial);
        serial.is_some_and(|serial| self.entries.remove(&serial).is_some())
    }
}

impl Connections {
    pub fn new(limits: Limits, idle: Duration) -> Self {
        Connections {
            limits,
            idle,
            open: Arc::default(),
        }
    }

    /// Takes up a connection from an IP address, or from a Unix socket. None if no room is left: it must be closed.
    pub fn admit(&self, stream: Box<dyn Io>, from: Option<IpAddr>) -> Option<Connection> {
        let mut open = self.lock();
        let from_it = |open: &Open| {
            let entries = open.entries.values();
            entries.filter(|entry| entry.from == from).count()
        };
        if from.is_some() && from_it(&open) >= self.limits.from_one && !open.evict(from) {
            return None;
        }
        if open.entries.len() >= self.limits.total && !open.evict(None) {
            return None;
        }
        open.count += 1;
        let serial = open.count;
        let (end, ended) = oneshot::channel();
        let requests = Arc::default();
        let entry = Entry {
            from,
            requests: Arc::downgrade(&requests),
            is_shared: false,
            _end: end,
        };
        open.entries.insert(serial, entry);
        drop(open);
        Some(Connection {
            stream,
            requests,
            seen: 0,
            is_remote: from.is_some_and(|from| !from.to_canonical().is_loopback()),
            longest: Box::pin(sleep(FIRST_REQUEST)),
            ended,
            _server: None,
            admission: Some(Admission {
                connections: self.clone(),
                serial,
            }),
        })
    }

    /// Ends the oldest connection without a request, because files are running out.
    pub fn evict(&self) {
        self.lock().evict(None);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

/// The number of requests of a connection so far.
fn count(requests: &Weak<AtomicU64>) -> u64 {
    let requests = requests.upgrade();
    requests.map_or(0, |it| it.load(Ordering::Relaxed))
}

/// The state of a connection that its requests carry.
#[derive(Clone, Debug)]
pub struct Peer {
    requests: Weak<AtomicU64>,
    is_remote: bool,
    connections: Connections,
    serial: u64,
}

impl Peer {
    /// True if the connection crosses a network: it comes neither from a loopback address nor over a Unix socket.
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Records a request, which is in progress until the result is dropped. None if it is the first one, and only places for operators
    /// are left.
    pub fn asks(&self, is_operator: bool) -> Option<InProgress> {
        let requests = self.requests.upgrade()?;
        let mut open = self.connections.lock();
        if requests.load(Ordering::Relaxed) == 0 {
            let shared = open.entries.values().filter(|entry| entry.is_shared);
            if !is_operator && shared.count() >= self.connections.limits.shared {
                return None;
            }
            let entry = open.entries.get_mut(&self.serial)?;
            entry.is_shared = !is_operator;
        }
        // Before another connection can take its place.
        requests.fetch_add(1, Ordering::Relaxed);
        Some(InProgress(requests))
    }
}

/// A request in progress: its connection stays open.
#[derive(Clone, Debug)]
pub struct InProgress(#[expect(dead_code, reason = "counted by its connection")] Arc<AtomicU64>);

/// A stream of bytes in both directions: TCP, or a Unix socket.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// An admitted connection.
pub struct Connection {
    stream: Box<dyn Io>,
    /// The number of requests so far. Each one in progress has a clone.
    requests: Arc<AtomicU64>,
    /// The number at the last check.
    seen: u64,
    is_remote: bool,
    /// The time until it must carry a request.
    longest: Pin<Box<Sleep>>,
    /// Ready when another connection needs the room.
    ended: oneshot::Receiver<Infallible>,
    /// Dropped with the connection.
    _server: Option<mpsc::Sender<Infallible>>,
    /// None after it has been silent for too long, or when another connection needs the room.
    admission: Option<Admission>,
}

struct Admission {
    connections: Connections,
    serial: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.serial);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let has_asked = self.requests.load(Ordering::Relaxed) > 0;
        let Some(admission) = self.admission.take().filter(|_| !has_asked) else {
            return;
        };
        if let Ok(runtime) = Handle::try_current() {
            let mut stream = mem::replace(&mut self.stream, Box::new(tokio::io::empty()));
            let ended = mem::replace(&mut self.ended, oneshot::channel().1);
            runtime.spawn(async move {
                // It stays admitted, and ends for a new connection as it did before.
                let _admission = admission;
                let discard = async {
                    stream.shutdown().await?;
                    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
                };
                let _ = future::select(pin!(timeout(LINGER, discard)), ended).await;
            });
        }
    }
}

impl Connection {
    /// Holds `server` until the connection closes, so that its server knows when to end.
    pub fn of_server(mut self, server: mpsc::Sender<Infallible>) -> Self {
        self._server = Some(server);
        self
    }

    /// Fails when another connection needs the room, or no first request has come in time. True when the connection has had no request
    /// in progress for too long.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let over = || io::ErrorKind::TimedOut.into();
        let admission = self.admission.as_ref().ok_or_else(over)?;
        let count = self.requests.load(Ordering::Relaxed);
        if count > 0 && (count != self.seen || Arc::strong_count(&self.requests) > 1) {
            self.seen = count;
            let idle = admission.connections.idle;
            self.longest.as_mut().reset(Instant::now() + idle);
        }
        let is_silent = self.longest.poll_unpin(context).is_ready();
        if self.ended.poll_unpin(context).is_ready() || (is_silent && count == 0) {
            self.admission = None;
            return Err(over());
        }
        Ok(is_silent)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let admission = self.admission.as_ref();
        let admission = admission.expect("it was admitted just now");
        Peer {
            requests: Arc::downgrade(&self.requests),
            is_remote: self.is_remote,
            connections: admission.connections.clone(),
            serial: admission.serial,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_silent = self.check(context)?;
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // A request that has arrived is answered.
        if is_silent && read.is_pending() {
            self.admission = None;
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;

    const LIMITS: Limits = Limits {
        total: 3,
        from_one: 2,
        shared: 1,
    };

    const IDLE: Duration = Duration::from_secs(30);

    fn address(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, last).into())
    }

    fn stream() -> Box<DuplexStream> {
        Box::new(duplex(64).0)
    }

    /// True if a read fails at once.
    fn is_ended(connection: &mut Connection) -> bool {
        let mut bytes = [0; 1];
        let read = connection.read(&mut bytes).now_or_never();
        matches!(read, Some(Err(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_and_one_with_a_request_stays() {
        let connections = Connections::new(LIMITS, IDLE);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (one, other) = duplex(64);
            theirs.push(other);
            ours.push(connections.admit(Box::new(one), address(1)).expect("room"));
        }
        ours[1].connect_info().asks(true);
        tokio::time::advance(FIRST_REQUEST).await;
        assert_eq!([0, 1].map(|at| is_ended(&mut ours[at])), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_in_progress_ends() {
        let connections = Connections::new(LIMITS, IDLE);
        let (one, _other) = duplex(64);
        let mut connection = connections.admit(Box::new(one), None).expect("room");
        let peer = connection.connect_info();
        let mut is_ended_after = async |pause: Duration| {
            tokio::time::advance(pause).await;
            is_ended(&mut connection)
        };
        let request = peer.asks(false).expect("room");
        assert!(!is_ended_after(Duration::ZERO).await);
        assert!(!is_ended_after(2 * IDLE).await, "a request is in progress");
        drop(request);
        assert!(!is_ended_after(IDLE / 2).await);
        // A short one, which no check sees in progress.
        peer.asks(false);
        for (pause, ends) in [(Duration::ZERO, false), (IDLE / 2, false), (IDLE / 2, true)] {
            assert_eq!(is_ended_after(pause).await, ends, "{pause:?}");
        }
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_silent_one() {
        let connections = Connections::new(LIMITS, IDLE);
        let (one, _other) = duplex(64);
        let mut silent = connections.admit(Box::new(one), address(1)).expect("room");
        let (two, _other) = duplex(64);
        let mut asked = connections.admit(Box::new(two), address(1)).expect("room");
        asked.connect_info().asks(true);
        let third = connections.admit(stream(), address(1)).expect("room");
        assert!(is_ended(&mut silent), "one address has two places");
        assert!(!is_ended(&mut asked));
        third.connect_info().asks(true);
        assert!(connections.admit(stream(), address(1)).is_none());
        // Another address has the third place of all, but not a fourth.
        let other = connections.admit(stream(), address(2)).expect("room");
        other.connect_info().asks(true);
        assert!(connections.admit(stream(), None).is_none());
        drop(asked);
        assert!(connections.admit(stream(), None).is_some());
    }

    #[tokio::test]
    async fn agents_and_viewers_leave_places_to_operators() {
        let connections = Connections::new(LIMITS, IDLE);
        let admit = |last| {
            let connection = connections.admit(stream(), address(last));
            connection.expect("room")
        };
        let (one, two) = (admit(1), admit(2));
        let (first, second) = (one.connect_info(), two.connect_info());
        assert!(first.asks(false).is_some() && first.asks(false).is_some());
        let refused = second.asks(false);
        assert!(refused.is_none(), "the place of agents is taken");
        // It ends for an operator's connection.
        let operators = [admit(3), admit(4)];
        for operator in &operators {
            operator.connect_info().asks(true).expect("room");
        }
        assert!(connections.admit(stream(), address(5)).is_none());
        drop((one, operators));
        let next = admit(6);
        assert!(next.connect_info().asks(false).is_some());
    }

    #[test]
    fn some_files_are_left_for_switches() {
        for (files, total) in [(8, 4), (32, 16), (1024, 896), (1 << 20, 917_504)] {
            let limits = Limits::of(files);
            assert_eq!(limits.total, total, "{files}");
            assert!((1..=MOST_FROM_ONE).contains(&limits.from_one));
            assert!(limits.from_one < limits.total && limits.shared < limits.total);
        }
    }
}
