//! Action profiles and selectors: the picked member, and writes of the control plane.
//!
//! The lists of selected members are those that simple_switch 1.15.5 selects after the
//! same requests in the same order.

use ultima_switch::engine::{
    ControlError, EntryAction, ErrorKind, FieldMatch, GroupMember, Limits, Match, OneShot,
    PortState, Profile, TableEntry, WeightedCall,
};

use super::control::{Testbed, bytes, exact, lpm};
use super::program;

const SHARED: (u8, &str) = (1, "Choose.shared_action");
const EXACT: (u8, &str) = (2, "Choose.spread_exact");
const TERNARY: (u8, &str) = (3, "Choose.spread_ternary");
const COUNTED: (u8, &str) = (4, "Choose.counted");
const LIMITED: (u8, &str) = (5, "Choose.limited");
const WEIGHTED: (u8, &str) = (6, "Choose.weighted");

const FLOWS: [u16; 12] = [
    0, 1, 2, 3, 0x1234, 0x8000, 0xffff, 0xabcd, 77, 1000, 40000, 31337,
];

/// The answer to a packet.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    number: u8,
    hit: bool,
    /// The value that actions other than `answer` set.
    rest: u8,
}

const MISS: Answer = Answer {
    number: 0,
    hit: false,
    rest: 0,
};

fn ask(testbed: &mut Testbed, table: (u8, &str), key: u8, flow: u16, label: u16) -> Answer {
    let mut frame = vec![table.0, key];
    frame.extend(flow.to_be_bytes());
    frame.extend((label << 4).to_be_bytes());
    frame.extend([0x55, 0x55]);
    let sent = testbed.send(1, &frame);
    assert_eq!(sent.len(), 1);
    let frame = &sent[0].1;
    Answer {
        number: frame[6],
        hit: frame[7] == 1,
        rest: frame[5] & 0xf,
    }
}

/// The numbers in the returned packets, for each of the flows.
fn numbers(testbed: &mut Testbed, table: (u8, &str), key: u8) -> [u8; 12] {
    FLOWS.map(|flow| ask(testbed, table, key, flow, 0).number)
}

fn profile<'a>(testbed: &'a mut Testbed, name: &str) -> &'a mut Profile {
    let id = testbed.profile(name);
    testbed.engine.profile_mut(id).expect("the profile exists")
}

fn member(testbed: &mut Testbed, name: &str, id: u32, number: u8) {
    let call = testbed.call("Choose.answer", &[number.into()]);
    let profile = profile(testbed, name);
    profile.insert_member(id, &call).expect("a new member");
}

/// Members and their weights.
fn weights(members: &[(u32, u32)]) -> Vec<GroupMember> {
    let member = |&(member, weight): &(u32, u32)| GroupMember {
        member,
        weight,
        watch: None,
    };
    members.iter().map(member).collect()
}

fn key(testbed: &Testbed, table: (u8, &str), matches: Match) -> Vec<FieldMatch> {
    testbed.key(table.1, &[Some(matches)])
}

fn entry(testbed: &Testbed, table: (u8, &str), matches: Match, action: EntryAction) -> TableEntry {
    let ternary = matches!(matches, Match::Ternary { .. });
    TableEntry {
        key: key(testbed, table, matches),
        priority: i32::from(ternary),
        action: Some(action),
        ..TableEntry::default()
    }
}

fn try_insert(
    testbed: &mut Testbed,
    table: (u8, &str),
    matches: Match,
    action: EntryAction,
) -> Result<(), ControlError> {
    let entry = entry(testbed, table, matches, action);
    let id = testbed.table(table.1);
    testbed.engine.table_mut(id)?.insert(entry)
}

fn insert(testbed: &mut Testbed, table: (u8, &str), matches: Match, action: EntryAction) {
    try_insert(testbed, table, matches, action).expect("a valid entry");
}

fn one_shot(testbed: &Testbed, actions: &[(u8, u32)]) -> OneShot {
    let action = |&(number, weight): &(u8, u32)| WeightedCall {
        call: testbed.call("Choose.answer", &[number.into()]),
        weight,
        watch: None,
    };
    OneShot {
        actions: actions.iter().map(action).collect(),
    }
}

/// A program with members 1 to 5 in the profile `spread`. Each answers ten times its id.
fn spread() -> Testbed {
    let mut testbed = program!("profiles");
    for id in 1..=5 {
        member(&mut testbed, "Choose.spread", id, id as u8 * 10);
    }
    testbed
}

