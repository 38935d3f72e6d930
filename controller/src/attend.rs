//! A member that stays in touch with the controller: the client's side of `Attend`.
//!
//! A [`Prober`] takes part in checks; a [`Member`] goes with its job from one epoch to the next, or is [`Fixed`] to one.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::api::attend_response::Order;
use crate::api::{
    AttendRequest, Attendance, BeginEpoch, CheckRound, EpochPledge, EpochRefusal, PrepareEpoch,
    RoundReport, Suspects, attend_request,
};
use crate::client::{Client, ClientError};

/// How a member sends check packets and knows which came.
pub trait Prober: Send {
    /// All members of the job attend.
    fn all_here(&mut self);

    /// A round begins and lasts so long: counts in its report are from now on.
    fn begin(&mut self, round: &CheckRound, lasts: Duration);

    /// Sends one packet to each of the round's destinations.
    fn send(&mut self, round: &CheckRound);

    /// What was seen since [`Prober::begin`]. May take as long as it needs to ask.
    fn report<'a>(&'a mut self, round: &'a CheckRound) -> BoxFuture<'a, RoundReport>;
}

/// How a member follows changes of its job's members.
pub trait Member: Send {
    /// The members change. Opens what this one needs in the new epoch; the first operation that it does not begin before it is told. The
    /// same may come again.
    ///
    /// # Errors
    /// Why it cannot, on one line.
    fn prepare(&mut self, change: &PrepareEpoch) -> Result<u32, String>;

    /// Operations from that one on are of the new epoch; or this member, which is new, begins with it.
    fn begin(&mut self, decided: &BeginEpoch);

    /// Whatever change there was is called off.
    fn call_off(&mut self);

    /// Of whom it hears nothing, now and whenever that changes.
    fn suspects(&self) -> watch::Receiver<Vec<u32>>;
}

/// A member that stays in the epoch in which it joined, with its program.
#[derive(Debug, Default)]
pub struct Fixed(watch::Sender<Vec<u32>>);

impl Member for Fixed {
    fn prepare(&mut self, _: &PrepareEpoch) -> Result<u32, String> {
        Err("its program stays in the epoch in which it joined".into())
    }

    fn begin(&mut self, _: &BeginEpoch) {}

    fn call_off(&mut self) {}

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.0.subscribe()
    }
}

/// Longest round that a member takes part in: the controller is not trusted with more.
const LONGEST: Duration = Duration::from_secs(10);
/// Least time from one packet to the next, which bounds how many there are.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// Most destinations: ranks have 16 bits.
const MOST_DESTINATIONS: usize = 1 << 16;

impl Client {
    /// Attends until the job, or its epoch, ends: takes part in every check, and in every change.
    ///
    /// # Errors
    /// The controller refuses, or the connection broke; then the member may attend again, unless its epoch
    /// [is over](ClientError::is_over).
    pub async fn attend(
        &self,
        attendance: Attendance,
        prober: &mut dyn Prober,
        member: &mut dyn Member,
    ) -> Result<(), ClientError> {
        let (outgoing, requests) = mpsc::channel(1);
        let request = |event| AttendRequest { event: Some(event) };
        // The channel is new and has room for it.
        let _ = outgoing.try_send(request(attend_request::Event::Attendance(attendance)));
        let stream = self.rpc().attend(ReceiverStream::new(requests)).await;
        let mut orders = stream.map_err(|status| self.error(status))?.into_inner();
        let mut suspects = member.suspects();
        if !suspects.borrow_and_update().is_empty() {
            suspects.mark_changed();
        }
        // Whoever has nothing to say any more only listens.
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
                    // Where nobody listens any more the next message says why.
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
                Some(Order::CallOff(_)) => member.call_off(),
                // A newer controller's word.
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
        // The round ends on time, whatever the interval.
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

    /// How many packets a member sends in a round.
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

    #[tokio::test]
    async fn rounds_are_bounded_in_packets_and_in_time() {
        assert!(sent(0, 50).await <= 51, "one a millisecond");
        // It ends at all: the interval alone is 49 days.
        assert_eq!(sent(u32::MAX, 50).await, 1);
    }
}
