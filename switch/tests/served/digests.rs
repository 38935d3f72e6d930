//! Digests from packets to controllers and back (P4Runtime §9.8).

use crate::served::common::{Controller, Testbed, base_config, controller_program};
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

/// A testbed whose program sends a digest for each source address.
async fn testbed() -> (Testbed, Controller) {
    let wires = vec![WireConfig::default(); 2];
    let testbed = Testbed::with_program(base_config(), controller_program(), wires).await;
    let mut controller = testbed.controller().await;
    let sources = testbed.names.table("IngressPipe.sources").expect("table");
    let learn = sources.default_entry().action("IngressPipe.learn", &[]);
    let learn = learn.expect("action").build().expect("entry");
    controller
        .write(vec![Update::modify(learn)])
        .await
        .expect("written");
    (testbed, controller)
}

fn frame(source: u64) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1];
    frame.extend_from_slice(&source.to_be_bytes()[2..]);
    frame.extend([0x88, 0xb6]);
    frame.resize(60, 0);
    frame
}

fn digest(testbed: &Testbed, name: &str, config: Config) -> DigestEntry {
    testbed.names.digest(name).expect("digest").entry(config)
}

fn config(max_timeout_ns: i64, max_list_size: i32, ack_timeout_ns: i64) -> Config {
    Config {
        max_timeout_ns,
        max_list_size,
        ack_timeout_ns,
    }
}

/// Address and port of a sighting.
fn sighting(testbed: &Testbed, message: &P4Data) -> (u64, u16) {
    let digest = testbed.names.digest("sighting_t").expect("digest");
    let read = |member| digest.read(message, member).expect("a value");
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (address, port) = (read("address"), read("port"));
    (number(address.as_bytes()), number(port.as_bytes()) as u16)
}

#[tokio::test]
async fn a_digest_is_not_repeated_until_it_is_acknowledged() {
    let (testbed, mut controller) = testbed().await;
    let learn = digest(&testbed, "sighting_t", config(0, 1, MINUTE));
    controller.insert(vec![learn.into()]).await;
    testbed.peers[&1].send(&frame(SOURCE));
    let list = controller.digest_list().await;
    assert_eq!((list.digest_id, list.data.len()), (learn.digest_id, 1));
    assert_eq!(sighting(&testbed, &list.data[0]), (SOURCE, 1));
    assert!(
        list.timestamp > 1_600_000_000_000_000_000,
        "since the epoch"
    );

    // The same digest is not sent again. Another one is.
    testbed.peers[&1].send(&frame(SOURCE));
    testbed.peers[&2].send(&frame(SOURCE));
    let second = controller.digest_list().await;
    assert_eq!(sighting(&testbed, &second.data[0]), (SOURCE, 2));
    assert_ne!(second.list_id, list.list_id);

    let ack = DigestListAck {
        digest_id: list.digest_id,
        list_id: list.list_id,
    };
    controller.send(Request::DigestAck(ack)).await;
    // The error for this acknowledgement shows that the switch has processed the one before.
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
    testbed.peers[&1].send(&frame(SOURCE));
    let third = controller.digest_list().await;
    assert_eq!(third.data, list.data);
    let counts = testbed.statistics().await.notifications.expect("counts");
    let counts = counts.digest_lists.expect("counts");
    assert_eq!((counts.sent, counts.dropped), (3, 0));
}

#[tokio::test]
async fn digests_are_collected_until_the_list_is_full_or_times_out() {
    let (testbed, mut controller) = testbed().await;
    let slow = digest(&testbed, "sighting_t", config(MINUTE, 3, MINUTE));
    controller.insert(vec![slow.into()]).await;
    for source in [1, 2, 1, 2, 3, 4] {
        testbed.peers[&1].send(&frame(source));
    }
    let list = controller.digest_list().await;
    let sources: Vec<_> = list.data.iter().map(|m| sighting(&testbed, m).0).collect();
    assert_eq!(sources, [1, 2, 3], "no duplicates");
    // The fourth is sent after the timeout, which is now shorter.
    let quick = digest(&testbed, "sighting_t", config(1_000_000, 3, MINUTE));
    let update = Update::modify(quick);
    controller
        .write(vec![update])
        .await
        .expect("the digest is enabled");
    let list = controller.digest_list().await;
    assert_eq!(sighting(&testbed, &list.data[0]), (4, 1));
    assert_eq!(list.data.len(), 1);
}

#[tokio::test]
async fn egress_sends_digests_too() {
    let (testbed, mut controller) = testbed().await;
    let leave = digest(&testbed, "departure_t", config(0, 1, 0));
    controller.insert(vec![leave.into()]).await;
    let table = testbed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", 0x0200_0000_0001u64);
    let entry = entry
        .expect("key")
        .action("IngressPipe.send", &[("port", 2u16.into())]);
    let entry: TableEntry = entry.expect("action").build().expect("entry");
    controller.insert(vec![entry.into()]).await;
    for _ in 0..2 {
        testbed.peers[&1].send(&frame(SOURCE));
        let list = controller.digest_list().await;
        let digest = testbed.names.digest("departure_t").expect("digest");
        let read = |member| digest.read(&list.data[0], member).expect("a value");
        assert_eq!((read("type"), read("port")), (0x88b6u16.into(), 2u8.into()));
        assert_eq!(testbed.peers[&2].receive(), frame(SOURCE));
    }
}

#[tokio::test]
async fn a_new_primary_gets_digests_that_its_predecessor_got() {
    let (testbed, mut controller) = testbed().await;
    let learn = digest(&testbed, "sighting_t", config(0, 1, MINUTE));
    controller.insert(vec![learn.into()]).await;
    testbed.peers[&1].send(&frame(SOURCE));
    let list = controller.digest_list().await;
    let mut successor = Controller::primary(testbed.switch.grpc_addr(), 2).await;
    // A frame that arrives during the change of the primary may count as sent to the predecessor, so wait for the change.
    let read = successor.read(vec![DigestEntry::default().into()]).await;
    read.expect("a wildcard");
    testbed.peers[&1].send(&frame(SOURCE));
    assert_eq!(successor.digest_list().await.data, list.data);
}

#[tokio::test]
async fn digest_entries_are_read_as_they_were_written() {
    let (testbed, mut controller) = testbed().await;
    let learn = digest(&testbed, "sighting_t", config(5, 6, 7));
    let leave = digest(&testbed, "departure_t", config(0, 0, 0));
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
    let negative = digest(&testbed, "sighting_t", config(-1, 0, 0));
    for (update, code) in [
        (Update::insert(learn), Code::AlreadyExists),
        (Update::insert(unknown), Code::NotFound),
        (Update::modify(negative), Code::InvalidArgument),
    ] {
        assert_eq!(controller.try_write(update).await, Err(code));
    }
    let update = Update::delete(learn);
    controller
        .write(vec![update])
        .await
        .expect("the digest is enabled");
    for update in [Update::delete(learn), Update::modify(learn)] {
        assert_eq!(controller.try_write(update).await, Err(Code::NotFound));
    }
    // Digests of packets that arrive while it is disabled are not sent.
    testbed.peers[&1].send(&frame(1));
    testbed.until_entered(1, 1).await;
    let learn = digest(&testbed, "sighting_t", config(0, 1, 0));
    controller.insert(vec![learn.into()]).await;
    testbed.peers[&1].send(&frame(2));
    let list = controller.digest_list().await;
    assert_eq!(sighting(&testbed, &list.data[0]), (2, 1));
}
