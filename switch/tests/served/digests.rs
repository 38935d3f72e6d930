//! Digests from packets to controllers and back (P4Runtime §9.8).

use crate::served::common::{Bed, Controller, bare, controller_program};
use tonic::Code;
use ultima_p4runtime::v1::digest_entry::Config;
use ultima_p4runtime::v1::stream_error::Details;
use ultima_p4runtime::v1::stream_message_request::Update as Request;
use ultima_p4runtime::v1::{
    DigestEntry, DigestListAck, P4Data, TableEntry, Update, entity::Entity,
};
use ultima_switch::WireConfig;

const SOURCE: u64 = 0x0200_0000_0009;
const MINUTE: i64 = 60_000_000_000;

/// A bed whose program tells every source that it sees.
async fn bed() -> (Bed, Controller) {
    let wires = vec![WireConfig::default(); 2];
    let bed = Bed::with_program(bare(), controller_program(), wires).await;
    let mut controller = bed.controller().await;
    let sources = bed.names.table("IngressPipe.sources").expect("table");
    let learn = sources.default_entry().action("IngressPipe.learn", &[]);
    let learn = learn.expect("action").build().expect("entry");
    controller
        .write(vec![Update::modify(learn)])
        .await
        .expect("written");
    (bed, controller)
}

fn frame(source: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1];
    frame.extend_from_slice(&source.to_be_bytes()[2..]);
    frame.extend([0x88, 0xb6]);
    frame.resize(60, 0);
    frame
}

fn digest(bed: &Bed, name: &str, config: Config) -> DigestEntry {
    bed.names.digest(name).expect("digest").entry(config)
}

fn config(max_timeout_ns: i64, max_list_size: i32, ack_timeout_ns: i64) -> Config {
    Config {
        max_timeout_ns,
        max_list_size,
        ack_timeout_ns,
    }
}

/// Address and port of a sighting.
fn sighting(bed: &Bed, message: &P4Data) -> (u64, u16) {
    let digest = bed.names.digest("sighting_t").expect("digest");
    let read = |member| digest.read(message, member).expect("a value");
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (address, port) = (read("address"), read("port"));
    (number(address.as_bytes()), number(port.as_bytes()) as u16)
}

#[tokio::test]
async fn sources_are_told_once_until_they_are_acknowledged() {
    let (bed, mut controller) = bed().await;
    let learn = digest(&bed, "sighting_t", config(0, 1, MINUTE));
    controller.insert(vec![learn.into()]).await;
    bed.peers[&1].send(&frame(SOURCE));
    let list = controller.digest_list().await;
    assert_eq!((list.digest_id, list.data.len()), (learn.digest_id, 1));
    assert_eq!(sighting(&bed, &list.data[0]), (SOURCE, 1));
    assert!(
        list.timestamp > 1_600_000_000_000_000_000,
        "since the epoch"
    );

    // The same again is not told; another one is.
    bed.peers[&1].send(&frame(SOURCE));
    bed.peers[&2].send(&frame(SOURCE));
    let second = controller.digest_list().await;
    assert_eq!(sighting(&bed, &second.data[0]), (SOURCE, 2));
    assert_ne!(second.list_id, list.list_id);

    let ack = DigestListAck {
        digest_id: list.digest_id,
        list_id: list.list_id,
    };
    controller.send(Request::DigestAck(ack)).await;
    // An error that comes back shows that the one before was dealt with.
    let unknown = DigestListAck {
        digest_id: 1,
        ..ack
    };
    controller.send(Request::DigestAck(unknown)).await;
    let (code, details) = controller.error().await;
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        matches!(details, Details::DigestListAck(error) if error.digest_list_ack == Some(unknown))
    );
    bed.peers[&1].send(&frame(SOURCE));
    let third = controller.digest_list().await;
    assert_eq!(third.data, list.data);
    let told = bed.statistics().await.notifications.expect("counts");
    let told = told.digest_lists.expect("counts");
    assert_eq!((told.sent, told.dropped), (3, 0));
}

