//! Traces of packets in a running switch.

use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Streaming};
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_switch::proto::trace_client::TraceClient;
use ultima_switch::proto::trace_request::Packets;
use ultima_switch::proto::{Next, PacketTrace as Message, Pattern, TraceRequest};
use ultima_switch::trace::{Fate, Origin, PacketTrace};
use ultima_switch::{Attach, Loss, PortConfig, Switch, SwitchConfig, WireConfig};

use crate::served::common::{DEVICE, TIMEOUT, Testbed, base_config, group, probe};

async fn client(switch: &Switch) -> TraceClient<Channel> {
    let address = format!("http://{}", switch.grpc_addr());
    TraceClient::connect(address).await.expect("connects")
}

fn next(port: u32, count: u32) -> TraceRequest {
    let next = Next {
        count,
        pattern: None,
    };
    TraceRequest {
        device_id: DEVICE,
        port,
        packets: Some(Packets::Next(next)),
        time_limit_ms: TIMEOUT.as_millis() as u32,
    }
}

fn injected(port: u32, frame: Vec<u8>) -> TraceRequest {
    TraceRequest {
        packets: Some(Packets::Frame(frame)),
        ..next(port, 1)
    }
}

/// The next trace; `None` at the end.
async fn read(stream: &mut Streaming<Message>) -> Option<PacketTrace> {
    let message = tokio::time::timeout(TIMEOUT, stream.message());
    let message = message.await.expect("a trace in time").expect("no error")?;
    Some(serde_json::from_slice(&message.document).expect("a trace as JSON"))
}

/// Injects a frame and returns its trace.
async fn trace(testbed: &Testbed, port: u32, frame: Vec<u8>) -> PacketTrace {
    let answer = client(&testbed.switch)
        .await
        .packets(injected(port, frame))
        .await;
    let mut stream = answer.expect("accepted").into_inner();
    let trace = read(&mut stream).await.expect("a trace");
    assert_eq!(read(&mut stream).await, None, "there is one packet");
    trace
}

