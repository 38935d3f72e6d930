//! Idle entries over P4Runtime (§9.1.8, §16.4).

use crate::served::common::{Controller, Testbed, base_config, controller_program};
use tonic::Code;
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::stream_message_response::Update as Response;
use ultima_p4runtime::v1::table_entry::IdleTimeout;
use ultima_p4runtime::v1::{IdleTimeoutNotification, TableEntry, Update};
use ultima_switch::WireConfig;

const MILLISECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600_000 * MILLISECOND;

async fn testbed() -> (Testbed, Controller) {
    let wires = vec![WireConfig::default(); 2];
    let testbed = Testbed::with_program(base_config(), controller_program(), wires).await;
    let controller = testbed.controller().await;
    (testbed, controller)
}

fn entry(testbed: &Testbed, dst: u64, idle_timeout_ns: i64) -> TableEntry {
    let table = testbed.names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", dst).expect("key");
    let entry = entry.action("IngressPipe.send", &[("port", 2u16.into())]);
    TableEntry {
        idle_timeout_ns,
        metadata: vec![dst as u8],
        ..entry.expect("action").build().expect("entry")
    }
}

async fn notification(controller: &mut Controller) -> IdleTimeoutNotification {
    match controller.message().await {
        Ok(Some(Response::IdleTimeoutNotification(notification))) => notification,
        other => panic!("expected an idle timeout notification, got {other:?}"),
    }
}

#[tokio::test]
async fn the_primary_is_notified_of_idle_entries_until_it_deletes_them() {
    let (testbed, mut controller) = testbed().await;
    let idle = entry(&testbed, 1, 20 * MILLISECOND);
    let slow = entry(&testbed, 2, HOUR);
    let permanent = entry(&testbed, 3, 0);
    let all = [&idle, &slow, &permanent].map(|entry| entry.clone().into());
    controller.insert(all.to_vec()).await;
    let key = TableEntry {
        action: None,
        ..idle.clone()
    };
    let mut last = 0;
    for _ in 0..3 {
        let notification = notification(&mut controller).await;
        assert_eq!(notification.table_entry, std::slice::from_ref(&key));
        assert!(notification.timestamp >= last + 20 * MILLISECOND);
        last = notification.timestamp;
    }
    controller
        .write(vec![Update::delete(idle)])
        .await
        .expect("found");
    // Skip notifications that were sent before the deletion.
    let other = entry(&testbed, 4, 1);
    controller.insert(vec![other.into()]).await;
    loop {
        let notified = notification(&mut controller).await.table_entry;
        if notified != std::slice::from_ref(&key) {
            assert_eq!(notified[0].metadata, [4]);
            break;
        }
    }
}

#[tokio::test]
async fn the_time_since_the_last_hit_is_read_on_request() {
    let (testbed, mut controller) = testbed().await;
    let slow = entry(&testbed, 2, HOUR);
    controller.insert(vec![slow.clone().into()]).await;
    let read = controller.read(vec![slow.clone().into()]).await;
    assert_eq!(read.expect("read"), [Entity::TableEntry(slow.clone())]);
    let request = TableEntry {
        time_since_last_hit: Some(IdleTimeout::default()),
        ..slow.clone()
    };
    let mut age = async || {
        let found = controller.read(vec![request.clone().into()]).await;
        let Some(Entity::TableEntry(found)) = found.expect("read").pop() else {
            panic!("an entry");
        };
        found.time_since_last_hit.expect("an age").elapsed_ns
    };
    let first = age().await;
    let second = age().await;
    assert!(
        0 <= first && first <= second && second < HOUR,
        "{first} {second}"
    );

    let mut frame = vec![0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.resize(60, 0);
    let before_hit = testbed.statistics().await.time_ns;
    testbed.peers[&1].send(&frame);
    assert_eq!(testbed.peers[&2].receive(), frame);
    let third = age().await;
    let now = testbed.statistics().await.time_ns;
    // The hit reset the time.
    assert!(third <= (now - before_hit) as i64);
}

#[tokio::test]
async fn invalid_timeouts_are_rejected() {
    let (testbed, mut controller) = testbed().await;
    let with_age = TableEntry {
        time_since_last_hit: Some(IdleTimeout::default()),
        ..entry(&testbed, 1, 0)
    };
    let negative = entry(&testbed, 1, -1);
    let default = TableEntry {
        is_default_action: true,
        r#match: Vec::new(),
        ..entry(&testbed, 1, HOUR)
    };
    for update in [
        Update::insert(with_age),
        Update::insert(negative),
        Update::modify(default),
    ] {
        let refused = controller.try_write(update).await;
        assert_eq!(refused, Err(Code::InvalidArgument));
    }
}

/// §9.1.2: without an action, MODIFY keeps the entry's action. Other fields that are set take effect.
#[tokio::test]
async fn a_modification_without_an_action_changes_the_fields_that_are_set() {
    let (testbed, mut controller) = testbed().await;
    let written = entry(&testbed, 1, HOUR);
    controller.insert(vec![written.clone().into()]).await;
    let without_action = |metadata: &[u8], idle_timeout_ns| TableEntry {
        action: None,
        metadata: metadata.to_vec(),
        idle_timeout_ns,
        ..written.clone()
    };
    for (update, metadata, idle_timeout_ns) in [
        (without_action(b"new", 0), &b"new"[..], HOUR),
        (without_action(b"", 2 * HOUR), b"new", 2 * HOUR),
        (without_action(b"", 0), b"new", 2 * HOUR),
    ] {
        let outcome = controller.try_write(Update::modify(update)).await;
        assert_eq!(outcome, Ok(()));
        let expected = TableEntry {
            metadata: metadata.to_vec(),
            idle_timeout_ns,
            ..written.clone()
        };
        let read = controller.read(vec![without_action(b"", 0).into()]).await;
        assert_eq!(read.expect("read"), [Entity::TableEntry(expected)]);
    }
    let negative = without_action(b"", -1);
    assert_eq!(
        controller.try_write(Update::modify(negative)).await,
        Err(Code::InvalidArgument)
    );
}
