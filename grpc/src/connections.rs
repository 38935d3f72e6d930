//! The open connections of a server: how many there are, and how long one may stay silent.
//!
//! A connection has [`FIRST_REQUEST`] to carry its first request, TLS handshake included. Where no room is left, the oldest
//! connection without a request ends for a new one, so idle connections keep no client out. Other clients leave some places to
//! operators. Later on, a connection ends when it has had no request in progress for a while.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Body;
use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fair::Origin;

/// Time in which a connection must carry its first request.
pub const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// Time for a client to read why its connection ends.
pub const LINGER: Duration = Duration::from_secs(1);

/// The most connections from one address, if the system allows so many files.
const MOST_FROM_ONE: usize = 4096;

/// The most connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections of all clients.
    pub total: usize,
    /// The most connections from one IP address.
    pub from_one: usize,
    /// The most connections of clients other than operators.
    pub shared: usize,
}

impl Limits {
    /// Returns the limits for the open files that this process may have.
    pub fn of_process() -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Limits::of(usize::try_from(files).unwrap_or(usize::MAX))
    }

    /// Returns the limits of a process that may have `files` files open. An eighth, and at least 16, is left for other files.
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
    /// The number of requests so far.
    requests: u64,
    in_progress: u32,
    /// The end of the last request; before the first one, the start of the connection.
    since: Instant,
    /// True if it has one of the places of clients other than operators.
    is_shared: bool,
    /// Dropping it ends the connection.
    _end: oneshot::Sender<Infallible>,
}

impl Open {
    /// Ends the oldest connection without a request, of one address or of all. Returns false if there is none.
    fn evict(&mut self, from: Option<IpAddr>) -> bool {
        let of_it = |entry: &Entry| from.is_none() || entry.from == from;
        let silent = (self.entries.iter()).find(|(_, entry)| of_it(entry) && entry.requests == 0);
        let serial = silent.map(|(serial, _)| *serial);
        serial.is_some_and(|serial| self.entries.remove(&serial).is_some())
    }
}

impl Connections {
    /// Returns a server's connections, which may have no request in progress for `idle`.
    pub fn new(limits: Limits, idle: Duration) -> Self {
        Connections {
            limits,
            idle,
            open: Arc::default(),
        }
    }

    /// Takes up a connection from an IP address, or from a Unix socket. None if no room is left: it must be closed.
    pub fn admit(&self, from: Option<IpAddr>) -> Option<(Place, Evicted)> {
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
        let (end, evicted) = oneshot::channel();
        let entry = Entry {
            from,
            requests: 0,
            in_progress: 0,
            since: Instant::now(),
            is_shared: false,
            _end: end,
        };
        open.entries.insert(serial, entry);
        let connections = self.clone();
        Some((
            Place(Peer {
                connections,
                serial,
            }),
            evicted,
        ))
    }

    /// Ends the oldest connection without a request, because files are running out.
    pub fn evict(&self) {
        self.lock().evict(None);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // No thread panics while it holds the lock, and every change is complete.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, as its requests name it.
#[derive(Clone, Debug)]
pub struct Peer {
    connections: Connections,
    serial: u64,
}

impl Peer {
    /// Returns the origin of the connection's requests.
    pub fn origin(&self) -> Origin {
        let open = self.connections.lock();
        Origin {
            address: open.entries.get(&self.serial).and_then(|it| it.from),
            connection: self.serial,
        }
    }

    /// Records a request, which is in progress until the result is dropped. None if it is the first one, and only places for operators
    /// are left, or another connection has got the place.
    pub fn asks(&self, is_operator: bool) -> Option<InProgress> {
        let mut open = self.connections.lock();
        let is_first = open.entries.get(&self.serial)?.requests == 0;
        if is_first && !is_operator {
            let shared = open.entries.values().filter(|entry| entry.is_shared);
            if shared.count() >= self.connections.limits.shared {
                return None;
            }
        }
        let entry = open.entries.get_mut(&self.serial)?;
        entry.is_shared |= is_first && !is_operator;
        entry.requests += 1;
        entry.in_progress += 1;
        Some(InProgress(self.clone()))
    }
}

/// A request in progress: its connection stays open.
#[derive(Debug)]
pub struct InProgress(Peer);

impl InProgress {
    /// Returns the body of the answer. The request is in progress until its last frame is on its way.
    pub fn until_sent<B: Body>(self, body: B) -> impl Body<Data = B::Data, Error = B::Error> {
        body.map_frame(move |frame| {
            let _ = &self;
            frame
        })
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let Peer {
            connections,
            serial,
        } = &self.0;
        if let Some(entry) = connections.lock().entries.get_mut(serial) {
            entry.in_progress -= 1;
            entry.since = Instant::now();
        }
    }
}

/// Ready when another connection needs the room.
pub type Evicted = oneshot::Receiver<Infallible>;

/// The place of an admitted connection, until it is dropped.
pub struct Place(Peer);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.lock().entries.remove(&self.0.serial);
    }
}

impl Place {
    /// The connection, for its requests.
    pub fn peer(&self) -> &Peer {
        &self.0
    }