fn refused<T>(result: Result<T, ControlError>) -> (ErrorKind, String) {
    match result {
        Err(error) => (error.kind(), error.to_string()),
        Ok(_) => panic!("it was accepted"),
    }
}

#[test]
fn entries_share_a_member() {
    let mut testbed = program!("profiles");
    assert_eq!(ask(&mut testbed, SHARED, 1, 0, 0), MISS);
    member(&mut testbed, "members", 5, 50);
    member(&mut testbed, "members", 6, 60);
    for (value, id) in [(1, 5), (2, 6), (3, 6)] {
        insert(&mut testbed, SHARED, exact(value), EntryAction::Member(id));
    }
    let answers =
        |testbed: &mut Testbed| [1, 2, 3].map(|value| ask(testbed, SHARED, value, 0, 0).number);
    assert_eq!(answers(&mut testbed), [50, 60, 60]);
    let more = testbed.call("Choose.answer_more", &[66, 9]);
    let members = profile(&mut testbed, "members");
    members.modify_member(6, &more).unwrap();
    assert_eq!(members.member(6), Ok(more));
    assert_eq!(answers(&mut testbed), [50, 66, 66]);
    let both = Answer {
        number: 66,
        hit: true,
        rest: 9,
    };
    assert_eq!(ask(&mut testbed, SHARED, 3, 0, 0), both);
}

#[test]
fn members_in_use_cannot_be_deleted() {
    let mut testbed = spread();
    let table = testbed.table(EXACT.1);
    insert(&mut testbed, EXACT, exact(1), EntryAction::Member(1));
    let spread = profile(&mut testbed, "Choose.spread");
    spread.insert_group(7, weights(&[(2, 1)]), 0).unwrap();
    insert(&mut testbed, EXACT, exact(2), EntryAction::Group(7));
    let spread = profile(&mut testbed, "Choose.spread");
    let name = "action profile Choose.spread";
    assert_eq!(
        refused(spread.delete_member(1)),
        (
            ErrorKind::FailedPrecondition,
            format!("{name}: a table entry refers to member 1")
        )
    );
    assert_eq!(
        refused(spread.delete_member(2)),
        (
            ErrorKind::FailedPrecondition,
            format!("{name}: a group refers to member 2")
        )
    );
    assert_eq!(
        refused(spread.delete_group(7)),
        (
            ErrorKind::FailedPrecondition,
            format!("{name}: a table entry refers to group 7")
        )
    );
    // A modified or deleted entry no longer refers to its member or group.
    let to_member = entry(&testbed, EXACT, exact(2), EntryAction::Member(3));
    let key = key(&testbed, EXACT, exact(1));
    let mut writable = testbed.engine.table_mut(table).unwrap();
    writable.modify(to_member).unwrap();
    writable.delete(&key, 0).unwrap();
    let spread = profile(&mut testbed, "Choose.spread");
    spread.delete_member(1).unwrap();
    spread.delete_group(7).unwrap();
    spread.delete_member(2).unwrap();
    assert_eq!(
        refused(spread.delete_member(3)).0,
        ErrorKind::FailedPrecondition
    );
    testbed.clear(EXACT.1);
    let spread = profile(&mut testbed, "Choose.spread");
    spread.delete_member(3).unwrap();
    let left: Vec<_> = spread.members_from(0).map(|(id, _)| id).collect();
    assert_eq!(left, [4, 5]);
}

#[test]
fn the_hash_of_a_selector_picks_the_member() {
    let mut testbed = spread();
    let spread = profile(&mut testbed, "Choose.spread");
    let three = weights(&[(1, 1), (2, 1), (3, 1)]);
    spread.insert_group(1, three.clone(), 0).unwrap();
    assert_eq!(spread.group(1).unwrap().members, three);
    insert(&mut testbed, EXACT, exact(1), EntryAction::Group(1));
    let any = Match::Ternary {
        value: bytes(1),
        mask: bytes(0xff),
    };
    insert(&mut testbed, TERNARY, any, EntryAction::Group(1));
    let picked = [10, 10, 30, 10, 20, 30, 10, 10, 30, 10, 30, 20];
    assert_eq!(numbers(&mut testbed, EXACT, 1), picked);
    let labelled = FLOWS.map(|flow| ask(&mut testbed, EXACT, 1, flow, 0xabc).number);
    assert_eq!(labelled, [20, 30, 20, 30, 10, 10, 10, 10, 20, 20, 30, 10]);
    // Entries of another table refer to the same group.
    assert_eq!(numbers(&mut testbed, TERNARY, 1), picked);
    assert!(ask(&mut testbed, TERNARY, 1, 0, 0).hit);
    assert_eq!(ask(&mut testbed, TERNARY, 9, 5, 0), MISS);
}

