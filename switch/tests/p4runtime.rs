//! The P4Runtime server as a client sees it.

mod common;

use std::collections::BTreeSet;

use common::{Bed, Controller, DEVICE, bare, group, names, pipeline_config, probe};
use tonic::Code;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_p4runtime::v1::{
    self, CapabilitiesRequest, CounterData, CounterEntry, DirectCounterEntry, DirectMeterEntry,
    Entity, GetForwardingPipelineConfigRequest, MeterConfig, MeterEntry, P4Data, PacketOut,
    ReadRequest, RegisterEntry, TableEntry, Update, WriteRequest, stream_message_request,
    stream_message_response,
};
use ultima_switch::Switch;

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;

#[tokio::test]
async fn two_controllers_and_one_primary() {
    let bed = Bed::new(2).await;
    let address = bed.switch.grpc_addr();
    let mut one = Controller::primary(address, 10).await;
    let mut two = Controller::connect(address, 5).await;
    two.announce(Some(5)).await;
    assert_eq!(
        two.notice().await.expect("a notice"),
        (Code::AlreadyExists, Some(10))
    );
    let entry = bed.unicast(A, 2);
    let refused = two
        .write(vec![Update::insert(entry.clone())])
        .await
        .expect_err("a backup");
    assert_eq!(refused.code(), Code::PermissionDenied);
    one.insert(vec![entry.clone().into()]).await;
    // Anyone may read.
    assert_eq!(
        two.read(vec![entry.clone().into()])
            .await
            .expect("read")
            .len(),
        1
    );

    two.announce(Some(11)).await;
    assert_eq!(two.notice().await.expect("a notice"), (Code::Ok, Some(11)));
    assert_eq!(
        one.notice().await.expect("a notice"),
        (Code::AlreadyExists, Some(11))
    );
    let refused = one
        .write(vec![Update::delete(entry.clone())])
        .await
        .expect_err("no more");
    assert_eq!(refused.code(), Code::PermissionDenied);
    two.write(vec![Update::delete(entry.clone())])
        .await
        .expect("the primary");

    // The primary leaves: nobody takes its place by itself.
    drop(two);
    assert_eq!(
        one.notice().await.expect("a notice"),
        (Code::NotFound, Some(11))
    );
    let refused = one
        .write(vec![Update::insert(entry.clone())])
        .await
        .expect_err("none");
    assert_eq!(refused.code(), Code::PermissionDenied);
    one.announce(Some(10)).await;
    assert_eq!(
        one.notice().await.expect("too low"),
        (Code::NotFound, Some(11))
    );
    one.announce(Some(11)).await;
    assert_eq!(
        one.notice().await.expect("high enough"),
        (Code::Ok, Some(11))
    );
    one.insert(vec![entry.into()]).await;
}

#[tokio::test]
async fn a_bad_announcement_ends_the_stream() {
    let bed = Bed::new(1).await;
    let address = bed.switch.grpc_addr();
    let mut one = Controller::primary(address, 10).await;
    let mut same = Controller::connect(address, 10).await;
    same.announce(Some(10)).await;
    assert_eq!(
        same.notice().await.expect_err("taken").code(),
        Code::InvalidArgument
    );
    let mut lost = Controller::connect(address, 1).await;
    let update = v1::MasterArbitrationUpdate {
        device_id: DEVICE + 1,
        ..Default::default()
    };
    lost.send(stream_message_request::Update::Arbitration(update))
        .await;
    assert_eq!(
        lost.message().await.expect_err("no such device").code(),
        Code::NotFound
    );
    one.write(Vec::new())
        .await
        .expect("the primary is still the primary");
    // In another role the same id is another controller's.
    let mut telemetry = Controller::connect(address, 10).await;
    telemetry.role = "telemetry".to_owned();
    telemetry.announce(Some(10)).await;
    assert_eq!(
        telemetry.notice().await.expect("a notice"),
        (Code::Ok, Some(10))
    );
    telemetry
        .write(Vec::new())
        .await
        .expect("primary of its role");
}

