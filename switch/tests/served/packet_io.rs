//! Packets between controllers and the program (P4Runtime §16.1).

use crate::served::common::{Controller, Testbed, base_config, controller_program, packets};
use tonic::Code;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::stream_error::Details;
use ultima_p4runtime::v1::stream_message_request::Update as Request;
use ultima_p4runtime::v1::{PacketMetadata, PacketOut, TableEntry};
use ultima_switch::{SwitchConfig, WireConfig};

const CPU_PORT: u16 = 64;
const PUNTED: u64 = 0x0200_0000_0001;
const WATCHED: u64 = 0x0200_0000_0002;

async fn testbed(cpu_port: Option<u16>) -> Testbed {
    let config = SwitchConfig {
        cpu_port,
        ..base_config()
    };
    let wires = vec![WireConfig::default(); 2];
    Testbed::with_program(config, controller_program(), wires).await
}

fn frame(dst: u64) -> Vec<u8> {
    let mut frame = dst.to_be_bytes()[2..].to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend([7; 46]);
    frame
}

fn forward(testbed: &Testbed, dst: u64, action: &str, values: &[(&str, Bytestring)]) -> TableEntry {
    let table = testbed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
    let entry = entry.action(action, values).expect("action");
    entry.build().expect("entry")
}

/// A packet-out to port 2.
fn packet_out(testbed: &Testbed, payload: Vec<u8>) -> PacketOut {
    let header = testbed
        .names
        .controller_header("packet_out")
        .expect("header");
    let values = [
        ("egress_port", 2u16.into()),
        ("padding", 0u8.into()),
        ("cookie", 0xab_cdefu64.into()),
    ];
    let metadata = header.pack(&values).expect("values");
    PacketOut { payload, metadata }
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_reach_the_controller_with_their_metadata() {
    let testbed = testbed(Some(CPU_PORT)).await;
    let mut controller = testbed.controller().await;
    let session = Replica {
        port: CPU_PORT.into(),
        instance: 0,
    };
    let watch = [("port", 2u16.into()), ("session", 5u8.into())];
    let reason = [("reason", 0x1234u16.into())];
    controller
        .insert(vec![
            forward(&testbed, PUNTED, "IngressPipe.punt", &reason).into(),
            forward(&testbed, WATCHED, "IngressPipe.watch", &watch).into(),
            clone_session(5, [session]).expect("a session").into(),
        ])
        .await;
    let header = testbed
        .names
        .controller_header("packet_in")
        .expect("header");

    testbed.peers[&1].send(&frame(PUNTED));
    let packet = controller.packet_in().await;
    assert_eq!(packet.payload, frame(PUNTED));
    let fields = ["ingress_port", "is_clone", "reason"];
    let read = fields.map(|field| header.read(&packet.metadata, field).expect("a value"));
    assert_eq!(read, [1u16.into(), 0u8.into(), 0x1234u16.into()]);
    // Canonical: no leading zeros.
    assert_eq!(packet.metadata[0].value, [1]);

    testbed.peers[&1].send(&frame(WATCHED));
    let packet = controller.packet_in().await;
    assert_eq!(packet.payload, frame(WATCHED));
    let read = fields.map(|field| header.read(&packet.metadata, field).expect("a value"));
    // A clone keeps only the metadata that the program preserves.
    assert_eq!(read, [0u16.into(), 1u8.into(), 1u8.into()]);
    assert_eq!(
        testbed.peers[&2].receive(),
        frame(WATCHED),
        "the frame is forwarded too"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_the_controller_enter_at_the_cpu_port() {
    let testbed = testbed(Some(CPU_PORT)).await;
    let mut controller = testbed.controller().await;
    for n in 0..200u8 {
        let packet = packet_out(&testbed, vec![n; 60]);
        controller.send(Request::Packet(packet)).await;
    }
    for n in 0..200u8 {
        assert_eq!(testbed.peers[&2].receive(), vec![n; 60], "in order");
    }
    let port = testbed.until_entered(CPU_PORT, 200).await;
    assert_eq!(port.attachment, "controller");
    // The controller header is part of what enters.
    assert_eq!(port.entered.expect("a count").bytes, 200 * 67);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_packet_outs_get_stream_errors() {
    let testbed = testbed(Some(CPU_PORT)).await;
    let mut controller = testbed.controller().await;
    let good = packet_out(&testbed, vec![1; 60]);
    let without = |id| {
        let mut packet = good.clone();
        packet.metadata.retain(|value| value.metadata_id != id);
        packet
    };
    let with = |metadata_id, value: &[u8]| {
        let mut packet = without(metadata_id);
        let value = value.to_vec();
        packet.metadata.push(PacketMetadata { metadata_id, value });
        packet
    };
    let long = PacketOut {
        payload: vec![0; 65_530],
        ..good.clone()
    };
    let wrong = [
        (without(1), Code::InvalidArgument),
        (with(7, &[1]), Code::InvalidArgument),
        (with(1, &[2, 0]), Code::OutOfRange),
        (with(1, &[]), Code::OutOfRange),
        (long, Code::InvalidArgument),
    ];
    for (packet, expected) in wrong {
        controller.send(Request::Packet(packet.clone())).await;
        let (code, details) = controller.error().await;
        assert_eq!(code, expected);
        let Details::PacketOut(error) = details else {
            panic!("{details:?}");
        };
        assert_eq!(error.packet_out, Some(packet), "as it was sent");
    }
    // The stream still works.
    controller.send(Request::Packet(with(1, &[0, 2]))).await;
    assert_eq!(testbed.peers[&2].receive(), [1; 60]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_primaries_send_and_receive_packets() {
    let testbed = testbed(Some(CPU_PORT)).await;
    let mut backup = Controller::connect(testbed.switch.grpc_addr(), 3).await;
    backup.arbitrate(None).await;
    assert_eq!(
        backup.arbitration().await.expect("an update").0,
        Code::NotFound
    );
    let packet = packet_out(&testbed, vec![1; 60]);
    backup.send(Request::Packet(packet.clone())).await;
    assert_eq!(backup.error().await.0, Code::PermissionDenied);

    // Each role covers the whole pipeline, so its primary sends and receives packets.
    let mut other = Controller::connect(testbed.switch.grpc_addr(), 9).await;
    other.role = "telemetry".to_owned();
    other.arbitrate(Some(9)).await;
    assert_eq!(other.arbitration().await.expect("an update").0, Code::Ok);
    other.send(Request::Packet(packet)).await;
    assert_eq!(testbed.peers[&2].receive(), [1; 60]);
    let reason = [("reason", 1u8.into())];
    let entry = forward(&testbed, PUNTED, "IngressPipe.punt", &reason);
    other.insert(vec![entry.into()]).await;
    testbed.peers[&1].send(&frame(PUNTED));
    assert_eq!(other.packet_in().await.payload, frame(PUNTED));
    // The backup received no packet: its next message is this arbitration update.
    backup.arbitrate(Some(4)).await;
    assert_eq!(
        backup.arbitration().await.expect("an update"),
        (Code::Ok, Some(4))
    );
    testbed.peers[&1].send(&frame(PUNTED));
    assert_eq!(backup.packet_in().await.payload, frame(PUNTED));
    assert_eq!(other.packet_in().await.payload, frame(PUNTED));
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_without_a_controller_are_counted_and_do_not_block() {
    let testbed = testbed(Some(CPU_PORT)).await;
    let mut controller = testbed.controller().await;
    let reason = [("reason", 1u8.into())];
    let punt = forward(&testbed, PUNTED, "IngressPipe.punt", &reason);
    let send = forward(
        &testbed,
        WATCHED,
        "IngressPipe.send",
        &[("port", 2u16.into())],
    );
    controller.insert(vec![punt.into(), send.into()]).await;
    drop(controller);
    for _ in 0..100 {
        testbed.peers[&1].send(&frame(PUNTED));
        testbed.peers[&1].send(&frame(WATCHED));
    }
    for _ in 0..100 {
        assert_eq!(testbed.peers[&2].receive(), frame(WATCHED));
    }
    let port = testbed.until_drained(CPU_PORT, 100).await;
    let (left, no_peer) = (packets(&port.left), port.drops.expect("drops").no_peer);
    assert_eq!(left + packets(&no_peer), 100);
    loop {
        let counts = testbed.statistics().await.notifications.expect("counts");
        let counts = counts.packet_ins.expect("counts");
        if counts.sent + counts.dropped == 100 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cpu_port_there_are_no_packet_outs() {
    let testbed = testbed(None).await;
    let mut controller = testbed.controller().await;
    let packet = packet_out(&testbed, vec![1; 60]);
    controller.send(Request::Packet(packet)).await;
    assert_eq!(controller.error().await.0, Code::FailedPrecondition);
}
