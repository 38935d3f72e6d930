//! The arbitration stream: we are primary as long as it stands and nobody outranks us.

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::transport::one_line;
use ultima_p4runtime::v1::{
    MasterArbitrationUpdate, StreamMessageRequest, StreamMessageResponse, Uint128,
    stream_message_request, stream_message_response,
};

/// How we stand with a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mastership {
    /// We may write.
    Primary,
    /// Another client may, and we may not.
    Backup {
        /// What the server said.
        message: String,
    },
    /// Nobody may. A switch remembers the highest election id that it has seen and promotes nobody
    /// by itself (P4Runtime §5.3); who asks again with that id becomes primary.
    Vacant {
        /// The highest election id.
        highest: u128,
    },
    /// The stream has ended.
    Lost {
        /// Why, in words.
        reason: String,
    },
}

/// Our side of the stream, kept open; the session ends when this is dropped.
pub(super) struct Session {
    _requests: mpsc::Sender<StreamMessageRequest>,
    mastership: watch::Receiver<Mastership>,
}

/// The request that asks for `device_id` as `election_id`.
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

/// Requests for the stream's call: the first, and an end that keeps it open.
pub(super) fn requests(
    first: StreamMessageRequest,
) -> (
    mpsc::Sender<StreamMessageRequest>,
    ReceiverStream<StreamMessageRequest>,
) {
    let (sender, receiver) = mpsc::channel(1);
    // There is room for one.
    let _ = sender.try_send(first);
    (sender, ReceiverStream::new(receiver))
}

/// The next answer to an arbitration.
pub(super) async fn next(
    responses: &mut Streaming<StreamMessageResponse>,
) -> Result<Mastership, Status> {
    loop {
        let Some(response) = responses.message().await? else {
            return Ok(Mastership::Lost {
                reason: "the switch ended the stream".into(),
            });
        };
        // Digests, packets and timeouts are nothing to this client.
        if let Some(stream_message_response::Update::Arbitration(update)) = response.update {
            let status = update.status.unwrap_or_default();
            return Ok(match Code::from_i32(status.code) {
                Code::Ok => Mastership::Primary,
                Code::NotFound => Mastership::Vacant {
                    highest: update.election_id.as_ref().map_or(0, u128::from),
                },
                _ => Mastership::Backup {
                    message: one_line(&status.message),
                },
            });
        }
    }
}

impl Session {
    /// Watches `responses` from here on, on a task of its own that ends with the stream.
    pub fn start(
        requests: mpsc::Sender<StreamMessageRequest>,
        mut responses: Streaming<StreamMessageResponse>,
    ) -> Self {
        let (sender, mastership) = watch::channel(Mastership::Primary);
        tokio::spawn(async move {
            loop {
                let update = next(&mut responses)
                    .await
                    .unwrap_or_else(|status| Mastership::Lost {
                        reason: one_line(status.message()),
                    });
                let ended = matches!(update, Mastership::Lost { .. });
                if sender.send(update).is_err() || ended {
                    break;
                }
            }
        });
        Session {
            _requests: requests,
            mastership,
        }
    }

    pub fn mastership(&self) -> watch::Receiver<Mastership> {
        self.mastership.clone()
    }
}