#[tokio::test]
async fn sightings_are_gathered_until_a_list_is_full_or_time_is_up() {
    let (bed, mut controller) = bed().await;
    let slow = digest(&bed, "sighting_t", config(MINUTE, 3, MINUTE));
    controller.insert(vec![slow.into()]).await;
    for source in [1, 2, 1, 2, 3, 4] {
        bed.peers[&1].send(&frame(source));
    }
    let list = controller.digest_list().await;
    let sources: Vec<_> = list.data.iter().map(|m| sighting(&bed, m).0).collect();
    assert_eq!(sources, [1, 2, 3], "distinct ones");
    // The fourth goes when its time is up, which is now sooner.
    let quick = digest(&bed, "sighting_t", config(1_000_000, 3, MINUTE));
    let update = Update::modify(quick);
    controller.write(vec![update]).await.expect("it is enabled");
    let list = controller.digest_list().await;
    assert_eq!(sighting(&bed, &list.data[0]), (4, 1));
    assert_eq!(list.data.len(), 1);
}

#[tokio::test]
async fn egress_tells_too() {
    let (bed, mut controller) = bed().await;
    let leave = digest(&bed, "departure_t", config(0, 1, 0));
    controller.insert(vec![leave.into()]).await;
    let table = bed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", 0x0200_0000_0001u64);
    let entry = entry
        .expect("key")
        .action("IngressPipe.send", &[("port", 2u16.into())]);
    let entry: TableEntry = entry.expect("action").build().expect("entry");
    controller.insert(vec![entry.into()]).await;
    for _ in 0..2 {
        bed.peers[&1].send(&frame(SOURCE));
        let list = controller.digest_list().await;
        let digest = bed.names.digest("departure_t").expect("digest");
        let read = |member| digest.read(&list.data[0], member).expect("a value");
        assert_eq!((read("type"), read("port")), (0x88b6u16.into(), 2u8.into()));
        assert_eq!(bed.peers[&2].receive(), frame(SOURCE));
    }
}

#[tokio::test]
async fn a_new_primary_hears_what_its_predecessor_was_told() {
    let (bed, mut controller) = bed().await;
    let learn = digest(&bed, "sighting_t", config(0, 1, MINUTE));
    controller.insert(vec![learn.into()]).await;
    bed.peers[&1].send(&frame(SOURCE));
    let list = controller.digest_list().await;
    let mut successor = Controller::primary(bed.switch.grpc_addr(), 2).await;
    // A frame that arrives during the change of the primary may count as sent to the predecessor, so wait for the change.
    let read = successor.read(vec![DigestEntry::default().into()]).await;
    read.expect("a wildcard");
    bed.peers[&1].send(&frame(SOURCE));
    assert_eq!(successor.digest_list().await.data, list.data);
}

#[tokio::test]
async fn digest_entries_are_read_as_they_were_written() {
    let (bed, mut controller) = bed().await;
    let learn = digest(&bed, "sighting_t", config(5, 6, 7));
    let leave = digest(&bed, "departure_t", config(0, 0, 0));
    let unset = DigestEntry {
        config: None,
        ..leave
    };
    controller.insert(vec![learn.into(), unset.into()]).await;
    let all = controller.read(vec![DigestEntry::default().into()]).await;
    let all = all.expect("a wildcard");
    assert_eq!(
        all,
        [Entity::DigestEntry(learn), Entity::DigestEntry(leave)]
    );
    let one = controller.read(vec![learn.into()]).await.expect("one");
    assert_eq!(one, [Entity::DigestEntry(learn)]);

    let unknown = DigestEntry {
        digest_id: 7,
        ..learn
    };
    let negative = digest(&bed, "sighting_t", config(-1, 0, 0));
    for (update, code) in [
        (Update::insert(learn), Code::AlreadyExists),
        (Update::insert(unknown), Code::NotFound),
        (Update::modify(negative), Code::InvalidArgument),
    ] {
        assert_eq!(controller.try_write(update).await, Err(code));
    }
    let update = Update::delete(learn);
    controller.write(vec![update]).await.expect("it is enabled");
    for update in [Update::delete(learn), Update::modify(learn)] {
        assert_eq!(controller.try_write(update).await, Err(Code::NotFound));
    }
    // Digests of packets that arrive while it is disabled are not sent.
    bed.peers[&1].send(&frame(1));
    bed.entered(1, 1).await;
    let learn = digest(&bed, "sighting_t", config(0, 1, 0));
    controller.insert(vec![learn.into()]).await;
    bed.peers[&1].send(&frame(2));
    let list = controller.digest_list().await;
    assert_eq!(sighting(&bed, &list.data[0]), (2, 1));
}
