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
    /// When a change is expected that the current one should not delay.
    expected: Option<Instant>,
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

    /// Announces a change at a time, or withdraws the announcement with none. The current change
    /// goes on until then.
    pub fn expect(&self, at: Option<Instant>) {
        self.waits.send_if_modified(|waits| {
            let is_news = waits.expected != at;
            waits.expected = at;
            is_news
        });
    }

    /// The time until which no change should begin, so that the announced one need not wait;
    /// bounded, in case it never comes.
    fn begins(&self, waits: Waits) -> Option<Instant> {
        let at = waits.expected.map(|at| at + self.limit);
        at.filter(|at| *at > Instant::now())
    }

    /// True if a change may begin.
    pub fn may_begin(&self) -> bool {
        self.begins(*self.waits.borrow()).is_none()
    }

    /// Completes when a change may begin: none is announced, or the announced one does not come.
    pub async fn begin_allowed(&self) {
        let mut waits = self.waits.subscribe();
        loop {
            let now = *waits.borrow_and_update();
            let Some(at) = self.begins(now) else {
                return;
            };
            tokio::select! {
                () = sleep_until(at) => {}
                // The sender is in `self`.
                _ = waits.changed() => {}
            }
        }
    }

    /// The deadline of a change that begins now.
    pub fn deadline(&self) -> ChangeDeadline {
        ChangeDeadline {
            waits: self.waits.subscribe(),
            limit: self.limit,
            begun: Instant::now(),
        }
    }

    /// The number of waiting changes.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.waits.borrow().count
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
        let waits_since = |since: Instant| called.min(since.max(self.begun)) + self.limit;
        // An announced change gave notice, so it finds the current one done, unless that has only
        // just begun.
        let comes = |at: Instant| at.max(self.begun + self.limit);
        let for_all = [waits.since.map(waits_since), waits.expected.map(comes)];
        for_all.into_iter().flatten().min()
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

    /// No call is abandoned before the announced change arrives.
    #[test]
    fn announced_changes_do_not_wait() {
        let queue = ChangeQueue::new(LIMIT);
        let deadline = queue.deadline();
        let at = deadline.begun + 3 * LIMIT;
        let expected = Waits {
            expected: Some(at),
            ..Waits::default()
        };
        // It has arrived, and stays announced until its turn.
        let waits = Waits {
            count: 1,
            since: Some(at),
            ..expected
        };
        for called in [deadline.begun, at - LIMIT, at] {
            assert_eq!(deadline.latest(called, expected), Some(at));
        }
        let begun_late = ChangeDeadline {
            begun: at - LIMIT / 2,
            ..deadline.clone()
        };
        let has_its_time = begun_late.begun + LIMIT;
        assert_eq!(
            begun_late.latest(begun_late.begun, waits),
            Some(has_its_time)
        );
        // A change that waits already must not wait longer because of it.
        let since = deadline.begun;
        let waits = Waits {
            since: Some(since),
            ..waits
        };
        assert_eq!(deadline.latest(since, waits), Some(since + LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_continue_after_a_withdrawn_announcement() {
        let queue = ChangeQueue::new(LIMIT);
        let deadline = queue.deadline();
        queue.expect(Some(deadline.begun + LIMIT));
        let mut passed = Box::pin(deadline.passed());
        assert!(timeout(Duration::ZERO, &mut passed).await.is_err());
        queue.expect(None);
        assert!(timeout(2 * LIMIT, &mut passed).await.is_err());
        assert!(!deadline.has_passed());
        queue.expect(Some(deadline.begun));
        passed.await;
        assert!(deadline.has_passed());
    }

    #[tokio::test(start_paused = true)]
    async fn no_change_begins_while_one_is_announced_for_a_bounded_time() {
        let queue = ChangeQueue::new(LIMIT);
        queue.begin_allowed().await;
        queue.expect(Some(Instant::now() + Duration::from_secs(3600)));
        let mut allowed = Box::pin(queue.begin_allowed());
        assert!(timeout(Duration::ZERO, &mut allowed).await.is_err());
        assert!(!queue.may_begin());
        queue.expect(None);
        allowed.await;
        // The announced change did not come.
        queue.expect(Some(Instant::now() - LIMIT));
        queue.begin_allowed().await;
        assert!(queue.may_begin());
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
