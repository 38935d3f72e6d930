//! The stream to a switch, which carries the primary role and digests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prost::Message as _;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_grpc::transport::{one_line, root_cause};
use ultima_p4runtime::v1::{
    DigestList, DigestListAck, MasterArbitrationUpdate, StreamMessageRequest,
    StreamMessageResponse, Uint128, stream_message_request, stream_message_response,
};

/// The client's role at a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mastership {
    /// The client is the primary and may write.
    Primary,
    /// Another client is the primary.
    Backup {
        /// The server's message.
        message: String,
        /// The primary's election id.
        highest: u128,
    },
    /// There is no primary. A switch remembers the highest election id that it has seen and
    /// promotes no client by itself (P4Runtime §5.3); a client that asks again with that id becomes
    /// the primary.
    Vacant {
        /// The highest election id.
        highest: u128,
    },
    /// The stream has ended, or the switch does not answer.
    Lost {
        /// The reason.
        reason: String,
    },
}

/// An open stream.
pub(super) struct Stream {
    pub requests: mpsc::Sender<StreamMessageRequest>,
    pub responses: Streaming<StreamMessageResponse>,
    /// The role in the switch's answer.
    pub mastership: Mastership,
    /// The election id of the answer.
    pub election_id: u128,
}

/// The most digest lists that wait to be read; further ones are dropped and counted.
const DIGESTS: usize = 256;
/// The most bytes of a digest list: several times a full list of Ultima's program. Longer ones are
/// dropped and counted, too.
const MOST_OF_LIST: usize = 64 << 10;

