//! What a switch tells over gNMI, heard for as long as the controller's connection to it stands.

use std::sync::{Arc, Weak};
use std::time::Duration;

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
use ultima_p4runtime::transport;

use super::controller::Controller;
use super::port_counters::PortCounters;
use super::port_status::PortStatus;
use crate::fabric::SwitchId;
use crate::p4rt::{Device, SwitchClient};

/// The pause before it is asked again after a stream has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest answer: all leaves of all ports are far below.
const MAX_ANSWER: usize = 4 << 20;
/// How long a switch may take until it begins to tell.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that answers no ping in twice as long is broken.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Somebody who listens to a switch, from a stream's beginning to its end.
pub(super) trait Listener: Send + 'static {
    /// What is listened to, in the plural.
    const SUBJECT: &'static str;

    /// Who has heard nothing yet from this switch.
    fn new(switch: SwitchId) -> Self;

    /// What is asked for.
    fn subscriptions() -> Vec<Subscription>;

    /// Hears news.
    fn take(&mut self, news: Notification, controller: &Controller);

    /// All that there is has been said.
    fn synced(&mut self, _: &Controller) {}

    /// The switch says that it tells nothing of this.
    fn absent(switch: SwitchId, controller: &Controller);
}

/// `/interfaces/interface[name=*]/state/` and this.
pub(super) fn of_state(leaf: &str) -> Path {
    path([
        elem("interfaces"),
        entry("interface", "name", "*"),
        elem("state"),
        elem(leaf),
    ])
}

/// What is told when it changes.
pub(super) fn on_change(path: Path) -> Subscription {
    Subscription {
        path: Some(path),
        mode: SubscriptionMode::OnChange.into(),
        ..Subscription::default()
    }
}

impl Controller {
    /// Hears what a switch says of its ports as long as the controller's connection to it stands.
    pub(super) fn hear_ports(self: &Arc<Self>, id: SwitchId) {
        self.listen_to::<PortStatus>(id);
        self.listen_to::<PortCounters>(id);
    }

    /// Has somebody listen to a switch as long as the controller's connection to it stands.
    fn listen_to<L: Listener>(self: &Arc<Self>, id: SwitchId) {
        let Ok(client) = self.client(id) else { return };
        let device = client.device().clone();
        // Neither the controller nor the connection lives for this.
        let (controller, client) = (Arc::downgrade(self), Arc::downgrade(&client));
        tokio::spawn(async move {
            while client.strong_count() > 0 {
                match hear_once::<L>(&controller, id, &device, &client).await {
                    Err(status) if status.code() == Code::Unimplemented => {
                        let subject = L::SUBJECT;
                        if let Some(controller) = controller.upgrade() {
                            L::absent(id, &controller);
                        }
                        tracing::info!(
                            switch = device.name,
                            subject,
                            "it does not tell of them: {}",
                            status.message()
                        );
                        return;
                    }
                    Err(status) => {
                        tracing::debug!(switch = device.name, subject = L::SUBJECT, %status, "no word");
                    }
                    Ok(()) => {}
                }
                sleep(PAUSE).await;
            }
        });
    }
}

/// Hears one stream to its end, or to that of the connection.
async fn hear_once<L: Listener>(
    controller: &Weak<Controller>,
    id: SwitchId,
    device: &Device,
    client: &Weak<SwitchClient>,
) -> Result<(), Status> {
    tokio::select! {
        ended = hear_all::<L>(controller, id, device) => ended,
        () = ended(client) => Ok(()),
    }
}

async fn hear_all<L: Listener>(
    controller: &Weak<Controller>,
    id: SwitchId,
    device: &Device,
) -> Result<(), Status> {
    let begun = timeout(CALL_TIMEOUT, subscribe(device, L::subscriptions()));
    let begun = begun
        .await
        .map_err(|_| Status::deadline_exceeded("no answer"))?;
    // Stratum takes the end of what it is asked for for the end of all (config_monitoring_service.cc).
    let (_requests, mut answers) = begun?;
    let mut listener = L::new(id);
    while let Some(answer) = answers.message().await? {
        let Some(controller) = controller.upgrade() else {
            break;
        };
        match answer.response {
            Some(Response::Update(news)) => listener.take(news, &controller),
            Some(Response::SyncResponse(_)) => listener.synced(&controller),
            None => {}
        }
    }
    Ok(())
}

/// Looks from time to time whether the connection is still there.
async fn ended(client: &Weak<SwitchClient>) {
    while client.strong_count() > 0 {
        sleep(PAUSE).await;
    }
}

/// What asks, and what is told.
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
