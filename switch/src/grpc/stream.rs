//! StreamChannel: controllers announce themselves and hear who is the primary (P4Runtime §16).

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::v1::stream_error::Details;
use ultima_p4runtime::v1::stream_message_request::Update as Request;
use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::{
    DigestListAckError, MasterArbitrationUpdate, PacketOutError, StreamError, StreamMessageRequest,
    StreamMessageResponse, StreamOtherError, Uint128,
};

use super::arbitration::{Arbitration, Notice, StreamId};
use super::{ResponseStream, Service};

/// Messages that wait for a controller to read them. One that reads so slowly loses its stream.
const BACKLOG: usize = 64;

type Sender = mpsc::Sender<Result<StreamMessageResponse, Status>>;

/// The sending half of a controller's stream.
struct Stream {
    sender: Sender,
    /// Dropped with the stream, which wakes the task that reads the controller's requests.
    _open: oneshot::Sender<()>,
}

/// Arbitration with the streams that its notices go to.
pub(super) struct Controllers {
    arbitration: Arbitration,
    streams: HashMap<StreamId, Stream>,
    next: StreamId,
}

impl Controllers {
    pub(super) fn new(device_id: u64) -> Self {
        Controllers {
            arbitration: Arbitration::new(device_id),
            streams: HashMap::new(),
            next: 0,
        }
    }

    /// Ends all streams.
    pub(super) fn close_all(&mut self) {
        self.streams.clear();
    }

    /// Whether a request with these values is the primary's.
    pub(super) fn check_primary(
        &self,
        device_id: u64,
        role: &str,
        election_id: Option<Uint128>,
    ) -> Result<(), Status> {
        self.arbitration.check_primary(device_id, role, election_id)
    }

    fn join(&mut self, sender: Sender) -> (StreamId, oneshot::Receiver<()>) {
        let id = self.next;
        self.next += 1;
        let (open, closed) = oneshot::channel();
        self.streams.insert(
            id,
            Stream {
                sender,
                _open: open,
            },
        );
        (id, closed)
    }

    fn update(&mut self, id: StreamId, update: &MasterArbitrationUpdate) -> Result<(), Status> {
        let notices = self.arbitration.update(id, update)?;
        self.tell(notices);
        Ok(())
    }

    fn leave(&mut self, id: StreamId) {
        self.streams.remove(&id);
        let notices = self.arbitration.leave(id);
        self.tell(notices);
    }

    /// Sends under the lock that the arbitration is changed under, so that every controller hears
    /// of the changes in the order in which they happened. What was written before a change was
    /// sent to the forwarding thread before it, and what its new primary writes or reads comes
    /// after (§5.3, 3.2).
    fn tell(&mut self, notices: Vec<Notice>) {
        for (id, update) in notices {
            self.respond(id, Response::Arbitration(update));
        }
    }

    fn respond(&mut self, id: StreamId, update: Response) {
        let message = StreamMessageResponse {
            update: Some(update),
        };
        if let Some(stream) = self.streams.get(&id)
            && stream.sender.try_send(Ok(message)).is_err()
        {
            // Gone, or not reading: its stream ends, and its task reports that it left.
            self.streams.remove(&id);
        }
    }
}

/// Serves one controller until it leaves.
pub(super) fn open(
    service: Arc<Service>,
    mut requests: Streaming<StreamMessageRequest>,
) -> ResponseStream<StreamMessageResponse> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    // To end the stream with an error. Weak: the stream is open as long as `Controllers` has it.
    let end = sender.downgrade();
    let (id, mut closed) = service.controllers().join(sender);
    tokio::spawn(async move {
        let result = loop {
            let request = tokio::select! {
                request = requests.next() => request,
                _ = &mut closed => break Ok(()),
            };
            match request {
                Some(Ok(request)) => {
                    if let Err(status) = handle(&service, id, request) {
                        break Err(status);
                    }
                }
                // The controller has ended the stream, or is gone.
                Some(Err(_)) | None => break Ok(()),
            }
        };
        if let (Err(status), Some(sender)) = (result, end.upgrade()) {
            // Full of messages that nobody reads: then nobody reads this one either.
            let _ = sender.try_send(Err(status));
        }
        service.controllers().leave(id);
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// An error ends the stream.
fn handle(service: &Service, id: StreamId, request: StreamMessageRequest) -> Result<(), Status> {
    let mut controllers = service.controllers();
    let (code, message, details) = match request.update {
        Some(Request::Arbitration(update)) => return controllers.update(id, &update),
        Some(Request::Packet(packet)) => (
            Code::Unimplemented,
            "packet-out: this switch has no controller port",
            Details::PacketOut(PacketOutError {
                packet_out: Some(packet),
            }),
        ),
        Some(Request::DigestAck(ack)) => (
            Code::InvalidArgument,
            "digest ack: this switch has sent no such digest list",
            Details::DigestListAck(DigestListAckError {
                digest_list_ack: Some(ack),
            }),
        ),
        Some(Request::Other(other)) => (
            Code::Unimplemented,
            "this switch knows no messages beyond the specification's",
            Details::Other(StreamOtherError { other: Some(other) }),
        ),
        None => (
            Code::InvalidArgument,
            "the message is empty: expected an arbitration update",
            Details::Other(StreamOtherError { other: None }),
        ),
    };
    let error = StreamError {
        canonical_code: code as i32,
        message: message.to_owned(),
        details: Some(details),
        ..StreamError::default()
    };
    controllers.respond(id, Response::Error(error));
    Ok(())
}
