//! gNMI: notifications of port changes, and setting of interfaces.

use std::net::UdpSocket;
use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::iter;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use ultima_gnmi::path::{elem, entry, path};
use ultima_gnmi::v0::g_nmi_client::GNmiClient;
use ultima_gnmi::v0::subscribe_request::Request;
use ultima_gnmi::v0::subscribe_response::Response;
use ultima_gnmi::v0::subscription_list::Mode;
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{
    Encoding, GetRequest, Path, SubscribeRequest, SubscribeResponse, Subscription,
    SubscriptionList, SubscriptionMode,
};

use crate::served::common::{TIMEOUT, Testbed};
use crate::served::interfaces::{Host, in_namespace, ip, running_interface_and_socket};

async fn client(testbed: &Testbed) -> GNmiClient<Channel> {
    let address = format!("http://{}", testbed.switch.grpc_addr());
    GNmiClient::connect(address).await.expect("connects")
}

fn leaf(name: &str, container: &str, leaf: &str) -> Path {
    let interface = entry("interface", "name", name);
    path([elem("interfaces"), interface, elem(container), elem(leaf)])
}

fn counter(name: &str, counter: &str) -> Path {
    let mut path = leaf(name, "state", "counters");
    path.elem.push(elem(counter));
    path
}

async fn subscribe(
    client: &mut GNmiClient<Channel>,
    list: SubscriptionList,
) -> Result<Streaming<SubscribeResponse>, Status> {
    let request = SubscribeRequest {
        request: Some(Request::Subscribe(list)),
    };
    Ok(client.subscribe(iter([request])).await?.into_inner())
}

/// The values of the next update; `None` for the sync response.
async fn next(stream: &mut Streaming<SubscribeResponse>) -> Option<Vec<Value>> {
    let answer = timeout(TIMEOUT, stream.message()).await;
    let answer = answer.expect("in time").expect("no error").expect("no end");
    match answer.response.expect("a response") {
        Response::SyncResponse(_) => None,
        Response::Update(notification) => {
            let values = notification.update.into_iter();
            Some(values.filter_map(|it| it.val?.value).collect())
        }
    }
}

fn text(value: &str) -> Option<Vec<Value>> {
    Some(vec![Value::StringVal(value.to_owned())])
}

fn list(mode: Mode, subscription: Subscription) -> SubscriptionList {
    SubscriptionList {
        mode: mode.into(),
        subscription: vec![subscription],
        encoding: Encoding::Proto.into(),
        ..SubscriptionList::default()
    }
}

