//! Tables: the winning entry, and writes of the control plane.

use ultima_switch::engine::{ActionCall, ErrorKind, FieldMatch, Match, TableEntry};

use super::control::{Testbed, bytes, exact, lpm};
use super::program;

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

fn optional(value: u128) -> Match {
    Match::Optional(bytes(value))
}

/// The fields of a packet that tables match.
#[derive(Clone, Copy)]
struct Keys {
    address: u32,
    port: u16,
    kind: u8,
    flags: u8,
    long: u128,
}

const KEYS: Keys = Keys {
    address: 0x0a01_0203,
    port: 80,
    kind: 9,
    flags: 0,
    long: 0,
};

/// The byte that the program's table number `at` writes.
fn verdict(testbed: &mut Testbed, at: usize, keys: Keys) -> u8 {
    let mut frame = keys.address.to_be_bytes().to_vec();
    frame.extend(keys.port.to_be_bytes());
    frame.extend([keys.kind, keys.flags]);
    frame.extend(keys.long.to_be_bytes());
    let sent = testbed.send(1, &frame);
    assert_eq!(sent.len(), 1);
    sent[0].1[at]
}

#[test]
fn exact_entries_match_or_miss() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.exact_one", "Lookups.set_exact_one");
    assert_eq!(verdict(&mut testbed, 0, KEYS), 0xdd, "the miss branch");
    testbed.insert(table, &[exact(0x0a01_0203), exact(80)], action, &[7]);
    assert_eq!(verdict(&mut testbed, 0, KEYS), 7);
    assert_eq!(verdict(&mut testbed, 0, Keys { port: 81, ..KEYS }), 0xdd);
}

#[test]
fn the_longest_prefix_wins_within_its_exact_part() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.prefix", "Lookups.set_prefix");
    assert_eq!(verdict(&mut testbed, 1, KEYS), 0xee);
    testbed.insert(table, &[exact(9), lpm(0x0a00_0000, 8)], action, &[8]);
    testbed.insert(table, &[exact(9), lpm(0x0a01_0200, 24)], action, &[24]);
    testbed.insert(table, &[exact(8), lpm(0x0a01_0203, 32)], action, &[32]);
    let any = [Some(exact(9)), None];
    testbed.try_insert(table, &any, 0, action, &[1]).unwrap();
    let mut at = |address, kind| {
        verdict(
            &mut testbed,
            1,
            Keys {
                address,
                kind,
                ..KEYS
            },
        )
    };
    assert_eq!(at(0x0a01_0203, 9), 24);
    assert_eq!(at(0x0a01_0303, 9), 8);
    assert_eq!(at(0x0b01_0303, 9), 1);
    assert_eq!(at(0x0a01_0203, 8), 32);
    assert_eq!(at(0x0a01_0204, 8), 0xee);
}

#[test]
fn prefixes_of_long_addresses() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.long_prefix", "Lookups.set_long_prefix");
    let base = 0x2001_0db8_u128 << 96;
    testbed.insert(table, &[lpm(base, 32)], action, &[32]);
    testbed.insert(table, &[lpm(base | 1 << 63, 65)], action, &[65]);
    let mut at = |long| verdict(&mut testbed, 8, Keys { long, ..KEYS });
    assert_eq!((at(base | 5), at(base | 1 << 63 | 5), at(5)), (32, 65, 0));
}

#[test]
fn the_highest_priority_wins() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.masked", "Lookups.set_masked");
    let broad = [Some(ternary(0x0a00_0000, 0xff00_0000)), None];
    let narrow = [
        Some(ternary(0x0a01_0203, 0xffff_ffff)),
        Some(ternary(0, 0x80)),
    ];
    testbed.try_insert(table, &broad, 10, action, &[1]).unwrap();
    testbed.try_insert(table, &narrow, 5, action, &[2]).unwrap();
    assert_eq!(verdict(&mut testbed, 2, KEYS), 1);
    testbed
        .try_insert(table, &narrow, 11, action, &[3])
        .unwrap();
    assert_eq!(verdict(&mut testbed, 2, KEYS), 3);
    assert_eq!(
        verdict(
            &mut testbed,
            2,
            Keys {
                flags: 0x80,
                ..KEYS
            }
        ),
        1
    );
    let id = testbed.table(table);
    let key = testbed.key(table, &narrow);
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 11)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 2, KEYS), 1);
    let key = testbed.key(table, &broad);
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 10)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 2, KEYS), 2);
}

