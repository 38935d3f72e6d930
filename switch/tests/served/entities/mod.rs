//! Writes and reads of entities: tables, counters, meters, registers, groups, sessions.

mod direct;
mod profiles;
mod translated;
mod value_sets;

use crate::served::common::{Controller, Testbed, group, names, probe};
use tonic::Code;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::{
    self, CounterData, CounterEntry, Entity, MeterConfig, MeterEntry, P4Data, RegisterEntry,
    TableEntry, Update,
};

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;

#[tokio::test]
async fn each_update_of_a_batch_has_its_own_outcome() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    controller.insert(vec![testbed.unicast(A, 1).into()]).await;
    let updates = vec![
        Update::insert(testbed.unicast(A, 2)),
        Update::insert(testbed.unicast(B, 2)),
        Update::delete(testbed.unicast(3, 2)),
        Update::modify(testbed.unicast(A, 2)),
        Update {
            r#type: 0,
            entity: Some(testbed.unicast(4, 1).into()),
        },
        Update {
            r#type: 1,
            entity: None,
        },
        Update::insert(TableEntry {
            table_id: 12,
            ..TableEntry::default()
        }),
    ];
    let status = controller.write(updates).await.expect_err("some fail");
    let outcomes = ultima_p4runtime::batch::outcomes(&status).expect("outcomes");
    let codes: Vec<_> = outcomes
        .iter()
        .map(|error| Code::from(error.canonical_code))
        .collect();
    let expected = [
        Code::AlreadyExists,
        Code::Ok,
        Code::NotFound,
        Code::Ok,
        Code::InvalidArgument,
        Code::InvalidArgument,
        Code::NotFound,
    ];
    assert_eq!(codes, expected, "{outcomes:?}");
    // The updates that did not fail took effect.
    let found = controller
        .read(vec![TableEntry::default().into()])
        .await
        .expect("read");
    assert!(found.contains(&Kind::TableEntry(testbed.unicast(A, 2))));
    assert!(found.contains(&Kind::TableEntry(testbed.unicast(B, 2))));
}

#[tokio::test]
async fn entries_are_read_as_they_were_written() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let names = names();
    let acl = names.table("IngressPipe.acl").expect("table");
    let rule = |src: u64, mask: u64, priority| {
        let entry = acl
            .entry()
            .ternary("hdr.ethernet.src", src, mask)
            .expect("key");
        let entry = entry
            .priority(priority)
            .action("IngressPipe.deny", &[])
            .expect("action");
        entry.build().expect("entry")
    };
    let metered = names.table("IngressPipe.metered").expect("table");
    let prefix = metered
        .entry()
        .lpm("hdr.ethernet.src", 0x0400_0000_0000u64, 8)
        .expect("key");
    let prefix = prefix
        .action("IngressPipe.watch", &[])
        .expect("action")
        .build()
        .expect("entry");
    #[expect(deprecated)]
    let marked = TableEntry {
        controller_metadata: 99,
        metadata: b"cookie".to_vec(),
        ..testbed.unicast(B, 2)
    };
    let written = [
        testbed.unicast(A, 1),
        marked.clone(),
        rule(0x10, 0xff, 5),
        rule(0x10, 0xff, 6),
        rule(0x20, 0xf0, 5),
        prefix.clone(),
        testbed.replica(3, "EgressPipe.discard", &[]),
    ];
    controller
        .insert(written.iter().cloned().map(Entity::from).collect())
        .await;
    let read = async |controller: &mut Controller, filter: TableEntry| {
        let found = controller.read(vec![filter.into()]).await.expect("read");
        let entry = |kind| match kind {
            Kind::TableEntry(entry) => entry,
            other => panic!("{other:?}"),
        };
        found.into_iter().map(entry).collect::<Vec<_>>()
    };
    let all = read(&mut controller, TableEntry::default()).await;
    let (constant, mine): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.is_const);
    assert_eq!(constant.len(), 1, "the program's entry");
    assert_eq!(mine.len(), written.len());
    assert!(
        written.iter().all(|entry| mine.contains(entry)),
        "{mine:#?}"
    );

    let forward = testbed
        .names
        .table("IngressPipe.forward")
        .expect("table")
        .all_entries();
    assert_eq!(read(&mut controller, forward.clone()).await.len(), 2);
    let by_cookie = TableEntry {
        metadata: b"cookie".to_vec(),
        ..forward.clone()
    };
    assert_eq!(read(&mut controller, by_cookie).await, [marked]);
    let by_priority = TableEntry {
        priority: 5,
        ..acl.all_entries()
    };
    assert_eq!(read(&mut controller, by_priority).await.len(), 2);
    let by_action = TableEntry {
        action: testbed.flood(1, 1).action,
        ..forward.clone()
    };
    assert!(read(&mut controller, by_action).await.is_empty());
    let by_key = TableEntry {
        action: None,
        ..rule(0x10, 0xff, 6)
    };
    assert_eq!(
        read(&mut controller, by_key.clone()).await,
        [rule(0x10, 0xff, 6)]
    );
    let any_priority = TableEntry {
        priority: 0,
        ..by_key.clone()
    };
    assert_eq!(read(&mut controller, any_priority).await.len(), 2);
    let none = TableEntry {
        priority: 7,
        ..by_key
    };
    assert!(read(&mut controller, none).await.is_empty());

    // The default entry is set, read and reset.
    let default = TableEntry {
        is_default_action: true,
        ..forward
    };
    let original = read(&mut controller, default.clone()).await;
    assert_eq!(original.len(), 1);
    let set = TableEntry {
        action: testbed.unicast(0, 2).action,
        ..default.clone()
    };
    controller
        .write(vec![Update::modify(set.clone())])
        .await
        .expect("written");
    assert_eq!(
        read(&mut controller, default.clone()).await,
        std::slice::from_ref(&set)
    );
    assert_eq!(
        controller.try_write(Update::insert(set)).await,
        Err(Code::InvalidArgument)
    );
    controller
        .write(vec![Update::modify(default.clone())])
        .await
        .expect("reset");
    assert_eq!(read(&mut controller, default).await, original);
}