fn fates(trace: &PacketTrace) -> Vec<(u16, Fate)> {
    let copies = trace.copies.iter();
    copies.map(|copy| (copy.port, copy.fate)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_packets_with_a_pattern_are_traced() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    controller.insert(vec![testbed.unicast(5, 2).into()]).await;
    let pattern = Pattern {
        offset: 15,
        value: vec![0, 0, 0, 0xf0],
        mask: vec![0, 0, 0, 0xf0],
    };
    let wanted = Next {
        count: 2,
        pattern: Some(pattern),
    };
    let request = TraceRequest {
        packets: Some(Packets::Next(wanted)),
        ..next(1, 2)
    };
    let answer = client(&testbed.switch).await.packets(request).await;
    let mut stream = answer.expect("accepted").into_inner();
    let peer = &testbed.peers[&1];
    let frames: Vec<_> = [1, 0xf1, 0x0f, 0xf2, 0xf3]
        .map(|number| probe(5, 0, number, 60))
        .into();
    for frame in &frames {
        peer.send(frame);
        assert_eq!(
            &testbed.peers[&2].receive(),
            frame,
            "tracing does not affect forwarding"
        );
    }
    for frame in [&frames[1], &frames[3]] {
        let trace = read(&mut stream).await.expect("a trace");
        assert_eq!(&trace.frame.0, frame);
        assert!(trace.complete && trace.dropped.is_none(), "{}", trace);
        assert_eq!(fates(&trace), [(2, Fate::Left)]);
        assert_eq!(&trace.copies[0].frame.as_ref().expect("sent").0, frame);
    }
    assert_eq!(read(&mut stream).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_replica_is_traced_to_its_fate() {
    // Port 1 is perfect, port 2 loses all frames, port 3 is slow and queues one frame.
    let lossy = WireConfig {
        loss: vec![Loss::Independent { probability: 1.0 }],
        ..WireConfig::default()
    };
    let narrow = WireConfig {
        rate: Some(1_000_000),
        queue_packets: Some(1),
        ..WireConfig::default()
    };
    let testbed =
        Testbed::with_wires(base_config(), vec![WireConfig::default(), lossy, narrow]).await;
    let mut controller = testbed.controller().await;
    let replicas = [(1, 10), (2, 20), (3, 30), (3, 31), (3, 32), (9, 40)];
    controller.insert(vec![group(7, &replicas)]).await;
    let discard = testbed.replica(10, "EgressPipe.discard", &[]);
    controller
        .insert(vec![discard.into(), testbed.flood(5, 7).into()])
        .await;
    let trace = trace(&testbed, 1, probe(5, 0, 1, 100)).await;
    assert!(trace.complete, "{trace}");
    let mut found = fates(&trace);
    let third: Vec<_> = found.extract_if(.., |(port, _)| *port == 3).collect();
    assert_eq!(
        found,
        [(9, Fate::NoPort), (2, Fate::LostOnWire), (1, Fate::Dropped)]
    );
    let full = third
        .iter()
        .filter(|(_, fate)| *fate == Fate::QueueFull)
        .count();
    assert!((1..3).contains(&full), "{third:?}");
    let origin = Origin::Multicast { group: 7 };
    assert!(
        trace
            .copies
            .iter()
            .all(|copy| copy.origin == origin && copy.of == 0)
    );
    let rids: Vec<_> = trace.copies.iter().map(|copy| copy.rid).collect();
    assert_eq!(rids, [40, 32, 31, 30, 20, 10]);
    // Egress runs for each copy that leaves its queue, and for the copy to a missing port.
    let full = trace
        .copies
        .iter()
        .filter(|copy| copy.fate == Fate::QueueFull);
    let full: Vec<_> = full.map(|copy| copy.copy).collect();
    let mut egress: Vec<_> = trace
        .events
        .iter()
        .filter(|step| step.text.starts_with("egress after "))
        .map(|step| step.copy)
        .collect();
    egress.sort_unstable();
    assert_eq!([egress.clone(), full.clone()].concat().len(), 6);
    assert!(full.iter().all(|copy| !egress.contains(copy)));
}

#[tokio::test(flavor = "multi_thread")]
async fn injected_frames_are_forwarded_like_received_frames() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let session = clone_session(
        3,
        [Replica {
            port: 1,
            instance: 4,
        }],
    )
    .expect("a session");
    controller
        .insert(vec![testbed.unicast(5, 2).into(), session.into()])
        .await;
    let frame = probe(5, 0, 1, 100);
    let trace = trace(&testbed, 1, frame.clone()).await;
    assert_eq!(fates(&trace), [(2, Fate::Left)]);
    assert_eq!(testbed.peers[&2].receive(), frame);
    testbed.until_entered(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_ends_when_its_time_is_up() {
    let slow = WireConfig {
        rate: Some(1),
        ..WireConfig::default()
    };
    let testbed = Testbed::with_wires(base_config(), vec![slow]).await;
    let mut controller = testbed.controller().await;
    controller.insert(vec![testbed.unicast(5, 1).into()]).await;
    let mut client = client(&testbed.switch).await;
    let short = |request| TraceRequest {
        time_limit_ms: 50,
        ..request
    };
    // Nothing enters.
    let mut stream = client
        .packets(short(next(1, 1)))
        .await
        .expect("accepted")
        .into_inner();
    assert_eq!(read(&mut stream).await, None);
    // The frame enters, but does not leave in time.
    let request = short(injected(1, probe(5, 0, 1, 100)));
    let mut stream = client
        .packets(request)
        .await
        .expect("accepted")
        .into_inner();
    let trace = read(&mut stream).await.expect("an incomplete trace");
    assert!(!trace.complete);
    assert_eq!(fates(&trace), [(1, Fate::UnderWay)]);
    assert!(
        trace
            .to_string()
            .contains("still under way when the trace ended")
    );
    assert_eq!(read(&mut stream).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_rejected() {
    let testbed = Testbed::new(2).await;
    let mut client_of = client(&testbed.switch).await;
    let mut refused = async |request: TraceRequest| {
        let status = client_of.packets(request).await.expect_err("refused");
        (status.code(), status.message().to_owned())
    };
    let (code, message) = refused(next(3, 1)).await;
    assert_eq!(
        (code, message.as_str()),
        (Code::NotFound, "unknown port 3; the switch has 1, 2")
    );
    assert_eq!(refused(next(70_000, 1)).await.0, Code::NotFound);
    let other = TraceRequest {
        device_id: 9,
        ..next(1, 1)
    };
    assert_eq!(refused(other).await.0, Code::NotFound);
    assert_eq!(refused(next(1, 10_001)).await.0, Code::InvalidArgument);
    assert_eq!(
        refused(injected(1, Vec::new())).await.0,
        Code::InvalidArgument
    );
    assert_eq!(
        refused(injected(1, vec![0; 70_000])).await.0,
        Code::InvalidArgument
    );
    let long = TraceRequest {
        time_limit_ms: u32::MAX,
        ..next(1, 1)
    };
    assert_eq!(refused(long).await.0, Code::InvalidArgument);
    let pattern = Pattern {
        offset: 0,
        value: vec![1, 2],
        mask: vec![1],
    };
    let masked = Next {
        count: 1,
        pattern: Some(pattern),
    };
    let request = TraceRequest {
        packets: Some(Packets::Next(masked)),
        ..next(1, 1)
    };
    let (code, message) = refused(request).await;
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(
        message,
        "a mask of 1 bytes for a value of 2: expected as many, or none"
    );

    let (ours, _peer) = crate::served::common::Peer::pair();
    let port = PortConfig {
        number: 1,
        attach: Attach::Socket(ours.into()),
        wire: WireConfig::default(),
    };
    let config = SwitchConfig {
        ports: vec![port],
        ..base_config()
    };
    let switch = Switch::start(config).await.expect("it starts");
    let status = client(&switch)
        .await
        .packets(next(1, 1))
        .await
        .expect_err("no program");
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_streams_make_room_for_new_streams() {
    let testbed = Testbed::new(1).await;
    let mut client = client(&testbed.switch).await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(client.packets(next(1, 1)).await.expect("accepted"));
    }
    let status = client.packets(next(1, 1)).await.expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted);
    // The switch ends this client's oldest trace in favour of another client.
    let mut other = self::client(&testbed.switch).await;
    other.packets(next(1, 1)).await.expect("accepted");
    let ended = streams[0].get_mut().message().await;
    assert_eq!(
        ended.expect_err("the oldest").code(),
        Code::ResourceExhausted
    );
    drop(streams);
    // The server detects closed streams with a delay.
    let again = async {
        while client.packets(next(1, 1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, again)
        .await
        .expect("a closed stream makes room");
}