#[test]
fn ranges_include_their_ends() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.ranged", "Lookups.set_ranged");
    let both = [Some(range(80, 90)), Some(range(0, 3))];
    testbed.try_insert(table, &both, 1, action, &[4]).unwrap();
    testbed
        .try_insert(table, &[Some(range(0, 100)), None], 2, action, &[5])
        .unwrap();
    testbed
        .try_insert(table, &[Some(range(80, 80)), None], 3, action, &[6])
        .unwrap();
    let mut at = |port, flags| {
        verdict(
            &mut testbed,
            3,
            Keys {
                port,
                flags,
                ..KEYS
            },
        )
    };
    assert_eq!((at(80, 0), at(81, 3), at(101, 0)), (6, 5, 0));
    let id = testbed.table(table);
    let key = testbed.key(table, &[Some(range(0, 100)), None]);
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 2)
        .unwrap();
    let mut at = |port, flags| {
        verdict(
            &mut testbed,
            3,
            Keys {
                port,
                flags,
                ..KEYS
            },
        )
    };
    assert_eq!((at(90, 3), at(90, 4), at(79, 0), at(91, 0)), (4, 0, 0, 0));
}

#[test]
fn optional_fields_may_be_left_out() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.optional_one", "Lookups.set_optional_one");
    testbed
        .try_insert(table, &[Some(optional(80)), None], 1, action, &[1])
        .unwrap();
    testbed
        .try_insert(table, &[None, Some(optional(9))], 2, action, &[2])
        .unwrap();
    testbed
        .try_insert(table, &[None, None], 3, action, &[3])
        .unwrap();
    assert_eq!(verdict(&mut testbed, 4, KEYS), 3);
    let (id, key) = (testbed.table(table), testbed.key(table, &[None, None]));
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 3)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 4, KEYS), 2);
    assert_eq!(verdict(&mut testbed, 4, Keys { kind: 1, ..KEYS }), 1);
    assert_eq!(
        verdict(
            &mut testbed,
            4,
            Keys {
                kind: 1,
                port: 1,
                ..KEYS
            }
        ),
        0
    );
}

#[test]
fn all_kinds_in_one_key() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.mixed", "Lookups.set_mixed");
    let short = [Some(exact(9)), Some(lpm(0x0a00_0000, 8)), None, None];
    let long = [
        Some(exact(9)),
        Some(lpm(0x0a01_0203, 32)),
        Some(ternary(0x01, 0x01)),
        Some(range(70, 90)),
    ];
    // Only the priority decides, not the prefix length.
    testbed.try_insert(table, &short, 5, action, &[1]).unwrap();
    testbed.try_insert(table, &long, 4, action, &[2]).unwrap();
    assert_eq!(verdict(&mut testbed, 5, Keys { flags: 1, ..KEYS }), 1);
    let (id, key) = (testbed.table(table), testbed.key(table, &short));
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 5)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 5, Keys { flags: 1, ..KEYS }), 2);
    assert_eq!(verdict(&mut testbed, 5, Keys { flags: 2, ..KEYS }), 0);
}

