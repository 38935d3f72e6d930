//! Direct counters and meters (P4Runtime §9.1.7, §9.3.1, §9.4.1).

use std::collections::BTreeSet;

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::{
    CounterData, DirectCounterEntry, DirectMeterEntry, MeterConfig, MeterCounterData, TableEntry,
    Update,
};

use super::{A, B};
use crate::served::common::{self, Controller, Testbed, probe};

fn data(packet_count: i64, byte_count: i64) -> CounterData {
    CounterData {
        byte_count,
        packet_count,
    }
}

fn counter(entry: TableEntry, data: Option<CounterData>) -> DirectCounterEntry {
    DirectCounterEntry {
        table_entry: Some(entry),
        data,
    }
}

/// The entry that meters the frames of [`probe`].
fn watch(testbed: &Testbed) -> TableEntry {
    let metered = testbed.names.table("IngressPipe.metered").expect("table");
    let entry = metered
        .entry()
        .lpm("hdr.ethernet.src", 0x0200_0000_00aau64, 48);
    let entry = entry.expect("key").action("IngressPipe.watch", &[]);
    entry.expect("action").build().expect("entry")
}

/// A meter whose bursts are empty: every packet is red.
const TIGHT: MeterConfig = MeterConfig {
    cir: 1,
    cburst: 0,
    pir: 1,
    pburst: 0,
    eburst: 0,
};

#[tokio::test]
async fn direct_counters_belong_to_their_entries() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let mut entry = testbed.unicast(A, 2);
    entry.counter_data = Some(data(100, 1000));
    controller
        .insert(vec![entry.clone().into(), testbed.unicast(B, 2).into()])
        .await;
    testbed.peers[&1].send(&probe(A, 0, 1, 64));
    testbed.peers[&2].receive();
    let with_counter = TableEntry {
        counter_data: Some(data(0, 0)),
        ..testbed.unicast(A, 2)
    };
    let found = controller
        .read(vec![with_counter.into()])
        .await
        .expect("read");
    let expected = TableEntry {
        counter_data: Some(data(101, 1064)),
        ..testbed.unicast(A, 2)
    };
    assert_eq!(found, [Kind::TableEntry(expected)]);

    let reset = counter(testbed.unicast(A, 2), Some(data(7, 8)));
    controller
        .write(vec![Update::modify(reset.clone())])
        .await
        .expect("written");
    assert_eq!(
        controller.try_write(Update::insert(reset)).await,
        Err(Code::InvalidArgument)
    );
    let all = counter(
        testbed
            .names
            .table("IngressPipe.forward")
            .expect("table")
            .all_entries(),
        None,
    );
    let found = controller.read(vec![all.into()]).await.expect("read");
    assert_eq!(found.len(), 2);
    let values: BTreeSet<_> = found
        .iter()
        .map(|kind| match kind {
            Kind::DirectCounterEntry(entry) => {
                let key = entry.table_entry.as_ref().expect("a key");
                assert!(key.action.is_none() && key.r#match.len() == 1);
                entry.data.expect("data").packet_count
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(values, [0, 7].into());
    let missing = counter(testbed.unicast(9, 1), None);
    assert!(controller.read(vec![missing.into()]).await.is_err());
}

#[tokio::test]
async fn direct_meters_belong_to_their_entries() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    controller
        .insert(vec![
            testbed.unicast(A, 2).into(),
            testbed.unicast(B, 2).into(),
        ])
        .await;
    let watch = TableEntry {
        meter_config: Some(TIGHT),
        ..watch(&testbed)
    };
    controller.insert(vec![watch.clone().into()]).await;
    let meter = DirectMeterEntry {
        table_entry: Some(watch.clone()),
        ..Default::default()
    };
    let found = controller
        .read(vec![meter.clone().into()])
        .await
        .expect("read");
    assert!(matches!(&found[..], [Kind::DirectMeterEntry(m)] if m.config == watch.meter_config));
    testbed.peers[&1].send(&probe(A, 0, 2, 64));
    controller
        .write(vec![Update::modify(testbed.unicast(B, 1))])
        .await
        .expect("written");
    // The switch drops the packet before the meter is reset.
    while common::packets(&testbed.port(1).await.ingress_program) != 1 {}
    controller
        .write(vec![Update::modify(meter)])
        .await
        .expect("written");
    testbed.peers[&1].send(&probe(A, 0, 3, 64));
    assert_eq!(common::number(&testbed.peers[&2].receive()), 3);
    let bad = TableEntry {
        meter_config: Some(MeterConfig {
            cir: 5,
            pir: 1,
            ..MeterConfig::default()
        }),
        ..watch
    };
    assert_eq!(
        controller.try_write(Update::modify(bad)).await,
        Err(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn meters_do_not_count_by_colour() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let metered = TableEntry {
        meter_config: Some(TIGHT),
        ..watch(&testbed)
    };
    controller.insert(vec![metered.clone().into()]).await;
    let request = TableEntry {
        meter_counter_data: Some(MeterCounterData::default()),
        ..metered.clone()
    };
    let found = controller.read(vec![request.clone().into()]).await;
    assert_eq!(found.expect("read"), [Kind::TableEntry(metered)]);
    assert_eq!(
        controller.try_write(Update::modify(request)).await,
        Err(Code::Unimplemented)
    );
}

#[tokio::test]
async fn default_entries_have_resources_too() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let forward = testbed.names.table("IngressPipe.forward").expect("table");
    let default = TableEntry {
        is_default_action: true,
        ..forward.all_entries()
    };
    testbed.peers[&1].send(&probe(7, 0, 1, 64));
    while common::packets(&testbed.port(1).await.ingress_program) != 1 {}
    let read = async |controller: &mut Controller| {
        let found = controller.read(vec![counter(default.clone(), None).into()]);
        match &found.await.expect("read")[..] {
            [Kind::DirectCounterEntry(entry)] => entry.data.expect("data"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(&mut controller).await, data(1, 64));
    let set = counter(default.clone(), Some(data(5, 6)));
    let written = controller.write(vec![Update::modify(set)]).await;
    written.expect("written");
    assert_eq!(read(&mut controller).await, data(5, 6));
    // A write of the entry sets the counter. A reset of the entry sets it to zero.
    let with_counter = TableEntry {
        counter_data: Some(data(8, 9)),
        action: testbed.unicast(A, 2).action,
        ..default.clone()
    };
    let written = controller
        .write(vec![Update::modify(with_counter.clone())])
        .await;
    written.expect("written");
    let request = TableEntry {
        counter_data: Some(data(0, 0)),
        ..default.clone()
    };
    let found = controller.read(vec![request.into()]).await.expect("read");
    assert_eq!(found, [Kind::TableEntry(with_counter)]);
    let written = controller
        .write(vec![Update::modify(default.clone())])
        .await;
    written.expect("written");
    assert_eq!(read(&mut controller).await, data(0, 0));
    let keyed = TableEntry {
        is_default_action: true,
        ..testbed.unicast(A, 2)
    };
    let keyed = counter(keyed, Some(data(1, 1)));
    assert_eq!(
        controller.try_write(Update::modify(keyed)).await,
        Err(Code::InvalidArgument)
    );
    let all = TableEntry {
        is_default_action: true,
        ..TableEntry::default()
    };
    let found = controller.read(vec![counter(all, None).into()]).await;
    assert_eq!(
        found.expect("read").len(),
        1,
        "one table has a direct counter"
    );
}