    /// Waits until the connection has been silent for too long.
    pub async fn silent(&self) {
        let idle = self.0.connections.idle;
        while let Some(end) = self.end(FIRST_REQUEST, idle) {
            // The first request may come before that end.
            sleep_until(end.min(Instant::now() + idle)).await;
        }
    }

    /// Waits [`LINGER`], and for requests in progress.
    pub async fn drained(&self) {
        sleep(LINGER).await;
        while self.end(Duration::ZERO, LINGER).is_some() {
            sleep(LINGER).await;
        }
    }

    /// Returns the longest silence after a request.
    pub fn idle(&self) -> Duration {
        self.0.connections.idle
    }

    /// The earliest end of a silence of `idle`, or of `first` before the first request; none if it has passed.
    fn end(&self, first: Duration, idle: Duration) -> Option<Instant> {
        let (open, now) = (self.0.connections.lock(), Instant::now());
        let end = open.entries.get(&self.0.serial).map(|it| match it {
            Entry { requests: 0, .. } => it.since + first,
            Entry { in_progress: 0, .. } => it.since + idle,
            _ => now + idle,
        });
        end.filter(|end| *end > now)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::time::advance;

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

    fn is_silent(place: &Place) -> bool {
        pin!(place.silent())
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_and_one_with_a_request_stays() {
        let connections = Connections::new(LIMITS, IDLE);
        let places = [1, 2].map(|last| connections.admit(address(last)).expect("room").0);
        drop(places[1].peer().asks(true));
        advance(FIRST_REQUEST - Duration::from_millis(1)).await;
        assert_eq!(places.each_ref().map(is_silent), [false, false]);
        advance(Duration::from_millis(1)).await;
        assert_eq!(places.each_ref().map(is_silent), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_request_ends_the_wait_for_it() {
        let idle = FIRST_REQUEST / 10;
        let connections = Connections::new(LIMITS, idle);
        let (place, _evicted) = connections.admit(None).expect("room");
        let start = Instant::now();
        let asks = async {
            sleep(idle / 2).await;
            drop(place.peer().asks(true));
        };
        tokio::join!(place.silent(), asks);
        assert!(start.elapsed() <= 2 * idle, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_in_progress_ends() {
        let connections = Connections::new(LIMITS, IDLE);
        let (place, _evicted) = connections.admit(None).expect("room");
        let start = Instant::now();
        let request = place.peer().asks(false).expect("room");
        let answered = async {
            sleep(3 * IDLE + IDLE / 2).await;
            drop(request);
            sleep(IDLE / 2).await;
            // A short one.
            drop(place.peer().asks(false));
        };
        tokio::join!(place.silent(), answered);
        assert_eq!(start.elapsed(), 5 * IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ends_answers_requests_in_progress() {
        let connections = Connections::new(LIMITS, IDLE);
        let (place, _evicted) = connections.admit(None).expect("room");
        let start = Instant::now();
        place.drained().await;
        assert_eq!(start.elapsed(), LINGER);
        let request = place.peer().asks(false).expect("room");
        let answered = async {
            sleep(IDLE).await;
            drop(request);
        };
        tokio::join!(place.drained(), answered);
        assert!(start.elapsed() >= IDLE + 2 * LINGER);
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_silent_one() {
        let connections = Connections::new(LIMITS, IDLE);
        let (_silent, mut silent_ends) = connections.admit(address(1)).expect("room");
        let (asked, mut asked_ends) = connections.admit(address(1)).expect("room");
        drop(asked.peer().asks(true));
        let (third, _evicted) = connections.admit(address(1)).expect("room");
        assert!(silent_ends.try_recv() == Err(oneshot::error::TryRecvError::Closed));
        assert!(asked_ends.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        drop(third.peer().asks(true));
        assert!(connections.admit(address(1)).is_none());
        // Another address has the third place of all, but not a fourth.
        let (other, _evicted) = connections.admit(address(2)).expect("room");
        drop(other.peer().asks(true));
        assert!(connections.admit(None).is_none());
        drop(asked);
        assert!(connections.admit(None).is_some());
    }

    #[tokio::test]
    async fn agents_and_viewers_leave_places_to_operators() {
        let connections = Connections::new(LIMITS, IDLE);
        let admit = |last| connections.admit(address(last)).expect("room");
        let [one, two] = [admit(1), admit(2)];
        let (first, second) = (one.0.peer(), two.0.peer());
        assert!(first.asks(false).is_some() && first.asks(false).is_some());
        let refused = second.asks(false);
        assert!(refused.is_none(), "the place of agents is taken");
        // It ends for an operator's connection.
        let operators = [admit(3), admit(4)];
        for (operator, _) in &operators {
            operator.peer().asks(true).expect("room");
        }
        assert!(second.asks(true).is_none(), "another has got its place");
        assert!(connections.admit(address(5)).is_none());
        drop((one, operators));
        let next = admit(6);
        assert!(next.0.peer().asks(false).is_some());
    }

    #[test]
    fn some_files_are_left_for_others() {
        for (files, total) in [(8, 4), (32, 16), (1024, 896), (1 << 20, 917_504)] {
            let limits = Limits::of(files);
            assert_eq!(limits.total, total, "{files}");
            assert!((1..=MOST_FROM_ONE).contains(&limits.from_one));
            assert!(limits.from_one < limits.total && limits.shared < limits.total);
        }
    }
}
