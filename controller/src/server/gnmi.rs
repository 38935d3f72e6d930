//! gNMI subscriptions to a switch, for as long as the controller is connected to it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_gnmi::path::{elem, entry, path};
use ultima_gnmi::v0::g_nmi_client::GNmiClient;
use ultima_gnmi::v0::subscribe_request::Request;
use ultima_gnmi::v0::subscribe_response::Response;
use ultima_gnmi::v0::subscription_list::Mode;
use ultima_gnmi::v0::{
    Encoding, Notification, Path, SubscribeRequest, SubscribeResponse, Subscription,
    SubscriptionList, SubscriptionMode,
};
use ultima_grpc::transport;
use ultima_planner::fabric::SwitchId;

use super::controller::Controller;
use crate::p4rt::{Device, SwitchClient};

/// Limit of a message's bytes: all leaves of all ports are far below.
const MAX_ANSWER: usize = 4 << 20;
/// Timeout of a subscription's start.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Keepalive interval. A connection without an answer for twice as long is broken.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A subscriber to one switch, for the duration of a stream.
pub(super) trait Listener: Send + 'static {
    /// The subject of its subscriptions, in the plural, for log messages.
    const SUBJECT: &'static str;

    /// A subscriber without any state yet.
    fn new(switch: SwitchId) -> Self;

    /// Its subscriptions.
    fn subscriptions() -> Vec<Subscription>;

    /// Processes a notification.
    fn take(&mut self, notification: Notification, controller: &Controller);

    /// Called when the switch has sent its whole present state.
    fn synced(&mut self, _: &Controller) {}

    /// Called when the switch does not support these paths.
    fn absent(switch: SwitchId, controller: &Controller);
}

/// The path `/interfaces/interface[name=*]/state/<leaf>`.
pub(super) fn of_state(leaf: &str) -> Path {
    path([
        elem("interfaces"),
        entry("interface", "name", "*"),
        elem("state"),
        elem(leaf),
    ])
}

/// A subscription to changes of a path.
pub(super) fn on_change(path: Path) -> Subscription {
    Subscription {
        path: Some(path),
        mode: SubscriptionMode::OnChange.into(),
        ..Subscription::default()
    }
}

/// Runs a subscription while the controller is connected to the switch.
pub fn listen_to<L: Listener>(controller: &Arc<Controller>, id: SwitchId) {
    let Ok(client) = controller.client(id) else {
        return;
    };
    let device = client.device().clone();
    let pause = controller.timers.resubscribe;
    // Weak references: the task must keep neither the controller nor the connection alive.
    let (controller, client) = (Arc::downgrade(controller), Arc::downgrade(&client));
    tokio::spawn(async move {
        let run = || run_once::<L>(&controller, id, &device, &client, pause);
        let pauses = ConstantBuilder::new().with_delay(pause).without_max_times();
        let may_pass = |status: &Status| {
            tracing::debug!(switch = device.name, subject = L::SUBJECT, %status, "gNMI stream ended");
            status.code() != Code::Unimplemented
        };
        if let Err(status) = run.retry(pauses).when(may_pass).await {
            let subject = L::SUBJECT;
            if let Some(controller) = controller.upgrade() {
                L::absent(id, &controller);
            }
            tracing::info!(
                switch = device.name,
                subject,
                "the switch does not report this over gNMI: {}",
                status.message()
            );
        }
    });
}

/// Processes one stream until it or the P4Runtime connection ends.
async fn run_once<L: Listener>(
    controller: &Weak<Controller>,
    id: SwitchId,
    device: &Device,
    client: &Weak<SwitchClient>,
    pause: Duration,
) -> Result<(), Status> {
    tokio::select! {
        ended = process_stream::<L>(controller, id, device) => ended,
        () = ended(client, pause) => Ok(()),
    }
}

async fn process_stream<L: Listener>(
    controller: &Weak<Controller>,
    id: SwitchId,
    device: &Device,
) -> Result<(), Status> {
    let begun = timeout(CALL_TIMEOUT, subscribe(device, L::subscriptions()));
    let begun = begun
        .await
        .map_err(|_| Status::deadline_exceeded("no answer"))?;
    // Kept open: Stratum ends the subscription with the request stream
    // (config_monitoring_service.cc).
    let (_requests, mut answers) = begun?;
    let mut listener = L::new(id);
    while let Some(answer) = answers.message().await? {
        let Some(controller) = controller.upgrade() else {
            return Ok(());
        };
        match answer.response {
            Some(Response::Update(notification)) => listener.take(notification, &controller),
            Some(Response::SyncResponse(_)) => listener.synced(&controller),
            None => {}
        }
    }
    Err(Status::unavailable("the stream has ended"))
}

/// Returns when the connection has ended; checks periodically.
async fn ended(client: &Weak<SwitchClient>, pause: Duration) {
    while client.strong_count() > 0 {
        sleep(pause).await;
    }
}

/// The request stream, and the notifications.
type Subscribed = (mpsc::Sender<SubscribeRequest>, Streaming<SubscribeResponse>);

async fn subscribe(device: &Device, subscription: Vec<Subscription>) -> Result<Subscribed, Status> {
    let unavailable =
        |error: tonic::transport::Error| Status::unavailable(transport::root_cause(&error));
    let endpoint = transport::endpoint(&device.grpc, device.tls.as_ref())
        .map_err(unavailable)?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    let channel = endpoint.connect().await.map_err(unavailable)?;
    let mut rpc = GNmiClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let list = SubscriptionList {
        subscription,
        mode: Mode::Stream.into(),
        encoding: Encoding::Proto.into(),
        ..SubscriptionList::default()
    };
    let (requests, outgoing) = mpsc::channel(1);
    let first = SubscribeRequest {
        request: Some(Request::Subscribe(list)),
    };
    // The channel is new and has room for it.
    let _ = requests.try_send(first);
    let answers = rpc.subscribe(ReceiverStream::new(outgoing)).await?;
    Ok((requests, answers.into_inner()))
}