#[test]
fn weights_take_handles_as_in_bmv2() {
    let mut testbed = spread();
    let group = |testbed: &mut Testbed, id, members: &[(u32, u32)]| {
        let spread = profile(testbed, "Choose.spread");
        match spread.group(id) {
            Ok(_) => spread.modify_group(id, weights(members), 0).unwrap(),
            Err(_) => spread.insert_group(id, weights(members), 0).unwrap(),
        }
    };
    group(&mut testbed, 1, &[(1, 1), (2, 1), (3, 1)]);
    insert(&mut testbed, EXACT, exact(1), EntryAction::Group(1));
    group(&mut testbed, 1, &[(1, 3), (2, 1), (4, 2)]);
    assert_eq!(
        numbers(&mut testbed, EXACT, 1),
        [10, 10, 40, 10, 10, 40, 10, 10, 40, 10, 40, 20]
    );
    group(&mut testbed, 2, &[(2, 2), (5, 1)]);
    insert(&mut testbed, EXACT, exact(2), EntryAction::Group(2));
    let second = [20, 20, 20, 20, 50, 20, 20, 20, 20, 20, 20, 50];
    assert_eq!(numbers(&mut testbed, EXACT, 2), second);
    group(&mut testbed, 1, &[(4, 1), (5, 4)]);
    assert_eq!(
        numbers(&mut testbed, EXACT, 1),
        [40, 50, 50, 40, 40, 50, 50, 50, 50, 40, 50, 40]
    );
    assert_eq!(numbers(&mut testbed, EXACT, 2), second);
    let call = testbed.call("Choose.answer", &[55]);
    let spread = profile(&mut testbed, "Choose.spread");
    spread.modify_member(5, &call).unwrap();
    assert_eq!(
        numbers(&mut testbed, EXACT, 1),
        [40, 55, 55, 40, 40, 55, 55, 55, 55, 40, 55, 40]
    );
}

#[test]
fn selectors_hash_with_their_own_algorithm() {
    let mut testbed = program!("profiles");
    for id in 1..=3 {
        member(&mut testbed, "Choose.narrow", id, id as u8);
        member(&mut testbed, "Choose.heavy", id, id as u8);
    }
    let narrow = profile(&mut testbed, "Choose.narrow");
    let members = weights(&[(1, 1), (2, 1), (3, 1)]);
    narrow.insert_group(4, members, 3).unwrap();
    insert(&mut testbed, LIMITED, exact(1), EntryAction::Group(4));
    assert_eq!(
        numbers(&mut testbed, LIMITED, 1),
        [1, 2, 3, 3, 1, 3, 1, 1, 1, 2, 3, 1],
        "CRC-32"
    );
    // csum16 is the complement of the flow. Modulo 3, it picks one of the group's three handles.
    let heavy = profile(&mut testbed, "Choose.heavy");
    heavy
        .insert_group(4, weights(&[(1, 1), (2, 2)]), 3)
        .unwrap();
    insert(&mut testbed, WEIGHTED, exact(1), EntryAction::Group(4));
    let expected = FLOWS.map(|flow| [1, 2, 2][usize::from(!flow) % 3]);
    assert_eq!(numbers(&mut testbed, WEIGHTED, 1), expected, "csum16");
}

#[test]
fn a_group_without_members_does_nothing() {
    let mut testbed = spread();
    let spread = profile(&mut testbed, "Choose.spread");
    spread.insert_group(3, Vec::new(), 0).unwrap();
    insert(&mut testbed, EXACT, exact(4), EntryAction::Group(3));
    let nothing = Answer { hit: true, ..MISS };
    assert_eq!(ask(&mut testbed, EXACT, 4, 7, 0), nothing);
    let spread = profile(&mut testbed, "Choose.spread");
    spread.modify_group(3, weights(&[(5, 1)]), 0).unwrap();
    assert_eq!(ask(&mut testbed, EXACT, 4, 7, 0).number, 50);
    let spread = profile(&mut testbed, "Choose.spread");
    spread.modify_group(3, Vec::new(), 0).unwrap();
    assert_eq!(ask(&mut testbed, EXACT, 4, 7, 0), nothing);
}

