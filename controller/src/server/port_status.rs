//! What a switch says of its ports over gNMI: a link between switches is left as soon as either end says that it is down, and used
//! again as [damping](crate::fabric::damping) has it.
//!
//! Ports of hosts are not looked at: no other way leads there, and a host that is not there yet is no fault.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use ultima_gnmi::path::{elem, entry, path};
use ultima_gnmi::v0::g_nmi_client::GNmiClient;
use ultima_gnmi::v0::subscribe_request::Request;
use ultima_gnmi::v0::subscribe_response::Response;
use ultima_gnmi::v0::subscription_list::Mode;
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{
    Encoding, Notification, Path, SubscribeRequest, SubscribeResponse, Subscription,
    SubscriptionList, SubscriptionMode,
};
use ultima_p4runtime::transport;

use super::controller::Controller;
use crate::fabric::{Part, SwitchId, SwitchPort};
use crate::p4rt::{Device, SwitchClient};
use crate::target::PortNumber;

/// The pause before it is asked again after a stream has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest answer: all leaves of all ports are far below.
const MAX_ANSWER: usize = 4 << 20;
/// Ports that are remembered of one switch: more than any has. What it says of others is not heard.
const MAX_PORTS: usize = 4096;

impl Controller {
    /// Hears what a switch says of its ports as long as the controller's connection to it stands.
    pub(super) fn hear_ports(self: &Arc<Self>, id: SwitchId) {
        let Ok(client) = self.client(id) else { return };
        let device = client.device().clone();
        // Neither the controller nor the connection lives for this.
        let (controller, client) = (Arc::downgrade(self), Arc::downgrade(&client));
        tokio::spawn(async move {
            while client.strong_count() > 0 {
                let heard = hear(&controller, id, &device, &client).await;
                match heard {
                    Err(status) if status.code() == Code::Unimplemented => {
                        tracing::info!(
                            switch = device.name,
                            "it does not tell of its ports: it serves no gNMI"
                        );
                        return;
                    }
                    Err(status) => {
                        tracing::debug!(switch = device.name, %status, "no word of its ports")
                    }
                    Ok(()) => {}
                }
                sleep(PAUSE).await;
            }
        });
    }

    /// A port that a switch tells of is up, or not.
    fn see_port(&self, port: SwitchPort, is_up: bool) {
        let is_trunk = self.fabric().across(port).is_some();
        if is_trunk {
            let name = self.fabric().name_of(Part::Port(port));
            tracing::debug!(port = name, is_up, "told");
            self.see(Part::Port(port), is_up);
        }
    }
}

/// Hears one stream to its end, or to that of the connection.
async fn hear(
    controller: &Weak<Controller>,
    id: SwitchId,
    device: &Device,
    client: &Weak<SwitchClient>,
) -> Result<(), Status> {
    let mut answers = subscribe(device).await?;
    let mut ports = Ports::default();
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer?,
            () = ended(client) => return Ok(()),
        };
        let Some(answer) = answer else { return Ok(()) };
        let (Some(Response::Update(news)), Some(controller)) =
            (answer.response, controller.upgrade())
        else {
            continue;
        };
        for (port, is_up) in ports.take(news) {
            controller.see_port(SwitchPort { switch: id, port }, is_up);
        }
    }
}

/// Looks from time to time whether the connection is still there.
async fn ended(client: &Weak<SwitchClient>) {
    while client.strong_count() > 0 {
        sleep(PAUSE).await;
    }
}

async fn subscribe(device: &Device) -> Result<Streaming<SubscribeResponse>, Status> {
    let unavailable =
        |error: tonic::transport::Error| Status::unavailable(transport::root_cause(&error));
    let endpoint = transport::endpoint(&device.grpc, device.tls.as_ref()).map_err(unavailable)?;
    let channel = endpoint.connect().await.map_err(unavailable)?;
    let mut rpc = GNmiClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let state = [
        elem("interfaces"),
        entry("interface", "name", "*"),
        elem("state"),
    ];
    let leaf = |name: &str| Subscription {
        path: Some(path(state.iter().cloned().chain([elem(name)]))),
        mode: SubscriptionMode::OnChange.into(),
        ..Subscription::default()
    };
    let list = SubscriptionList {
        // An interface's number comes before what it is.
        subscription: vec![leaf("id"), leaf("oper-status")],
        mode: Mode::Stream.into(),
        encoding: Encoding::Proto.into(),
        ..SubscriptionList::default()
    };
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let first = SubscribeRequest {
        request: Some(Request::Subscribe(list)),
    };
    // The channel is new and has room for it. Its end says that no more is asked for.
    let _ = requests.try_send(first);
    Ok(rpc
        .subscribe(ReceiverStream::new(outgoing))
        .await?
        .into_inner())
}

