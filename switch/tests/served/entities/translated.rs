//! Translated types (P4Runtime §8.4.6, §18.1).

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::field_match::{FieldMatchType, Lpm, Range, Ternary};
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::{self, Entity, FieldMatch, TableAction, TableEntry, Update};
use ultima_switch::{ProgramFiles, WireConfig};

use crate::served::common::{Controller, Testbed, base_config};

const MASKED: u8 = 4;
const PREFIX: u8 = 5;
const RANGE: u8 = 6;

async fn testbed() -> Testbed {
    let program = ProgramFiles {
        json: include_bytes!("../../programs/translated.json").to_vec(),
        p4info: Some(include_str!("../../programs/translated.p4info.txtpb").to_owned()),
    };
    Testbed::with_program(base_config(), program, vec![WireConfig::default()]).await
}

/// The port and the answer that a packet returns with.
fn ask(testbed: &Testbed, table: u8, port: u16) -> (u16, u8) {
    let [high, low] = port.to_be_bytes();
    testbed.peers[&1].send(&[table, 0, high, low, 0xff]);
    let frame = testbed.peers[&1].receive();
    (u16::from_be_bytes([frame[2], frame[3]]), frame[4])
}

/// An entry with one match field and an action of one parameter.
fn entry(
    testbed: &Testbed,
    table: &str,
    matches: FieldMatchType,
    action: &str,
    value: &[u8],
) -> TableEntry {
    let action = v1::Action {
        action_id: testbed.names.actions.get(action).expect("action").id,
        params: vec![v1::action::Param {
            param_id: 1,
            value: value.to_vec(),
        }],
    };
    let table = testbed.names.table(table).expect("table");
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

async fn entries(controller: &mut Controller) -> Vec<Kind> {
    let all = TableEntry::default();
    controller.read(vec![all.into()]).await.expect("read")
}

#[tokio::test]
async fn values_are_the_same_at_another_width() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
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
            &testbed,
            "masked_port",
            ternary(&[5], &[0xff; 4]),
            "leave",
            &[1, 7],
        ),
        entry(&testbed, "prefix_port", lpm(&[1, 0], 24), "answer", &[24]),
        entry(
            &testbed,
            "range_port",
            range(&[9], &[0xff, 0xff]),
            "answer",
            &[9],
        ),
    ];
    let updates = written.iter().cloned().map(Entity::from).collect();
    controller.insert(updates).await;
    assert_eq!(ask(&testbed, MASKED, 5), (0x107, 0));
    assert_eq!(ask(&testbed, MASKED, 4), (4, 0));
    assert_eq!(ask(&testbed, PREFIX, 0x1fe).1, 24);
    assert_eq!(ask(&testbed, PREFIX, 0xfe).1, 0);
    assert_eq!(ask(&testbed, RANGE, 9).1, 9);
    assert_eq!(ask(&testbed, RANGE, 8).1, 0);
    let mut read = entries(&mut controller).await;
    read.sort_by_key(|kind| {
        written
            .iter()
            .position(|one| *kind == Kind::TableEntry(one.clone()))
    });
    let expected: Vec<_> = written.iter().cloned().map(Kind::TableEntry).collect();
    assert_eq!(read, expected);
    // A port has nine bits.
    let wide = [
        entry(
            &testbed,
            "masked_port",
            ternary(&[2, 0], &[0xff; 4]),
            "answer",
            &[1],
        ),
        entry(
            &testbed,
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