#[test]
fn a_one_shot_set_belongs_to_its_entry() {
    let mut testbed = program!("profiles");
    let table = testbed.table(COUNTED.1);
    let first = one_shot(&testbed, &[(1, 1), (2, 2), (3, 1)]);
    let prefix = |value| lpm(value, 4);
    insert(
        &mut testbed,
        COUNTED,
        prefix(0x10),
        EntryAction::OneShot(first.clone()),
    );
    assert_eq!(
        numbers(&mut testbed, COUNTED, 0x11),
        [1, 2, 2, 3, 1, 1, 3, 2, 2, 1, 1, 2]
    );
    let second = EntryAction::OneShot(one_shot(&testbed, &[(7, 1), (8, 1)]));
    insert(&mut testbed, COUNTED, prefix(0x20), second);
    assert_eq!(
        numbers(&mut testbed, COUNTED, 0x21),
        [7, 8, 7, 8, 7, 7, 8, 8, 8, 7, 7, 8]
    );
    let read = testbed.engine.table(table).unwrap().entries().next();
    let read = read.expect("the first entry");
    assert_eq!(read.entry.action, Some(EntryAction::OneShot(first)));
    assert_eq!(read.counter.map(|cell| cell.packets), Some(12));
    let third = EntryAction::OneShot(one_shot(&testbed, &[(4, 2), (5, 2), (6, 3)]));
    let changed = entry(&testbed, COUNTED, prefix(0x10), third);
    testbed
        .engine
        .table_mut(table)
        .unwrap()
        .modify(changed)
        .unwrap();
    assert_eq!(
        numbers(&mut testbed, COUNTED, 0x11),
        [4, 4, 5, 5, 6, 4, 4, 4, 4, 6, 5, 6]
    );
    // The profile has 16 handles, 9 of which are in use.
    let eight = EntryAction::OneShot(one_shot(&testbed, &[(9, 8)]));
    let full = try_insert(&mut testbed, COUNTED, prefix(0x30), eight.clone());
    assert_eq!(
        refused(full),
        (
            ErrorKind::ResourceExhausted,
            "action profile counted_selector: size of all groups would be 17, the limit is 16"
                .into()
        )
    );
    let key = key(&testbed, COUNTED, prefix(0x20));
    testbed
        .engine
        .table_mut(table)
        .unwrap()
        .delete(&key, 0)
        .unwrap();
    insert(&mut testbed, COUNTED, prefix(0x30), eight);
    assert_eq!(numbers(&mut testbed, COUNTED, 0x30), [9; 12]);
    assert_eq!(numbers(&mut testbed, COUNTED, 0x21), [0; 12]);
    let counted = profile(&mut testbed, "counted_selector");
    assert_eq!(
        (
            counted.members_from(0).count(),
            counted.groups_from(0).count()
        ),
        (0, 0)
    );
}

#[test]
fn sets_and_groups_are_not_mixed() {
    let mut testbed = spread();
    let set = EntryAction::OneShot(one_shot(&testbed, &[(1, 1)]));
    let mixed = try_insert(&mut testbed, EXACT, exact(1), set.clone());
    let (kind, text) = refused(mixed);
    assert_eq!(kind, ErrorKind::InvalidArgument);
    assert!(text.contains("it has members or groups"), "{text}");

    insert(&mut testbed, COUNTED, lpm(0x10, 4), set.clone());
    let call = testbed.call("Choose.answer", &[1]);
    let counted = profile(&mut testbed, "counted_selector");
    let (kind, text) = refused(counted.insert_member(1, &call));
    assert_eq!(kind, ErrorKind::InvalidArgument);
    assert!(text.contains("its tables are written with sets"), "{text}");
    assert_eq!(
        refused(counted.insert_group(1, Vec::new(), 0)).0,
        ErrorKind::InvalidArgument
    );
    testbed.clear(COUNTED.1);
    let counted = profile(&mut testbed, "counted_selector");
    counted.insert_member(1, &call).unwrap();

    let no_selector = try_insert(&mut testbed, SHARED, exact(1), set);
    assert!(refused(no_selector).1.contains("it has no selector"));
}