#[tokio::test]
async fn what_the_stream_does_not_carry_is_answered() {
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
    let packet = PacketOut {
        payload: vec![1, 2, 3],
        metadata: Vec::new(),
    };
    controller
        .send(stream_message_request::Update::Packet(packet.clone()))
        .await;
    let answer = controller
        .message()
        .await
        .expect("the stream stays")
        .expect("an answer");
    let stream_message_response::Update::Error(error) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.canonical_code, Code::Unimplemented as i32);
    let Some(v1::stream_error::Details::PacketOut(of)) = error.details else {
        panic!("details")
    };
    assert_eq!(of.packet_out, Some(packet));
    controller
        .write(Vec::new())
        .await
        .expect("still the primary");
}

#[tokio::test]
async fn stopping_the_switch_ends_the_streams() {
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
    bed.switch.stop().await.expect("stops");
    // Either the end of the stream or of the connection, but an end.
    let end = controller.message().await;
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
}

#[tokio::test]
async fn requests_are_checked_before_their_updates() {
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
    let request = |device_id, role: &str, election_id: Option<u128>, atomicity| WriteRequest {
        device_id,
        role: role.to_owned(),
        election_id: election_id.map(Into::into),
        atomicity,
        ..WriteRequest::default()
    };
    for (request, code) in [
        (request(DEVICE + 1, "", Some(1), 0), Code::NotFound),
        (request(DEVICE, "nobody", Some(1), 0), Code::NotFound),
        (request(DEVICE, "", Some(2), 0), Code::PermissionDenied),
        (request(DEVICE, "", None, 0), Code::PermissionDenied),
        (request(DEVICE, "", Some(1), 1), Code::Unimplemented),
        (request(DEVICE, "", Some(1), 2), Code::Unimplemented),
        (request(DEVICE, "", Some(1), 9), Code::InvalidArgument),
    ] {
        let error = controller
            .client
            .write(request.clone())
            .await
            .expect_err("refused");
        assert_eq!(error.code(), code, "{request:?}: {error}");
        assert!(error.details().is_empty(), "no update was tried");
    }
    let read = ReadRequest {
        device_id: DEVICE + 1,
        ..ReadRequest::default()
    };
    let error = controller
        .client
        .read(read)
        .await
        .map(|_| ())
        .expect_err("refused");
    assert_eq!(error.code(), Code::NotFound);
    let capabilities = |device_id| CapabilitiesRequest { device_id };
    let answer = controller
        .client
        .capabilities(capabilities(0))
        .await
        .expect("answered");
    assert!(answer.into_inner().p4runtime_api_version.starts_with("1."));
    let error = controller
        .client
        .capabilities(capabilities(99))
        .await
        .expect_err("refused");
    assert_eq!(error.code(), Code::NotFound);
}

