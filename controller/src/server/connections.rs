//! The control API's open connections: how many there are, and how long one may stay silent.
//!
//! A connection has [`FIRST_REQUEST`] to carry its first request, TLS handshake included. Where no room is left, the oldest
//! connection without a request ends for a new one, so idle connections keep no client out.
//!
//! Data that a client sends after a TLS handshake that the server refuses must not make the system reset the connection before the
//! client has read why (the alert), so such a connection is read until the client closes it, for at most [`LINGER`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use futures_util::{FutureExt as _, future};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep, timeout};
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
}

impl Limits {
    /// The limits of a process that may have `files` files open. An eighth, and at least 16, is left for switches and the
    /// store.
    pub fn of(files: usize) -> Self {
        let total = files.saturating_sub((files / 8).max(16)).max(4);
        let from_one = total.div_ceil(2).min(MOST_FROM_ONE);
        Limits { total, from_one }
    }
}

/// The open connections of a server. Clones share them.
#[derive(Clone, Debug)]
pub struct Connections {
    limits: Limits,
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
    has_asked: Arc<AtomicBool>,
    /// Dropping it ends the connection.
    _end: oneshot::Sender<Infallible>,
}

impl Open {
    /// Ends the oldest connection without a request, of one address or of all. Returns false if there is none.
    fn evict(&mut self, from: Option<IpAddr>) -> bool {
        let is_silent = |entry: &Entry| !entry.has_asked.load(Ordering::Relaxed);
        let of_it = |entry: &Entry| from.is_none() || entry.from == from;
        let silent = (self.entries.iter()).find(|(_, entry)| of_it(entry) && is_silent(entry));
        let serial = silent.map(|(serial, _)| *serial);
        serial.is_some_and(|serial| self.entries.remove(&serial).is_some())
    }
}

impl Connections {
    pub fn new(limits: Limits) -> Self {
        Connections {
            limits,
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
        let peer = Peer {
            is_remote: from.is_some_and(|from| !from.to_canonical().is_loopback()),
            ..Peer::default()
        };
        let entry = Entry {
            from,
            has_asked: Arc::clone(&peer.has_asked),
            _end: end,
        };
        open.entries.insert(serial, entry);
        drop(open);
        Some(Connection {
            stream,
            peer,
            silence: Some(Silence {
                longest: Box::pin(sleep(FIRST_REQUEST)),
                ended,
            }),
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

/// The state of a connection that its requests carry.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    has_asked: Arc<AtomicBool>,
    is_remote: bool,
}

impl Peer {
    /// True if the connection crosses a network: it comes neither from a loopback address nor over a Unix socket.
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Records a request. The connection may then stay silent.
    pub fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }
}

/// A stream of bytes in both directions: TCP, or a Unix socket.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// An admitted connection.
pub struct Connection {
    stream: Box<dyn Io>,
    peer: Peer,
    /// None after the first request.
    silence: Option<Silence>,
    /// Dropped with the connection.
    _server: Option<mpsc::Sender<Infallible>>,
    /// None after it has been silent for too long, or when another connection needs the room.
    admission: Option<Admission>,
}

struct Silence {
    longest: Pin<Box<Sleep>>,
    /// Ready when another connection needs the room.
    ended: oneshot::Receiver<Infallible>,
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
        let (Some(silence), Some(admission)) = (self.silence.take(), self.admission.take()) else {
            return;
        };
        let has_asked = self.peer.has_asked.load(Ordering::Relaxed);
        if !has_asked && let Ok(runtime) = Handle::try_current() {
            let mut stream = mem::replace(&mut self.stream, Box::new(tokio::io::empty()));
            runtime.spawn(async move {
                // It stays admitted, and ends for a new connection as it did before.
                let _admission = admission;
                let discard = async {
                    stream.shutdown().await?;
                    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
                };
                let _ = future::select(pin!(timeout(LINGER, discard)), silence.ended).await;
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

    /// Fails when the connection has been silent for too long.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(silence) = &mut self.silence {
            let is_evicted = silence.ended.poll_unpin(context).is_ready();
            let has_asked = self.peer.has_asked.load(Ordering::Relaxed);
            let is_over = !has_asked && silence.longest.poll_unpin(context).is_ready();
            if is_evicted || is_over {
                self.admission = None;
            }
            if has_asked || is_evicted || is_over {
                self.silence = None;
            }
        }
        match self.admission {
            None => Err(io::ErrorKind::TimedOut.into()),
            Some(_) => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
    };

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
        let connections = Connections::new(LIMITS);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (one, other) = duplex(64);
            theirs.push(other);
            ours.push(connections.admit(Box::new(one), address(1)).expect("room"));
        }
        ours[1].connect_info().asks();
        tokio::time::advance(FIRST_REQUEST).await;
        assert_eq!([0, 1].map(|at| is_ended(&mut ours[at])), [true, false]);
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_silent_one() {
        let connections = Connections::new(LIMITS);
        let (one, _other) = duplex(64);
        let mut silent = connections.admit(Box::new(one), address(1)).expect("room");
        let (two, _other) = duplex(64);
        let mut asked = connections.admit(Box::new(two), address(1)).expect("room");
        asked.connect_info().asks();
        let third = connections.admit(stream(), address(1)).expect("room");
        assert!(is_ended(&mut silent), "one address has two places");
        assert!(!is_ended(&mut asked));
        third.connect_info().asks();
        assert!(connections.admit(stream(), address(1)).is_none());
        // Another address has the third place of all, but not a fourth.
        let other = connections.admit(stream(), address(2)).expect("room");
        other.connect_info().asks();
        assert!(connections.admit(stream(), None).is_none());
        drop(asked);
        assert!(connections.admit(stream(), None).is_some());
    }

    #[test]
    fn some_files_are_left_for_switches() {
        for (files, total) in [(8, 4), (32, 16), (1024, 896), (1 << 20, 917_504)] {
            let limits = Limits::of(files);
            assert_eq!(limits.total, total, "{files}");
            assert!((1..=MOST_FROM_ONE).contains(&limits.from_one));
            assert!(limits.from_one < limits.total);
        }
    }
}
