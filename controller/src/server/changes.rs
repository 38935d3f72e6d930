//! The lock for changes of the desired state, and the right to write to a switch. Requests change
//! the desired state one at a time. Each switch has one writer at a time: its task, or a reroute,
//! which writes to all switches in a common order and therefore interrupts the others.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

use super::journal::{Journal, KeepError};
use crate::p4rt::{ChangeDeadline, ChangeQueue, SwitchClient};
use crate::store::Change;

/// The most requests that wait for the lock.
pub const WAITING: usize = 1000;

/// The lock for changes of the desired state. Requests queue for it; a reroute waits only for the
/// present holder and interrupts it.
pub struct ChangeLock {
    /// A permit for each request that may wait.
    places: Semaphore,
    /// Held by the first request in the queue, so that at most one is ahead of a reroute.
    turn: Mutex<()>,
    changes: Mutex<()>,
    /// Waiting reroutes, and the time of the next expected one.
    reroutes: ChangeQueue,
}

/// The lock. While it is held, the desired state does not change.
struct Turn<'a> {
    // Released first: the next request then queues behind a waiting reroute.
    _next: Option<MutexGuard<'a, ()>>,
    _changes: MutexGuard<'a, ()>,
}

/// The lock as requests hold it: reroutes interrupt them.
pub struct Changes<'a> {
    turn: Turn<'a>,
    deadline: ChangeDeadline,
}

/// The lock and all switches, for a reroute.
pub struct Reroute<'a> {
    _turn: Turn<'a>,
    _switches: Vec<MutexGuard<'a, ()>>,
}

/// The right to write to a switch, until a reroute interrupts it.
pub struct Writing<'a> {
    _switch: MutexGuard<'a, ()>,
    deadline: ChangeDeadline,
}

impl ChangeLock {
    /// A free lock. A request in progress has this time once a reroute waits.
    pub fn new(limit: Duration) -> Self {
        ChangeLock {
            places: Semaphore::new(WAITING),
            turn: Mutex::default(),
            changes: Mutex::default(),
            reroutes: ChangeQueue::new(limit),
        }
    }

    /// [Takes](Self::take) the lock for a request; none if [too many](WAITING) wait.
    pub async fn request(&self) -> Option<Changes<'_>> {
        let _place = self.places.try_acquire().ok()?;
        Some(self.take().await)
    }

    /// Waits for all earlier requests, and for the [expected](Self::expect) reroute.
    pub async fn take(&self) -> Changes<'_> {
        let next = self.turn.lock().await;
        let changes = loop {
            self.reroutes.begin_allowed().await;
            let changes = self.changes.lock().await;
            // Another reroute may have taken over meanwhile.
            if self.reroutes.may_begin() {
                break changes;
            }
        };
        let turn = Turn {
            _next: Some(next),
            _changes: changes,
        };
        let deadline = self.reroutes.deadline();
        Changes { turn, deadline }
    }

    /// Announces the next reroute, or that there is none. Changes in progress have until then;
    /// others wait for it.
    pub fn expect(&self, at: Option<Instant>) {
        self.reroutes.expect(at.map(Into::into));
    }

    /// Takes the lock and these switches for a reroute. It waits for a request and for writes in
    /// progress, which are interrupted after [a limited time](super::timers::Timers::change), or at
    /// the [announced](Self::expect) time. Nothing interrupts a reroute.
    pub async fn take_for_reroute<'a>(
        &'a self,
        switches: impl Iterator<Item = &'a Mutex<()>>,
    ) -> Reroute<'a> {
        let _waiting = self.reroutes.wait();
        let turn = Turn {
            _next: None,
            _changes: self.changes.lock().await,
        };
        Reroute::new(turn, switches).await
    }

    /// Takes a switch to write to it, after the [expected](Self::expect) reroute.
    pub async fn write_to<'a>(&self, switch: &'a Mutex<()>) -> Writing<'a> {
        loop {
            self.reroutes.begin_allowed().await;
            let held = switch.lock().await;
            if self.reroutes.may_begin() {
                let deadline = self.reroutes.deadline();
                break Writing {
                    _switch: held,
                    deadline,
                };
            }
        }
    }
}

impl<'a> Reroute<'a> {
    async fn new(turn: Turn<'a>, switches: impl Iterator<Item = &'a Mutex<()>>) -> Self {
        Reroute {
            _turn: turn,
            _switches: join_all(switches.map(Mutex::lock)).await,
        }
    }
}

impl Writing<'_> {
    /// The same connection, whose calls are all interrupted when a reroute waits for them.
    pub fn client(&self, client: &SwitchClient) -> SwitchClient {
        client.with_deadline(self.deadline.clone())
    }
}

