//! Idle timeouts of table entries (P4Runtime §9.1.8).

use ultima_p4runtime::text;
use ultima_switch::engine::{ActionCall, Engine, FieldMatch, Limits, Match, TableEntry};

const JSON: &[u8] = include_bytes!("../programs/controller.json");
const P4INFO: &str = include_str!("../programs/controller.p4info.txtpb");

const SECOND_NS: u64 = 1_000_000_000;
const SECOND_US: u64 = 1_000_000;

const NONE: [u8; 0] = [];

/// The engine, and the ids of its table `forward` and of the action `drop`.
fn engine() -> (Engine, u32, u32) {
    let p4info = text::parse(P4INFO).expect("P4Info");
    let ids = ultima_p4runtime::names::Names::new(p4info).expect("a valid P4Info");
    let table = ids.table("IngressPipe.forward").expect("table");
    let (_, action) = table.action("IngressPipe.drop").expect("action");
    let (table, action) = (table.id, action.id);
    let mut engine =
        ultima_switch::p4info::load(JSON, ids.p4info(), Limits::default()).expect("loads");
    engine.start(0);
    (engine, table, action)
}

fn key(dst: u8) -> Vec<FieldMatch> {
    let matches = Match::Exact(vec![dst]);
    vec![FieldMatch { field: 1, matches }]
}

fn entry(dst: u8, action: u32, idle_timeout_ns: u64) -> TableEntry {
    let params = Vec::new();
    TableEntry {
        key: key(dst),
        action: Some(ActionCall { action, params }.into()),
        idle_timeout_ns,
        ..TableEntry::default()
    }
}

/// The last byte of the key of each entry that is idle at this time, ordered by timeout, then by position in the table.
fn idle(engine: &mut Engine, now_us: u64) -> Vec<u8> {
    let one = || {
        let (_, view) = engine.pop_idle(now_us)?;
        match &view.entry.key[0].matches {
            Match::Exact(value) => value.last().copied(),
            _ => None,
        }
    };
    std::iter::from_fn(one).collect()
}

fn hit(engine: &mut Engine, dst: u8, now_us: u64) {
    let mut frame = vec![0; 14];
    frame[5] = dst;
    engine.ingress(1, &frame, now_us, &mut Vec::new());
}

#[test]
fn idle_entries_are_reported_repeatedly() {
    let (mut engine, table, action) = engine();
    engine.set_now(SECOND_US);
    let mut forward = engine.table_mut(table).expect("table");
    for (dst, timeout) in [(1, 2), (2, 3), (3, 0)] {
        forward
            .insert(entry(dst, action, timeout * SECOND_NS))
            .expect("inserted");
    }
    assert_eq!(engine.next_idle_us(), Some(3 * SECOND_US));
    assert_eq!(idle(&mut engine, 3 * SECOND_US - 1), NONE);
    // A hit restarts the second entry's timeout.
    hit(&mut engine, 2, 2 * SECOND_US);
    assert_eq!(idle(&mut engine, 4 * SECOND_US), [1]);
    assert_eq!(idle(&mut engine, 5 * SECOND_US - 1), NONE);
    assert_eq!(idle(&mut engine, 5 * SECOND_US), [2]);
    // The notification restarted the first entry's timeout.
    assert_eq!(idle(&mut engine, 6 * SECOND_US), [1]);
    // An entry whose timeout expired several times is reported once.
    assert_eq!(idle(&mut engine, 60 * SECOND_US), [1, 2]);
    assert_eq!(idle(&mut engine, 60 * SECOND_US), NONE);
}

#[test]
fn deleted_and_modified_entries_are_not_reported_for_their_old_timeout() {
    let (mut engine, table, action) = engine();
    let mut forward = engine.table_mut(table).expect("table");
    for dst in 1..=4 {
        forward
            .insert(entry(dst, action, SECOND_NS))
            .expect("inserted");
    }
    forward.delete(&key(1), 0).expect("deleted");
    forward
        .modify(entry(2, action, 3 * SECOND_NS))
        .expect("modified");
    forward.modify(entry(3, action, 0)).expect("modified");
    // Takes the position of the deleted entry.
    forward
        .insert(entry(5, action, 2 * SECOND_NS))
        .expect("inserted");
    assert_eq!(idle(&mut engine, SECOND_US), [4]);
    assert_eq!(idle(&mut engine, 2 * SECOND_US - 1), NONE);
    assert_eq!(idle(&mut engine, 2 * SECOND_US), [5, 4]);
    assert_eq!(idle(&mut engine, 3 * SECOND_US), [2, 4]);
}

#[test]
fn the_time_since_the_last_hit_is_read() {
    let (mut engine, table, action) = engine();
    engine.set_now(10);
    let mut forward = engine.table_mut(table).expect("table");
    forward.insert(entry(1, action, 0)).expect("inserted");
    let age = |engine: &mut Engine, now| {
        engine.set_now(now);
        let view = engine.table(table).expect("table").get(&key(1), 0);
        view.expect("found").idle_us
    };
    assert_eq!(age(&mut engine, 15), Some(5));
    hit(&mut engine, 1, 20);
    assert_eq!(age(&mut engine, 21), Some(1));
    hit(&mut engine, 2, 22);
    assert_eq!(
        age(&mut engine, 23),
        Some(3),
        "the hit was on another entry"
    );
}

#[test]
fn the_last_of_many_changes_of_a_timeout_counts() {
    let (mut engine, table, action) = engine();
    for n in 0..100_000 {
        engine.set_now(n);
        let mut forward = engine.table_mut(table).expect("table");
        let entry = entry(1, action, SECOND_NS + n);
        match n {
            0 => forward.insert(entry),
            _ => forward.modify(entry),
        }
        .expect("written");
    }
    assert_eq!(idle(&mut engine, SECOND_US + 99_999), NONE);
    assert_eq!(idle(&mut engine, SECOND_US + 100_099), [1]);
}

#[test]
fn only_tables_that_support_timeouts_accept_them() {
    let p4info = text::parse(P4INFO).expect("P4Info");
    let mut p4info: ultima_p4runtime::config::v1::P4Info = p4info;
    for table in &mut p4info.tables {
        table.idle_timeout_behavior = 0;
    }
    let mut plain = ultima_switch::p4info::load(JSON, &p4info, Limits::default()).expect("loads");
    let (_, table, action) = engine();
    let mut forward = plain.table_mut(table).expect("table");
    let error = forward
        .insert(entry(1, action, SECOND_NS))
        .expect_err("refused");
    let text = error.to_string();
    assert!(text.ends_with("expected idle_timeout_ns 0"), "{text}");
    forward.insert(entry(1, action, 0)).expect("inserted");
    assert_eq!(forward.get(&key(1), 0).expect("found").idle_us, None);
    assert_eq!(plain.next_idle_us(), None);
}
