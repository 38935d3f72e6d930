//! Atomic batches (P4Runtime §12.2).

use crate::served::common::{Bed, Controller, bare, controller_program, group, probe};
use tonic::{Code, Status};
use ultima_p4runtime::batch;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::digest_entry::Config;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::write_request::Atomicity;
use ultima_p4runtime::v1::{
    CounterData, CounterEntry, DigestEntry, DirectCounterEntry, Entity, MeterConfig, MeterEntry,
    P4Data, RegisterEntry, TableEntry, Update,
};
use ultima_switch::WireConfig;

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;
const BOTH: [Atomicity; 2] = [Atomicity::RollbackOnError, Atomicity::DataplaneAtomic];

fn codes(status: &Status) -> Vec<Code> {
    let outcomes = batch::outcomes(status).expect("outcomes");
    let code = |error: &ultima_p4runtime::v1::Error| {
        let code = Code::from(error.canonical_code);
        assert!((code == Code::Ok) == error.message.is_empty(), "{error:?}");
        code
    };
    outcomes.iter().map(code).collect()
}

/// All that can be read.
async fn everything(controller: &mut Controller) -> Vec<Kind> {
    let all = TableEntry {
        counter_data: Some(CounterData::default()),
        meter_config: Some(MeterConfig::default()),
        ..TableEntry::default()
    };
    let replica = [Replica {
        port: 0,
        instance: 0,
    }];
    let mut session = clone_session(1, replica).expect("a session");
    session.session_id = 0;
    let mut requests: Vec<Entity> = vec![
        all.clone().into(),
        CounterEntry::default().into(),
        MeterEntry::default().into(),
        RegisterEntry::default().into(),
        session.into(),
        ultima_p4runtime::v1::MulticastGroupEntry::default().into(),
        DigestEntry::default().into(),
    ];
    let names = crate::served::common::names();
    let forward = names.table("IngressPipe.forward").expect("table");
    requests.push(
        TableEntry {
            table_id: forward.id,
            is_default_action: true,
            ..all
        }
        .into(),
    );
    controller.read(requests).await.expect("wildcards")
}

/// One update of each kind, all of which succeed on the bed's state.
fn of_every_kind(bed: &Bed) -> Vec<Update> {
    let names = &bed.names;
    let data = Some(CounterData {
        byte_count: 77,
        packet_count: 7,
    });
    let counter = names.counter("IngressPipe.received").expect("counter");
    let meter = names.meter("IngressPipe.policer").expect("meter");
    let register = names.register("IngressPipe.last_number").expect("register");
    let config = Some(MeterConfig {
        cir: 1,
        cburst: 2,
        pir: 3,
        pburst: 4,
        eburst: 0,
    });
    let bits = Some(P4Data {
        data: Some(Data::Bitstring(vec![9])),
    });
    let replica = Replica {
        port: 2,
        instance: 3,
    };
    let default = TableEntry {
        is_default_action: true,
        r#match: Vec::new(),
        ..bed.unicast(A, 1)
    };
    vec![
        Update::insert(bed.unicast(B, 2)),
        Update::modify(bed.unicast(A, 2)),
        Update::delete(bed.unicast(A, 2)),
        Update::insert(bed.flood(A, 5)),
        Update::modify(default),
        Update::modify(DirectCounterEntry {
            table_entry: Some(bed.unicast(B, 2)),
            data,
        }),
        Update::modify(CounterEntry {
            data,
            ..counter.cell(1).expect("cell")
        }),
        Update::modify(CounterEntry {
            data,
            ..counter.cells()
        }),
        Update::modify(MeterEntry {
            config,
            ..meter.cells()
        }),
        Update::modify(RegisterEntry {
            data: bits,
            ..register.cells()
        }),
        Update::modify(group(5, &[(2, 1)])),
        Update::insert(group(6, &[(2, 1)])),
        Update::delete(group(5, &[])),
        Update::insert(clone_session(6, [replica]).expect("a session")),
        Update::delete(clone_session(5, [replica]).expect("a session")),
    ]
}

/// A bed with some state, and its controller.
async fn bed() -> (Bed, Controller) {
    let bed = Bed::new(2).await;
    let mut controller = bed.controller().await;
    let replica = Replica {
        port: 1,
        instance: 2,
    };
    controller
        .insert(vec![
            bed.unicast(A, 1).into(),
            group(5, &[(1, 1), (2, 2)]),
            clone_session(5, [replica]).expect("a session").into(),
        ])
        .await;
    bed.peers[&2].send(&probe(A, 0, 1, 60));
    bed.peers[&1].receive();
    (bed, controller)
}

