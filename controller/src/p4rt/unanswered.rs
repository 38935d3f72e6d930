//! Stray writes: writes without an answer. A server may still apply one after the timeout,
//! even after a later read.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::client::{CALL_TIMEOUT, is_from_there};

/// The pause before a switch with a stray write is read again.
const LOOK: Duration = Duration::from_secs(1);
/// The pause once all stray writes must have been applied, while no read has found the switch in
/// the desired state.
const SELDOM: Duration = Duration::from_secs(30);
/// The latest time at which a stray write may be applied: the timeout of a call. Later changes are
/// found as changes by others.
const LATEST: Duration = CALL_TIMEOUT;

/// The stray writes to one switch, over all connections.
#[derive(Clone, Debug, Default)]
pub struct Strays(watch::Sender<Option<Instant>>);

/// A write without an answer, until [`answered`](Self::answered).
struct Unanswered(Option<Strays>);

impl Strays {
    /// Sends a write. It counts as a stray from the first poll until the answer, and remains one if
    /// this is dropped before.
    pub(super) async fn sent<T>(
        &self,
        write: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let unanswered = self.begin();
        let answer = write.await;
        if answer.as_ref().err().is_none_or(is_from_there) {
            unanswered.answered();
        }
        answer
    }

    fn begin(&self) -> Unanswered {
        Unanswered(Some(self.clone()))
    }

    /// True if a stray write may be applied later, or was since the last read.
    pub fn are_about(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Completes when the switch should be read; never while there are no stray writes.
    pub async fn are_due(&self) {
        // The sender is in `self`.
        let mut about = self.0.subscribe();
        let last = about.wait_for(Option::is_some).await.ok();
        let last = last.and_then(|last| *last);
        sleep(pause(last, Instant::now())).await;
    }

    /// Records a read at a time that found the desired state; forgets the stray writes that must
    /// have been applied by then.
    pub fn looked(&self, asked: Instant) {
        self.0.send_if_modified(|last| {
            let is_over = last.is_some_and(|last| last + LATEST <= asked);
            if is_over {
                *last = None;
            }
            is_over
        });
    }
}

/// The pause before the next read, after a stray write at that time.
fn pause(last: Option<Instant>, now: Instant) -> Duration {
    match last.is_some_and(|last| last + LATEST + 2 * LOOK < now) {
        true => SELDOM,
        false => LOOK,
    }
}

impl Unanswered {
    /// Records the answer: the server applies nothing later.
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(Strays(last)) = self.0.take() {
            last.send_replace(Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

    /// A write that was never sent, because the connection broke or the call was abandoned, is not
    /// a stray.
    #[test]
    fn only_sent_writes_become_strays() {
        let answer = |answer: Result<(), Status>| {
            let strays = Strays::default();
            let _ = strays.sent(ready(answer)).now_or_never();
            strays.are_about()
        };
        assert!(!answer(Ok(())));
        assert!(!answer(Err(Status::aborted("it says so"))));
        assert!(answer(Err(Status::from_error("nobody says it".into()))));

        let strays = Strays::default();
        drop(strays.sent(pending::<Result<(), Status>>()));
        assert!(!strays.are_about());
        let mut sent = Box::pin(strays.sent(pending::<Result<(), Status>>()));
        assert!(sent.as_mut().now_or_never().is_none());
        assert!(!strays.are_about(), "it is waited for");
        drop(sent);
        assert!(strays.are_about());
    }

    #[test]
    fn only_a_late_read_clears_strays() {
        let strays = Strays::default();
        strays.begin().answered();
        assert!(!strays.are_about());
        let before = Instant::now();
        drop(strays.begin());
        let after = Instant::now();
        strays.looked(before + LATEST - Duration::from_millis(1));
        assert!(strays.are_about());
        strays.looked(after + LATEST);
        assert!(!strays.are_about());
    }

    #[test]
    fn a_switch_with_lasting_differences_is_read_seldom() {
        let last = Instant::now();
        assert_eq!(pause(Some(last), last), LOOK);
        assert_eq!(pause(Some(last), last + LATEST + LOOK), LOOK);
        assert_eq!(pause(Some(last), last + LATEST + 3 * LOOK), SELDOM);
    }
}