#[test]
fn changes_of_a_link_are_reported() {
    in_namespace(async {
        let host = Host::new(1);
        let (testbed, _peer) = running_interface_and_socket().await;
        let mut client = client(&testbed).await;
        let subscription = |name: &str| Subscription {
            path: Some(leaf("sw1", "state", name)),
            mode: SubscriptionMode::OnChange.into(),
            ..Subscription::default()
        };
        let on_change = list(Mode::Stream, subscription("oper-status"));
        let mut oper = subscribe(&mut client, on_change).await.expect("subscribed");
        let on_change = list(Mode::Stream, subscription("admin-status"));
        let mut admin = subscribe(&mut client, on_change).await.expect("subscribed");
        for stream in [&mut oper, &mut admin] {
            assert_eq!(next(stream).await, text("UP"));
            assert_eq!(next(stream).await, None, "in sync");
        }

        // The far end goes down and comes up again.
        host.run(|| ip("link set h1 down"));
        assert_eq!(next(&mut oper).await, text("DOWN"));
        host.run(|| ip("link set h1 up"));
        assert_eq!(next(&mut oper).await, text("UP"));

        ip("link set sw1 down");
        assert_eq!(next(&mut admin).await, text("DOWN"));
        assert_eq!(next(&mut oper).await, text("DOWN"));
        ip("link set sw1 up");
        assert_eq!(next(&mut admin).await, text("UP"));
        assert_eq!(next(&mut oper).await, text("UP"));

        // Every received frame is counted, also if it is dropped later.
        let counted = |name: &str, mode: SubscriptionMode| Subscription {
            path: Some(counter("sw1", name)),
            mode: mode.into(),
            ..Subscription::default()
        };
        for mode in [SubscriptionMode::Sample, SubscriptionMode::TargetDefined] {
            let sample = list(Mode::Stream, counted("in-pkts", mode));
            let mut counts = subscribe(&mut client, sample).await.expect("subscribed");
            let mut received = async || loop {
                match next(&mut counts).await.as_deref() {
                    Some([Value::UintVal(count)]) => return *count,
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            };
            let before = received().await;
            host.run(|| {
                let socket = UdpSocket::bind("10.0.0.1:0").expect("its address");
                socket.send_to(&[0; 64], "10.0.0.2:9").expect("sent");
            });
            while received().await == before {}
        }

        // A deleted interface is down.
        ip("link delete sw1");
        assert_eq!(next(&mut oper).await, text("DOWN"));
        testbed
            .switch
            .stop()
            .await
            .expect("stops despite open subscriptions");
        host.end();
    });
}

#[tokio::test]
async fn subscriptions_have_modes() {
    let testbed = Testbed::new(2).await;
    let mut client = client(&testbed).await;
    let all_ids = || Subscription {
        path: Some(leaf("*", "state", "id")),
        ..Subscription::default()
    };
    let ids = || Some(vec![Value::UintVal(1), Value::UintVal(2)]);
    let once = list(Mode::Once, all_ids());
    let mut stream = subscribe(&mut client, once).await.expect("subscribed");
    assert_eq!(next(&mut stream).await, ids());
    assert_eq!(next(&mut stream).await, None);
    assert!(
        stream.message().await.expect("no error").is_none(),
        "the stream ends"
    );

    let with = |subscription: Subscription| list(Mode::Stream, subscription);
    for unsupported in [
        list(Mode::Poll, all_ids()),
        SubscriptionList {
            updates_only: true,
            ..with(all_ids())
        },
        with(Subscription {
            suppress_redundant: true,
            ..all_ids()
        }),
        with(Subscription {
            heartbeat_interval: 1_000_000_000,
            ..all_ids()
        }),
    ] {
        let refused = subscribe(&mut client, unsupported).await;
        let refused = refused.expect_err("not supported");
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("expected"), "{refused}");
    }

    let sample = Subscription {
        mode: SubscriptionMode::Sample.into(),
        sample_interval: Duration::from_millis(1).as_nanos() as u64,
        ..all_ids()
    };
    let mut stream = subscribe(&mut client, list(Mode::Stream, sample))
        .await
        .expect("subscribed");
    assert_eq!(next(&mut stream).await, ids());
    assert_eq!(next(&mut stream).await, None);
    for _ in 0..2 {
        assert_eq!(
            next(&mut stream).await,
            ids(),
            "sampled again without a change"
        );
    }
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn unknown_paths_and_large_requests_are_rejected() {
    let testbed = Testbed::new(1).await;
    let mut client = client(&testbed).await;
    let mut get = async |path: Vec<Path>, encoding: Encoding| {
        let encoding = encoding.into();
        let request = GetRequest {
            path,
            encoding,
            ..GetRequest::default()
        };
        client.get(request).await.map_err(|status| status.code())
    };
    let id = || leaf("*", "state", "id");
    assert!(get(vec![id()], Encoding::JsonIetf).await.is_ok());
    assert_eq!(
        get(vec![id()], Encoding::Ascii).await.err(),
        Some(Code::Unimplemented)
    );
    let mtu = leaf("*", "state", "mtu");
    assert_eq!(
        get(vec![mtu], Encoding::Proto).await.err(),
        Some(Code::NotFound)
    );
    let many = vec![id(); 65];
    assert_eq!(
        get(many, Encoding::Proto).await.err(),
        Some(Code::ResourceExhausted)
    );

    let wildcards = |count: usize| path(vec![elem("..."); count].into_iter().chain([elem("mtu")]));
    assert_eq!(
        get(vec![wildcards(31)], Encoding::Proto).await.err(),
        Some(Code::NotFound)
    );
    let long = wildcards(20_000);
    assert_eq!(
        get(vec![long.clone()], Encoding::Proto).await.err(),
        Some(Code::ResourceExhausted)
    );
    let on_change = |path: Path| Subscription {
        path: Some(path),
        mode: SubscriptionMode::OnChange.into(),
        ..Subscription::default()
    };
    // A counter changes with every packet, so it has no ON_CHANGE.
    for (path, code) in [
        (long, Code::ResourceExhausted),
        (counter("*", "in-pkts"), Code::InvalidArgument),
    ] {
        let wrong = subscribe(&mut client, list(Mode::Stream, on_change(path))).await;
        assert_eq!(wrong.err().map(|status| status.code()), Some(code));
    }

    let request = list(Mode::Stream, Subscription::default());
    let mut streams = Vec::new();
    for _ in 0..64 {
        let stream = subscribe(&mut client, request.clone()).await;
        streams.push(stream.expect("subscribed"));
    }
    let more = subscribe(&mut client, request.clone()).await;
    assert_eq!(
        more.err().map(|status| status.code()),
        Some(Code::ResourceExhausted)
    );
    // The switch ends one of these subscriptions in favour of another client.
    let mut other = self::client(&testbed).await;
    let stream = subscribe(&mut other, request).await;
    stream.expect("subscribed");
    testbed.switch.stop().await.expect("stops");
}
