//! The traffic manager's settings over gRPC, while packets flow.

use crate::served::common::{DEVICE, Testbed, accounted, base_config, number, packets, probe};
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::{CloneSessionEntry, Update};
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, GetSettingsRequest, PortSettings, SetSettingsRequest};
use ultima_switch::tm::WireChange;
use ultima_switch::{EcnThreshold, SwitchConfig, WireConfig};

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;

async fn client(testbed: &Testbed) -> TrafficManagerClient<Channel> {
    let address = format!("http://{}", testbed.switch.grpc_addr());
    let client = TrafficManagerClient::connect(address).await;
    client.expect("connects")
}

fn change(ports: &[u32], settings: &str) -> Change {
    Change {
        ports: ports.to_vec(),
        settings: settings.to_owned(),
    }
}

/// The default wire with other settings.
fn wire(settings: &str) -> WireConfig {
    let mut wire = WireConfig::default();
    let change: WireChange = settings.parse().expect(settings);
    change.apply(&mut wire);
    wire
}

async fn set(
    client: &mut TrafficManagerClient<Channel>,
    changes: Vec<Change>,
) -> Result<Vec<PortSettings>, Status> {
    let request = SetSettingsRequest {
        device_id: DEVICE,
        changes,
    };
    let response = client.set(request).await?;
    Ok(response.into_inner().ports)
}

async fn get(client: &mut TrafficManagerClient<Channel>) -> Vec<(u32, WireConfig)> {
    let response = client.get(GetSettingsRequest { device_id: 0 }).await;
    let response = response.expect("settings").into_inner();
    assert_eq!(response.device_id, DEVICE);
    configs(response.ports)
}

fn configs(ports: Vec<PortSettings>) -> Vec<(u32, WireConfig)> {
    let config = |port: PortSettings| (port.port, wire(&port.settings));
    ports.into_iter().map(config).collect()
}

#[tokio::test]
async fn settings_are_read_and_changed_by_name() {
    let slow = wire("rate=1M,delay=3ms,loss=0.01:8");
    let testbed =
        Testbed::with_wires(base_config(), vec![slow.clone(), WireConfig::default()]).await;
    let mut client = client(&testbed).await;
    assert_eq!(
        get(&mut client).await,
        [(1, slow), (2, WireConfig::default())]
    );

    let both = change(&[1, 2], "jitter=normal:1ms,queue-packets=100");
    let one = change(&[2], "rate=5");
    let now = configs(set(&mut client, vec![both, one]).await.expect("set"));
    let first = wire("rate=1M,delay=3ms,loss=0.01:8,jitter=normal:1ms,queue-packets=100");
    let second = wire("rate=5,jitter=normal:1ms,queue-packets=100");
    assert_eq!(now, [(1, first), (2, second)]);
    assert_eq!(get(&mut client).await, now);

    // A change without ports applies to all ports.
    let perfect = WireConfig::default();
    let clear = change(&[], &perfect.to_string());
    set(&mut client, vec![clear]).await.expect("set");
    assert_eq!(get(&mut client).await, [(1, perfect.clone()), (2, perfect)]);
}

#[tokio::test]
async fn invalid_settings_change_nothing() {
    let testbed = Testbed::new(2).await;
    let mut client = client(&testbed).await;
    let before = get(&mut client).await;
    let port_1 = change(&[1], "rate=1M,delay=1m");
    for (wrong, code, text) in [
        (
            change(&[3], "rate=1M"),
            Code::NotFound,
            "unknown port 3; the switch has 1, 2",
        ),
        (
            change(&[65537], "rate=1M"),
            Code::NotFound,
            "unknown port 65537",
        ),
        (
            change(&[2], "speed=1M"),
            Code::InvalidArgument,
            "changes[1].settings: unknown setting `speed`",
        ),
        (
            change(&[2], ""),
            Code::InvalidArgument,
            "changes[1].settings: ``: expected",
        ),
        // Valid, but not with the delay that the change before it sets.
        (
            change(&[1], "rate=100G"),
            Code::InvalidArgument,
            "port 1: rate",
        ),
    ] {
        let error = set(&mut client, vec![port_1.clone(), wrong]).await;
        let error = error.expect_err("refused");
        assert_eq!(error.code(), code);
        assert!(error.message().starts_with(text), "{}", error.message());
        assert_eq!(get(&mut client).await, before);
    }
    let too_many = vec![change(&[], "delay=1m"); 3000];
    let error = set(&mut client, too_many).await.expect_err("refused");
    assert!(error.message().starts_with("more than 4096 changes"));
    assert_eq!(get(&mut client).await, before);
    let other_device = SetSettingsRequest {
        device_id: DEVICE + 1,
        changes: vec![port_1],
    };
    let error = client.set(other_device).await.expect_err("refused");
    assert_eq!(error.code(), Code::NotFound);
}

