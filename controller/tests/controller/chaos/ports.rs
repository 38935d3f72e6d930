//! A gNMI server that reports the status of ports, and no counters.

use std::collections::BTreeMap;
use std::pin::Pin;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use ultima_gnmi::path::{elem, entry, path};
use ultima_gnmi::v0::g_nmi_server::GNmi;
use ultima_gnmi::v0::subscribe_response::Response as Answer;
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{
    CapabilityRequest, CapabilityResponse, GetRequest, GetResponse, Notification, SetRequest,
    SetResponse, SubscribeRequest, SubscribeResponse, SubscriptionMode, TypedValue, Update,
    subscribe_request,
};

/// True for each port that is up, by its number.
pub type Ports = BTreeMap<u16, bool>;

/// The gNMI server.
pub struct Telling(pub watch::Sender<Ports>);

type Responses = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

/// A notification with a port's number and status.
fn says(port: u16, is_up: bool) -> SubscribeResponse {
    let status = if is_up { "UP" } else { "DOWN" };
    let leaves = [
        ("id", Value::UintVal(port.into())),
        ("oper-status", Value::StringVal(status.into())),
    ];
    let interface = entry("interface", "name", &format!("port{port}"));
    let update = |(leaf, value)| Update {
        path: Some(path([
            elem("interfaces"),
            interface.clone(),
            elem("state"),
            elem(leaf),
        ])),
        val: Some(TypedValue { value: Some(value) }),
        ..Update::default()
    };
    let changes = Notification {
        update: leaves.into_iter().map(update).collect(),
        ..Notification::default()
    };
    SubscribeResponse {
        response: Some(Answer::Update(changes)),
    }
}

#[tonic::async_trait]
impl GNmi for Telling {
    type SubscribeStream = Responses;

    async fn capabilities(
        &self,
        _: Request<CapabilityRequest>,
    ) -> Result<Response<CapabilityResponse>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }

    async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }

    async fn set(&self, _: Request<SetRequest>) -> Result<Response<SetResponse>, Status> {
        Err(Status::unimplemented("not used in tests"))
    }

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let mut requests = request.into_inner();
        let asked = requests.message().await?.and_then(|it| it.request);
        let Some(subscribe_request::Request::Subscribe(list)) = asked else {
            return Err(Status::invalid_argument("a subscription comes first"));
        };
        let samples = |mode| mode == SubscriptionMode::Sample;
        let mut ports = self.0.subscribe();
        if list.subscription.iter().any(|it| samples(it.mode())) || ports.borrow().is_empty() {
            return Err(Status::unimplemented("this path has no values"));
        }
        let (answers, outgoing) = mpsc::channel(64);
        tokio::spawn(async move {
            // Keeps the stream open when the client has sent its last request.
            let _requests = requests;
            let mut sent: Option<Ports> = None;
            loop {
                let now = ports.borrow_and_update().clone();
                let is_sent = |at, up| sent.as_ref().is_some_and(|it| it.get(at) == Some(up));
                let changes = now.iter().filter(|(at, up)| !is_sent(*at, *up));
                let mut changes: Vec<_> = changes.map(|(at, up)| says(*at, *up)).collect();
                if sent.is_none() {
                    changes.push(SubscribeResponse {
                        response: Some(Answer::SyncResponse(true)),
                    });
                }
                sent = Some(now);
                for said in changes {
                    // A closed stream is noticed below.
                    let _ = answers.send(Ok(said)).await;
                }
                tokio::select! {
                    changed = ports.changed() => if changed.is_err() { break },
                    () = answers.closed() => break,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}
