//! Packets between controllers and the program (P4Runtime §16.1).

use crate::served::common::{Bed, Controller, bare, controller_program, packets};
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

async fn bed(cpu_port: Option<u16>) -> Bed {
    let config = SwitchConfig { cpu_port, ..bare() };
    let wires = vec![WireConfig::default(); 2];
    Bed::with_program(config, controller_program(), wires).await
}

fn frame(dst: u64) -> Vec<u8> {
    let mut frame = dst.to_be_bytes()[2..].to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend([7; 46]);
    frame
}

fn forward(bed: &Bed, dst: u64, action: &str, values: &[(&str, Bytestring)]) -> TableEntry {
    let table = bed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
    let entry = entry.action(action, values).expect("action");
    entry.build().expect("entry")
}

/// To port 2, from the controller.
fn packet_out(bed: &Bed, payload: Vec<u8>) -> PacketOut {
    let header = bed.names.controller_header("packet_out").expect("header");
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
    let bed = bed(Some(CPU_PORT)).await;
    let mut controller = bed.controller().await;
    let session = Replica {
        port: CPU_PORT.into(),
        instance: 0,
    };
    let watch = [("port", 2u16.into()), ("session", 5u8.into())];
    let reason = [("reason", 0x1234u16.into())];
    controller
        .insert(vec![
            forward(&bed, PUNTED, "IngressPipe.punt", &reason).into(),
            forward(&bed, WATCHED, "IngressPipe.watch", &watch).into(),
            clone_session(5, [session]).expect("a session").into(),
        ])
        .await;
    let header = bed.names.controller_header("packet_in").expect("header");

    bed.peers[&1].send(&frame(PUNTED));
    let packet = controller.packet_in().await;
    assert_eq!(packet.payload, frame(PUNTED));
    let fields = ["ingress_port", "is_clone", "reason"];
    let read = fields.map(|field| header.read(&packet.metadata, field).expect("a value"));
    assert_eq!(read, [1u16.into(), 0u8.into(), 0x1234u16.into()]);
    // Canonical: no leading zeros.
    assert_eq!(packet.metadata[0].value, [1]);

    bed.peers[&1].send(&frame(WATCHED));
    let packet = controller.packet_in().await;
    assert_eq!(packet.payload, frame(WATCHED));
    let read = fields.map(|field| header.read(&packet.metadata, field).expect("a value"));
    // A clone keeps no metadata but what the program preserves.
    assert_eq!(read, [0u16.into(), 1u8.into(), 1u8.into()]);
    assert_eq!(
        bed.peers[&2].receive(),
        frame(WATCHED),
        "and the frame goes on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_the_controller_enter_at_the_cpu_port() {
    let bed = bed(Some(CPU_PORT)).await;
    let mut controller = bed.controller().await;
    for n in 0..200u8 {
        let packet = packet_out(&bed, vec![n; 60]);
        controller.send(Request::Packet(packet)).await;
    }
    for n in 0..200u8 {
        assert_eq!(bed.peers[&2].receive(), vec![n; 60], "in order");
    }
    let port = bed.entered(CPU_PORT, 200).await;
    assert_eq!(port.attachment, "controller");
    // The controller header is part of what enters.
    assert_eq!(port.entered.expect("a count").bytes, 200 * 67);
}

#[tokio::test(flavor = "multi_thread")]
async fn packet_outs_that_are_none_are_told_in_stream_errors() {
    let bed = bed(Some(CPU_PORT)).await;
    let mut controller = bed.controller().await;
    let good = packet_out(&bed, vec![1; 60]);
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
    // The stream has not suffered.
    controller.send(Request::Packet(with(1, &[0, 2]))).await;
    assert_eq!(bed.peers[&2].receive(), [1; 60]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_primaries_send_and_receive_packets() {
    let bed = bed(Some(CPU_PORT)).await;
    let mut backup = Controller::connect(bed.switch.grpc_addr(), 3).await;
    backup.announce(None).await;
    assert_eq!(backup.notice().await.expect("a notice").0, Code::NotFound);
    let packet = packet_out(&bed, vec![1; 60]);
    backup.send(Request::Packet(packet.clone())).await;
    assert_eq!(backup.error().await.0, Code::PermissionDenied);

    // Every role has the whole pipeline, and so its primary has packets.
    let mut other = Controller::connect(bed.switch.grpc_addr(), 9).await;
    other.role = "telemetry".to_owned();
    other.announce(Some(9)).await;
    assert_eq!(other.notice().await.expect("a notice").0, Code::Ok);
    other.send(Request::Packet(packet)).await;
    assert_eq!(bed.peers[&2].receive(), [1; 60]);
    let reason = [("reason", 1u8.into())];
    let entry = forward(&bed, PUNTED, "IngressPipe.punt", &reason);
    other.insert(vec![entry.into()]).await;
    bed.peers[&1].send(&frame(PUNTED));
    assert_eq!(other.packet_in().await.payload, frame(PUNTED));
    // The backup heard nothing in between: this is the next that it hears.
    backup.announce(Some(4)).await;
    assert_eq!(
        backup.notice().await.expect("a notice"),
        (Code::Ok, Some(4))
    );
    bed.peers[&1].send(&frame(PUNTED));
    assert_eq!(backup.packet_in().await.payload, frame(PUNTED));
    assert_eq!(other.packet_in().await.payload, frame(PUNTED));
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_without_a_controller_are_counted_and_do_not_block() {
    let bed = bed(Some(CPU_PORT)).await;
    let mut controller = bed.controller().await;
    let reason = [("reason", 1u8.into())];
    let punt = forward(&bed, PUNTED, "IngressPipe.punt", &reason);
    let send = forward(&bed, WATCHED, "IngressPipe.send", &[("port", 2u16.into())]);
    controller.insert(vec![punt.into(), send.into()]).await;
    drop(controller);
    for _ in 0..100 {
        bed.peers[&1].send(&frame(PUNTED));
        bed.peers[&1].send(&frame(WATCHED));
    }
    for _ in 0..100 {
        assert_eq!(bed.peers[&2].receive(), frame(WATCHED));
    }
    let settled = bed.settled(CPU_PORT, 100).await;
    let (left, refused) = (
        packets(&settled.left),
        settled.drops.expect("drops").no_peer,
    );
    assert_eq!(left + packets(&refused), 100);
    loop {
        let told = bed.statistics().await.notifications.expect("counts");
        let told = told.packet_ins.expect("counts");
        if told.sent + told.dropped == 100 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cpu_port_there_are_no_packet_outs() {
    let bed = bed(None).await;
    let mut controller = bed.controller().await;
    let packet = packet_out(&bed, vec![1; 60]);
    controller.send(Request::Packet(packet)).await;
    assert_eq!(controller.error().await.0, Code::FailedPrecondition);
}