#[test]
fn members_are_not_picked_while_their_port_is_down() {
    let mut testbed = spread();
    let watching = |member, port| GroupMember {
        member,
        weight: 1,
        watch: Some(port),
    };
    let spread = profile(&mut testbed, "Choose.spread");
    spread
        .insert_group(1, vec![watching(1, 11), watching(2, 12)], 0)
        .unwrap();
    insert(&mut testbed, EXACT, exact(1), EntryAction::Group(1));
    let both = numbers(&mut testbed, EXACT, 1);
    assert!(both.contains(&10) && both.contains(&20));
    testbed.engine.set_ports(&[(12, PortState::Down)]);
    assert_eq!(numbers(&mut testbed, EXACT, 1), [10; 12]);
    // A member that is added while its port is down is not picked either.
    let spread = profile(&mut testbed, "Choose.spread");
    let members = vec![watching(1, 11), watching(2, 12), watching(3, 12)];
    spread.modify_group(1, members.clone(), 0).unwrap();
    assert_eq!(numbers(&mut testbed, EXACT, 1), [10; 12]);
    testbed.engine.set_ports(&[(11, PortState::Down)]);
    assert_eq!(
        numbers(&mut testbed, EXACT, 1),
        [0; 12],
        "no member is left"
    );
    let up = [
        (11, PortState::Up),
        (12, PortState::Up),
        (13, PortState::Absent),
    ];
    testbed.engine.set_ports(&up);
    let picked = [10, 10, 30, 10, 20, 30, 10, 10, 30, 10, 30, 20];
    assert_eq!(numbers(&mut testbed, EXACT, 1), picked);
    let spread = profile(&mut testbed, "Choose.spread");
    assert_eq!(
        refused(spread.modify_group(1, vec![watching(1, 13)], 0)),
        (
            ErrorKind::InvalidArgument,
            "action profile Choose.spread: watch_port 13: the switch has no such port".into()
        )
    );
    assert_eq!(spread.group(1).unwrap().members, members);
}

#[test]
fn sizes_are_limits() {
    let mut testbed = program!("profiles");
    let call = testbed.call("Choose.answer", &[1]);
    let members = profile(&mut testbed, "members");
    for id in 1..=4 {
        members.insert_member(id, &call).unwrap();
    }
    assert_eq!(
        refused(members.insert_member(5, &call)),
        (
            ErrorKind::ResourceExhausted,
            "action profile members: number of members would be 5, the limit is 4".into()
        )
    );

    use ErrorKind::*;
    let narrow = profile(&mut testbed, "Choose.narrow");
    for id in 1..=5 {
        narrow.insert_member(id, &call).unwrap();
    }
    let mut group = |id, members: &[(u32, u32)], max_size| {
        let inserted = narrow.insert_group(id, weights(members), max_size);
        inserted.map_err(|error| error.kind())
    };
    assert_eq!(group(1, &[(1, 1)], 4), Err(InvalidArgument), "above 3");
    assert_eq!(group(1, &[(1, 4)], 0), Err(ResourceExhausted), "3 at most");
    assert_eq!(group(1, &[(1, 1), (2, 2)], 2), Err(ResourceExhausted));
    assert_eq!(group(1, &[(1, 1), (2, 2)], 3), Ok(()));
    assert_eq!(group(2, &[(1, 3)], 3), Err(ResourceExhausted), "5 in all");
    assert_eq!(group(2, &[(1, 2)], 3), Ok(()));
    let modified = narrow.modify_group(1, weights(&[(3, 3)]), 3);
    assert_eq!(modified, Ok(()), "its old members do not count");
    assert_eq!(
        refused(narrow.modify_group(1, weights(&[(3, 1)]), 2)).0,
        InvalidArgument,
        "max_size cannot be changed"
    );
}

#[test]
fn profiles_are_bound_by_the_limits_of_the_engine() {
    let limits = Limits {
        profile_groups: 1,
        profile_weight: 1,
        ..Limits::default()
    };
    let mut testbed = Testbed::with_limits(
        include_bytes!("../programs/profiles.json"),
        include_str!("../programs/profiles.p4info.txtpb"),
        limits,
    );
    for id in 1..=2 {
        member(&mut testbed, "Choose.heavy", id, 1);
    }
    let heavy = profile(&mut testbed, "Choose.heavy");
    let too_heavy = heavy.insert_group(1, weights(&[(1, 1), (2, 1)]), 0);
    assert_eq!(refused(too_heavy).0, ErrorKind::ResourceExhausted);
    heavy.insert_group(1, weights(&[(1, 1)]), 0).unwrap();
    assert_eq!(
        refused(heavy.insert_group(2, Vec::new(), 0)),
        (
            ErrorKind::ResourceExhausted,
            "action profile Choose.heavy: number of groups would be 2, the limit is 1".into()
        )
    );
}

