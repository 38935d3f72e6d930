//! StreamChannel: arbitration, packet-in and packet-out, digests and their acknowledgements (P4Runtime §16).

use std::collections::HashMap;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status, Streaming};
use ultima_grpc::fair::{Admitted, Origin};
use ultima_p4runtime::v1::stream_error::Details;
use ultima_p4runtime::v1::stream_message_request::Update as Request;
use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::{
    DigestListAck, DigestListAckError, MasterArbitrationUpdate, PacketOut, PacketOutError,
    StreamError, StreamMessageRequest, StreamMessageResponse, StreamOtherError,
};

use super::arbitration::{Arbitration, Notice, StreamId};
use super::{ResponseStream, Service};
use crate::datapath::Datapath;
use crate::target::Refusal;
use crate::translate::packet_out;

/// Largest number of waiting arbitration updates. A controller that reads too slowly loses its stream.
const BACKLOG: usize = 64;
/// Largest number of waiting packets, notifications and stream errors. Further ones are dropped.
const NOTIFICATIONS: usize = 512;
/// Largest number of a controller's packets and acknowledgements that wait for the forwarding thread. Beyond it the server stops
/// reading the stream.
const REQUESTS: usize = 64;

/// Largest number of streams without an arbitration update. The next one ends one of the client with the most, so that clients
/// that only open streams keep no controller out.
pub(super) const MAX_UNARBITRATED: usize = 256;
/// Time until a stream's first arbitration update. §5.3: a controller sends it first.
const ARBITRATION_TIME: Duration = Duration::from_secs(30);

type Sender = mpsc::Sender<Result<StreamMessageResponse, Status>>;
type WeakSender = mpsc::WeakSender<Result<StreamMessageResponse, Status>>;

/// Sends a message that may be dropped, in the room that arbitration updates leave.
fn try_notify(sender: &Sender, update: Response) -> bool {
    let message = StreamMessageResponse {
        update: Some(update),
    };
    sender.capacity() > BACKLOG && sender.try_send(Ok(message)).is_ok()
}

/// The sending half of a controller's stream.
struct Controller {
    sender: Sender,
    /// Dropping it wakes the task that reads the controller's requests.
    _open: oneshot::Sender<()>,
}

pub(super) struct Controllers {
    arbitration: Arbitration,
    streams: HashMap<StreamId, Controller>,
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

    pub(super) fn close_all(&mut self) {
        self.streams.clear();
    }

    pub(super) fn check_primary(&self, (device, role, id): &super::Sender) -> Result<(), Status> {
        self.arbitration.check_primary(*device, role, *id)
    }

    fn join(&mut self, sender: Sender) -> (StreamId, oneshot::Receiver<()>) {
        let id = self.next;
        self.next += 1;
        let (open, closed) = oneshot::channel();
        self.streams.insert(
            id,
            Controller {
                sender,
                _open: open,
            },
        );
        (id, closed)
    }

    fn end(&mut self, id: StreamId, status: Status) {
        if let Some(stream) = self.streams.remove(&id) {
            // A full queue belongs to a client that does not read.
            let _ = stream.sender.try_send(Err(status));
        }
    }

    fn leave(&mut self, id: StreamId) {
        self.streams.remove(&id);
        let notices = self.arbitration.leave(id);
        self.deliver(notices);
    }

    /// Sends notices under the arbitration's lock, so that every controller receives changes in order. Writes before a change
    /// reach the forwarding thread before it, and those of the new primary after it (§5.3, 3.2).
    fn deliver(&mut self, notices: Vec<Notice>) {
        for (id, update) in notices {
            match update {
                Ok(update) => self.respond(id, Response::Arbitration(update)),
                Err(status) => self.end(id, status),
            }
        }
    }

    /// Sends a message that may be dropped to all primaries. Returns false if none accepted it.
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
    /// Sends a message that may be dropped to all primaries. Returns false if none accepted it.
    pub(super) fn notify(&self, update: Response) -> bool {
        self.controllers().notify(update)
    }
}

