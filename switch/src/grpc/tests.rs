//! Random invalid requests.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use prost::Message;
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use ultima_grpc::fair::Origin;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session, multicast_group};
use ultima_p4runtime::text;
use ultima_p4runtime::v1::stream_message_request::Update as StreamUpdate;
use ultima_p4runtime::v1::{
    ActionProfileGroup, ActionProfileMember, CounterData, CounterEntry, DirectCounterEntry, Entity,
    ForwardingPipelineConfig, MasterArbitrationUpdate, MeterConfig, MeterEntry, P4Data,
    RegisterEntry, StreamMessageRequest, TableEntry, Uint128, Update, ValueSetEntry, WriteRequest,
    p4_data::Data,
};

use super::{Service, stream};
use crate::config::CaptureNames;
use crate::datapath::{ControllerLink, Datapath};
use crate::forward::Forwarder;
use crate::notify::{self, CurrentHeaders, Tallies};
use crate::opener::PortOpener;
use crate::pipeline::{Loader, Pipeline};
use crate::target::Refusal;
use crate::tm::WireConfig;
use crate::translate::query::Scan;
use crate::translate::{apply, apply_all, entity, query, translate};
use ultima_engine::Limits;

const JSON: &[u8] = include_bytes!("../../tests/programs/testbed.json");
const P4INFO: &str = include_str!("../../tests/programs/testbed.p4info.txtpb");

/// A service without ports and program, and its forwarding thread's state, which does not run.
pub(super) fn service() -> (Service, Forwarder) {
    let tallies = Arc::<Tallies>::default();
    let controllers = ControllerLink {
        cpu_port: None,
        notifier: notify::queues(tallies.clone()).0,
    };
    let (forwarder, handle) =
        Forwarder::new(Vec::new(), controllers, None, None, Duration::ZERO).expect("a forwarder");
    let loader = Loader {
        limits: Limits::default(),
        seed: 0,
        target: None,
    };
    let opener = PortOpener {
        seed: 0,
        pcap_dir: None,
        pcap_names: CaptureNames::Number,
        priority_queues: 8,
        send_rings: false,
        added_wire: WireConfig::default(),
        captured: Default::default(),
    };
    (
        Service::new(
            1,
            loader,
            handle,
            tallies,
            CurrentHeaders::default(),
            opener,
            None,
        ),
        forwarder,
    )
}

fn pipeline() -> Pipeline {
    load(JSON, P4INFO)
}

/// One entity of each kind that can be written.
fn entities() -> Vec<Entity> {
    let names = Names::new(text::parse(P4INFO).expect("P4Info")).expect("a valid P4Info");
    let forward = names.table("IngressPipe.forward").expect("table");
    let unicast = forward
        .entry()
        .exact("hdr.ethernet.dst", 5u64)
        .expect("key");
    let port = [("port", Bytestring::from(3u16))];
    let unicast = unicast
        .action("IngressPipe.send", &port)
        .expect("action")
        .build()
        .expect("entry");
    let acl = names
        .table("IngressPipe.acl")
        .expect("table")
        .entry()
        .priority(3);
    let acl = acl
        .ternary("hdr.ethernet.src", 0x10u64, 0xffu64)
        .expect("key");
    let acl = acl
        .range("hdr.ethernet.type", 0x800u16, 0x900u16)
        .expect("key");
    let acl = acl
        .action("IngressPipe.deny", &[])
        .expect("action")
        .build()
        .expect("entry");
    let metered = names.table("IngressPipe.metered").expect("table").entry();
    let metered = metered
        .lpm("hdr.ethernet.src", 0x0200_0000_0000u64, 8)
        .expect("key");
    let metered = metered
        .action("IngressPipe.watch", &[])
        .expect("action")
        .build()
        .expect("entry");
    let metered = TableEntry {
        meter_config: Some(MeterConfig {
            cir: 1,
            cburst: 2,
            pir: 3,
            pburst: 4,
            eburst: 0,
        }),
        ..metered
    };
    let data = Some(CounterData {
        byte_count: 9,
        packet_count: 1,
    });
    let counter = names
        .counter("IngressPipe.received")
        .expect("counter")
        .cell(1)
        .expect("cell");
    let meter = names
        .meter("IngressPipe.policer")
        .expect("meter")
        .cell(1)
        .expect("cell");
    let register = names
        .register("IngressPipe.last_number")
        .expect("register")
        .cells();
    let bits = Some(P4Data {
        data: Some(Data::Bitstring(vec![1, 2])),
    });
    let replica = Replica {
        port: 1,
        instance: 2,
    };
    vec![
        unicast.clone().into(),
        TableEntry {
            counter_data: data,
            ..unicast.clone()
        }
        .into(),
        TableEntry {
            is_default_action: true,
            r#match: Vec::new(),
            ..unicast.clone()
        }
        .into(),
        DirectCounterEntry {
            table_entry: Some(unicast),
            data,
        }
        .into(),
        acl.into(),
        metered.into(),
        CounterEntry { data, ..counter }.into(),
        MeterEntry {
            config: Some(MeterConfig::default()),
            ..meter
        }
        .into(),
        RegisterEntry {
            data: bits,
            ..register
        }
        .into(),
        multicast_group(2, [replica]).expect("a group").into(),
        clone_session(2, [replica]).expect("a session").into(),
    ]
}

