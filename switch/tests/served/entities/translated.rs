//! Translated types (P4Runtime §8.4.6, §18.1).

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::field_match::{Exact, FieldMatchType, Lpm, Optional, Range, Ternary};
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::{self, Entity, FieldMatch, TableAction, TableEntry, Update};
use ultima_switch::{ProgramFiles, WireConfig};

use crate::served::common::{Bed, Controller, bare};

const ZONE_OF: u8 = 1;
const OF_ZONE: u8 = 2;
const PERHAPS: u8 = 3;
const MASKED: u8 = 4;
const PREFIX: u8 = 5;
const RANGE: u8 = 6;

async fn bed() -> Bed {
    let program = ProgramFiles {
        json: include_bytes!("../../programs/translated.json").to_vec(),
        p4info: Some(include_str!("../../programs/translated.p4info.txtpb").to_owned()),
    };
    Bed::with_program(bare(), program, vec![WireConfig::default()]).await
}

/// What a packet comes back with: its zone, its port, its answer.
fn ask(bed: &Bed, table: u8, zone: u8, port: u16) -> (u8, u16, u8) {
    let [high, low] = port.to_be_bytes();
    bed.peers[&1].send(&[table, zone, high, low, 0xff]);
    let frame = bed.peers[&1].receive();
    (frame[1], u16::from_be_bytes([frame[2], frame[3]]), frame[4])
}

/// An entry with one match field and an action of one parameter.
fn entry(
    bed: &Bed,
    table: &str,
    matches: FieldMatchType,
    action: &str,
    value: &[u8],
) -> TableEntry {
    let action = v1::Action {
        action_id: bed.names.actions.get(action).expect("action").id,
        params: vec![v1::action::Param {
            param_id: 1,
            value: value.to_vec(),
        }],
    };
    let table = bed.names.table(table).expect("table");
    TableEntry {
        r#match: vec![FieldMatch {
            field_id: 1,
            field_match_type: Some(matches),
        }],
        priority: i32::from(table.needs_priority()),
        action: Some(TableAction {
            r#type: Some(ActionType::Action(action)),
        }),
        ..table.all_entries()
    }
}

fn exact(value: &[u8]) -> FieldMatchType {
    FieldMatchType::Exact(Exact {
        value: value.to_vec(),
    })
}

async fn entries(controller: &mut Controller) -> Vec<Kind> {
    let all = TableEntry::default();
    controller.read(vec![all.into()]).await.expect("read")
}

#[tokio::test]
async fn numbers_are_the_same_at_another_width() {
    let bed = bed().await;
    let mut controller = bed.controller().await;
    let ternary = |value: &[u8], mask: &[u8]| {
        FieldMatchType::Ternary(Ternary {
            value: value.to_vec(),
            mask: mask.to_vec(),
        })
    };
    let lpm = |value: &[u8], prefix_len| {
        let value = value.to_vec();
        FieldMatchType::Lpm(Lpm { value, prefix_len })
    };
    let range = |low: &[u8], high: &[u8]| {
        FieldMatchType::Range(Range {
            low: low.to_vec(),
            high: high.to_vec(),
        })
    };
    let written = [
        entry(
            &bed,
            "masked_port",
            ternary(&[5], &[0xff; 4]),
            "leave",
            &[1, 7],
        ),
        entry(&bed, "prefix_port", lpm(&[1, 0], 24), "answer", &[24]),
        entry(
            &bed,
            "range_port",
            range(&[9], &[0xff, 0xff]),
            "answer",
            &[9],
        ),
    ];
    let updates = written.iter().cloned().map(Entity::from).collect();
    controller.insert(updates).await;
    assert_eq!(ask(&bed, MASKED, 0, 5), (0, 0x107, 0));
    assert_eq!(ask(&bed, MASKED, 0, 4), (0, 4, 0));
    assert_eq!(ask(&bed, PREFIX, 0, 0x1fe).2, 24);
    assert_eq!(ask(&bed, PREFIX, 0, 0xfe).2, 0);
    assert_eq!(ask(&bed, RANGE, 0, 9).2, 9);
    assert_eq!(ask(&bed, RANGE, 0, 8).2, 0);
    let mut read = entries(&mut controller).await;
    read.sort_by_key(|kind| {
        written
            .iter()
            .position(|one| *kind == Kind::TableEntry(one.clone()))
    });
    let expected: Vec<_> = written.iter().cloned().map(Kind::TableEntry).collect();
    assert_eq!(read, expected);
    // No port has more than nine bits.
    let wide = [
        entry(
            &bed,
            "masked_port",
            ternary(&[2, 0], &[0xff; 4]),
            "answer",
            &[1],
        ),
        entry(
            &bed,
            "masked_port",
            ternary(&[1], &[0xff; 4]),
            "leave",
            &[2, 0],
        ),
    ];
    for wide in wide {
        assert_eq!(
            controller.try_write(Update::insert(wide)).await,
            Err(Code::OutOfRange)
        );
    }
}

