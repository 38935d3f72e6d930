//! Writes that nobody knows the end of: a server may go on with one although nobody waits for the answer any more, and do it after it has
//! been asked what it holds.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::client::{CALL_TIMEOUT, is_from_there};

/// The pause before a switch is looked at that may have done such a write meanwhile.
const LOOK: Duration = Duration::from_secs(1);
/// The same when all of them must have come by then, and no look has found the switch as it should be.
const SELDOM: Duration = Duration::from_secs(30);
/// How late a write may be done: as long as an answer is waited for. What is done later is found as what somebody else has changed.
const LATEST: Duration = CALL_TIMEOUT;

/// What one switch may do yet, over all connections to it.
#[derive(Clone, Debug, Default)]
pub struct Strays(watch::Sender<Option<Instant>>);

/// A write whose end is not known as long as it is not [answered](Self::answered).
struct Unanswered(Option<Strays>);

impl Strays {
    /// A write, which is about from when this is first polled, and so sent, until the server has said what has become of it. Where this is dropped
    /// before, it stays about.
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

    /// Whether something may be done yet, or has been since the last look.
    pub fn are_about(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns when it is time to look for them; never while there are none.
    pub async fn are_due(&self) {
        // The sender is ours.
        let mut about = self.0.subscribe();
        let last = about.wait_for(Option::is_some).await.ok();
        let last = last.and_then(|last| *last);
        sleep(pause(last, Instant::now())).await;
    }

    /// The switch holds what it should, and was asked at that time: none is about any more that could have come by then.
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

/// How long to wait with the next look after a write of that time.
fn pause(last: Option<Instant>, now: Instant) -> Duration {
    match last.is_some_and(|last| last + LATEST + 2 * LOOK < now) {
        true => SELDOM,
        false => LOOK,
    }
}

impl Unanswered {
    /// The server has said what has become of it, and does nothing more.
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

    /// What a connection that is lost, or that is given up, does not send is done by nobody.
    #[test]
    fn only_what_was_sent_may_be_done_yet() {
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
    fn only_a_look_that_comes_late_enough_finds_all_that_may_come() {
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
    fn a_switch_that_is_never_right_is_not_looked_at_all_the_time() {
        let last = Instant::now();
        assert_eq!(pause(Some(last), last), LOOK);
        assert_eq!(pause(Some(last), last + LATEST + LOOK), LOOK);
        assert_eq!(pause(Some(last), last + LATEST + 3 * LOOK), SELDOM);
    }
}