#[tokio::test]
async fn constant_entries_stay() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let fixed = testbed.names.table("IngressPipe.fixed").expect("table");
    let entry = |value: u16| {
        let entry = fixed
            .entry()
            .exact("hdr.ethernet.type", value)
            .expect("key");
        let values = [("port", Bytestring::from(1u16))];
        entry
            .action("IngressPipe.redirect", &values)
            .expect("action")
            .build()
            .expect("entry")
    };
    let denied = Err(Code::PermissionDenied);
    assert_eq!(
        controller.try_write(Update::insert(entry(0x9999))).await,
        denied
    );
    assert_eq!(
        controller.try_write(Update::delete(entry(0x88b6))).await,
        denied
    );
    assert_eq!(
        controller.try_write(Update::modify(entry(0x88b6))).await,
        denied
    );
    let metered = testbed.names.table("IngressPipe.metered").expect("table");
    let default = TableEntry {
        is_default_action: true,
        action: testbed.unicast(A, 1).action,
        ..metered.all_entries()
    };
    let outcome = controller.try_write(Update::modify(default)).await;
    assert!(
        matches!(outcome, Err(Code::PermissionDenied | Code::InvalidArgument)),
        "{outcome:?}"
    );
    let claimed = TableEntry {
        is_const: true,
        ..testbed.unicast(A, 1)
    };
    assert_eq!(
        controller.try_write(Update::insert(claimed)).await,
        Err(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn counters_meters_and_registers_by_index() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let counter = testbed
        .names
        .counter("IngressPipe.received")
        .expect("counter");
    let value = CounterData {
        byte_count: 5,
        packet_count: 4,
    };
    let set = CounterEntry {
        data: Some(value),
        ..counter.cell(3).expect("in range")
    };
    controller
        .write(vec![Update::modify(set)])
        .await
        .expect("written");
    let found = controller
        .read(vec![counter.cell(3).expect("in range").into()])
        .await;
    assert_eq!(found.expect("read"), [Kind::CounterEntry(set)]);
    assert_eq!(
        controller
            .read(vec![CounterEntry::default().into()])
            .await
            .expect("read")
            .len(),
        16
    );
    assert_eq!(
        controller.try_write(Update::insert(set)).await,
        Err(Code::InvalidArgument)
    );
    for (index, code) in [(16, Code::OutOfRange), (-1, Code::InvalidArgument)] {
        let outside = CounterEntry {
            index: Some(v1::Index { index }),
            ..set
        };
        assert_eq!(
            controller.try_write(Update::modify(outside)).await,
            Err(code)
        );
    }
    let all = CounterEntry {
        data: Some(CounterData::default()),
        ..counter.cells()
    };
    controller
        .write(vec![Update::modify(all)])
        .await
        .expect("written");
    assert!(controller.counter(counter.cells()).await.is_empty());

    let meter = testbed.names.meter("IngressPipe.policer").expect("meter");
    let config = Some(MeterConfig {
        cir: 10,
        cburst: 20,
        pir: 30,
        pburst: 40,
        eburst: 0,
    });
    let set = MeterEntry {
        config,
        ..meter.cell(9).expect("in range")
    };
    controller
        .write(vec![Update::modify(set)])
        .await
        .expect("written");
    let found = controller
        .read(vec![meter.cell(9).expect("in range").into()])
        .await;
    assert_eq!(found.expect("read"), [Kind::MeterEntry(set)]);
    let coloured = MeterEntry {
        counter_data: Some(v1::MeterCounterData::default()),
        ..set
    };
    assert_eq!(
        controller.try_write(Update::modify(coloured)).await,
        Err(Code::Unimplemented)
    );

    controller.insert(vec![testbed.unicast(A, 2).into()]).await;
    testbed.peers[&1].send(&probe(A, 0, 0x01020304, 64));
    testbed.peers[&2].receive();
    let register = testbed
        .names
        .register("IngressPipe.last_number")
        .expect("register");
    let bits = |bytes: &[u8]| {
        Some(P4Data {
            data: Some(Data::Bitstring(bytes.to_vec())),
        })
    };
    let read = controller
        .read(vec![register.cell(0).expect("in range").into()])
        .await;
    let expected = RegisterEntry {
        data: bits(&[1, 2, 3, 4]),
        ..register.cell(0).expect("in range")
    };
    assert_eq!(read.expect("read"), [Kind::RegisterEntry(expected)]);
    let set = RegisterEntry {
        data: bits(&[0, 0, 9]),
        ..register.cells()
    };
    controller
        .write(vec![Update::modify(set.clone())])
        .await
        .expect("written");
    let read = controller
        .read(vec![RegisterEntry::default().into()])
        .await
        .expect("read");
    assert_eq!(read.len(), 8);
    assert!(
        read.iter()
            .all(|kind| matches!(kind, Kind::RegisterEntry(e) if e.data == bits(&[9])))
    );
    let wide = RegisterEntry {
        data: bits(&[1, 0, 0, 0, 0]),
        ..set
    };
    assert_eq!(
        controller.try_write(Update::modify(wide)).await,
        Err(Code::OutOfRange)
    );
}

#[tokio::test]
async fn groups_and_sessions_are_read_as_they_were_written() {
    let testbed = Testbed::new(2).await;
    let mut controller = testbed.controller().await;
    let mut replicas = Vec::new();
    for (port, instance) in [(1u8, 5), (2, 6)] {
        let port_kind = Some(v1::replica::PortKind::Port(vec![port]));
        replicas.push(v1::Replica {
            port_kind,
            instance,
            ..v1::Replica::default()
        });
    }
    let new_style = v1::MulticastGroupEntry {
        multicast_group_id: 2,
        replicas,
        metadata: b"job 7".to_vec(),
    };
    let wildcard: Entity = v1::MulticastGroupEntry::default().into();
    controller
        .insert(vec![group(1, &[(1, 1), (1, 2)]), new_style.clone().into()])
        .await;
    let found = controller.read(vec![wildcard.clone()]).await.expect("read");
    let expected = [group(1, &[(1, 1), (1, 2)]), new_style.clone().into()];
    assert_eq!(
        found,
        expected.map(|entity: Entity| entity.entity.expect("set"))
    );
    let updates = [
        (Update::insert(group(1, &[])), Err(Code::AlreadyExists)),
        (Update::modify(group(3, &[])), Err(Code::NotFound)),
        (
            Update::insert(group(0x10000, &[])),
            Err(Code::InvalidArgument),
        ),
        (
            Update::insert(group(3, &[(600, 1)])),
            Err(Code::InvalidArgument),
        ),
        (
            Update::insert(group(3, &[(1, 0x10000)])),
            Err(Code::InvalidArgument),
        ),
        (Update::modify(group(1, &[(2, 9)])), Ok(())),
        (Update::delete(group(2, &[])), Ok(())),
        (Update::delete(group(2, &[])), Err(Code::NotFound)),
    ];
    for (update, outcome) in updates {
        assert_eq!(
            controller.try_write(update.clone()).await,
            outcome,
            "{update:?}"
        );
    }
    let mut with_backup = new_style.clone();
    with_backup.replicas[0]
        .backup_replicas
        .push(v1::BackupReplica::default());
    assert_eq!(
        controller.try_write(Update::insert(with_backup)).await,
        Err(Code::Unimplemented)
    );
    let found = controller.read(vec![wildcard]).await.expect("read");
    assert_eq!(found, [group(1, &[(2, 9)]).entity.expect("set")]);
    assert!(controller.read(vec![group(2, &[])]).await.is_err());
    let session = v1::CloneSessionEntry {
        session_id: 4,
        replicas: new_style.replicas,
        class_of_service: 1,
        packet_length_bytes: 128,
    };
    controller.insert(vec![session.clone().into()]).await;
    for class_of_service in [8, 256] {
        let high = v1::CloneSessionEntry {
            class_of_service,
            ..session.clone()
        };
        assert_eq!(
            controller.try_write(Update::modify(high)).await,
            Err(Code::InvalidArgument)
        );
    }
    let found = controller
        .read(vec![v1::CloneSessionEntry::default().into()])
        .await;
    assert_eq!(
        found.expect("read"),
        [Entity::from(session).entity.expect("set")]
    );
}

#[tokio::test]
async fn a_failing_read_reports_each_request() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let good: Entity = CounterEntry::default().into();
    let bad: Entity = CounterEntry {
        counter_id: 12,
        ..CounterEntry::default()
    }
    .into();
    let error = controller
        .read(vec![good, bad, Entity::default()])
        .await
        .expect_err("two are bad");
    let outcomes = ultima_p4runtime::batch::outcomes(&error).expect("outcomes");
    let codes: Vec<_> = outcomes
        .iter()
        .map(|error| Code::from(error.canonical_code))
        .collect();
    assert_eq!(codes, [Code::Ok, Code::NotFound, Code::InvalidArgument]);
}

#[tokio::test]
async fn a_large_read_comes_in_parts() {
    let testbed = Testbed::new(1).await;
    let mut controller = testbed.controller().await;
    let many = vec![CounterEntry::default().into(); 200];
    let found = controller.read(many).await.expect("read");
    assert_eq!(found.len(), 200 * 16);
}
