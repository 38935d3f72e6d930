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

use crate::served::common::{Bed, TIMEOUT};
use crate::served::interfaces::{Host, in_namespace, ip, running_interface_and_socket};

async fn client(bed: &Bed) -> GNmiClient<Channel> {
    let address = format!("http://{}", bed.switch.grpc_addr());
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

/// The values of the next message; none is that all has been said.
async fn next(stream: &mut Streaming<SubscribeResponse>) -> Option<Vec<Value>> {
    let answer = timeout(TIMEOUT, stream.message()).await;
    let answer = answer.expect("in time").expect("no error").expect("no end");
    match answer.response.expect("something") {
        Response::SyncResponse(_) => None,
        Response::Update(news) => {
            let values = news.update.into_iter();
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
        let (bed, _peer) = running_interface_and_socket().await;
        let mut client = client(&bed).await;
        let of = |name: &str| Subscription {
            path: Some(leaf("sw1", "state", name)),
            mode: SubscriptionMode::OnChange.into(),
            ..Subscription::default()
        };
        let on_change = list(Mode::Stream, of("oper-status"));
        let mut oper = subscribe(&mut client, on_change).await.expect("granted");
        let on_change = list(Mode::Stream, of("admin-status"));
        let mut admin = subscribe(&mut client, on_change).await.expect("granted");
        for stream in [&mut oper, &mut admin] {
            assert_eq!(next(stream).await, text("UP"));
            assert_eq!(next(stream).await, None, "in sync");
        }

        // A far end that is down, and one that comes back.
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
        let of = |name: &str, mode: SubscriptionMode| Subscription {
            path: Some(counter("sw1", name)),
            mode: mode.into(),
            ..Subscription::default()
        };
        for mode in [SubscriptionMode::Sample, SubscriptionMode::TargetDefined] {
            let sample = list(Mode::Stream, of("in-pkts", mode));
            let mut counts = subscribe(&mut client, sample).await.expect("granted");
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

        // An interface that goes is down.
        ip("link delete sw1");
        assert_eq!(next(&mut oper).await, text("DOWN"));
        bed.switch.stop().await.expect("stops, whoever listens");
        host.end();
    });
}

#[tokio::test]
async fn subscriptions_have_modes() {
    let bed = Bed::new(2).await;
    let mut client = client(&bed).await;
    let all_ids = || Subscription {
        path: Some(leaf("*", "state", "id")),
        ..Subscription::default()
    };
    let ids = || Some(vec![Value::UintVal(1), Value::UintVal(2)]);
    let once = list(Mode::Once, all_ids());
    let mut stream = subscribe(&mut client, once).await.expect("granted");
    assert_eq!(next(&mut stream).await, ids());
    assert_eq!(next(&mut stream).await, None);
    assert!(
        stream.message().await.expect("no error").is_none(),
        "an end"
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
        .expect("granted");
    assert_eq!(next(&mut stream).await, ids());
    assert_eq!(next(&mut stream).await, None);
    for _ in 0..2 {
        assert_eq!(
            next(&mut stream).await,
            ids(),
            "again, though nothing has changed"
        );
    }
    bed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn unknown_paths_and_large_requests_are_rejected() {
    let bed = Bed::new(1).await;
    let mut client = client(&bed).await;
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

    let anywhere = |count: usize| path(vec![elem("..."); count].into_iter().chain([elem("mtu")]));
    assert_eq!(
        get(vec![anywhere(31)], Encoding::Proto).await.err(),
        Some(Code::NotFound)
    );
    let long = anywhere(20_000);
    assert_eq!(
        get(vec![long.clone()], Encoding::Proto).await.err(),
        Some(Code::ResourceExhausted)
    );
    let of = |path: Path| Subscription {
        path: Some(path),
        mode: SubscriptionMode::OnChange.into(),
        ..Subscription::default()
    };
    // Of counters every packet would be news.
    for (path, code) in [
        (long, Code::ResourceExhausted),
        (counter("*", "in-pkts"), Code::InvalidArgument),
    ] {
        let wrong = subscribe(&mut client, list(Mode::Stream, of(path))).await;
        assert_eq!(wrong.err().map(|status| status.code()), Some(code));
    }

    let standing = list(Mode::Stream, Subscription::default());
    let mut streams = Vec::new();
    for _ in 0..64 {
        let stream = subscribe(&mut client, standing.clone()).await;
        streams.push(stream.expect("granted"));
    }
    let more = subscribe(&mut client, standing.clone()).await;
    assert_eq!(
        more.err().map(|status| status.code()),
        Some(Code::ResourceExhausted)
    );
    // Another client gets a place of this one.
    let mut other = self::client(&bed).await;
    let stream = subscribe(&mut other, standing).await;
    stream.expect("a place");
    bed.switch.stop().await.expect("stops");
}
