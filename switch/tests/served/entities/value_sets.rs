//! Parser value sets over P4Runtime (§9.6).

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::field_match::{Exact, FieldMatchType};
use ultima_p4runtime::v1::{FieldMatch, Update, ValueSetEntry, ValueSetMember};
use ultima_switch::{ProgramFiles, WireConfig};

use crate::served::common::{Controller, Testbed, base_config};

async fn testbed() -> Testbed {
    let program = ProgramFiles {
        json: include_bytes!("../../programs/value_sets.json").to_vec(),
        p4info: Some(include_str!("../../programs/value_sets.p4info.txtpb").to_owned()),
    };
    Testbed::with_program(base_config(), program, vec![WireConfig::default()]).await
}

fn id(testbed: &Testbed, name: &str) -> u32 {
    let sets = testbed.names.p4info().value_sets.iter();
    let mut preambles = sets.filter_map(|set| set.preamble.as_ref());
    preambles.find(|p| p.name == name).expect("listed").id
}

fn member(value: &[u8]) -> ValueSetMember {
    let exact = Exact {
        value: value.to_vec(),
    };
    ValueSetMember {
        r#match: vec![FieldMatch {
            field_id: 1,
            field_match_type: Some(FieldMatchType::Exact(exact)),
        }],
    }
}

/// The first byte that a packet of this kind returns with: the parser state that it reached.
fn state(testbed: &Testbed, kind: u8) -> u8 {
    testbed.peers[&1].send(&[1, kind, 0, 0, 0, 0]);
    testbed.peers[&1].receive()[0]
}

async fn read(controller: &mut Controller, value_set_id: u32) -> Vec<ValueSetEntry> {
    let request = ValueSetEntry {
        value_set_id,
        members: Vec::new(),
    };
    let found = controller.read(vec![request.into()]).await.expect("read");
    let set = |kind| match kind {
        Kind::ValueSetEntry(entry) => entry,
        other => panic!("{other:?}"),
    };
    found.into_iter().map(set).collect()
}

#[tokio::test]
async fn members_are_replaced_and_read() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
    let kinds = id(&testbed, "Read.kinds");
    let set = |members: Vec<ValueSetMember>| ValueSetEntry {
        value_set_id: kinds,
        members,
    };
    assert_eq!(state(&testbed, 3), 0xee);
    let three = set(vec![member(&[3]), member(&[4])]);
    controller
        .write(vec![Update::modify(three.clone())])
        .await
        .expect("written");
    assert_eq!((state(&testbed, 3), state(&testbed, 5)), (1, 0xee));
    assert_eq!(read(&mut controller, kinds).await, [three]);
    let all = read(&mut controller, 0).await;
    let ids: Vec<_> = all.iter().map(|set| set.value_set_id).collect();
    assert_eq!((ids.len(), ids.is_sorted()), (3, true));
    // A read returns the canonical form.
    let five = set(vec![member(&[0, 5])]);
    controller
        .write(vec![Update::modify(five)])
        .await
        .expect("written");
    assert_eq!((state(&testbed, 3), state(&testbed, 5)), (0xee, 1));
    assert_eq!(
        read(&mut controller, kinds).await,
        [set(vec![member(&[5])])]
    );
}

#[tokio::test]
async fn invalid_writes_are_rejected_with_their_code() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
    let value_set_id = id(&testbed, "Read.kinds");
    let set = |members: Vec<ValueSetMember>| ValueSetEntry {
        value_set_id,
        members,
    };
    let many = (0..4u8).map(|value| member(&[value])).collect();
    let unknown = ValueSetEntry {
        value_set_id: 9,
        members: Vec::new(),
    };
    let cases = [
        (
            Update::insert(set(vec![member(&[1])])),
            Code::InvalidArgument,
        ),
        (Update::delete(set(Vec::new())), Code::InvalidArgument),
        (Update::modify(set(many)), Code::ResourceExhausted),
        (
            Update::modify(set(vec![member(&[1]), member(&[1])])),
            Code::AlreadyExists,
        ),
        (Update::modify(set(vec![member(&[1, 0])])), Code::OutOfRange),
        (Update::modify(set(vec![member(&[])])), Code::OutOfRange),
        (
            Update::modify(set(vec![ValueSetMember::default()])),
            Code::InvalidArgument,
        ),
        (Update::modify(unknown.clone()), Code::NotFound),
    ];
    for (update, code) in cases {
        let text = format!("{update:?}");
        assert_eq!(controller.try_write(update).await, Err(code), "{text}");
    }
    assert_eq!(
        read(&mut controller, value_set_id).await,
        [set(Vec::new())],
        "the set is unchanged"
    );
    assert!(controller.read(vec![unknown.into()]).await.is_err());
}
