//! Parser value sets: matching packets, and valid members.

use ultima_switch::engine::{ErrorKind, FieldMatch, Match, ValueSet};

use super::control::{Testbed, bytes, exact, lpm};
use super::program;

const BY_KIND: u8 = 1;
const BY_FLOW: u8 = 2;
const BY_MAYBE: u8 = 3;
const BY_ORDER: u8 = 5;

const KIND: u8 = 1;
const FLOW: u8 = 2;
const MAYBE: u8 = 3;
const LITERAL: u8 = 4;
const MISSED: u8 = 0xee;

/// The fields of a packet except the selector.
#[derive(Clone, Copy)]
struct Packet {
    kind: u8,
    port: u16,
    tag: u8,
    rank: u8,
    color: u8,
}

const PACKET: Packet = Packet {
    kind: 9,
    port: 0x1234,
    tag: 0b101,
    rank: 20,
    color: 0xa5,
};

fn state(testbed: &mut Testbed, selector: u8, packet: Packet) -> u8 {
    let mut frame = vec![selector, packet.kind];
    frame.extend(packet.port.to_be_bytes());
    frame.extend([packet.tag << 5 | packet.rank, packet.color]);
    let sent = testbed.send(1, &frame);
    assert_eq!(sent.len(), 1);
    sent[0].1[0]
}

fn set<'a>(testbed: &'a mut Testbed, name: &str) -> &'a mut ValueSet {
    let id = testbed.value_set(name);
    testbed.engine.value_set_mut(id).expect("the set exists")
}

fn member(fields: &[(u32, Match)]) -> Vec<FieldMatch> {
    let fields = fields.iter().cloned();
    fields
        .map(|(field, matches)| FieldMatch { field, matches })
        .collect()
}

fn kind(value: u8) -> Vec<FieldMatch> {
    member(&[(1, exact(value.into()))])
}

fn ternary(value: u128, mask: u128) -> Match {
    Match::Ternary {
        value: bytes(value),
        mask: bytes(mask),
    }
}

fn range(low: u128, high: u128) -> Match {
    Match::Range {
        low: bytes(low),
        high: bytes(high),
    }
}

#[test]
fn a_write_replaces_all_members() {
    let mut testbed = program!("value_sets");
    assert_eq!(state(&mut testbed, BY_KIND, PACKET), MISSED, "empty");
    let kinds = set(&mut testbed, "Read.kinds");
    kinds.set(&[kind(8), kind(9)]).unwrap();
    assert_eq!(kinds.members(), [kind(8), kind(9)]);
    assert_eq!(state(&mut testbed, BY_KIND, PACKET), KIND);
    set(&mut testbed, "Read.kinds").set(&[kind(8)]).unwrap();
    assert_eq!(state(&mut testbed, BY_KIND, PACKET), MISSED);
    let eight = Packet { kind: 8, ..PACKET };
    assert_eq!(state(&mut testbed, BY_KIND, eight), KIND);
    set(&mut testbed, "Read.kinds").set(&[]).unwrap();
    assert_eq!(state(&mut testbed, BY_KIND, eight), MISSED);
}

#[test]
fn cases_are_tried_in_the_order_of_the_program() {
    let mut testbed = program!("value_sets");
    set(&mut testbed, "Read.kinds")
        .set(&[kind(7), kind(9)])
        .unwrap();
    let mut at = |kind| state(&mut testbed, BY_ORDER, Packet { kind, ..PACKET });
    assert_eq!(at(7), LITERAL, "the literal precedes the set");
    assert_eq!((at(8), at(9), at(10)), (LITERAL, KIND, MISSED));
    set(&mut testbed, "Read.kinds").set(&[kind(8)]).unwrap();
    let eight = Packet { kind: 8, ..PACKET };
    assert_eq!(
        state(&mut testbed, BY_ORDER, eight),
        KIND,
        "the set precedes this literal"
    );
}

#[test]
fn fields_match_as_the_p4info_says() {
    let mut testbed = program!("value_sets");
    let narrow = member(&[
        (1, exact(0x1234)),
        (2, ternary(0b100, 0b110)),
        (3, range(10, 20)),
        (4, lpm(0xa0, 4)),
    ]);
    let broad = member(&[(1, exact(7))]);
    let flows = set(&mut testbed, "Read.flows");
    flows.set(&[narrow.clone(), broad.clone()]).unwrap();
    assert_eq!(flows.members(), [narrow, broad]);
    let mut at = |packet| state(&mut testbed, BY_FLOW, packet);
    assert_eq!(at(PACKET), FLOW);
    assert_eq!(
        at(Packet {
            tag: 0b111,
            ..PACKET
        }),
        MISSED
    );
    assert_eq!(at(Packet { rank: 21, ..PACKET }), MISSED);
    assert_eq!(
        at(Packet {
            color: 0xb5,
            ..PACKET
        }),
        MISSED
    );
    let other = Packet {
        port: 7,
        tag: 0,
        rank: 0,
        color: 0,
        ..PACKET
    };
    assert_eq!(at(other), FLOW, "only the port matters");
}

#[test]
fn a_member_without_fields_matches_everything() {
    let mut testbed = program!("value_sets");
    let kind = |value: u8| member(&[(1, Match::Optional(bytes(value.into())))]);
    let maybes = set(&mut testbed, "Read.maybes");
    maybes.set(&[kind(8)]).unwrap();
    assert_eq!(state(&mut testbed, BY_MAYBE, PACKET), MISSED);
    let maybes = set(&mut testbed, "Read.maybes");
    maybes.set(&[kind(8), Vec::new()]).unwrap();
    assert_eq!(state(&mut testbed, BY_MAYBE, PACKET), MAYBE);
}

#[test]
fn rejected_writes_leave_a_set_unchanged() {
    let mut testbed = program!("value_sets");
    let kinds = set(&mut testbed, "Read.kinds");
    kinds.set(&[kind(9)]).unwrap();
    let mut refused = |members: &[Vec<FieldMatch>]| {
        let error = kinds.set(members).unwrap_err();
        assert_eq!(kinds.members(), [kind(9)]);
        (error.kind(), error.to_string())
    };
    use ErrorKind::*;
    assert_eq!(
        refused(&[kind(1), kind(2), kind(3), kind(4)]),
        (
            ResourceExhausted,
            "value set Read.kinds: 4 members, there is room for 3".into()
        )
    );
    let padded = member(&[(1, Match::Exact(vec![0, 1]))]);
    assert_eq!(
        refused(&[kind(1), padded]),
        (
            AlreadyExists,
            "value set Read.kinds: member 1 is there twice".into()
        )
    );
    let (kind_of_error, text) = refused(&[kind(1), Vec::new()]);
    assert_eq!(kind_of_error, InvalidArgument);
    assert!(
        text.starts_with("value set Read.kinds: match field 1: "),
        "{text}"
    );
    assert!(text.ends_with("an exact field must be given"), "{text}");
    let wide = member(&[(1, exact(0x100))]);
    assert_eq!(refused(&[wide]).0, OutOfRange);
    assert_eq!(state(&mut testbed, BY_KIND, PACKET), KIND);
    assert_eq!(
        testbed.engine.value_set(1).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}
