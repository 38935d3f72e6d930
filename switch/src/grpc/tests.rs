//! Requests that are nothing a client would send.

use proptest::prelude::*;
use prost::Message;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session, multicast_group};
use ultima_p4runtime::text;
use ultima_p4runtime::v1::{
    CounterData, CounterEntry, DirectCounterEntry, Entity, ForwardingPipelineConfig, MeterConfig,
    MeterEntry, P4Data, RegisterEntry, TableEntry, Update, p4_data::Data,
};

use super::{read, write};
use crate::engine::Limits;
use crate::pipeline::Pipeline;

const JSON: &[u8] = include_bytes!("../../tests/programs/testbed.json");
const P4INFO: &str = include_str!("../../tests/programs/testbed.p4info.txtpb");

fn pipeline() -> Pipeline {
    let config = ForwardingPipelineConfig {
        p4info: Some(text::parse(P4INFO).expect("P4Info")),
        p4_device_config: JSON.to_vec(),
        cookie: None,
    };
    Pipeline::load(config, Limits::default()).expect("loads")
}

/// One of everything that can be written.
fn entities() -> Vec<Entity> {
    let names = Names::new(text::parse(P4INFO).expect("P4Info")).expect("sound");
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

proptest! {
    /// Garbled updates and requests are refused or done, and what is there can still be read.
    #[test]
    fn garbled_requests_do_no_harm(
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), 1i32..4, any::<bool>(),
             prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)),
            1..40,
        ),
    ) {
        let mut pipeline = pipeline();
        let entities = entities();
        for (which, kind, is_read, flips) in steps {
            let mut bytes = which.get(&entities).encode_to_vec();
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let Ok(entity) = Entity::decode(bytes.as_slice()) else { continue };
            if is_read {
                let mut found = Vec::new();
                let refused = read::read(&pipeline, &entity, &mut found).is_err();
                prop_assert!(!refused || found.is_empty());
            } else {
                let update = Update { r#type: kind, entity: Some(entity) };
                if let Err(error) = write::apply(&mut pipeline, update) {
                    prop_assert!(!error.message.is_empty() && !error.message.contains('\n'));
                }
            }
        }
        // All that is there is found, and can be taken over by the same program.
        let mut successor = self::pipeline();
        prop_assert_eq!(super::reconcile::reconcile(&pipeline, &mut successor), Ok(()));
        prop_assert_eq!(all(&pipeline), all(&successor));
    }
}

fn all(pipeline: &Pipeline) -> Vec<ultima_p4runtime::v1::entity::Entity> {
    let replica = [Replica {
        port: 0,
        instance: 0,
    }];
    let mut group = multicast_group(1, replica).expect("a group");
    let mut session = clone_session(1, replica).expect("a session");
    (group.multicast_group_id, session.session_id) = (0, 0);
    let requests: [Entity; 6] = [
        TableEntry {
            counter_data: Some(CounterData::default()),
            ..TableEntry::default()
        }
        .into(),
        CounterEntry::default().into(),
        MeterEntry::default().into(),
        RegisterEntry::default().into(),
        group.into(),
        session.into(),
    ];
    let mut found = Vec::new();
    for request in requests {
        read::read(pipeline, &request, &mut found).expect("a wildcard finds what there is");
    }
    found
}
