//! Deadlines of changes that others wait for.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The deadline of a change that others wait for, for all its calls together, from when the wait
/// began. Undoing the change gets [the same time again](Hurry::undoing).
pub const HURRIED: Duration = Duration::from_millis(250);

/// The queue of changes that wait for the current one, or will.
#[derive(Debug, Default)]
pub struct Queue(watch::Sender<Waits>);

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
pub struct Waiting<'a>(&'a Queue);

impl Queue {
    /// Joins the queue.
    pub fn wait(&self) -> Waiting<'_> {
        self.0.send_modify(|waits| {
            waits.count += 1;
            waits.since.get_or_insert_with(Instant::now);
        });
        Waiting(self)
    }

    /// Announces a change at a time, or withdraws the announcement with none. The current change
    /// goes on until then.
    pub fn expect(&self, at: Option<Instant>) {
        self.0.send_if_modified(|waits| {
            let is_news = waits.expected != at;
            waits.expected = at;
            is_news
        });
    }

    /// The time until which no change should begin, so that the announced one need not wait;
    /// bounded, in case it never comes.
    fn begins(&self, waits: Waits) -> Option<Instant> {
        let at = waits.expected.map(|at| at + HURRIED);
        at.filter(|at| *at > Instant::now())
    }

    /// True if a change may begin.
    pub fn is_calm(&self) -> bool {
        self.begins(*self.0.borrow()).is_none()
    }

    /// Completes when a change may begin: none is announced, or the announced one does not come.
    pub async fn calm(&self) {
        let mut waits = self.0.subscribe();
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
    pub fn hurry(&self) -> Hurry {
        Hurry {
            waits: self.0.subscribe(),
            begun: Instant::now(),
            more: Duration::ZERO,
        }
    }

    /// The number of waiting changes.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.borrow().count
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(Queue(waits)) = self;
        waits.send_modify(|waits| {
            waits.count -= 1;
            if waits.count == 0 {
                waits.since = None;
            }
        });
    }
}

/// The deadline of a change that others may wait for, for all of its calls together.
#[derive(Clone, Debug)]
pub struct Hurry {
    waits: watch::Receiver<Waits>,
    /// When the change began.
    begun: Instant,
    /// Extra time of calls that undo the change.
    more: Duration,
}

impl Hurry {
    /// The deadline for undoing the change.
    pub fn undoing(&self) -> Self {
        Hurry {
            more: HURRIED,
            ..self.clone()
        }
    }

    /// When a call of this change is abandoned; none while no change waits.
    fn latest(&self, called: Instant, waits: Waits) -> Option<Instant> {
        // The same time for all calls made while a change waits, or earlier if one call has taken
        // long before.
        let waits_since = |since: Instant| called.min(since.max(self.begun)) + HURRIED;
        // An announced change gave notice, so it finds the current one done, unless that has only
        // just begun.
        let comes = |at: Instant| at.max(self.begun + HURRIED);
        let for_all = [waits.since.map(waits_since), waits.expected.map(comes)];
        let first = for_all.into_iter().flatten().min();
        first.map(|at| at + self.more)
    }

    /// True if a call made now would be abandoned at once.
    pub fn is_over(&self) -> bool {
        let now = Instant::now();
        let latest = self.latest(now, *self.waits.borrow());
        latest.is_some_and(|latest| latest <= now)
    }

    /// Completes when a call made now must be abandoned.
    pub async fn gives_up(&self) {
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

    #[tokio::test]
    async fn calls_continue_after_the_waiting_change_leaves() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let waiting = queue.wait();
        let goes = async {
            yield_now().await;
            drop(waiting);
            pending::<()>().await;
        };
        let gives_up = async {
            tokio::select! {
                () = hurry.gives_up() => {}
                () = goes => {}
            }
        };
        assert!(timeout(2 * HURRIED, gives_up).await.is_err());
        assert!(!hurry.is_over());
        let _waiting = queue.wait();
        hurry.gives_up().await;
        assert!(hurry.is_over());
    }

    /// A change with any number of calls of any length ends at one time, and its undo at another.
    #[test]
    fn all_calls_of_a_change_share_a_deadline() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let since = hurry.begun + HURRIED;
        let ends = since + HURRIED;
        let waited_for = |since| Waits {
            since: Some(since),
            ..Waits::default()
        };
        for called in [since, since + HURRIED / 2, ends, ends + HURRIED] {
            let waits = waited_for(since);
            assert_eq!(hurry.latest(called, waits), Some(ends));
            let undoes = hurry.undoing().latest(called, waits);
            assert_eq!(undoes, Some(ends + HURRIED));
        }
        // A long change has used its time when another arrives; a change that waited before this
        // one began has not waited for it.
        let waits = waited_for(since);
        assert_eq!(hurry.latest(hurry.begun, waits), Some(since));
        let waits = waited_for(hurry.begun - HURRIED);
        assert_eq!(
            hurry.latest(hurry.begun, waits),
            Some(hurry.begun + HURRIED)
        );
        assert_eq!(hurry.latest(hurry.begun, Waits::default()), None);
    }

    /// An announced change waits only for the undo; no call is abandoned before it arrives.
    #[test]
    fn announced_changes_wait_half_as_long() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let at = hurry.begun + 3 * HURRIED;
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
        for called in [hurry.begun, at - HURRIED, at] {
            assert_eq!(hurry.latest(called, expected), Some(at));
        }
        let undoes = hurry.undoing().latest(at, waits);
        assert_eq!(undoes, Some(at + HURRIED));
        let begun_late = Hurry {
            begun: at - HURRIED / 2,
            ..hurry.clone()
        };
        let has_its_time = begun_late.begun + HURRIED;
        assert_eq!(
            begun_late.latest(begun_late.begun, waits),
            Some(has_its_time)
        );
        // A change that waits already must not wait longer because of it.
        let since = hurry.begun;
        let waits = Waits {
            since: Some(since),
            ..waits
        };
        assert_eq!(hurry.latest(since, waits), Some(since + HURRIED));
    }

    #[tokio::test]
    async fn calls_continue_after_a_withdrawn_announcement() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        queue.expect(Some(hurry.begun + HURRIED));
        let mut gives_up = Box::pin(hurry.gives_up());
        assert!(timeout(Duration::ZERO, &mut gives_up).await.is_err());
        queue.expect(None);
        assert!(timeout(2 * HURRIED, &mut gives_up).await.is_err());
        assert!(!hurry.is_over());
        queue.expect(Some(hurry.begun));
        gives_up.await;
        assert!(hurry.is_over());
    }

    #[tokio::test]
    async fn no_change_begins_while_one_is_announced_for_a_bounded_time() {
        let queue = Queue::default();
        queue.calm().await;
        queue.expect(Some(Instant::now() + Duration::from_secs(3600)));
        let mut calm = Box::pin(queue.calm());
        assert!(timeout(Duration::ZERO, &mut calm).await.is_err());
        assert!(!queue.is_calm());
        queue.expect(None);
        calm.await;
        // The announced change did not come.
        queue.expect(Some(Instant::now() - HURRIED));
        queue.calm().await;
        assert!(queue.is_calm());
    }

    #[tokio::test]
    async fn no_call_begins_after_the_deadline() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let _waiting = queue.wait();
        hurry.gives_up().await;
        // The same for a call that is made now.
        hurry.gives_up().await;
        assert!(hurry.is_over());
        assert!(!queue.hurry().is_over(), "another change has its own time");
    }
}