/// A step: the entity, the type of update or a read, and the bytes to change.
type Step = (Index, i32, bool, Vec<(Index, u8)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flips = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    let step = (any::<Index>(), 1i32..4, any::<bool>(), flips);
    prop::collection::vec(step, 1..40)
}

/// Garbled updates and requests are rejected or done, and all entities can still be read.
fn harmless(
    load: impl Fn() -> Pipeline,
    entities: &[Entity],
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let mut pipeline = load();
    for (which, kind, is_read, flips) in steps {
        let mut bytes = which.get(entities).encode_to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let Ok(entity) = Entity::decode(bytes.as_slice()) else {
            continue;
        };
        if is_read {
            let mut found = Vec::new();
            let _ = read_all(&pipeline, &entity, &mut found);
        } else {
            let update = Update {
                r#type: kind,
                entity: Some(entity),
            };
            if let Err(error) = apply(&mut pipeline, update) {
                prop_assert!(!error.message.is_empty() && !error.message.contains('\n'));
            }
        }
    }
    // A read finds all entities.
    all(&pipeline);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(32, 256)))]
    #[test]
    fn garbled_requests_do_no_harm(steps in steps()) {
        harmless(pipeline, &entities(), steps)?;
    }

    #[test]
    fn garbled_profiles_do_no_harm(steps in steps()) {
        harmless(profiles, &shared_entities(), steps)?;
    }
}

fn load(json: &[u8], p4info: &str) -> Pipeline {
    let config = ForwardingPipelineConfig {
        p4info: Some(text::parse(p4info).expect("P4Info")),
        p4_device_config: json.to_vec(),
        cookie: None,
    };
    let loader = Loader {
        limits: Limits::default(),
        seed: 0,
        target: None,
    };
    loader.load(config).expect("loads")
}

const PROFILES_INFO: &str = include_str!("../../tests/programs/profiles.p4info.txtpb");

fn profiles() -> Pipeline {
    load(
        include_bytes!("../../tests/programs/profiles.json"),
        PROFILES_INFO,
    )
}

/// Members, groups and the entries that refer to them.
fn shared_entities() -> Vec<Entity> {
    let names = Names::new(text::parse(PROFILES_INFO).expect("P4Info")).expect("a valid P4Info");
    let spread = names.action_profile("spread").expect("profile");
    let answer = |number: u8| [("number", Bytestring::from(number))];
    let member = |id: u32| {
        spread
            .member(id, "answer", &answer(id as u8))
            .expect("member")
    };
    let exact = names.table("spread_exact").expect("table");
    let keyed = |key: u8| exact.entry().exact("hdr.ask.key", key).expect("key");
    let counted = names.table("counted").expect("table").entry();
    let counted = counted.lpm("hdr.ask.key", 0x10u8, 4).expect("key");
    let action = names.actions.get("answer").expect("action");
    let calls = [1, 2].map(|number| (action.call(&answer(number)).expect("call"), 2));
    let set = counted.one_shot(calls).expect("set").build();
    vec![
        member(1).into(),
        member(2).into(),
        spread.group(1, [(1, 1), (2, 3)]).into(),
        spread.group(1, [(2, 2)]).into(),
        keyed(1)
            .member(1)
            .and_then(|e| e.build())
            .expect("entry")
            .into(),
        keyed(2)
            .group(1)
            .and_then(|e| e.build())
            .expect("entry")
            .into(),
        set.expect("entry").into(),
        spread.all_members().into(),
        ActionProfileGroup {
            action_profile_id: spread.id,
            ..Default::default()
        }
        .into(),
    ]
}

fn read_all(
    pipeline: &Pipeline,
    request: &Entity,
    found: &mut Vec<ultima_p4runtime::v1::entity::Entity>,
) -> Result<(), Refusal> {
    let mut rows = Vec::new();
    let query = query(None, request.clone())?;
    query(pipeline, &mut Scan::new(usize::MAX), &mut rows)?;
    found.extend(rows.into_iter().map(entity));
    Ok(())
}

/// Reads the entities of a wildcard, with a pause at every possible point.
fn step_by_step(
    pipeline: &Pipeline,
    request: &Entity,
) -> Vec<ultima_p4runtime::v1::entity::Entity> {
    let query = query(None, request.clone()).expect("a valid request");
    let mut rows = Vec::new();
    let mut scan = Scan::new(1);
    loop {
        query(pipeline, &mut scan, &mut rows).expect("a wildcard is valid");
        if !scan.is_paused() {
            return rows.into_iter().map(entity).collect();
        }
        scan.resume(1);
    }
}