impl<'a> Changes<'a> {
    /// Takes these switches, too, for a reroute that interrupts no write.
    pub async fn with(self, switches: impl Iterator<Item = &'a Mutex<()>>) -> Reroute<'a> {
        Reroute::new(self.turn, switches).await
    }

    /// Waits for a future; none if a reroute interrupts it.
    pub async fn unless_interrupted<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = wait => Some(done),
            () = self.deadline.passed() => None,
        }
    }

    /// Commits a change, unless a reroute interrupts it.
    ///
    /// # Errors
    /// See [`Journal::write`].
    pub async fn write(&self, journal: &Journal, change: Change) -> Result<(), KeepError> {
        journal.write_until(change, self.deadline.passed()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::server::journal::Lead;
    use crate::server::journal::testing::Gated;
    use crate::server::timers::Timers;

    fn none<'a>() -> std::iter::Empty<&'a Mutex<()>> {
        std::iter::empty()
    }

    /// A task writes to a switch, and another one waits for it.
    #[tokio::test]
    async fn a_reroute_overtakes_waiting_writes() {
        let lock = ChangeLock::new(Timers::default().change);
        let switch = Mutex::new(());
        let writing = lock.write_to(&switch).await;
        // A request changes the desired state meanwhile.
        drop(lock.take().await);
        let mut moves = Box::pin(lock.take_for_reroute([&switch].into_iter()));
        assert!(moves.as_mut().now_or_never().is_none());
        let mut next = Box::pin(lock.write_to(&switch));
        assert!(next.as_mut().now_or_never().is_none());
        writing.deadline.passed().await;
        drop(writing);
        let moving = moves.as_mut().now_or_never().expect("the reroute is first");
        assert!(next.as_mut().now_or_never().is_none());
        drop(moving);
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_reroute_overtakes_waiting_requests() {
        let lock = ChangeLock::new(Timers::default().change);
        let held = lock.take().await;
        let mut first = Box::pin(lock.take());
        let mut second = Box::pin(lock.take());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        let mut moves = Box::pin(lock.take_for_reroute(none()));
        assert!(moves.as_mut().now_or_never().is_none());
        drop(held);
        // A woken request checks for reroutes.
        assert!(first.as_mut().now_or_never().is_none());
        let moving = moves.as_mut().now_or_never().expect("the reroute is first");
        assert!(first.as_mut().now_or_never().is_none());
        drop(moving);
        let held = first
            .as_mut()
            .now_or_never()
            .expect("the first request is next");
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_queue_of_requests_is_bounded() {
        let lock = ChangeLock::new(Timers::default().change);
        let held = lock.request().await.expect("no other waits");
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(lock.request())).collect();
        for request in &mut waiting {
            assert!(request.as_mut().now_or_never().is_none());
        }
        assert!(lock.request().now_or_never().expect("an answer").is_none());
        // A client goes.
        waiting.pop();
        let mut last = Box::pin(lock.request());
        assert!(last.as_mut().now_or_never().is_none());
        drop((held, waiting));
        assert!(last.await.is_some());
    }

    /// The holder continues, as the last one before the reroute.
    #[tokio::test]
    async fn no_request_begins_before_an_expected_reroute() {
        let lock = ChangeLock::new(Timers::default().change);
        let held = lock.take().await;
        let mut next = Box::pin(lock.take());
        assert!(next.as_mut().now_or_never().is_none());
        let comes = Instant::now() + Duration::from_secs(3600);
        lock.expect(Some(comes));
        drop(held);
        assert!(next.as_mut().now_or_never().is_none());
        let moving = lock.take_for_reroute(none()).now_or_never();
        assert!(moving.is_some(), "no request has begun");
        drop(moving);
        assert!(next.as_mut().now_or_never().is_none());
        // The reroute is cancelled, or has ended.
        lock.expect(None);
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_reroute_interrupts_no_request() {
        let lock = ChangeLock::new(Timers::default().change);
        let held = lock.take().await;
        let mut moves = Box::pin(lock.take_for_reroute(none()));
        assert!(moves.as_mut().now_or_never().is_none());
        assert_eq!(lock.reroutes.count(), 1);
        drop(moves);
        assert_eq!(lock.reroutes.count(), 0);
        drop(held);
    }

    /// The store does not answer: a request that waits for it is refused as soon as a reroute waits.
    #[tokio::test]
    async fn a_busy_store_delays_no_reroute() {
        let store = Gated::with(0);
        let journal = Journal::new(Arc::<Gated>::clone(&store), Lead::Alone);
        let lock = ChangeLock::new(Timers::default().change);
        let request = async {
            let changes = lock.take().await;
            changes.write(&journal, Change::Remove(vec![2])).await
        };
        let moves = async {
            store.asked(1).await;
            drop(lock.take_for_reroute(none()).await);
        };
        // Without a reroute the store is waited for.
        let mut patient = Box::pin(journal.write(Change::Remove(vec![1])));
        assert!(patient.as_mut().now_or_never().is_none());
        let both = async { tokio::join!(request, moves) };
        tokio::select! {
            biased;
            (refused, ()) = both => assert!(matches!(refused, Err(KeepError::GivenUp))),
            _ = patient => panic!("the store has answered"),
        }
    }
}
