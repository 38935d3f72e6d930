//! Calls that others wait for.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long anything may take that others wait for: all calls of a change together, from when somebody waits for its end. What has been done
/// by then is taken back in [as long again](Hurry::undoing).
pub const HURRIED: Duration = Duration::from_millis(250);

/// Those who wait for the end of what others do.
#[derive(Debug, Default)]
pub struct Queue(watch::Sender<Waits>);

#[derive(Debug, Default)]
struct Waits {
    /// How many wait.
    count: usize,
    /// Since when there is always somebody; none while there is nobody.
    since: Option<Instant>,
}

/// Somebody who waits, until this is dropped.
pub struct Waiting<'a>(&'a Queue);

impl Queue {
    /// Somebody waits from now on.
    pub fn wait(&self) -> Waiting<'_> {
        self.0.send_modify(|waits| {
            waits.count += 1;
            waits.since.get_or_insert_with(Instant::now);
        });
        Waiting(self)
    }

    /// For what begins now.
    pub fn hurry(&self) -> Hurry {
        Hurry {
            waits: self.0.subscribe(),
            begun: Instant::now(),
            most: HURRIED,
        }
    }

    /// How many wait.
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

/// Tells when a change is to be given up, as others wait for its end. All its calls have one: it does not matter how many they are.
#[derive(Clone, Debug)]
pub struct Hurry {
    waits: watch::Receiver<Waits>,
    /// When the change began.
    begun: Instant,
    /// How long it may take from then on, where others wait.
    most: Duration,
}

impl Hurry {
    /// The same for what takes back what the change has done.
    pub fn undoing(&self) -> Self {
        Hurry {
            most: 2 * HURRIED,
            ..self.clone()
        }
    }

    /// When a call of this change is to be given up for those who wait since then: at one time for all that are made while they wait, and
    /// earlier where it has taken long before they came.
    fn latest(&self, called: Instant, since: Instant) -> Instant {
        called.min(since.max(self.begun)) + self.most
    }

    /// Whether a call that is made now would be given up at once.
    pub fn is_over(&self) -> bool {
        let now = Instant::now();
        let since = self.waits.borrow().since;
        since.is_some_and(|since| self.latest(now, since) <= now)
    }

    /// Returns when a call that is made now is to be given up.
    pub async fn gives_up(&self) {
        let called = Instant::now();
        let mut waits = self.waits.clone();
        loop {
            let waited_for = waits.wait_for(|waits| waits.since.is_some()).await;
            let Some(since) = waited_for.ok().and_then(|waits| waits.since) else {
                // Who could wait has gone.
                return pending().await;
            };
            sleep_until(self.latest(called, since)).await;
            if waits.borrow().since == Some(since) {
                return;
            }
            // Who waited has gone.
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn nothing_is_given_up_for_who_does_not_wait_any_more() {
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

    /// However many calls a change has, and however short each is: it ends at one time, and what takes it back at another.
    #[test]
    fn all_calls_of_a_change_end_at_one_time() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let since = hurry.begun + HURRIED;
        let ends = since + HURRIED;
        for called in [since, since + HURRIED / 2, ends, ends + HURRIED] {
            assert_eq!(hurry.latest(called, since), ends);
            assert_eq!(hurry.undoing().latest(called, since), ends + HURRIED);
        }
        // What has taken long has had its time when somebody comes; who came before the change began has not waited for it.
        assert_eq!(hurry.latest(hurry.begun, since), since);
        let before = hurry.begun - HURRIED;
        assert_eq!(hurry.latest(hurry.begun, before), hurry.begun + HURRIED);
    }

    #[tokio::test]
    async fn no_call_begins_after_the_end() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let _waiting = queue.wait();
        hurry.gives_up().await;
        // One that is made now, too.
        hurry.gives_up().await;
        assert!(hurry.is_over());
        assert!(!queue.hurry().is_over(), "another change has its own time");
    }
}