/// The client's side of the stream. Dropping it ends the session.
pub(super) struct Session {
    _requests: mpsc::Sender<StreamMessageRequest>,
    mastership: watch::Sender<Mastership>,
    digests: Mutex<Option<mpsc::Receiver<DigestList>>>,
    dropped: Arc<AtomicU64>,
    watching: JoinHandle<()>,
    /// The task that checks the switch's heartbeats.
    listening: Option<JoinHandle<()>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.watching.abort();
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

/// The request for the role of `election_id` at `device_id`.
pub(super) fn arbitration(device_id: u64, election_id: u128) -> StreamMessageRequest {
    let update = MasterArbitrationUpdate {
        device_id,
        election_id: Some(Uint128::from(election_id)),
        ..Default::default()
    };
    StreamMessageRequest {
        update: Some(stream_message_request::Update::Arbitration(update)),
    }
}

/// The stream's requests: the first one, and a sender that keeps the stream open.
pub(super) fn requests(
    first: StreamMessageRequest,
) -> (
    mpsc::Sender<StreamMessageRequest>,
    ReceiverStream<StreamMessageRequest>,
) {
    let (sender, receiver) = mpsc::channel(1);
    // The channel has room for one.
    let _ = sender.try_send(first);
    (sender, ReceiverStream::new(receiver))
}

/// A message of the stream.
enum Message {
    Mastership(Mastership),
    Digests(DigestList),
}

async fn next_message(responses: &mut Streaming<StreamMessageResponse>) -> Result<Message, Status> {
    loop {
        let Some(response) = responses.message().await? else {
            return Ok(Message::Mastership(Mastership::Lost {
                reason: "the switch ended the stream".into(),
            }));
        };
        match response.update {
            Some(stream_message_response::Update::Arbitration(update)) => {
                return Ok(Message::Mastership(mastership(update)));
            }
            Some(stream_message_response::Update::Digest(list)) => {
                return Ok(Message::Digests(list));
            }
            // Packets and timeouts are not used.
            _ => {}
        }
    }
}

/// The next answer to an arbitration.
pub(super) async fn next(
    responses: &mut Streaming<StreamMessageResponse>,
) -> Result<Mastership, Status> {
    loop {
        if let Message::Mastership(mastership) = next_message(responses).await? {
            return Ok(mastership);
        }
    }
}

fn mastership(update: MasterArbitrationUpdate) -> Mastership {
    let status = update.status.unwrap_or_default();
    let highest = update.election_id.as_ref().map_or(0, u128::from);
    match Code::from_i32(status.code) {
        Code::Ok => Mastership::Primary,
        Code::NotFound => Mastership::Vacant { highest },
        _ => Mastership::Backup {
            message: one_line(&status.message),
            highest,
        },
    }
}

/// The acknowledgement of a list. A switch keeps an unacknowledged list, and may hold back the
/// next.
fn acknowledgement(list: &DigestList) -> StreamMessageRequest {
    let ack = DigestListAck {
        digest_id: list.digest_id,
        list_id: list.list_id,
    };
    StreamMessageRequest {
        update: Some(stream_message_request::Update::DigestAck(ack)),
    }
}

/// Updates the role. A lost session stays lost.
fn update_role(mastership: &watch::Sender<Mastership>, update: Mastership) {
    mastership.send_if_modified(|now| {
        let stands = !matches!(now, Mastership::Lost { .. });
        if stands {
            *now = update;
        }
        stands
    });
}

impl Session {
    /// Starts a task that handles `responses` until the stream or the session ends.
    pub fn start(stream: Stream) -> Self {
        let Stream {
            requests,
            mut responses,
            mastership,
            ..
        } = stream;
        let mastership = watch::Sender::new(mastership);
        let sender = mastership.clone();
        let (digests, waiting) = mpsc::channel(DIGESTS);
        // Weak, so that the stream ends with the session, not with this task.
        let answers = requests.downgrade();
        let dropped = Arc::new(AtomicU64::new(0));
        let drops = Arc::clone(&dropped);
        let watching = tokio::spawn(async move {
            loop {
                let message = next_message(&mut responses).await.unwrap_or_else(|status| {
                    Message::Mastership(Mastership::Lost {
                        reason: match std::error::Error::source(&status) {
                            Some(cause) => format!("the connection broke: {}", root_cause(cause)),
                            None => one_line(status.message()),
                        },
                    })
                });
                match message {
                    Message::Mastership(update) => {
                        let ended = matches!(update, Mastership::Lost { .. });
                        update_role(&sender, update);
                        if ended {
                            break;
                        }
                    }
                    Message::Digests(list) => {
                        let ack = acknowledgement(&list);
                        let problem = if list.encoded_len() > MOST_OF_LIST {
                            Some("a digest list is longer than any of Ultima's program")
                        } else {
                            let sent = digests.try_send(list);
                            let is_full = matches!(sent, Err(TrySendError::Full(_)));
                            is_full.then_some("digest lists arrive faster than they are read")
                        };
                        if let Some(problem) = problem
                            && drops.fetch_add(1, Ordering::Relaxed) == 0
                        {
                            tracing::warn!("{problem}: such lists are dropped and counted");
                        }
                        // Acknowledges dropped lists too: a switch may hold back the next list
                        // until then.
                        if let Some(answers) = answers.upgrade() {
                            // If sending fails, the stream has ended, which the next message
                            // reports.
                            let _ = answers.send(ack).await;
                        }
                    }
                }
            }
        });
        Session {
            _requests: requests,
            mastership,
            digests: Mutex::new(Some(waiting)),
            dropped,
            watching,
            listening: None,
        }
    }

    pub fn digests(&self) -> Option<mpsc::Receiver<DigestList>> {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.take()
    }

    pub fn digest_lists_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn mastership(&self) -> watch::Receiver<Mastership> {
        self.mastership.subscribe()
    }

    /// Marks the session as lost, whatever the stream brings later.
    pub fn mark_lost(&self, reason: String) {
        update_role(&self.mastership, Mastership::Lost { reason });
    }

    /// Marks the session as lost as soon as `silence` completes.
    pub fn mark_lost_after(&mut self, silence: impl Future<Output = String> + Send + 'static) {
        let mastership = self.mastership.clone();
        self.listening = Some(tokio::spawn(async move {
            let reason = silence.await;
            update_role(&mastership, Mastership::Lost { reason });
        }));
    }

    /// The reason why the session is lost, if it is.
    pub fn is_lost(&self) -> Option<String> {
        match &*self.mastership.borrow() {
            Mastership::Lost { reason } => Some(reason.clone()),
            _ => None,
        }
    }

    /// Waits until the session is lost, and returns the reason.
    pub async fn lost(&self) -> String {
        let is_lost = |now: &Mastership| matches!(now, Mastership::Lost { .. });
        // The sender is a field of `self`.
        let _ = self.mastership().wait_for(is_lost).await;
        self.is_lost().unwrap_or_default()
    }
}