/// Serves one controller until its stream ends.
pub(super) fn open(
    service: Service,
    requests: tonic::Request<Streaming<StreamMessageRequest>>,
) -> ResponseStream<StreamMessageResponse> {
    let origin = Origin::of(&requests);
    serve(service, requests.into_inner(), origin, ARBITRATION_TIME)
}

/// Serves one controller. Its first arbitration update must arrive within `limit`.
pub(super) fn serve(
    service: Service,
    mut requests: impl Stream<Item = Result<StreamMessageRequest, Status>> + Send + Unpin + 'static,
    origin: Origin,
    limit: Duration,
) -> ResponseStream<StreamMessageResponse> {
    let (sender, receiver) = mpsc::channel(BACKLOG + NOTIFICATIONS);
    // To end the stream with an error. Weak: the stream is open as long as `Controllers` has it.
    let end = sender.downgrade();
    let (id, mut closed) = service.controllers().join(sender);
    let unarbitrated = service.unarbitrated.admit_newest(origin);
    tokio::spawn(async move {
        let mut client = Client {
            service: &service,
            id,
            origin,
            unarbitrated: Some(unarbitrated),
            end: end.clone(),
            room: Arc::new(Semaphore::new(REQUESTS)),
        };
        let mut late = pin!(tokio::time::sleep(limit));
        let result = loop {
            let request = tokio::select! {
                request = requests.next() => request,
                _ = &mut closed => break Ok(()),
                () = &mut late, if client.unarbitrated.is_some() => {
                    break Err(Status::deadline_exceeded(format!(
                        "no arbitration update within {limit:?} of the stream's start"
                    )));
                }
                () = evicted(&mut client.unarbitrated) => {
                    break Err(Status::resource_exhausted(format!(
                        "{MAX_UNARBITRATED} other streams have not sent an arbitration update, which is the limit"
                    )));
                }
            };
            match request {
                Some(Ok(request)) => {
                    if let Err(status) = client.handle(request).await {
                        break Err(status);
                    }
                }
                // The client gets the reason, unless it has left.
                Some(Err(status)) => break Err(status),
                // The controller has ended the stream.
                None => break Ok(()),
            }
        };
        if let (Err(status), Some(sender)) = (result, end.upgrade()) {
            // A client that reads no messages misses this one, too.
            let _ = sender.try_send(Err(status));
        }
        service.controllers().leave(id);
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// Waits until another stream takes the place of this one without an arbitration update.
async fn evicted(unarbitrated: &mut Option<Admitted>) {
    match unarbitrated {
        Some(admitted) => admitted.evicted().await,
        None => pending().await,
    }
}

/// A controller, for the task that reads its messages.
struct Client<'a> {
    service: &'a Service,
    id: StreamId,
    origin: Origin,
    /// Its place among the streams without an arbitration update, until it has sent one.
    unarbitrated: Option<Admitted>,
    end: WeakSender,
    /// Room for messages that wait for the forwarding thread.
    room: Arc<Semaphore>,
}

impl Client<'_> {
    /// Handles a message. An error ends the stream.
    async fn handle(&mut self, request: StreamMessageRequest) -> Result<(), Status> {
        match request.update {
            Some(Request::Arbitration(update)) => self.arbitrate(&update)?,
            Some(Request::Packet(packet)) => {
                let translate = |packet: &PacketOut| {
                    let headers = self.service.headers.get().ok_or_else(|| {
                        let what = "packet-out: no program is committed; commit one first";
                        Refusal::new(Code::FailedPrecondition, what)
                    })?;
                    let frame = packet_out(&headers, packet)?;
                    Ok(move |datapath: &mut Datapath| datapath.packet_out(&frame, &headers))
                };
                let details = |packet| {
                    Details::PacketOut(PacketOutError {
                        packet_out: Some(packet),
                    })
                };
                self.hand_over(packet, details, translate).await;
            }
            Some(Request::DigestAck(ack)) => {
                let translate = |ack: &DigestListAck| {
                    let (digest, list) = (ack.digest_id, ack.list_id);
                    Ok(move |datapath: &mut Datapath| acknowledge(datapath, digest, list))
                };
                let details = |ack| {
                    Details::DigestListAck(DigestListAckError {
                        digest_list_ack: Some(ack),
                    })
                };
                self.hand_over(ack, details, translate).await;
            }
            Some(Request::Other(other)) => {
                let message = "this switch knows no messages beyond the specification's";
                let details = Details::Other(StreamOtherError { other: Some(other) });
                complain(&self.end, Refusal::unimplemented(message), details);
            }
            None => {
                let message = "the message is empty: expected an arbitration update, a packet or a digest ack";
                let details = Details::Other(StreamOtherError { other: None });
                complain(&self.end, Refusal::invalid(message), details);
            }
        }
        Ok(())
    }

    fn arbitrate(&mut self, update: &MasterArbitrationUpdate) -> Result<(), Status> {
        let mut controllers = self.service.controllers();
        let was_primary = controllers.arbitration.is_primary(self.id);
        let arbitration = &mut controllers.arbitration;
        let notices = arbitration.update(self.id, self.origin, update)?;
        self.unarbitrated = None;
        if !was_primary && controllers.arbitration.is_primary(self.id) {
            // §9.8: it may not know its predecessor's digests. This precedes the notice that it is the primary, so that it gets
            // all digests from then on.
            self.service.forwarder.send(|datapath| {
                if let Some(pipeline) = datapath.active_mut() {
                    pipeline.digests.forget_sent();
                }
            });
        }
        controllers.deliver(notices);
        Ok(())
    }

    /// Translates a primary's message and sends it to the forwarding thread, in order with the controller's writes. Reports a
    /// failure as a stream error.
    async fn hand_over<T: Send + 'static, A>(
        &self,
        message: T,
        details: fn(T) -> Details,
        translate: impl FnOnce(&T) -> Result<A, Refusal>,
    ) where
        A: FnOnce(&mut Datapath) -> Result<(), Refusal> + Send + 'static,
    {
        // The forwarding thread returns the permit even when it ends, and the semaphore is never closed.
        let Ok(permit) = self.room.clone().acquire_owned().await else {
            return;
        };
        let action = translate(&message);
        let controllers = self.service.controllers();
        if !controllers.arbitration.is_primary(self.id) {
            let what = "only a primary controller may send packets and acknowledgements";
            let refusal = Refusal::new(Code::PermissionDenied, what);
            return complain(&self.end, refusal, details(message));
        }
        let action = match action {
            Ok(action) => action,
            Err(refusal) => return complain(&self.end, refusal, details(message)),
        };
        let end = self.end.clone();
        // Sent under the lock: messages of who becomes the primary later come later.
        self.service.forwarder.send(move |datapath| {
            if let Err(refusal) = action(datapath) {
                complain(&end, refusal, details(message));
            }
            drop(permit);
        });
    }
}

