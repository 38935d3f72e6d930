//! The deadline of a change for which other changes wait, and the queue of these.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The queue of changes that wait for the current one, or will.
#[derive(Debug)]
pub struct ChangeQueue {
    waits: watch::Sender<Waits>,
    /// The time that the current change has for all its calls together, from when the wait began.
    limit: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// The number of waiting changes.
    count: usize,
    /// Start of the time in which a change always waited; none while no change waits.
    since: Option<Instant>,
}

/// A place in the queue, until it is dropped.
pub struct Waiting<'a>(&'a ChangeQueue);

impl ChangeQueue {
    /// An empty queue, in which the current change has this time once another waits.
    pub fn new(limit: Duration) -> Self {
        ChangeQueue {
            waits: watch::Sender::default(),
            limit,
        }
    }

    /// Joins the queue.
    pub fn wait(&self) -> Waiting<'_> {
        self.waits.send_modify(|waits| {
            waits.count += 1;
            waits.since.get_or_insert_with(Instant::now);
        });
        Waiting(self)
    }

    /// The deadline of a change that begins now.
    pub fn deadline(&self) -> ChangeDeadline {
        ChangeDeadline {
            waits: self.waits.subscribe(),
            limit: self.limit,
            begun: Instant::now(),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(queue) = self;
        queue.waits.send_modify(|waits| {
            waits.count -= 1;
            if waits.count == 0 {
                waits.since = None;
            }
        });
    }
}

/// The deadline of a change that others may wait for, for all of its calls together.
#[derive(Clone, Debug)]
pub struct ChangeDeadline {
    waits: watch::Receiver<Waits>,
    /// The change's time once another waits.
    limit: Duration,
    /// When the change began.
    begun: Instant,
}

impl ChangeDeadline {
    /// When a call of this change is abandoned; none while no change waits.
    fn latest(&self, called: Instant, waits: Waits) -> Option<Instant> {
        // The same time for all calls made while a change waits, or earlier if one call has taken
        // long before.
        let ends = |since: Instant| called.min(since.max(self.begun)) + self.limit;
        waits.since.map(ends)
    }

    /// True if a call made now would be abandoned at once.
    pub fn has_passed(&self) -> bool {
        let now = Instant::now();
        let latest = self.latest(now, *self.waits.borrow());
        latest.is_some_and(|latest| latest <= now)
    }

    /// Completes when a call made now must be abandoned.
    pub async fn passed(&self) {
        let called = Instant::now();
        let mut waits = self.waits.clone();
        loop {
            let now = *waits.borrow_and_update();
            let latest = async {
                match self.latest(called, now) {
                    Some(latest) => sleep_until(latest).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                // The waiting change may have left just now.
                changed = waits.changed() => if changed.is_err() {
                    // No change can wait any more.
                    return pending().await;
                },
                () = latest => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(250);

    #[tokio::test(start_paused = true)]
    async fn calls_continue_after_the_waiting_change_leaves() {
        let queue = ChangeQueue::new(LIMIT);
        let deadline = queue.deadline();
        let waiting = queue.wait();
        let goes = async {
            yield_now().await;
            drop(waiting);
            pending::<()>().await;
        };
        let passed = async {
            tokio::select! {
                () = deadline.passed() => {}
                () = goes => {}
            }
        };
        assert!(timeout(2 * LIMIT, passed).await.is_err());
        assert!(!deadline.has_passed());
        let _waiting = queue.wait();
        deadline.passed().await;
        assert!(deadline.has_passed());
    }

    /// A change with any number of calls of any length ends at one time.
    #[test]
    fn all_calls_of_a_change_share_a_deadline() {
        let queue = ChangeQueue::new(LIMIT);
        let deadline = queue.deadline();
        let since = deadline.begun + LIMIT;
        let ends = since + LIMIT;
        let waited_for = |since| Waits {
            since: Some(since),
            ..Waits::default()
        };
        for called in [since, since + LIMIT / 2, ends, ends + LIMIT] {
            let waits = waited_for(since);
            assert_eq!(deadline.latest(called, waits), Some(ends));
        }
        // A long change has used its time when another arrives; a change that waited before this
        // one began has not waited for it.
        let waits = waited_for(since);
        assert_eq!(deadline.latest(deadline.begun, waits), Some(since));
        let waits = waited_for(deadline.begun - LIMIT);
        assert_eq!(
            deadline.latest(deadline.begun, waits),
            Some(deadline.begun + LIMIT)
        );
        assert_eq!(deadline.latest(deadline.begun, Waits::default()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_begins_after_the_deadline() {
        let queue = ChangeQueue::new(LIMIT);
        let deadline = queue.deadline();
        let _waiting = queue.wait();
        deadline.passed().await;
        // The same for a call that is made now.
        deadline.passed().await;
        assert!(deadline.has_passed());
        assert!(
            !queue.deadline().has_passed(),
            "another change has its own time"
        );
    }
}