#[test]
fn invalid_writes_are_rejected() {
    use ErrorKind::*;
    let mut testbed = spread();
    let call = testbed.call("Choose.answer", &[1]);
    let other = testbed.call("Choose.answer_more", &[1, 1]);
    let wide = testbed.call("Choose.answer", &[256]);
    let spread = profile(&mut testbed, "Choose.spread");
    assert_eq!(refused(spread.insert_member(0, &call)).0, InvalidArgument);
    assert_eq!(refused(spread.insert_member(1, &call)).0, AlreadyExists);
    assert_eq!(refused(spread.insert_member(9, &other)).0, InvalidArgument);
    assert_eq!(refused(spread.insert_member(9, &wide)).0, OutOfRange);
    assert_eq!(refused(spread.modify_member(9, &call)).0, NotFound);
    assert_eq!(refused(spread.modify_member(1, &other)).0, InvalidArgument);
    assert_eq!(refused(spread.delete_member(9)).0, NotFound);
    assert_eq!(
        refused(spread.member(9)),
        (
            NotFound,
            "action profile Choose.spread has no member 9".into()
        )
    );
    spread.insert_group(1, weights(&[(1, 1)]), 0).unwrap();
    let mut group =
        |id, members: &[(u32, u32)]| refused(spread.insert_group(id, weights(members), 0));
    assert_eq!(group(0, &[]).0, InvalidArgument);
    assert_eq!(group(1, &[]).0, AlreadyExists);
    assert_eq!(group(2, &[(9, 1)]).0, NotFound);
    assert_eq!(
        group(2, &[(1, 1), (1, 2)]),
        (
            InvalidArgument,
            "action profile Choose.spread: group 2: member 1 is there twice; use its weight".into()
        )
    );
    assert_eq!(
        group(2, &[(1, 0)]).1,
        "action profile Choose.spread: group 2: weight 0, expected 1 or more"
    );
    assert_eq!(refused(spread.modify_group(2, Vec::new(), 0)).0, NotFound);
    assert_eq!(refused(spread.delete_group(2)).0, NotFound);

    let mut inserted = |table, action| refused(try_insert(&mut testbed, table, exact(1), action));
    assert_eq!(inserted(EXACT, EntryAction::Member(9)).0, NotFound);
    assert_eq!(inserted(EXACT, EntryAction::Group(9)).0, NotFound);
    assert_eq!(inserted(EXACT, call.clone().into()).0, InvalidArgument);
    assert_eq!(inserted(SHARED, EntryAction::Group(1)).0, InvalidArgument);
    let metered = (7, "Choose.metered");
    assert_eq!(
        inserted(metered, EntryAction::Member(1)).1,
        "table Choose.metered has no action profile: expected an action, not a member, group or set"
    );
    let table = testbed.table(EXACT.1);
    let default = TableEntry {
        action: Some(call.into()),
        ..TableEntry::default()
    };
    let mut writable = testbed.engine.table_mut(table).unwrap();
    assert_eq!(
        refused(writable.set_default(Some(default))).0,
        PermissionDenied
    );
    assert_eq!(writable.default_entry().entry.action, None);
    let members = profile(&mut testbed, "members");
    assert_eq!(
        refused(members.insert_group(1, Vec::new(), 0)).1,
        "action profile members: it has no selector: expected members, not groups or sets"
    );
}

#[test]
fn sets_must_fit_their_selector() {
    use ErrorKind::*;
    let mut testbed = program!("profiles");
    let mut inserted = |table, actions: &[(u8, u32)]| {
        let set = EntryAction::OneShot(one_shot(&testbed, actions));
        let inserted = try_insert(&mut testbed, table, exact(1), set);
        inserted.map_err(|error| error.kind())
    };
    assert_eq!(inserted(LIMITED, &[(1, 4)]), Err(InvalidArgument));
    assert_eq!(inserted(LIMITED, &[(1, 0)]), Err(InvalidArgument));
    assert_eq!(inserted(WEIGHTED, &[(1, 2), (2, 2)]), Err(InvalidArgument));
    assert_eq!(inserted(WEIGHTED, &[(1, 1), (2, 1)]), Ok(()));
    assert_eq!(inserted(LIMITED, &[(1, 3)]), Ok(()));
}