#[test]
fn constant_entries_cannot_be_changed() {
    let mut testbed = program!("lookups");
    let mut at = |kind, flags| {
        verdict(
            &mut testbed,
            6,
            Keys {
                kind,
                flags,
                ..KEYS
            },
        )
    };
    assert_eq!(
        (at(1, 0x0f), at(1, 0x01), at(1, 0x02), at(2, 0x77)),
        (1, 2, 0, 3)
    );
    let table = "Lookups.fixed";
    let id = testbed.table(table);
    let entries: Vec<_> = testbed.engine.table(id).unwrap().entries().collect();
    let priorities: Vec<_> = entries
        .iter()
        .map(|e| (e.entry.priority, e.is_const))
        .collect();
    assert_eq!(priorities, [(3, true), (2, true), (1, true)]);
    let call = testbed.call("Lookups.set_fixed", &[9]);
    let mut writable = testbed.engine.table_mut(id).unwrap();
    let first = &entries[0].entry;
    let refused = [
        writable.delete(&first.key, first.priority),
        writable.modify(TableEntry {
            action: Some(call.clone().into()),
            ..first.clone()
        }),
        writable.insert(TableEntry {
            priority: 9,
            ..first.clone()
        }),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(writable.len(), 3);
    let default = TableEntry {
        action: Some(call.into()),
        ..TableEntry::default()
    };
    writable.set_default(Some(default)).unwrap();
    assert_eq!(verdict(&mut testbed, 6, KEYS), 9);
}

#[test]
fn initial_entries_can_be_changed() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.initial", "Lookups.set_initial");
    assert_eq!(verdict(&mut testbed, 7, KEYS), 2);
    let (id, key) = (
        testbed.table(table),
        testbed.key(table, &[Some(lpm(0x0a01_0000, 16))]),
    );
    let call = Some(testbed.call(action, &[20]).into());
    let entry = TableEntry {
        key: key.clone(),
        action: call,
        ..TableEntry::default()
    };
    testbed.engine.table_mut(id).unwrap().modify(entry).unwrap();
    assert_eq!(verdict(&mut testbed, 7, KEYS), 20);
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&key, 0)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 7, KEYS), 1);
}

#[test]
fn validity_is_a_key() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.validity", "Lookups.set_validity");
    testbed.insert(table, &[exact(1)], action, &[1]);
    testbed.insert(table, &[exact(0)], action, &[2]);
    assert_eq!(verdict(&mut testbed, 9, KEYS), 1);
    // Too short for the header: only the verdicts leave. Fields of an invalid header match as zero.
    let masked = [Some(ternary(0, 0xffff_ffff)), None];
    testbed
        .try_insert("Lookups.masked", &masked, 1, "Lookups.set_masked", &[5])
        .unwrap();
    let sent = testbed.send(1, &[0x0a; 23]);
    assert_eq!((sent[0].1[9], sent[0].1[2]), (2, 5));
}

#[test]
fn entries_are_read_in_order() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.masked", "Lookups.set_masked");
    let id = testbed.table(table);
    let key = |value: u8| FieldMatch {
        field: 1,
        matches: Match::Ternary {
            value: vec![0, 0, value],
            mask: vec![0, 0xff],
        },
    };
    for value in [9, 3, 7] {
        let entry = TableEntry {
            key: vec![key(value)],
            priority: i32::from(value),
            action: Some(
                ActionCall {
                    params: vec![(1, vec![0, value])],
                    ..testbed.call(action, &[0])
                }
                .into(),
            ),
            controller_metadata: 77,
            metadata: vec![value],
            ..TableEntry::default()
        };
        testbed.engine.table_mut(id).unwrap().insert(entry).unwrap();
    }
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .delete(&[key(3)], 3)
        .unwrap();
    let entries: Vec<_> = testbed
        .engine
        .table(id)
        .unwrap()
        .entries()
        .map(|e| e.entry)
        .collect();
    let canonical = |value: u8| TableEntry {
        key: vec![FieldMatch {
            field: 1,
            matches: ternary(u128::from(value), 0xff),
        }],
        priority: i32::from(value),
        action: Some(testbed.call(action, &[u128::from(value)]).into()),
        controller_metadata: 77,
        metadata: vec![value],
        ..TableEntry::default()
    };
    assert_eq!(entries, [canonical(9), canonical(7)]);
    let found = testbed.engine.table(id).unwrap().get(&[key(7)], 7).unwrap();
    assert_eq!(found.entry, canonical(7));
    assert_eq!(
        (found.counter, found.meter, found.is_const),
        (None, None, false)
    );
}

