//! StreamChannel: controllers announce themselves, hear who is the primary, send packets and
//! acknowledge digests (P4Runtime §16).

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_p4runtime::v1::stream_error::Details;
use ultima_p4runtime::v1::stream_message_request::Update as Request;
use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::{
    DigestListAck, DigestListAckError, MasterArbitrationUpdate, PacketOut, PacketOutError,
    StreamError, StreamMessageRequest, StreamMessageResponse, StreamOtherError, Uint128,
};

use super::arbitration::{Arbitration, Notice, StreamId};
use super::{ResponseStream, Service};
use crate::datapath::{Datapath, PacketOutError as Refused};

/// Arbitration updates that wait for a controller to read them. One that reads so slowly loses its
/// stream.
const BACKLOG: usize = 64;
/// Packets, notifications and stream errors that wait for a controller to read them; what comes
/// beyond that is dropped.
const NOTIFICATIONS: usize = 512;
/// A controller's packets and acknowledgements that wait for the forwarding thread. Then no more of
/// its messages are read.
const REQUESTS: usize = 64;

type Sender = mpsc::Sender<Result<StreamMessageResponse, Status>>;
type WeakSender = mpsc::WeakSender<Result<StreamMessageResponse, Status>>;

/// Sends what may be lost, in the room that is left beside arbitration updates.
fn try_notify(sender: &Sender, update: Response) -> bool {
    let message = StreamMessageResponse {
        update: Some(update),
    };
    sender.capacity() > BACKLOG && sender.try_send(Ok(message)).is_ok()
}

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

    /// Sends what may be lost to all primaries. False: nobody took it.
    fn notify(&self, update: Response) -> bool {
        let primaries = self.arbitration.primaries();
        let streams = primaries.filter_map(|id| self.streams.get(&id));
        let sent = streams.map(|stream| try_notify(&stream.sender, update.clone()));
        sent.fold(false, |any, sent| any | sent)
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

impl Service {
    /// Sends what may be lost to all primaries. False: nobody took it.
    pub(super) fn notify(&self, update: Response) -> bool {
        self.controllers().notify(update)
    }
}

/// Serves one controller until it leaves.
pub(super) fn open(
    service: Arc<Service>,
    mut requests: Streaming<StreamMessageRequest>,
) -> ResponseStream<StreamMessageResponse> {
    let (sender, receiver) = mpsc::channel(BACKLOG + NOTIFICATIONS);
    // To end the stream with an error. Weak: the stream is open as long as `Controllers` has it.
    let end = sender.downgrade();
    let (id, mut closed) = service.controllers().join(sender);
    tokio::spawn(async move {
        let client = Client {
            service: &service,
            id,
            end: end.clone(),
            room: Arc::new(Semaphore::new(REQUESTS)),
        };
        let result = loop {
            let request = tokio::select! {
                request = requests.next() => request,
                _ = &mut closed => break Ok(()),
            };
            match request {
                Some(Ok(request)) => {
                    if let Err(status) = client.handle(request).await {
                        break Err(status);
                    }
                }
                // It is told what is wrong with its message, unless it is gone.
                Some(Err(status)) => break Err(status),
                // The controller has ended the stream.
                None => break Ok(()),
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

/// What is wrong with a controller's message.
type Complaint = (Code, String);

/// A controller as the task that reads its messages knows it.
struct Client<'a> {
    service: &'a Service,
    id: StreamId,
    end: WeakSender,
    /// Room for its messages before the forwarding thread.
    room: Arc<Semaphore>,
}

impl Client<'_> {
    /// An error ends the stream.
    async fn handle(&self, request: StreamMessageRequest) -> Result<(), Status> {
        match request.update {
            Some(Request::Arbitration(update)) => self.arbitrate(&update)?,
            Some(Request::Packet(packet)) => {
                let details = |packet| {
                    Details::PacketOut(PacketOutError {
                        packet_out: Some(packet),
                    })
                };
                self.hand_over(packet, details, packet_out).await;
            }
            Some(Request::DigestAck(ack)) => {
                let details = |ack| {
                    Details::DigestListAck(DigestListAckError {
                        digest_list_ack: Some(ack),
                    })
                };
                self.hand_over(ack, details, acknowledge).await;
            }
            Some(Request::Other(other)) => {
                let message = "this switch knows no messages beyond the specification's";
                let details = Details::Other(StreamOtherError { other: Some(other) });
                complain(
                    &self.end,
                    (Code::Unimplemented, message.to_owned()),
                    details,
                );
            }
            None => {
                let message = "the message is empty: expected an arbitration update, a packet or a digest ack";
                let details = Details::Other(StreamOtherError { other: None });
                complain(
                    &self.end,
                    (Code::InvalidArgument, message.to_owned()),
                    details,
                );
            }
        }
        Ok(())
    }

    fn arbitrate(&self, update: &MasterArbitrationUpdate) -> Result<(), Status> {
        let mut controllers = self.service.controllers();
        let was_primary = controllers.arbitration.is_primary(self.id);
        let notices = controllers.arbitration.update(self.id, update)?;
        if !was_primary && controllers.arbitration.is_primary(self.id) {
            // §9.8: it may not know what its predecessor was told. Sent before it hears that it is
            // the primary, so that what a packet says from then on is told.
            self.service.forwarder.send(|datapath| {
                if let Some(pipeline) = datapath.active_mut() {
                    pipeline.digests.forget_sent();
                }
            });
        }
        controllers.tell(notices);
        Ok(())
    }

    /// Hands a primary's message to the forwarding thread, in its turn among the controller's
    /// writes. What is wrong with it is told by a stream error.
    async fn hand_over<T: Send + 'static>(
        &self,
        message: T,
        details: fn(T) -> Details,
        action: fn(&mut Datapath, &T) -> Result<(), Complaint>,
    ) {
        // The forwarding thread gives it back even when it ends; nobody closes the semaphore.
        let Ok(permit) = self.room.clone().acquire_owned().await else {
            return;
        };
        let controllers = self.service.controllers();
        if !controllers.arbitration.is_primary(self.id) {
            let refusal = "packets and acknowledgements are taken from primary controllers only";
            let complaint = (Code::PermissionDenied, refusal.to_owned());
            return complain(&self.end, complaint, details(message));
        }
        let end = self.end.clone();
        // Sent under the lock: messages of who becomes the primary later come later.
        self.service.forwarder.send(move |datapath| {
            if let Err(complaint) = action(datapath, &message) {
                complain(&end, complaint, details(message));
            }
            drop(permit);
        });
    }
}

fn packet_out(datapath: &mut Datapath, packet: &PacketOut) -> Result<(), Complaint> {
    datapath.packet_out(packet).map_err(|error| {
        let code = match error {
            Refused::NoCpuPort | Refused::NoProgram => Code::FailedPrecondition,
            Refused::Metadata(_) | Refused::TooLong(_) => Code::InvalidArgument,
        };
        (code, error.to_string())
    })
}

fn acknowledge(datapath: &mut Datapath, ack: &DigestListAck) -> Result<(), Complaint> {
    let Some(pipeline) = datapath.active_mut() else {
        let message = "digest ack: no program is committed that could have sent the list";
        return Err((Code::FailedPrecondition, message.to_owned()));
    };
    let acknowledged = pipeline.digests.acknowledge(ack.digest_id, ack.list_id);
    acknowledged.map_err(|error| (Code::InvalidArgument, format!("digest ack: {error}")))
}

/// Tells a controller what is wrong with its message.
fn complain(end: &WeakSender, (code, message): Complaint, details: Details) {
    let error = StreamError {
        canonical_code: code as i32,
        message,
        details: Some(details),
        ..StreamError::default()
    };
    if let Some(sender) = end.upgrade() {
        try_notify(&sender, Response::Error(error));
    }
}
