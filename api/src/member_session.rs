//! The client's side of `Attend`: a member's session with the controller.
//!
//! A [`Prober`] takes part in connectivity checks. A [`Member`] follows its job from epoch to
//! epoch, or stays [`Fixed`] to one.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{Client, ClientError};
use crate::v1::attend_response::Order;
use crate::v1::{
    AttendRequest, Attendance, BeginEpoch, CheckRound, EpochPledge, EpochRefusal, PrepareEpoch,
    RoundReport, Suspects, attend_request,
};

/// The callbacks of connectivity checks: a member sends check packets and counts the ones that arrive.
pub trait Prober: Send {
    /// Called when all members of the job have a session.
    fn all_here(&mut self);

    /// Starts a round of the given length. The report counts from here on.
    fn begin(&mut self, round: &CheckRound, lasts: Duration);

    /// Sends one packet to each of the round's destinations.
    fn send(&mut self, round: &CheckRound);

    /// Returns the counts since [`Prober::begin`].
    fn report<'a>(&'a mut self, round: &'a CheckRound) -> BoxFuture<'a, RoundReport>;
}

/// The callbacks of membership changes.
pub trait Member: Send {
    /// Prepares for a new epoch: opens the resources that it needs, and returns the first operation
    /// that this member has not begun. May be called again for the same epoch.
    ///
    /// # Errors
    /// The reason why the member cannot prepare, on one line.
    fn prepare(&mut self, change: &PrepareEpoch) -> Result<u32, String>;

    /// Called when the epoch's first operation is decided; operations from there on belong to the
    /// new epoch. A new member begins with that operation.
    fn begin(&mut self, decided: &BeginEpoch);

    /// Called when a pending change is cancelled.
    fn cancel(&mut self);

    /// Called when members of this epoch have left; they do not come back in it. Ranks may be repeated.
    fn left(&mut self, _ranks: &[u32]) {}

    /// Called when the job's operations cannot begin, with the reason. Has no meaning after they have begun.
    fn cannot_begin(&mut self, _reason: &str) {}

    /// The ranks that this member suspects, and every change of them.
    fn suspects(&self) -> watch::Receiver<Vec<u32>>;
}

/// A member that stays in the epoch in which it joined.
#[derive(Debug, Default)]
pub struct Fixed(watch::Sender<Vec<u32>>);

impl Member for Fixed {
    fn prepare(&mut self, _: &PrepareEpoch) -> Result<u32, String> {
        Err("this program does not support membership changes".into())
    }

    fn begin(&mut self, _: &BeginEpoch) {}

    fn cancel(&mut self) {}

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.0.subscribe()
    }
}

/// Longest round that a member accepts from the controller.
const LONGEST: Duration = Duration::from_secs(10);
/// Shortest interval between packets, which bounds their number.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// Most destinations: ranks have 16 bits.
const MOST_DESTINATIONS: usize = 1 << 16;

impl Client {
    /// Holds a session until the job or its epoch ends, and serves every check and membership
    /// change.
    ///
    /// # Errors
    /// The controller rejects the session, or the connection breaks. The member may open another session,
    /// unless its epoch [is over](ClientError::is_over).
    pub async fn attend(
        &self,
        attendance: Attendance,
        prober: &mut dyn Prober,
        member: &mut dyn Member,
    ) -> Result<(), ClientError> {
        let (outgoing, requests) = mpsc::channel(1);
        let request = |event| AttendRequest { event: Some(event) };
        // The channel is new and has room.
        let _ = outgoing.try_send(request(attend_request::Event::Attendance(attendance)));
        let stream = self.rpc().attend(ReceiverStream::new(requests)).await;
        let mut orders = stream.map_err(|status| self.error(status))?.into_inner();
        let mut suspects = member.suspects();
        if !suspects.borrow_and_update().is_empty() {
            suspects.mark_changed();
        }
        // Stays in the loop to listen after the last suspicion was sent.
        let mut speaks = true;
        loop {
            let answer = tokio::select! {
                answer = orders.message() => answer.map_err(|status| self.error(status))?,
                changed = suspects.changed(), if speaks => {
                    speaks = changed.is_ok();
                    let ranks = suspects.borrow_and_update().clone();
                    let word = attend_request::Event::Suspects(Suspects { ranks });
                    let _ = outgoing.send(request(word)).await;
                    continue;
                }
            };
            let Some(answer) = answer else { return Ok(()) };
            match answer.order {
                Some(Order::Round(mut round)) => {
                    round.to.truncate(MOST_DESTINATIONS);
                    let report = take_part(prober, &round).await;
                    let report = request(attend_request::Event::Report(report));
                    // If the stream has ended, the next message returns the reason.
                    let _ = outgoing.send(report).await;
                }
                Some(Order::AllHere(_)) => prober.all_here(),
                Some(Order::Prepare(change)) => {
                    let job_id = change.job_id;
                    let word = match member.prepare(&change) {
                        Ok(operation) => {
                            attend_request::Event::Pledge(EpochPledge { job_id, operation })
                        }
                        Err(reason) => {
                            attend_request::Event::Refusal(EpochRefusal { job_id, reason })
                        }
                    };
                    let _ = outgoing.send(request(word)).await;
                }
                Some(Order::Begin(decided)) => member.begin(&decided),
                Some(Order::Cancel(_)) => member.cancel(),
                Some(Order::Left(members)) => member.left(&members.ranks),
                Some(Order::CannotBegin(it)) => member.cannot_begin(&it.reason),
                // No event that this member knows.
                None => {}
            }
        }
    }
}

async fn take_part(prober: &mut dyn Prober, round: &CheckRound) -> RoundReport {
    let lasts = Duration::from_millis(round.listen_ms.into()).min(LONGEST);
    let end = Instant::now() + lasts;
    let interval = Duration::from_millis(round.interval_ms.into()).max(SHORTEST_INTERVAL);
    prober.begin(round, lasts);
    for _ in 0..round.packets {
        if Instant::now() >= end {
            break;
        }
        prober.send(round);
        // The round ends on time even if the interval is longer.
        sleep_until(end.min(Instant::now() + interval)).await;
    }
    sleep_until(end).await;
    prober.report(round).await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[derive(Default)]
    struct Counts {
        sent: u32,
    }

    impl Prober for Counts {
        fn all_here(&mut self) {}

        fn begin(&mut self, _: &CheckRound, _: Duration) {}

        fn send(&mut self, _: &CheckRound) {
            self.sent += 1;
        }

        fn report<'a>(&'a mut self, _: &'a CheckRound) -> BoxFuture<'a, RoundReport> {
            async { RoundReport::default() }.boxed()
        }
    }

    /// The number of packets that a member sends in a round.
    async fn sent(interval_ms: u32, listen_ms: u32) -> u32 {
        let round = CheckRound {
            packets: u32::MAX,
            interval_ms,
            listen_ms,
            ..CheckRound::default()
        };
        let mut counts = Counts::default();
        take_part(&mut counts, &round).await;
        counts.sent
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_are_bounded_in_packets_and_in_time() {
        assert_eq!(sent(0, 50).await, 50, "one a millisecond");
        // The interval alone is 49 days.
        assert_eq!(sent(u32::MAX, 50).await, 1);
    }
}