#[test]
fn invalid_requests_change_nothing() {
    let mut testbed = program!("lookups");
    let (table, action) = ("Lookups.exact_one", "Lookups.set_exact_one");
    let id = testbed.table(table);
    testbed.insert(table, &[exact(1), exact(1)], action, &[1]);
    testbed.insert(table, &[exact(1), exact(2)], action, &[2]);
    let good = TableEntry {
        key: testbed.key(table, &[Some(exact(1)), Some(exact(3))]),
        action: Some(testbed.call(action, &[3]).into()),
        ..TableEntry::default()
    };
    let with_action = |call: ActionCall| TableEntry {
        action: Some(call.into()),
        ..good.clone()
    };
    let call = testbed.call(action, &[3]);
    let nothing = testbed.call("NoAction", &[]);
    let other = testbed.call("Lookups.set_masked", &[3]);
    let param = |params: Vec<(u32, Vec<u8>)>| ActionCall {
        action: call.action,
        params,
    };
    let insertions = [
        (
            good.clone(),
            ErrorKind::ResourceExhausted,
            "is full: 2 entries",
        ),
        (
            TableEntry {
                key: testbed.key(table, &[Some(exact(1)), Some(exact(2))]),
                ..good.clone()
            },
            ErrorKind::AlreadyExists,
            "has this entry already",
        ),
        (
            TableEntry {
                action: None,
                ..good.clone()
            },
            ErrorKind::InvalidArgument,
            "needs an action",
        ),
        (
            with_action(nothing),
            ErrorKind::PermissionDenied,
            "only be the default",
        ),
        (
            with_action(other),
            ErrorKind::InvalidArgument,
            "not an action of this table",
        ),
        (
            with_action(param(vec![])),
            ErrorKind::InvalidArgument,
            "(verdict) is missing",
        ),
        (
            with_action(param(vec![(1, vec![1]), (2, vec![1])])),
            ErrorKind::InvalidArgument,
            "no parameter 2",
        ),
        (
            with_action(param(vec![(1, vec![1]), (1, vec![1])])),
            ErrorKind::InvalidArgument,
            "given twice",
        ),
        (
            with_action(param(vec![(1, vec![1, 0])])),
            ErrorKind::OutOfRange,
            "does not fit",
        ),
        (
            with_action(param(vec![(1, vec![])])),
            ErrorKind::OutOfRange,
            "is empty",
        ),
    ];
    let mut writable = testbed.engine.table_mut(id).unwrap();
    for (entry, kind, text) in insertions {
        let error = writable.insert(entry).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(
        writable.modify(good.clone()).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        writable.delete(&good.key, 0).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let default = writable.set_default(Some(good.clone())).unwrap_err();
    assert_eq!(default.kind(), ErrorKind::PermissionDenied);
    assert_eq!(writable.len(), 2);
    // A deletion makes room for an entry.
    let key = testbed.key(table, &[Some(exact(1)), Some(exact(2))]);
    let mut writable = testbed.engine.table_mut(id).unwrap();
    writable.delete(&key, 0).unwrap();
    writable.insert(good).unwrap();
    let unknown = testbed.engine.table_mut(id + 1).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[test]
fn defaults_can_be_set_and_restored() {
    let mut testbed = program!("lookups");
    let id = testbed.table("Lookups.prefix");
    let call = testbed.call("Lookups.set_prefix", &[0x33]);
    let entry = TableEntry {
        action: Some(call.clone().into()),
        ..TableEntry::default()
    };
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .set_default(Some(entry))
        .unwrap();
    assert_eq!(verdict(&mut testbed, 1, KEYS), 0x33);
    let read = testbed.engine.table(id).unwrap().default_entry();
    assert_eq!(
        (read.entry.action, read.entry.key),
        (Some(call.into()), vec![])
    );
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .set_default(None)
        .unwrap();
    assert_eq!(verdict(&mut testbed, 1, KEYS), 0xee);
}

#[test]
fn tables_are_listed_in_order_of_ids() {
    let testbed = program!("lookups");
    let ids: Vec<_> = testbed.engine.tables().map(|table| table.id()).collect();
    assert_eq!(ids.len(), 10);
    assert!(ids.is_sorted());
    assert!(
        testbed
            .engine
            .tables()
            .all(|table| table.name().starts_with("Lookups."))
    );
}