#[tokio::test]
async fn a_batch_that_fails_leaves_everything_as_it_was() {
    for atomicity in BOTH {
        let (bed, mut controller) = bed().await;
        let before = everything(&mut controller).await;
        let mut updates = of_every_kind(&bed);
        let good = updates.len();
        updates.push(Update::delete(bed.unicast(3, 1)));
        updates.push(Update::insert(bed.unicast(4, 1)));
        let status = controller.write_all_or_none(updates, atomicity).await;
        let codes = codes(&status.expect_err("one fails"));
        let (undone, rest) = codes.split_at(good);
        assert!(undone.iter().all(|code| *code == Code::Aborted));
        assert_eq!(rest, [Code::NotFound, Code::Aborted]);
        assert_eq!(everything(&mut controller).await, before);
        // Packets go where they went.
        bed.peers[&2].send(&probe(A, 0, 1, 60));
        bed.peers[&1].receive();
        assert_ne!(everything(&mut controller).await, before, "and are counted");
    }
}

#[tokio::test]
async fn a_batch_that_succeeds_is_done() {
    for atomicity in BOTH {
        let (bed, mut controller) = bed().await;
        let updates = of_every_kind(&bed);
        let done = controller
            .write_all_or_none(updates.clone(), atomicity)
            .await;
        done.expect("all succeed");
        let all_or_none = everything(&mut controller).await;
        let (bed, mut controller) = self::bed().await;
        controller
            .write(of_every_kind(&bed))
            .await
            .expect("all succeed");
        assert_eq!(everything(&mut controller).await, all_or_none);
    }
}

#[tokio::test]
async fn digests_and_timeouts_are_taken_back_too() {
    let wires = vec![WireConfig::default(); 2];
    let bed = Bed::with_program(bare(), controller_program(), wires).await;
    let mut controller = bed.controller().await;
    let digest = bed.names.digest("sighting_t").expect("digest");
    let config = Config {
        max_timeout_ns: 1,
        max_list_size: 2,
        ack_timeout_ns: 3,
    };
    let forward = bed.names.table("IngressPipe.forward").expect("table");
    let entry = forward.entry().exact("hdr.ethernet.dst", A).expect("key");
    let entry = entry.action("IngressPipe.drop", &[]).expect("action");
    let entry = TableEntry {
        idle_timeout_ns: 3_600_000_000_000,
        ..entry.build().expect("entry")
    };
    controller
        .insert(vec![digest.entry(config).into(), entry.clone().into()])
        .await;
    let requests = vec![DigestEntry::default().into(), TableEntry::default().into()];
    let before = controller.read(requests.clone()).await.expect("read");
    let other = digest.entry(Config::default());
    let eternal = TableEntry {
        idle_timeout_ns: 0,
        ..entry
    };
    let updates = vec![
        Update::modify(other),
        Update::modify(eternal.clone()),
        Update::delete(other),
        Update::delete(eternal.clone()),
        Update::delete(eternal),
    ];
    let status = controller
        .write_all_or_none(updates, Atomicity::RollbackOnError)
        .await;
    status.expect_err("the last fails");
    assert_eq!(controller.read(requests).await.expect("read"), before);
}

#[tokio::test]
async fn arrays_are_taken_back_by_the_cell_and_whole() {
    let (bed, mut controller) = bed().await;
    let meter = bed.names.meter("IngressPipe.policer").expect("meter");
    let register = bed.names.register("IngressPipe.last_number");
    let register = register.expect("register");
    let config = |cir| {
        Some(MeterConfig {
            cir,
            cburst: 2,
            pir: 30,
            pburst: 4,
            eburst: 0,
        })
    };
    let metered = |entry: MeterEntry, cir| {
        let config = config(cir);
        Update::modify(MeterEntry { config, ..entry })
    };
    let stored = |entry: RegisterEntry, value| {
        let data = Some(P4Data {
            data: Some(Data::Bitstring(vec![value])),
        });
        Update::modify(RegisterEntry { data, ..entry })
    };
    let one = || {
        let cells = (meter.cell(1), register.cell(1));
        (cells.0.expect("cell"), cells.1.expect("cell"))
    };
    let written = vec![metered(one().0, 5), stored(one().1, 6)];
    controller.write(written).await.expect("written");
    let before = everything(&mut controller).await;
    for cells_first in [true, false] {
        let mut updates = Vec::new();
        for round in 1..9 {
            let cells = [metered(one().0, 7), stored(one().1, round)];
            let whole = [metered(meter.cells(), 8), stored(register.cells(), round)];
            let (first, second) = match cells_first {
                true => (cells, whole),
                false => (whole, cells),
            };
            updates.extend(first.into_iter().chain(second));
        }
        updates.push(Update::delete(bed.unicast(3, 1)));
        let status = controller
            .write_all_or_none(updates, Atomicity::RollbackOnError)
            .await;
        status.expect_err("the last fails");
        assert_eq!(everything(&mut controller).await, before);
    }
}

#[tokio::test]
async fn an_empty_batch_is_done() {
    let (_bed, mut controller) = bed().await;
    for atomicity in BOTH {
        let done = controller.write_all_or_none(Vec::new(), atomicity).await;
        done.expect("nothing to fail");
    }
}
