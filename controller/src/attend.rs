//! A member that stays in touch with the controller: the client's side of `Attend`.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::api::attend_response::Order;
use crate::api::{AttendRequest, Attendance, CheckRound, RoundReport, attend_request};
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

/// Longest round that a member takes part in: the controller is not trusted with more.
const LONGEST: Duration = Duration::from_secs(10);
/// Least time from one packet to the next, which bounds how many there are.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// Most destinations: ranks have 16 bits.
const MOST_DESTINATIONS: usize = 1 << 16;

impl Client {
    /// Attends until the job ends: takes part in every check.
    ///
    /// # Errors
    /// The controller refuses, or the connection broke; then the member may attend again.
    pub async fn attend(
        &self,
        attendance: Attendance,
        prober: &mut dyn Prober,
    ) -> Result<(), ClientError> {
        let (outgoing, requests) = mpsc::channel(1);
        let request = |event| AttendRequest { event: Some(event) };
        // The channel is new and has room for it.
        let _ = outgoing.try_send(request(attend_request::Event::Attendance(attendance)));
        let stream = self.rpc().attend(ReceiverStream::new(requests)).await;
        let mut orders = stream.map_err(|status| self.error(status))?.into_inner();
        while let Some(answer) = orders
            .message()
            .await
            .map_err(|status| self.error(status))?
        {
            match answer.order {
                Some(Order::Round(mut round)) => {
                    round.to.truncate(MOST_DESTINATIONS);
                    let report = take_part(prober, &round).await;
                    let report = request(attend_request::Event::Report(report));
                    // Where nobody listens any more the next message says why.
                    let _ = outgoing.send(report).await;
                }
                Some(Order::AllHere(_)) => prober.all_here(),
                // A newer controller's word.
                None => {}
            }
        }
        Ok(())
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
