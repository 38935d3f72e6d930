//! A member's session: passing orders to the member, and its messages to the controller.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};
use ultima_api::v1::attend_request::Event;
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::{self as api, RoundReport};

use super::controller::Controller;
use super::membership::member_messages::{ForMember, is_sent, prepared, receive, waits_to_send};
use super::membership::preparation::Preparation;
use super::message_room::InFlight;
use super::sessions::{MemberId, Order};

/// The channel to a member.
type Answers = mpsc::Sender<Result<api::AttendResponse, Status>>;

/// A change to announce when the member has read all earlier messages. A member that reads nothing
/// takes no room for messages in flight.
struct Waiting<'a> {
    reservation: Pin<Box<dyn Future<Output = Option<Reservation<'a>>> + Send + 'a>>,
    preparation: Arc<Preparation>,
}

/// Room for one message.
struct Reservation<'a> {
    in_channel: mpsc::Permit<'a, Result<api::AttendResponse, Status>>,
    in_flight: InFlight,
}

/// Passes orders to a member and its reports back, until either side ends.
pub async fn pass_on(
    controller: &Controller,
    member: MemberId,
    ForMember {
        mut orders,
        mut departures,
    }: ForMember,
    answers: &Answers,
    mut requests: Streaming<api::AttendRequest>,
) {
    let mut asked: Option<(u32, oneshot::Sender<RoundReport>)> = None;
    // While this waits, later orders wait too.
    let mut waiting: Option<Waiting<'_>> = None;
    let mut in_flight: Option<InFlight> = None;
    loop {
        let takes_orders = waiting.is_none();
        let reserved = async {
            match &mut waiting {
                Some(waiting) => waiting.reservation.as_mut().await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            reservation = reserved => {
                let (Some(Waiting { preparation, .. }), Some(reservation)) = (waiting.take(), reservation)
                else {
                    return;
                };
                in_flight = Some(reservation.in_flight);
                let order = Some(Message::Prepare(prepared(controller, &preparation, member.rank)));
                reservation.in_channel.send(Ok(api::AttendResponse { order }));
                is_sent(controller, &preparation, member.rank);
                continue;
            }
            () = expired(&in_flight) => {
                in_flight = None;
                continue;
            }
            order = orders.recv(), if takes_orders => match order {
                Some(Order::Round(round, answer)) => {
                    asked = Some((round.token, answer));
                    Message::Round(round)
                }
                Some(Order::Prepare(preparation)) => {
                    let of = Arc::clone(&preparation);
                    let reservation = Box::pin(async move {
                        let in_channel = answers.reserve().await.ok()?;
                        waits_to_send(controller, &of, member.rank);
                        let entries = of.entries(member.rank);
                        let in_flight = controller.message_room.reserve(entries).await;
                        Some(Reservation { in_channel, in_flight })
                    });
                    waiting = Some(Waiting { reservation, preparation });
                    continue;
                }
                Some(Order::Message(message)) => message,
                None => return,
            },
            left = departures.next(), if takes_orders => left,
            request = requests.message() => {
                let Ok(Some(api::AttendRequest { event })) = request else { return };
                match event {
                    Some(Event::Report(report)) => {
                        if let Some((_, answer)) = asked.take_if(|(token, _)| *token == report.token) {
                            // The receiver may have timed out.
                            let _ = answer.send(report);
                        }
                    }
                    Some(event) => {
                        if matches!(event, Event::Pledge(_) | Event::Refusal(_)) {
                            in_flight = None;
                        }
                        receive(controller, member, event);
                    }
                    None => {}
                }
                continue;
            }
        };
        let order = Some(message);
        if !send(answers, api::AttendResponse { order }, &mut in_flight).await {
            return;
        }
    }
}

/// Sends a message, however long the member takes to read the earlier ones. Meanwhile the room of
/// an announced change is released when it expires. Returns false if the member has gone.
async fn send(
    answers: &Answers,
    answer: api::AttendResponse,
    in_flight: &mut Option<InFlight>,
) -> bool {
    let mut message = pin!(answers.send(Ok(answer)));
    loop {
        tokio::select! {
            message = &mut message => return message.is_ok(),
            () = expired(in_flight) => *in_flight = None,
        }
    }
}

/// Waits until an announced change no longer counts as in flight; forever if there is none.
async fn expired(in_flight: &Option<InFlight>) {
    match in_flight {
        Some(in_flight) => in_flight.expired().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::message_room::MessageRoom;
    use super::*;

    /// A change was announced to the member, and then another message sent.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_reads_nothing_releases_its_room() {
        let message_room = MessageRoom::default();
        let (answers, unread) = mpsc::channel(1);
        answers
            .try_send(Ok(api::AttendResponse::default()))
            .unwrap();
        let mut in_flight = Some(message_room.reserve(usize::MAX).await);
        tokio::select! {
            _ = send(&answers, api::AttendResponse::default(), &mut in_flight) => panic!("the receiver reads nothing"),
            _ = message_room.reserve(usize::MAX) => {}
        }
        drop(unread);
        assert!(!send(&answers, api::AttendResponse::default(), &mut in_flight).await);
    }
}
