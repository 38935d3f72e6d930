//! Writes without an answer. A server may still apply one after the timeout, even after a later
//! read.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::call::{CALL_TIMEOUT, is_from_there};

/// The pause once all unanswered writes must have been applied, while no read has found the switch in
/// the desired state.
const LONG_READ_PAUSE: Duration = Duration::from_secs(30);
/// The latest time at which an unanswered write may be applied: the timeout of a call. Later changes are
/// found as changes by others.
const LATEST: Duration = CALL_TIMEOUT;

/// The unanswered writes to one switch, over all connections.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The time of the last one.
    last: watch::Sender<Option<Instant>>,
    /// The pause before the switch is read again.
    pause: Duration,
}

/// A write that waits for its answer, until [`answered`](Self::answered).
struct Pending(Option<Unanswered>);

impl Unanswered {
    /// No unanswered write. After one, the switch is read again after this pause.
    pub fn new(pause: Duration) -> Self {
        Unanswered {
            last: watch::Sender::default(),
            pause,
        }
    }

    /// Sends a write. It counts as unanswered from the first poll until the answer, and remains so if
    /// this is dropped before.
    pub(super) async fn sent<T>(
        &self,
        write: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let pending = self.begin();
        let answer = write.await;
        if answer.as_ref().err().is_none_or(is_from_there) {
            pending.answered();
        }
        answer
    }

    fn begin(&self) -> Pending {
        Pending(Some(self.clone()))
    }

    /// True if an unanswered write may be applied later, or was since the last read.
    pub fn any(&self) -> bool {
        self.last.borrow().is_some()
    }

    /// Completes when the switch should be read; never while there are no unanswered writes.
    pub async fn read_due(&self) {
        // The sender is in `self`.
        let mut about = self.last.subscribe();
        let last = about.wait_for(Option::is_some).await.ok();
        let last = last.and_then(|last| *last);
        sleep(self.pause(last, Instant::now())).await;
    }

    /// Records a read at a time that found the desired state; forgets the unanswered writes that must
    /// have been applied by then.
    pub fn read_matched(&self, asked: Instant) {
        self.last.send_if_modified(|last| {
            let is_over = last.is_some_and(|last| last + LATEST <= asked);
            if is_over {
                *last = None;
            }
            is_over
        });
    }

    /// The pause before the next read, after an unanswered write at that time.
    fn pause(&self, last: Option<Instant>, now: Instant) -> Duration {
        match last.is_some_and(|last| last + LATEST + 2 * self.pause < now) {
            true => LONG_READ_PAUSE,
            false => self.pause,
        }
    }
}

impl Pending {
    /// Records the answer: the server applies nothing later.
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(Unanswered { last, .. }) = self.0.take() {
            last.send_replace(Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

    const READ_PAUSE: Duration = Duration::from_secs(1);

    /// A write that was never sent, because the connection broke or the call was abandoned, is not
    /// unanswered.
    #[test]
    fn only_sent_writes_become_unanswered() {
        let answer = |answer: Result<(), Status>| {
            let unanswered = Unanswered::new(READ_PAUSE);
            let _ = unanswered.sent(ready(answer)).now_or_never();
            unanswered.any()
        };
        assert!(!answer(Ok(())));
        assert!(!answer(Err(Status::aborted("the switch answered"))));
        assert!(answer(Err(Status::from_error(
            "the connection broke".into()
        ))));

        let unanswered = Unanswered::new(READ_PAUSE);
        drop(unanswered.sent(pending::<Result<(), Status>>()));
        assert!(!unanswered.any());
        let mut sent = Box::pin(unanswered.sent(pending::<Result<(), Status>>()));
        assert!(sent.as_mut().now_or_never().is_none());
        assert!(!unanswered.any(), "its answer may come");
        drop(sent);
        assert!(unanswered.any());
    }

    #[test]
    fn only_a_late_read_forgets_unanswered_writes() {
        let unanswered = Unanswered::new(READ_PAUSE);
        unanswered.begin().answered();
        assert!(!unanswered.any());
        let before = Instant::now();
        drop(unanswered.begin());
        let after = Instant::now();
        unanswered.read_matched(before + LATEST - Duration::from_millis(1));
        assert!(unanswered.any());
        unanswered.read_matched(after + LATEST);
        assert!(!unanswered.any());
    }

    #[test]
    fn a_switch_with_lasting_differences_is_read_seldom() {
        let (unanswered, last) = (Unanswered::new(READ_PAUSE), Instant::now());
        assert_eq!(unanswered.pause(Some(last), last), READ_PAUSE);
        assert_eq!(
            unanswered.pause(Some(last), last + LATEST + READ_PAUSE),
            READ_PAUSE
        );
        assert_eq!(
            unanswered.pause(Some(last), last + LATEST + 3 * READ_PAUSE),
            LONG_READ_PAUSE
        );
    }
}