#[tokio::test]
async fn each_update_of_a_batch_has_its_own_outcome() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
    controller.insert(vec![bed.unicast(A, 1).into()]).await;
    let updates = vec![
        Update::insert(bed.unicast(A, 2)),
        Update::insert(bed.unicast(B, 2)),
        Update::delete(bed.unicast(3, 2)),
        Update::modify(bed.unicast(A, 2)),
        Update {
            r#type: 0,
            entity: Some(bed.unicast(4, 1).into()),
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
    // What did not fail was done.
    let found = controller
        .read(vec![TableEntry::default().into()])
        .await
        .expect("read");
    assert!(found.contains(&Kind::TableEntry(bed.unicast(A, 2))));
    assert!(found.contains(&Kind::TableEntry(bed.unicast(B, 2))));
}

#[tokio::test]
async fn entries_are_read_as_they_were_written() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
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
        ..bed.unicast(B, 2)
    };
    let written = [
        bed.unicast(A, 1),
        marked.clone(),
        rule(0x10, 0xff, 5),
        rule(0x10, 0xff, 6),
        rule(0x20, 0xf0, 5),
        prefix.clone(),
        bed.replica(3, "EgressPipe.discard", &[]),
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
    assert_eq!(constant.len(), 1, "the program's own");
    assert_eq!(mine.len(), written.len());
    assert!(
        written.iter().all(|entry| mine.contains(entry)),
        "{mine:#?}"
    );

    let forward = bed
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
        action: bed.flood(1, 1).action,
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
        action: bed.unicast(0, 2).action,
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
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
    let fixed = bed.names.table("IngressPipe.fixed").expect("table");
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
    let metered = bed.names.table("IngressPipe.metered").expect("table");
    let default = TableEntry {
        is_default_action: true,
        action: bed.unicast(A, 1).action,
        ..metered.all_entries()
    };
    let outcome = controller.try_write(Update::modify(default)).await;
    assert!(
        matches!(outcome, Err(Code::PermissionDenied | Code::InvalidArgument)),
        "{outcome:?}"
    );
    let claimed = TableEntry {
        is_const: true,
        ..bed.unicast(A, 1)
    };
    assert_eq!(
        controller.try_write(Update::insert(claimed)).await,
        Err(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn direct_counters_and_meters_go_with_their_entries() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
    let data = |packet_count, byte_count| CounterData {
        byte_count,
        packet_count,
    };
    let mut entry = bed.unicast(A, 2);
    entry.counter_data = Some(data(100, 1000));
    controller
        .insert(vec![entry.clone().into(), bed.unicast(B, 2).into()])
        .await;
    bed.peers[&1].send(&probe(A, 0, 1, 64));
    bed.peers[&2].receive();
    let with_counter = TableEntry {
        counter_data: Some(data(0, 0)),
        ..bed.unicast(A, 2)
    };
    let found = controller
        .read(vec![with_counter.into()])
        .await
        .expect("read");
    let expected = TableEntry {
        counter_data: Some(data(101, 1064)),
        ..bed.unicast(A, 2)
    };
    assert_eq!(found, [Kind::TableEntry(expected)]);

    let direct = |of: TableEntry, data| DirectCounterEntry {
        table_entry: Some(of),
        data,
    };
    let reset = direct(bed.unicast(A, 2), Some(data(7, 8)));
    controller
        .write(vec![Update::modify(reset.clone())])
        .await
        .expect("written");
    assert_eq!(
        controller.try_write(Update::insert(reset)).await,
        Err(Code::InvalidArgument)
    );
    let all = direct(
        bed.names
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
    let nobody = direct(bed.unicast(9, 1), None);
    assert!(controller.read(vec![nobody.into()]).await.is_err());

    // A meter: nothing passes a bucket of no depth, everything passes without configuration.
    let metered = bed.names.table("IngressPipe.metered").expect("table");
    let watch = metered
        .entry()
        .lpm("hdr.ethernet.src", 0x0200_0000_00aau64, 48)
        .expect("key");
    let mut watch = watch
        .action("IngressPipe.watch", &[])
        .expect("action")
        .build()
        .expect("entry");
    watch.meter_config = Some(MeterConfig {
        cir: 1,
        pir: 1,
        ..MeterConfig::default()
    });
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
    bed.peers[&1].send(&probe(A, 0, 2, 64));
    controller
        .write(vec![Update::modify(bed.unicast(B, 1))])
        .await
        .expect("written");
    // The packet above is counted as dropped before the meter is taken away.
    while common::packets(&bed.port(1).await.ingress_program) != 1 {}
    controller
        .write(vec![Update::modify(meter)])
        .await
        .expect("written");
    bed.peers[&1].send(&probe(A, 0, 3, 64));
    assert_eq!(common::number(&bed.peers[&2].receive()), 3);
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
async fn counters_meters_and_registers_by_index() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
    let counter = bed.names.counter("IngressPipe.received").expect("counter");
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

    let meter = bed.names.meter("IngressPipe.policer").expect("meter");
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

    controller.insert(vec![bed.unicast(A, 2).into()]).await;
    bed.peers[&1].send(&probe(A, 0, 0x01020304, 64));
    bed.peers[&2].receive();
    let register = bed
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
        Err(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn groups_and_sessions_are_kept_as_written() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
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
    let mut backed = new_style.clone();
    backed.replicas[0]
        .backup_replicas
        .push(v1::BackupReplica::default());
    assert_eq!(
        controller.try_write(Update::insert(backed)).await,
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
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
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
    let bed = Bed::new(1).await;
    let mut controller = bed.controller().await;
    let many = vec![CounterEntry::default().into(); 200];
    let found = controller.read(many).await.expect("read");
    assert_eq!(found.len(), 200 * 16);
}

async fn get(
    controller: &mut Controller,
    kind: ResponseType,
) -> Option<v1::ForwardingPipelineConfig> {
    let request = GetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        response_type: kind.into(),
    };
    let answer = controller
        .client
        .get_forwarding_pipeline_config(request)
        .await;
    answer.expect("answered").into_inner().config
}

#[tokio::test]
async fn a_pipeline_is_verified_saved_committed_and_read_back() {
    let switch = Switch::start(bare()).await.expect("starts");
    let mut controller = Controller::primary(switch.grpc_addr(), 1).await;
    assert_eq!(get(&mut controller, ResponseType::All).await, None);
    let error = controller
        .set_pipeline(Action::Commit, None)
        .await
        .expect_err("nothing saved");
    assert_eq!(error.code(), Code::NotFound);
    let config = v1::ForwardingPipelineConfig {
        cookie: Some(v1::forwarding_pipeline_config::Cookie { cookie: 42 }),
        ..pipeline_config()
    };
    controller
        .set_pipeline(Action::Verify, Some(config.clone()))
        .await
        .expect("verified");
    assert_eq!(
        get(&mut controller, ResponseType::All).await,
        None,
        "VERIFY changes nothing"
    );
    for broken in [
        None,
        Some(v1::ForwardingPipelineConfig {
            p4info: None,
            ..config.clone()
        }),
        Some(v1::ForwardingPipelineConfig {
            p4_device_config: Vec::new(),
            ..config.clone()
        }),
        Some(v1::ForwardingPipelineConfig {
            p4_device_config: b"{}".to_vec(),
            ..config.clone()
        }),
    ] {
        let error = controller
            .set_pipeline(Action::VerifyAndCommit, broken)
            .await;
        assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);
    }
    let error = controller
        .set_pipeline(Action::Unspecified, Some(config.clone()))
        .await;
    assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);

    controller
        .set_pipeline(Action::VerifyAndSave, Some(config.clone()))
        .await
        .expect("saved");
    assert_eq!(
        get(&mut controller, ResponseType::All).await,
        Some(config.clone())
    );
    let only_cookie = get(&mut controller, ResponseType::CookieOnly)
        .await
        .expect("config");
    assert_eq!(
        (only_cookie.cookie, only_cookie.p4info),
        (config.cookie, None)
    );
    let p4info = get(&mut controller, ResponseType::P4infoAndCookie)
        .await
        .expect("config");
    assert_eq!(
        (p4info.p4info, p4info.p4_device_config.len()),
        (config.p4info.clone(), 0)
    );
    let device = get(&mut controller, ResponseType::DeviceConfigAndCookie)
        .await
        .expect("config");
    assert_eq!(
        (device.p4info, device.p4_device_config),
        (None, config.p4_device_config.clone())
    );
    // Writes refer to the saved program, and are part of what is committed.
    controller.insert(vec![group(1, &[(1, 1)])]).await;
    let error = controller
        .set_pipeline(Action::Commit, Some(config.clone()))
        .await;
    assert_eq!(error.expect_err("refused").code(), Code::InvalidArgument);
    controller
        .set_pipeline(Action::Commit, None)
        .await
        .expect("committed");
    let groups: Entity = v1::MulticastGroupEntry::default().into();
    assert_eq!(
        controller
            .read(vec![groups.clone()])
            .await
            .expect("read")
            .len(),
        1
    );
    // A new commit clears the state, a backup may not order one.
    controller
        .set_pipeline(Action::VerifyAndCommit, Some(config))
        .await
        .expect("committed");
    assert!(
        controller
            .read(vec![groups])
            .await
            .expect("read")
            .is_empty()
    );
    controller.election_id = 9;
    let error = controller
        .set_pipeline(Action::VerifyAndCommit, None)
        .await
        .expect_err("refused");
    assert_eq!(error.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn reconciling_preserves_the_state_or_refuses() {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
    let default = TableEntry {
        is_default_action: true,
        action: bed.unicast(0, 2).action,
        ..bed
            .names
            .table("IngressPipe.forward")
            .expect("table")
            .all_entries()
    };
    let counted = TableEntry {
        counter_data: Some(CounterData {
            packet_count: 3,
            byte_count: 4,
        }),
        ..bed.unicast(A, 2)
    };
    let register = RegisterEntry {
        data: Some(P4Data {
            data: Some(Data::Bitstring(vec![8])),
        }),
        ..bed
            .names
            .register("IngressPipe.last_number")
            .expect("register")
            .cell(2)
            .expect("index")
    };
    controller
        .insert(vec![counted.clone().into(), group(3, &[(1, 1)])])
        .await;
    let updates = vec![
        Update::modify(default.clone()),
        Update::modify(register.clone()),
    ];
    controller.write(updates).await.expect("written");
    let everything: Vec<Entity> = vec![
        TableEntry {
            counter_data: Some(CounterData::default()),
            ..TableEntry::default()
        }
        .into(),
        default.clone().into(),
        CounterEntry::default().into(),
        RegisterEntry::default().into(),
        v1::MulticastGroupEntry::default().into(),
    ];
    let before = controller.read(everything.clone()).await.expect("read");
    assert!(before.contains(&Kind::TableEntry(counted)));
    let config = pipeline_config();
    controller
        .set_pipeline(Action::ReconcileAndCommit, Some(config))
        .await
        .expect("reconciled");
    assert_eq!(
        controller.read(everything.clone()).await.expect("read"),
        before
    );
    // Another program has no place for these entries.
    let other = ultima_p4::v1model();
    let p4info = ultima_p4runtime::text::parse(other.p4info).expect("P4Info");
    let other = v1::ForwardingPipelineConfig {
        p4info: Some(p4info),
        p4_device_config: other.device_config.to_vec(),
        cookie: None,
    };
    let error = controller
        .set_pipeline(Action::ReconcileAndCommit, Some(other.clone()))
        .await;
    let error = error.expect_err("refused");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(
        error
            .message()
            .starts_with("the existing state cannot be preserved"),
        "{error}"
    );
    assert_eq!(
        controller.read(everything).await.expect("read"),
        before,
        "and stays as it was"
    );
    controller
        .set_pipeline(Action::VerifyAndCommit, Some(other))
        .await
        .expect("committed");
}

#[tokio::test]
async fn a_packet_sees_all_of_a_batch_or_nothing() {
    let bed = Bed::new(3).await;
    let mut controller = bed.controller().await;
    let route = |port| vec![bed.unicast(A, port), bed.unicast(B, port)];
    controller
        .insert(route(2).into_iter().map(Entity::from).collect())
        .await;
    // Each round sends a pair while both routes change in one batch. Were the change visible in
    // between, a pair could be split the wrong way: A by the new route, B after it by the old one.
    for round in 0..200u32 {
        let port = 2 + (round % 2) as u16;
        let updates = route(port).into_iter().map(Update::modify).collect();
        let sender = &bed.peers[&1];
        sender.send(&probe(A, 0, round * 2, 60));
        sender.send(&probe(B, 0, round * 2 + 1, 60));
        controller.write(updates).await.expect("written");
    }
    let mut at = std::collections::BTreeMap::new();
    bed.entered(1, 400).await;
    for port in [2u16, 3] {
        for _ in 0..common::packets(&bed.port(port).await.ordered) {
            at.insert(common::number(&bed.peers[&port].receive()), port);
        }
    }
    assert_eq!(at.len(), 400);
    for round in 0..200u32 {
        let (old, new) = (3 - (round % 2) as u16, 2 + (round % 2) as u16);
        let pair = (at[&(round * 2)], at[&(round * 2 + 1)]);
        assert_ne!(
            pair,
            (new, old),
            "round {round}: B behind A saw the older entries"
        );
    }
}
