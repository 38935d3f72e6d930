//! Calls that others wait for.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long anything may take that others wait for: all calls of a change together, from when somebody waits for its end. What has been done
/// by then is taken back in [as long again](Hurry::undoing).
pub const HURRIED: Duration = Duration::from_millis(250);

/// Those who wait for the end of what others do, or will.
#[derive(Debug, Default)]
pub struct Queue(watch::Sender<Waits>);

#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// How many wait.
    count: usize,
    /// Since when there is always somebody; none while there is nobody.
    since: Option<Instant>,
    /// When somebody comes, as far as is known, before whom all that is under way is to have ended.
    expected: Option<Instant>,
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

    /// Somebody comes at that time, and nobody does where there is none: what was said before is called off. What is under way goes on until then.
    pub fn expect(&self, at: Option<Instant>) {
        self.0.send_if_modified(|waits| {
            let is_news = waits.expected != at;
            waits.expected = at;
            is_news
        });
    }

    /// Until when nothing is to begin, so that who is expected finds nothing that has; not for ever, should nobody come.
    fn begins(&self, waits: Waits) -> Option<Instant> {
        let at = waits.expected.map(|at| at + HURRIED);
        at.filter(|at| *at > Instant::now())
    }

    /// Whether something may begin.
    pub fn is_calm(&self) -> bool {
        self.begins(*self.0.borrow()).is_none()
    }

    /// Returns when something may begin: nobody is expected, or who was does not come.
    pub async fn calm(&self) {
        let mut waits = self.0.subscribe();
        loop {
            let now = *waits.borrow_and_update();
            let Some(at) = self.begins(now) else {
                return;
            };
            tokio::select! {
                () = sleep_until(at) => {}
                // The sender is ours.
                _ = waits.changed() => {}
            }
        }
    }

    /// For what begins now.
    pub fn hurry(&self) -> Hurry {
        Hurry {
            waits: self.0.subscribe(),
            begun: Instant::now(),
            more: Duration::ZERO,
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
    /// How much longer its calls may take than the change.
    more: Duration,
}

impl Hurry {
    /// The same for what takes back what the change has done.
    pub fn undoing(&self) -> Self {
        Hurry {
            more: HURRIED,
            ..self.clone()
        }
    }

    /// When a call of this change is to be given up for these; none while there is nobody.
    fn latest(&self, called: Instant, waits: Waits) -> Option<Instant> {
        // At one time for all calls that are made while somebody waits, and earlier where one has taken long before that.
        let waits_since = |since: Instant| called.min(since.max(self.begun)) + HURRIED;
        // Who said when he comes has given notice: what is not over then has had its time, unless it has only just begun.
        let comes = |at: Instant| at.max(self.begun + HURRIED);
        let for_all = [waits.since.map(waits_since), waits.expected.map(comes)];
        let first = for_all.into_iter().flatten().min();
        first.map(|at| at + self.more)
    }

    /// Whether a call that is made now would be given up at once.
    pub fn is_over(&self) -> bool {
        let now = Instant::now();
        let latest = self.latest(now, *self.waits.borrow());
        latest.is_some_and(|latest| latest <= now)
    }

    /// Returns when a call that is made now is to be given up.
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
                // Who waited may have gone just now.
                changed = waits.changed() => if changed.is_err() {
                    // Who could wait has gone, too.
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
        // What has taken long has had its time when somebody comes; who came before the change began has not waited for it.
        let waits = waited_for(since);
        assert_eq!(hurry.latest(hurry.begun, waits), Some(since));
        let waits = waited_for(hurry.begun - HURRIED);
        assert_eq!(
            hurry.latest(hurry.begun, waits),
            Some(hurry.begun + HURRIED)
        );
        assert_eq!(hurry.latest(hurry.begun, Waits::default()), None);
    }

    /// Who has said when he comes finds all given up, and waits only for what is taken back; nothing is given up before that.
    #[test]
    fn who_is_expected_waits_for_half_as_long() {
        let queue = Queue::default();
        let hurry = queue.hurry();
        let at = hurry.begun + 3 * HURRIED;
        let expected = Waits {
            expected: Some(at),
            ..Waits::default()
        };
        // He has come, and is expected until it is his turn.
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
        // Another one who waits already is not to wait for longer than without him.
        let since = hurry.begun;
        let waits = Waits {
            since: Some(since),
            ..waits
        };
        assert_eq!(hurry.latest(since, waits), Some(since + HURRIED));
    }

    #[tokio::test]
    async fn nothing_is_given_up_for_who_is_not_expected_any_more() {
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
    async fn nothing_begins_while_somebody_is_expected_and_not_for_ever() {
        let queue = Queue::default();
        queue.calm().await;
        queue.expect(Some(Instant::now() + Duration::from_secs(3600)));
        let mut calm = Box::pin(queue.calm());
        assert!(timeout(Duration::ZERO, &mut calm).await.is_err());
        assert!(!queue.is_calm());
        queue.expect(None);
        calm.await;
        // Nobody has come.
        queue.expect(Some(Instant::now() - HURRIED));
        queue.calm().await;
        assert!(queue.is_calm());
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