#[test]
fn a_read_with_pauses_finds_the_same_entities() {
    let programs: [(Pipeline, Vec<Entity>); 2] =
        [(pipeline(), entities()), (profiles(), shared_entities())];
    let mut found = 0;
    for (mut pipeline, entities) in programs {
        for entity in entities {
            // Some entities exist already, and some cannot be inserted.
            for update in [Update::insert(entity.clone()), Update::modify(entity)] {
                let _ = apply(&mut pipeline, update);
            }
        }
        for request in wildcards() {
            let mut once = Vec::new();
            read_all(&pipeline, &request, &mut once).expect("a wildcard is valid");
            assert_eq!(step_by_step(&pipeline, &request), once);
            found += once.len();
        }
    }
    assert!(found > 30, "{found}");
}

/// A wildcard of each kind.
fn wildcards() -> [Entity; 9] {
    let replica = [Replica {
        port: 0,
        instance: 0,
    }];
    let mut group = multicast_group(1, replica).expect("a group");
    let mut session = clone_session(1, replica).expect("a session");
    (group.multicast_group_id, session.session_id) = (0, 0);
    [
        TableEntry {
            counter_data: Some(CounterData::default()),
            ..TableEntry::default()
        }
        .into(),
        CounterEntry::default().into(),
        MeterEntry::default().into(),
        RegisterEntry::default().into(),
        ActionProfileMember::default().into(),
        ActionProfileGroup::default().into(),
        ValueSetEntry::default().into(),
        group.into(),
        session.into(),
    ]
}

fn all(pipeline: &Pipeline) -> Vec<ultima_p4runtime::v1::entity::Entity> {
    let mut found = Vec::new();
    for request in wildcards() {
        read_all(pipeline, &request, &mut found).expect("a wildcard is valid");
    }
    found
}

/// The election id of [`primary`].
const ELECTION_ID: Option<Uint128> = Some(Uint128 { high: 0, low: 1 });

/// Makes a client the primary as long as the returned stream is open.
async fn primary(service: &Service) -> impl Sized {
    let update = StreamUpdate::Arbitration(MasterArbitrationUpdate {
        device_id: 1,
        election_id: ELECTION_ID,
        ..MasterArbitrationUpdate::default()
    });
    let update = Some(update);
    let announced = tokio_stream::once(Ok(StreamMessageRequest { update }));
    let requests = announced.chain(tokio_stream::pending());
    let mut responses = stream::serve(
        service.clone(),
        requests,
        Origin::default(),
        Duration::from_secs(60),
    );
    responses.next().await.expect("open").expect("primary");
    responses
}

async fn insert(service: &Service, entity: &Entity) -> Result<(), Status> {
    let request = WriteRequest {
        device_id: 1,
        election_id: ELECTION_ID,
        updates: vec![Update::insert(entity.clone())],
        ..WriteRequest::default()
    };
    service.write(request.into()).await.map(drop)
}

async fn commit(service: &Service, pipeline: Pipeline) -> Result<(), Status> {
    let (sender, schema) = ((1, String::new(), ELECTION_ID), pipeline.schema());
    let commit = |datapath: &mut Datapath| drop(datapath.commit(pipeline));
    service.change_program(&sender, schema, commit).await
}

/// Starts a call, which then waits for another call or for the forwarding thread.
fn begin(call: Pin<&mut impl Future<Output = Result<(), Status>>>) {
    let polled = call.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
}

#[tokio::test]
async fn a_write_applies_to_the_program_that_it_was_translated_for() {
    let (service, forwarder) = service();
    let _primary = primary(&service).await;
    let (bridged, shared) = (&entities()[0], &shared_entities()[0]);
    // All of these calls are in progress before the forwarding thread looks at the first one. That a client does not wait for
    // its commit changes nothing.
    {
        let mut abandoned = pin!(commit(&service, pipeline()));
        begin(abandoned.as_mut());
    }
    let mut early = pin!(insert(&service, bridged));
    begin(early.as_mut());
    let mut second = pin!(commit(&service, profiles()));
    begin(second.as_mut());
    let mut late = pin!(insert(&service, shared));
    begin(late.as_mut());
    let mut wrong = pin!(insert(&service, bridged));
    begin(wrong.as_mut());
    let thread = std::thread::spawn(|| forwarder.run());
    let (early, second, late, wrong) = tokio::join!(early, second, late, wrong);
    for done in [early, second, late] {
        done.expect("in the order of the calls");
    }
    wrong.expect_err("the table is the first program's");
    service.forwarder.stop();
    thread.join().expect("no panic").expect("no error");
}

#[test]
fn a_write_that_was_translated_for_another_program_is_rejected() {
    let (mut here, there) = (pipeline(), pipeline());
    let update = Update::insert(entities()[0].clone());
    let schema = there.engine.schema();
    let edits = vec![translate(schema, None, update)];
    let rejected = apply_all(&mut here, schema, edits).expect_err("another program");
    assert_eq!(rejected.code(), Code::Aborted);
    assert_eq!(all(&here), all(&there));
}
