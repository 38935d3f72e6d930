//! What goes to and fro between the controller and a member that attends.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use super::attendants::Order;
use super::controller::Controller;
use super::membership::{Preparation, Said};
use super::telling::Told;
use crate::api::attend_request::Event;
use crate::api::attend_response::Order as Word;
use crate::api::{self, RoundReport};
use crate::job::{JobId, Rank};

/// What a member hears.
type Answers = mpsc::Sender<Result<api::AttendResponse, Status>>;

/// What a member is to be told of a change when it is its turn, which it is once it has read what came before: who reads nothing takes no room.
struct Waiting<'a> {
    turn: Pin<Box<dyn Future<Output = Option<Turn<'a>>> + Send + 'a>>,
    preparation: Arc<Preparation>,
}

/// Its place among what goes to the member, and the room that it takes.
type Turn<'a> = (mpsc::Permit<'a, Result<api::AttendResponse, Status>>, Told);

/// Hands orders to a member and its reports to who ordered, until either side ends.
pub async fn pass_on(
    controller: &Controller,
    who: (JobId, Rank),
    mut orders: mpsc::Receiver<Order>,
    answers: &Answers,
    mut requests: Streaming<api::AttendRequest>,
) {
    let mut asked: Option<(u32, oneshot::Sender<RoundReport>)> = None;
    // What comes after it is told after it.
    let mut waiting: Option<Waiting<'_>> = None;
    let mut told: Option<Told> = None;
    loop {
        let takes_orders = waiting.is_none();
        let turn = async {
            match &mut waiting {
                Some(waiting) => waiting.turn.as_mut().await,
                None => std::future::pending().await,
            }
        };
        let forgotten = async {
            match &told {
                Some(told) => told.forgotten().await,
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
                continue;
            }
            () = forgotten => {
                told = None;
                continue;
            }
            order = orders.recv(), if takes_orders => match order {
                Some(Order::Round(round, answer)) => {
                    asked = Some((round.token, answer));
                    Word::Round(round)
                }
                Some(Order::Prepare(preparation)) => {
                    let entries = preparation.entries(who.1);
                    let turn = Box::pin(async move {
                        let place = answers.reserve().await.ok()?;
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
                            // Who ordered may have lost patience.
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
        if answers
            .send(Ok(api::AttendResponse { order }))
            .await
            .is_err()
        {
            return;
        }
    }
}