fn acknowledge(datapath: &mut Datapath, digest: u32, list: u64) -> Result<(), Refusal> {
    let Some(pipeline) = datapath.active_mut() else {
        let message = "digest ack: no program is committed that could have sent the list";
        return Err(Refusal::new(Code::FailedPrecondition, message));
    };
    let acknowledged = pipeline.digests.acknowledge(digest, list);
    acknowledged.map_err(|error| Refusal::invalid(format!("digest ack: {error}")))
}

/// Sends a controller a stream error for its message.
fn complain(end: &WeakSender, Refusal { code, message }: Refusal, details: Details) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use ultima_p4runtime::v1::Uint128;

    use crate::forward::Forwarder;
    use crate::grpc::arbitration::MAX_CONTROLLERS;
    use crate::grpc::tests::service;

    type Requests = mpsc::UnboundedSender<Result<StreamMessageRequest, Status>>;

    fn connect(
        service: &Service,
        limit: Duration,
    ) -> (Requests, ResponseStream<StreamMessageResponse>) {
        connect_from(Origin::default(), service, limit)
    }

    fn connect_from(
        origin: Origin,
        service: &Service,
        limit: Duration,
    ) -> (Requests, ResponseStream<StreamMessageResponse>) {
        let (sender, requests) = mpsc::unbounded_channel();
        let requests = UnboundedReceiverStream::new(requests);
        (sender, serve(service.clone(), requests, origin, limit))
    }

    fn announce(stream: &Requests, low: u64) {
        let update = MasterArbitrationUpdate {
            device_id: 1,
            election_id: Some(Uint128 { high: 0, low }),
            ..MasterArbitrationUpdate::default()
        };
        let update = Some(Request::Arbitration(update));
        stream
            .send(Ok(StreamMessageRequest { update }))
            .expect("open");
    }

    async fn code(responses: &mut ResponseStream<StreamMessageResponse>) -> Option<Code> {
        let response = responses.next().await?;
        Some(response.map_or_else(|status| status.code(), |_| Code::Ok))
    }

    #[tokio::test]
    async fn a_stream_without_arbitration_ends() {
        let (service, _forwarder): (Service, Forwarder) = service();
        let limit = Duration::from_millis(20);
        let (active, mut responses) = connect(&service, limit);
        announce(&active, 1);
        assert_eq!(code(&mut responses).await, Some(Code::Ok));
        let (_silent, mut ended) = connect(&service, limit);
        assert_eq!(code(&mut ended).await, Some(Code::DeadlineExceeded));
        // The older one has passed its time, too.
        announce(&active, 2);
        assert_eq!(code(&mut responses).await, Some(Code::Ok));
    }

    #[tokio::test]
    async fn streams_without_arbitration_are_few() {
        let (service, _forwarder): (Service, Forwarder) = service();
        let mut silent: Vec<_> = (0..=MAX_UNARBITRATED)
            .map(|_| connect(&service, ARBITRATION_TIME))
            .collect();
        let first = &mut silent[0].1;
        assert_eq!(code(first).await, Some(Code::ResourceExhausted));
        assert_eq!(code(first).await, None);
        let (last, responses) = &mut silent[MAX_UNARBITRATED];
        announce(last, 1);
        assert_eq!(code(responses).await, Some(Code::Ok));
        assert_eq!(service.unarbitrated.len(), MAX_UNARBITRATED - 1);
    }

    #[tokio::test]
    async fn a_flood_of_silent_streams_ends_no_stream_of_another_client() {
        let (service, _forwarder): (Service, Forwarder) = service();
        let (late, mut responses) = connect(&service, ARBITRATION_TIME);
        let flooder = Origin {
            address: None,
            connection: 1,
        };
        let mut flood = Vec::new();
        for _ in 0..4 * MAX_UNARBITRATED {
            flood.push(connect_from(flooder, &service, ARBITRATION_TIME));
            tokio::task::yield_now().await;
        }
        announce(&late, 1);
        assert_eq!(code(&mut responses).await, Some(Code::Ok));
    }

    #[tokio::test]
    async fn a_full_role_has_room_for_a_higher_election_id() {
        let (service, _forwarder): (Service, Forwarder) = service();
        let mut backups = Vec::new();
        for id in 0..MAX_CONTROLLERS as u64 {
            let (requests, mut responses) = connect(&service, ARBITRATION_TIME);
            announce(&requests, id);
            assert_eq!(code(&mut responses).await, Some(Code::Ok));
            backups.push((requests, responses));
        }
        let (next, mut responses) = connect(&service, ARBITRATION_TIME);
        announce(&next, 1000);
        assert_eq!(code(&mut responses).await, Some(Code::Ok));
        let lowest = &mut backups[0].1;
        while let Some(code) = code(lowest).await {
            if code != Code::Ok {
                assert_eq!(code, Code::ResourceExhausted);
            }
        }
        announce(&next, 1001);
        assert_eq!(code(&mut responses).await, Some(Code::Ok));
    }
}
