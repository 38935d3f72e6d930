//! A member's session: passing orders to the member, and its messages to the controller.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use super::attendants::Order;
use super::controller::Controller;
use super::membership::{Preparation, Said};
use super::telling::OnItsWay;
use crate::api::attend_request::Event;
use crate::api::attend_response::Order as Word;
use crate::api::{self, RoundReport};
use crate::job::{JobId, Rank};

/// The channel to a member.
type Answers = mpsc::Sender<Result<api::AttendResponse, Status>>;

/// A change to announce when the member has read all earlier messages. A member that reads nothing
/// takes no room for messages in flight.
struct Waiting<'a> {
    turn: Pin<Box<dyn Future<Output = Option<Turn<'a>>> + Send + 'a>>,
    preparation: Arc<Preparation>,
}

/// The message's place in the channel, and its room in flight.
type Turn<'a> = (
    mpsc::Permit<'a, Result<api::AttendResponse, Status>>,
    OnItsWay,
);

/// Passes orders to a member and its reports back, until either side ends.
pub async fn pass_on(
    controller: &Controller,
    who: (JobId, Rank),
    mut orders: mpsc::Receiver<Order>,
    answers: &Answers,
    mut requests: Streaming<api::AttendRequest>,
) {
    let mut asked: Option<(u32, oneshot::Sender<RoundReport>)> = None;
    // While this waits, later orders wait too.
    let mut waiting: Option<Waiting<'_>> = None;
    let mut told: Option<OnItsWay> = None;
    loop {
        let takes_orders = waiting.is_none();
        let turn = async {
            match &mut waiting {
                Some(waiting) => waiting.turn.as_mut().await,
                None => std::future::pending().await,
            }
        };
        let word = tokio::select! {
            turn = turn => {
                let (Some(Waiting { preparation, .. }), Some((place, room))) = (waiting.take(), turn)
                else {
                    return;
                };
                told = Some(room);
                let order = Some(Word::Prepare(controller.prepared(&preparation, who.1)));
                place.send(Ok(api::AttendResponse { order }));
                controller.is_told(&preparation, who.1);
                continue;
            }
            () = forgotten(&told) => {
                told = None;
                continue;
            }
            order = orders.recv(), if takes_orders => match order {
                Some(Order::Round(round, answer)) => {
                    asked = Some((round.token, answer));
                    Word::Round(round)
                }
                Some(Order::Prepare(preparation)) => {
                    let of = Arc::clone(&preparation);
                    let turn = Box::pin(async move {
                        let place = answers.reserve().await.ok()?;
                        controller.waits_to_be_told(&of, who.1);
                        let entries = of.entries(who.1);
                        Some((place, controller.telling.turn(entries).await))
                    });
                    waiting = Some(Waiting { turn, preparation });
                    continue;
                }
                Some(Order::Word(word)) => word,
                None => return,
            },
            request = requests.message() => {
                let Ok(Some(api::AttendRequest { event })) = request else { return };
                let said = match event {
                    Some(Event::Report(report)) => {
                        if let Some((_, answer)) = asked.take_if(|(token, _)| *token == report.token) {
                            // The receiver may have timed out.
                            let _ = answer.send(report);
                        }
                        continue;
                    }
                    Some(Event::Pledge(it)) => Said::Pledge(it),
                    Some(Event::Refusal(it)) => Said::Refusal(it),
                    Some(Event::Suspects(it)) => Said::Suspects(it),
                    Some(Event::Attendance(_)) | None => continue,
                };
                if matches!(said, Said::Pledge(_) | Said::Refusal(_)) {
                    told = None;
                }
                controller.hear(who, said);
                continue;
            }
        };
        let order = Some(word);
        if !say(answers, api::AttendResponse { order }, &mut told).await {
            return;
        }
    }
}

/// Sends a message, however long the member takes to read the earlier ones. Meanwhile the room of
/// an announced change is released when it expires. Returns false if the member has gone.
async fn say(answers: &Answers, answer: api::AttendResponse, told: &mut Option<OnItsWay>) -> bool {
    let mut said = pin!(answers.send(Ok(answer)));
    loop {
        tokio::select! {
            said = &mut said => return said.is_ok(),
            () = forgotten(told) => *told = None,
        }
    }
}

/// Waits until an announced change no longer counts as in flight; forever if there is none.
async fn forgotten(told: &Option<OnItsWay>) {
    match told {
        Some(told) => told.forgotten().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::telling::Telling;
    use super::*;

    /// A change was announced to the member, and then another message sent.
    #[tokio::test]
    async fn a_member_that_reads_nothing_releases_its_room() {
        let telling = Telling::default();
        let (answers, unread) = mpsc::channel(1);
        answers
            .try_send(Ok(api::AttendResponse::default()))
            .unwrap();
        let mut told = Some(telling.turn(usize::MAX).await);
        tokio::select! {
            _ = say(&answers, api::AttendResponse::default(), &mut told) => panic!("nobody reads"),
            _ = telling.turn(usize::MAX) => {}
        }
        drop(unread);
        assert!(!say(&answers, api::AttendResponse::default(), &mut told).await);
    }
}