/// What a switch has said of its interfaces, by name.
#[derive(Debug, Default)]
struct Ports(BTreeMap<String, Told>);

#[derive(Debug, Default)]
struct Told {
    port: Option<PortNumber>,
    is_up: Option<bool>,
}

impl Told {
    fn whole(&self) -> Option<(PortNumber, bool)> {
        Some((self.port?, self.is_up?))
    }
}

impl Ports {
    /// Takes news in; returns the ports that they are about, as they are now. An interface that is gone is down.
    fn take(&mut self, news: Notification) -> Vec<(PortNumber, bool)> {
        let prefix = news.prefix.unwrap_or_default();
        let mut about: Vec<String> = Vec::new();
        let mut gone = Vec::new();
        for update in news.update {
            let path = update.path.unwrap_or_default();
            let Some((name, leaf)) = named(&prefix, &path) else {
                continue;
            };
            let is_known = self.0.contains_key(name);
            if !is_known && self.0.len() >= MAX_PORTS {
                continue;
            }
            let told = self.0.entry(name.to_owned()).or_default();
            match (leaf, update.val.and_then(|it| it.value)) {
                ("id", Some(Value::UintVal(number))) => {
                    told.port = u16::try_from(number).ok().map(PortNumber);
                }
                ("oper-status", Some(Value::StringVal(status))) => {
                    told.is_up = Some(status == "UP");
                }
                _ => continue,
            }
            about.push(name.to_owned());
        }
        for path in news.delete {
            if let Some((name, _)) = named(&prefix, &path)
                && let Some(Told {
                    port: Some(port), ..
                }) = self.0.remove(name)
            {
                gone.push((port, false));
            }
        }
        about.dedup();
        let now = about.iter().filter_map(|name| self.0.get(name)?.whole());
        now.chain(gone).collect()
    }
}

/// The interface that a path is about, and the leaf of its state; empty where it is all of it.
fn named<'a>(prefix: &'a Path, path: &'a Path) -> Option<(&'a str, &'a str)> {
    let all: Vec<_> = prefix.elem.iter().chain(&path.elem).collect();
    let (interface, leaf) = match all[..] {
        [interfaces, interface, ref rest @ ..] if interfaces.name == "interfaces" => {
            let leaf = match rest {
                [state, leaf] if state.name == "state" => leaf.name.as_str(),
                [] => "",
                _ => return None,
            };
            (interface, leaf)
        }
        _ => return None,
    };
    Some((interface.key.get("name")?.as_str(), leaf))
}

#[cfg(test)]
mod tests {
    use ultima_gnmi::v0::{TypedValue, Update};

    use super::*;

    fn state(name: &str, leaf: &str) -> Path {
        let interface = entry("interface", "name", name);
        path([elem("interfaces"), interface, elem("state"), elem(leaf)])
    }

    fn says(name: &str, leaf: &str, value: Value) -> Notification {
        Notification {
            update: vec![Update {
                path: Some(state(name, leaf)),
                val: Some(TypedValue { value: Some(value) }),
                duplicates: 0,
            }],
            ..Notification::default()
        }
    }

    #[test]
    fn a_port_is_known_by_the_number_of_its_interface() {
        let mut ports = Ports::default();
        let status = |up: &str| says("eth9", "oper-status", Value::StringVal(up.into()));
        assert_eq!(ports.take(status("UP")), [], "no number yet");
        let number = says("eth9", "id", Value::UintVal(9));
        assert_eq!(ports.take(number), [(PortNumber(9), true)]);
        assert_eq!(
            ports.take(status("LOWER_LAYER_DOWN")),
            [(PortNumber(9), false)]
        );
        let other = says("eth9", "mtu", Value::UintVal(1));
        assert_eq!(ports.take(other), []);
        // A number that no port has is none.
        ports.take(says("eth8", "id", Value::UintVal(1 << 20)));
        assert_eq!(
            ports.take(says("eth8", "oper-status", Value::StringVal("UP".into()))),
            []
        );
        assert_eq!(ports.take(status("UP")), [(PortNumber(9), true)]);
        let gone = Notification {
            delete: vec![state("eth9", "oper-status"), state("eth9", "id")],
            ..Notification::default()
        };
        assert_eq!(ports.take(gone), [(PortNumber(9), false)]);
    }

    #[test]
    fn what_a_switch_makes_up_takes_bounded_room() {
        let mut ports = Ports::default();
        for number in 0..2 * MAX_PORTS as u64 {
            ports.take(says(&format!("eth{number}"), "id", Value::UintVal(number)));
        }
        assert_eq!(ports.0.len(), MAX_PORTS);
    }
}