#[tokio::test]
async fn a_new_rate_applies_to_queued_frames() {
    let slow = WireConfig {
        rate: Some(1),
        queue_bytes: 1000,
        ..WireConfig::default()
    };
    let testbed = Testbed::with_wires(base_config(), vec![WireConfig::default(), slow]).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    let mut client = client(&testbed).await;
    testbed.peers[&1].send(&probe(A, 0, 0, 100));
    testbed.until_in_flight(2).await;
    for n in 1..20 {
        testbed.peers[&1].send(&probe(A, 0, n, 100));
    }
    testbed.until_entered(1, 20).await;
    let port = testbed.port(2).await;
    assert_eq!(accounted(&port), (0, 20));
    // One frame is on the wire for 800 s, ten are queued, and the queue dropped the rest.
    assert_eq!(packets(&port.drops.clone().expect("drops").queue), 9);
    assert_eq!(packets(&port.in_flight), 1);
    let queue = &port.queues[0];
    assert_eq!((queue.priority, queue.packets, queue.bytes), (0, 10, 1000));

    let changes = vec![change(&[2], "rate=none")];
    set(&mut client, changes).await.expect("set");
    for n in 0..11 {
        assert_eq!(number(&testbed.peers[&2].receive()), n);
    }
    let port = testbed.until_drained(2, 20).await;
    assert_eq!(packets(&port.left), 11);
    assert!(port.queues.is_empty());
}

#[tokio::test]
async fn marks_are_counted() {
    let busy = WireConfig {
        rate: Some(1),
        ecn: Some(EcnThreshold::Packets(2)),
        ..WireConfig::default()
    };
    let testbed = Testbed::with_wires(base_config(), vec![WireConfig::default(), busy]).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    let mut client = client(&testbed).await;
    // An IPv6 packet with an ECN-capable transport.
    let mut frame = probe(A, 0, 0, 100);
    frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x20]);
    testbed.peers[&1].send(&frame);
    testbed.until_in_flight(2).await;
    for _ in 1..6 {
        testbed.peers[&1].send(&frame);
    }
    testbed.until_entered(1, 6).await;
    let changes = vec![change(&[2], "rate=none")];
    set(&mut client, changes).await.expect("set");
    // The first frame is on the wire. The next five found 0, 1, 2, 3 and 4 frames in the queue.
    let marks: Vec<bool> = (0..6)
        .map(|_| testbed.peers[&2].receive()[15] & 0x30 == 0x30)
        .collect();
    assert_eq!(marks, [false, false, false, false, true, true]);
    let port = testbed.until_drained(2, 6).await;
    assert_eq!((packets(&port.marked), packets(&port.left)), (2, 6));
    assert_eq!(port.marked.expect("marked").bytes, 200);
}

#[tokio::test]
async fn a_clone_session_whose_class_has_no_queue_is_rejected() {
    for (priority_queues, expected) in [(1, Some(0)), (5, Some(4)), (6, None)] {
        let config = SwitchConfig {
            priority_queues,
            ..base_config()
        };
        let testbed = Testbed::with_wires(config, vec![WireConfig::default(); 2]).await;
        let replica = Replica {
            port: 2,
            instance: 7,
        };
        let session = CloneSessionEntry {
            class_of_service: 5,
            ..clone_session(3, [replica]).expect("a session")
        };
        let mut controller = testbed.controller().await;
        let written = controller.write(vec![Update::insert(session)]).await;
        let Some(most) = expected else {
            written.expect("written");
            continue;
        };
        let errors = ultima_p4runtime::batch::outcomes(&written.expect_err("rejected"));
        let error = &errors.expect("details")[0];
        assert_eq!(Code::from(error.canonical_code), Code::Unimplemented);
        let text = format!("clone session 3: class of service 5, expected 0 to {most}");
        assert_eq!(error.message, text);
    }
}

#[tokio::test]
async fn a_clone_of_a_higher_class_overtakes_in_the_queue() {
    let slow = WireConfig {
        rate: Some(1),
        ..WireConfig::default()
    };
    let testbed = Testbed::with_wires(base_config(), vec![WireConfig::default(), slow]).await;
    let mut controller = testbed.controller().await;
    controller.insert(vec![testbed.unicast(A, 2).into()]).await;
    testbed.peers[&1].send(&probe(A, 0, 0, 100));
    testbed.until_in_flight(2).await;
    // From here on each frame is cloned to the same port, in class 5 and for another destination.
    let replica = Replica {
        port: 2,
        instance: 7,
    };
    let session = CloneSessionEntry {
        class_of_service: 5,
        ..clone_session(3, [replica]).expect("a session")
    };
    let acl = testbed
        .names
        .table("IngressPipe.acl")
        .expect("table")
        .entry();
    let mirror = acl
        .range("hdr.ethernet.type", 0x88b5u16, 0x88b5u16)
        .expect("key")
        .priority(1)
        .action("IngressPipe.mirror", &[("session", 3u32.into())])
        .expect("action");
    let readdress = testbed.replica(7, "EgressPipe.readdress", &[("dst", B.into())]);
    let mirror = mirror.build().expect("entry").into();
    controller
        .insert(vec![session.into(), mirror, readdress.into()])
        .await;
    for n in 1..4 {
        testbed.peers[&1].send(&probe(A, 0, n, 100));
    }
    testbed.until_entered(1, 4).await;
    let queues = testbed.port(2).await.queues;
    let queues = queues.iter().map(|queue| (queue.priority, queue.packets));
    assert_eq!(queues.collect::<Vec<_>>(), [(5, 3), (0, 3)]);
    let changes = vec![change(&[2], "rate=none")];
    set(&mut client(&testbed).await, changes)
        .await
        .expect("set");
    let order: Vec<(u8, u32)> = (0..7)
        .map(|_| testbed.peers[&2].receive())
        .map(|frame| (frame[5], number(&frame)))
        .collect();
    let expected = [(1, 0), (2, 1), (2, 2), (2, 3), (1, 1), (1, 2), (1, 3)];
    assert_eq!(order, expected);
}
