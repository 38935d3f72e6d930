//! The lock for changes of the desired state, and the right to write to a switch. Requests change
//! the desired state one at a time. A reroute takes this right at all switches, and interrupts writes in progress for it:
//! the switches' tasks then write its steps, and nothing else.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

use crate::p4rt::{ChangeDeadline, ChangeQueue, SwitchClient, Waiting};

/// The most requests that wait for others.
pub const WAITING: usize = 1000;

/// The locks of requests and of reroutes, which do not wait for each other.
pub struct ChangeLock {
    /// A permit for each request that may wait.
    places: Semaphore,
    requests: Mutex<()>,
    reroutes: Mutex<()>,
    /// Waiting reroutes.
    queue: ChangeQueue,
}

/// The right of a request to change the desired state.
pub type Changes<'a> = MutexGuard<'a, ()>;

/// The right of a reroute to decide what all switches' tasks write.
pub struct Reroute<'a> {
    _reroute: MutexGuard<'a, ()>,
    _switches: Vec<MutexGuard<'a, ()>>,
}

/// The right to write to a switch, until a reroute interrupts it.
pub struct Writing<'a> {
    _switch: MutexGuard<'a, ()>,
    deadline: ChangeDeadline,
}

impl ChangeLock {
    /// Free locks. A write in progress has this time once a reroute waits.
    pub fn new(limit: Duration) -> Self {
        ChangeLock {
            places: Semaphore::new(WAITING),
            requests: Mutex::default(),
            reroutes: Mutex::default(),
            queue: ChangeQueue::new(limit),
        }
    }

    /// Waits for all earlier requests; none if [too many](WAITING) wait.
    pub async fn request(&self) -> Option<Changes<'_>> {
        let _place = self.places.try_acquire().ok()?;
        Some(self.requests.lock().await)
    }

    /// Takes all switches for a reroute. It waits for writes in progress. Nothing interrupts a
    /// reroute.
    pub async fn reroute<'a>(
        &'a self,
        switches: impl Iterator<Item = &'a Mutex<()>>,
    ) -> Reroute<'a> {
        Reroute {
            _reroute: self.reroutes.lock().await,
            _switches: join_all(switches.map(Mutex::lock)).await,
        }
    }

    /// Waits for the reroute in progress. No other begins until the result is dropped.
    pub async fn no_reroute(&self) -> MutexGuard<'_, ()> {
        self.reroutes.lock().await
    }

    /// Interrupts the writes in progress after [a limited time](super::timers::Timers::change), until
    /// this is dropped.
    pub fn interrupt(&self) -> Waiting<'_> {
        self.queue.wait()
    }

    /// Takes a switch to write to it.
    pub async fn write_to<'a>(&self, switch: &'a Mutex<()>) -> Writing<'a> {
        let _switch = switch.lock().await;
        let deadline = self.queue.deadline();
        Writing { _switch, deadline }
    }
}

impl Writing<'_> {
    /// The same connection, whose calls are all interrupted when a reroute waits for them.
    pub fn client(&self, client: &SwitchClient) -> SwitchClient {
        client.with_deadline(self.deadline.clone())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::server::timers::Timers;

    /// A task writes to a switch, and another one waits for it.
    #[tokio::test]
    async fn a_reroute_overtakes_waiting_writes() {
        let lock = ChangeLock::new(Timers::default().change);
        let switch = Mutex::new(());
        let writing = lock.write_to(&switch).await;
        // A request changes the desired state meanwhile, and delays no reroute.
        let request = lock.request().await;
        let interrupt = lock.interrupt();
        let mut moves = Box::pin(lock.reroute([&switch].into_iter()));
        assert!(moves.as_mut().now_or_never().is_none());
        let mut next = Box::pin(lock.write_to(&switch));
        assert!(next.as_mut().now_or_never().is_none());
        writing.deadline.passed().await;
        drop(writing);
        let moving = moves.as_mut().now_or_never().expect("the reroute is first");
        drop(interrupt);
        assert!(next.as_mut().now_or_never().is_none());
        drop((moving, request));
        assert!(next.as_mut().now_or_never().is_some());
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

    #[tokio::test]
    async fn reroutes_come_one_after_the_other() {
        let lock = ChangeLock::new(Timers::default().change);
        let switches: Vec<Mutex<()>> = (0..300).map(|_| Mutex::default()).collect();
        let first = lock.reroute(switches.iter()).await;
        let mut second = Box::pin(lock.reroute(switches.iter()));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        second.await;
    }
}