#[tokio::test]
async fn strings_stand_for_numbers_that_the_switch_chooses() {
    let bed = bed().await;
    let mut controller = bed.controller().await;
    let optional = |zone: &str| {
        FieldMatchType::Optional(Optional {
            value: zone.as_bytes().to_vec(),
        })
    };
    let written = [
        entry(&bed, "zone_of", exact(&[1]), "enter", b"inner"),
        entry(&bed, "zone_of", exact(&[2]), "enter", b"outer"),
        entry(&bed, "of_zone", exact(b"inner"), "answer", &[11]),
        entry(&bed, "of_zone", exact(b"outer"), "answer", &[22]),
        entry(&bed, "perhaps_zone", optional("outer"), "answer", &[33]),
    ];
    let updates = written.iter().cloned().map(Entity::from).collect();
    controller.insert(updates).await;
    // What the program makes of a name is what it matches by that name.
    let inner = ask(&bed, ZONE_OF, 0, 1).0;
    let outer = ask(&bed, ZONE_OF, 0, 2).0;
    assert_ne!(inner, outer);
    assert_eq!(ask(&bed, OF_ZONE, inner, 0).2, 11);
    assert_eq!(ask(&bed, OF_ZONE, outer, 0).2, 22);
    assert_eq!(ask(&bed, PERHAPS, outer, 0).2, 33);
    assert_eq!(ask(&bed, PERHAPS, inner, 0).2, 0);
    let read = entries(&mut controller).await;
    assert_eq!(read.len(), written.len());
    for one in &written {
        assert!(read.contains(&Kind::TableEntry(one.clone())), "{one:?}");
    }
    let one = controller.read(vec![written[3].clone().into()]).await;
    assert_eq!(one.expect("read"), [Kind::TableEntry(written[3].clone())]);
    let unknown = entry(&bed, "of_zone", exact(b"limbo"), "answer", &[1]);
    assert!(controller.read(vec![unknown.clone().into()]).await.is_err());
    assert_eq!(
        controller.try_write(Update::delete(unknown)).await,
        Err(Code::NotFound)
    );
    for wrong in [&[][..], &[b'x'; 300]] {
        let wrong = entry(&bed, "of_zone", exact(wrong), "answer", &[1]);
        assert_eq!(
            controller.try_write(Update::insert(wrong)).await,
            Err(Code::InvalidArgument)
        );
    }
}

#[tokio::test]
async fn numbers_of_strings_come_back_when_nothing_has_them() {
    let bed = bed().await;
    let mut controller = bed.controller().await;
    let zone = |name: &str| entry(&bed, "of_zone", exact(name.as_bytes()), "answer", &[1]);
    // Two bits, of which 0 is not given out.
    let three = ["a", "b", "c"].map(zone);
    let updates = three.iter().cloned().map(Entity::from).collect();
    controller.insert(updates).await;
    assert_eq!(
        controller.try_write(Update::insert(zone("d"))).await,
        Err(Code::ResourceExhausted)
    );
    let gone = Update::delete(three[1].clone());
    controller.write(vec![gone]).await.expect("written");
    controller.insert(vec![zone("d").into()]).await;
    let read = entries(&mut controller).await;
    assert_eq!(read.len(), 3);
    for name in ["a", "c", "d"] {
        assert!(read.contains(&Kind::TableEntry(zone(name))), "{name}");
    }
}
