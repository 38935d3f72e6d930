//! Action profiles over P4Runtime (§9.2): members, groups, one-shot entries.

use tonic::Code;
use ultima_p4runtime::v1::action_profile_action::WatchKind;
use ultima_p4runtime::v1::action_profile_action_set::{ActionSelectionMode, SizeSemantics};
use ultima_p4runtime::v1::action_profile_group::member;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::table_action::Type as ActionType;
use ultima_p4runtime::v1::{
    ActionProfileActionSet, ActionProfileGroup, ActionProfileMember, Entity, TableEntry, Update,
};
use ultima_switch::{ProgramFiles, WireConfig};

use crate::served::common::{Controller, Testbed, base_config};

async fn testbed() -> Testbed {
    testbed_with_ports(1).await
}

async fn testbed_with_ports(ports: usize) -> Testbed {
    let program = ProgramFiles {
        json: include_bytes!("../../programs/profiles.json").to_vec(),
        p4info: Some(include_str!("../../programs/profiles.p4info.txtpb").to_owned()),
    };
    Testbed::with_program(base_config(), program, vec![WireConfig::default(); ports]).await
}

fn member(testbed: &Testbed, profile: &str, id: u32, number: u8) -> ActionProfileMember {
    let profile = testbed.names.action_profile(profile).expect("profile");
    let values = [("number", number.into())];
    profile.member(id, "answer", &values).expect("member")
}

fn group(testbed: &Testbed, id: u32, members: &[(u32, i32)]) -> ActionProfileGroup {
    let spread = testbed.names.action_profile("spread").expect("profile");
    spread.group(id, members.iter().copied())
}

/// An entry of a table whose key is exact.
fn entry(testbed: &Testbed, table: &str, key: u8, action: ActionType) -> TableEntry {
    let table = testbed.names.table(table).expect("table").entry();
    let entry = table.exact("hdr.ask.key", key).expect("key");
    let entry = match action {
        ActionType::ActionProfileMemberId(id) => entry.member(id),
        ActionType::ActionProfileGroupId(id) => entry.group(id),
        other => panic!("{other:?}"),
    };
    entry.expect("action").build().expect("entry")
}

/// A one-shot entry of the table `counted`.
fn one_shot(testbed: &Testbed, key: u8, actions: &[(u8, i32)]) -> TableEntry {
    let answer = testbed.names.actions.get("answer").expect("action");
    let call = |number: u8| answer.call(&[("number", number.into())]).expect("call");
    let actions = actions
        .iter()
        .map(|(number, weight)| (call(*number), *weight));
    let table = testbed.names.table("counted").expect("table").entry();
    let entry = table.lpm("hdr.ask.key", key, 8).expect("key");
    let entry = entry.one_shot(actions).expect("action");
    entry.build().expect("entry")
}

/// The action set of an entry.
fn set(entry: &mut TableEntry) -> &mut ActionProfileActionSet {
    match entry
        .action
        .as_mut()
        .and_then(|action| action.r#type.as_mut())
    {
        Some(ActionType::ActionProfileActionSet(set)) => set,
        other => panic!("{other:?}"),
    }
}

/// The answer to a packet, and true if the packet hit an entry.
fn ask(testbed: &Testbed, table: u8, key: u8, flow: u16) -> (u8, bool) {
    let [high, low] = flow.to_be_bytes();
    testbed.peers[&1].send(&[table, key, high, low, 0, 0, 0x55, 0x55]);
    let frame = testbed.peers[&1].receive();
    (frame[6], frame[7] == 1)
}

async fn read(controller: &mut Controller, request: impl Into<Entity>) -> Vec<Kind> {
    controller.read(vec![request.into()]).await.expect("read")
}

#[tokio::test]
async fn members_and_groups_serve_packets_and_are_read() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
    let members: Vec<_> = (1..=3)
        .map(|id| member(&testbed, "spread", id, id as u8 * 10))
        .collect();
    let other = member(&testbed, "members", 1, 99);
    let two = group(&testbed, 1, &[(1, 2), (3, 1)]);
    let entries = [
        entry(
            &testbed,
            "spread_exact",
            1,
            ActionType::ActionProfileGroupId(1),
        ),
        entry(
            &testbed,
            "spread_exact",
            2,
            ActionType::ActionProfileMemberId(2),
        ),
        entry(
            &testbed,
            "shared_action",
            1,
            ActionType::ActionProfileMemberId(1),
        ),
    ];
    // Each update of a batch sees the ones before it.
    let mut all: Vec<Entity> = members.iter().cloned().map(Entity::from).collect();
    all.extend([other.clone().into(), two.clone().into()]);
    all.extend(entries.iter().cloned().map(Entity::from));
    controller.insert(all).await;
    assert_eq!(ask(&testbed, 1, 1, 0), (99, true));
    assert_eq!(ask(&testbed, 2, 2, 0), (20, true));
    assert_eq!(ask(&testbed, 2, 9, 0), (0, false));
    let picked: Vec<_> = (0..32).map(|flow| ask(&testbed, 2, 1, flow).0).collect();
    assert!(picked.contains(&10) && picked.contains(&30), "{picked:?}");
    assert!(picked.iter().all(|number| [10, 30].contains(number)));

    let spread = testbed.names.action_profile("spread").expect("profile");
    let own: Vec<_> = members
        .iter()
        .cloned()
        .map(Kind::ActionProfileMember)
        .collect();
    assert_eq!(read(&mut controller, spread.all_members()).await, own);
    let everything = read(&mut controller, ActionProfileMember::default()).await;
    assert_eq!(everything.len(), 4);
    assert!(everything.contains(&Kind::ActionProfileMember(other)));
    let one = ActionProfileMember {
        action: None,
        ..members[1].clone()
    };
    assert_eq!(
        read(&mut controller, one).await,
        [Kind::ActionProfileMember(members[1].clone())]
    );
    for request in [
        ActionProfileGroup {
            action_profile_id: spread.id,
            ..Default::default()
        },
        ActionProfileGroup::default(),
        two.clone(),
    ] {
        let found = read(&mut controller, request).await;
        assert_eq!(found, [Kind::ActionProfileGroup(two.clone())]);
    }
    let table = testbed.names.table("spread_exact").expect("table");
    let found = read(&mut controller, table.all_entries()).await;
    assert_eq!(
        found,
        entries[..2]
            .iter()
            .cloned()
            .map(Kind::TableEntry)
            .collect::<Vec<_>>()
    );
    let default = TableEntry {
        is_default_action: true,
        ..table.all_entries()
    };
    let found = read(&mut controller, default.clone()).await;
    assert_eq!(found, [Kind::TableEntry(default)]);

    // A change of members takes effect at once.
    let changed = group(&testbed, 1, &[(3, 1)]);
    let updates = vec![
        Update::modify(changed.clone()),
        Update::modify(member(&testbed, "spread", 3, 33)),
    ];
    controller.write(updates).await.expect("written");
    assert_eq!(ask(&testbed, 2, 1, 0), (33, true));
    let found = read(&mut controller, changed.clone()).await;
    assert_eq!(found, [Kind::ActionProfileGroup(changed)]);
}

#[tokio::test]
async fn invalid_writes_are_rejected_with_their_code() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
    let one = member(&testbed, "spread", 1, 10);
    let group_entry = entry(
        &testbed,
        "spread_exact",
        1,
        ActionType::ActionProfileGroupId(1),
    );
    controller
        .insert(vec![
            one.clone().into(),
            group(&testbed, 1, &[(1, 1)]).into(),
            group_entry.clone().into(),
        ])
        .await;
    let nothing = ActionProfileMember {
        action: None,
        ..member(&testbed, "spread", 2, 0)
    };
    let negative = group(&testbed, 2, &[(1, -1)]);
    let sized = ActionProfileGroup {
        max_size: 1,
        ..group(&testbed, 1, &[])
    };
    let unknown_profile = ActionProfileGroup {
        action_profile_id: 7,
        ..group(&testbed, 2, &[])
    };
    let mut no_port = group(&testbed, 2, &[(1, 1)]);
    no_port.members[0].watch_kind = Some(member::WatchKind::WatchPort(vec![2, 0]));
    let direct = TableEntry {
        action: Some(ultima_p4runtime::v1::TableAction {
            r#type: one.action.clone().map(ActionType::Action),
        }),
        ..entry(
            &testbed,
            "spread_exact",
            2,
            ActionType::ActionProfileMemberId(1),
        )
    };
    let missing = entry(
        &testbed,
        "spread_exact",
        2,
        ActionType::ActionProfileMemberId(9),
    );
    let mut mixed = one_shot(&testbed, 2, &[(1, 1)]);
    let spread = testbed.names.table("spread_exact").expect("table");
    mixed.table_id = spread.id;
    mixed.r#match.clone_from(&group_entry.r#match);
    mixed.r#match[0] = spread
        .entry()
        .exact("hdr.ask.key", 3u8)
        .and_then(|entry| entry.key())
        .expect("key")
        .r#match
        .remove(0);
    let default = TableEntry {
        is_default_action: true,
        action: group_entry.action.clone(),
        ..spread.all_entries()
    };
    use Code::*;
    let cases: [(Update, Code); 15] = [
        (Update::insert(one.clone()), AlreadyExists),
        (Update::insert(nothing.clone()), InvalidArgument),
        (Update::modify(member(&testbed, "spread", 2, 0)), NotFound),
        (Update::delete(member(&testbed, "spread", 2, 0)), NotFound),
        (Update::delete(one), FailedPrecondition),
        (Update::delete(group(&testbed, 1, &[])), FailedPrecondition),
        (Update::insert(group(&testbed, 2, &[(9, 1)])), NotFound),
        (
            Update::insert(group(&testbed, 2, &[(1, 0)])),
            InvalidArgument,
        ),
        (Update::insert(negative), InvalidArgument),
        (Update::modify(sized), InvalidArgument),
        (Update::insert(unknown_profile), NotFound),
        (Update::insert(no_port), InvalidArgument),
        (Update::insert(direct), InvalidArgument),
        (Update::insert(missing), NotFound),
        (Update::insert(mixed), InvalidArgument),
    ];
    for (update, code) in cases {
        let text = format!("{update:?}");
        assert_eq!(controller.try_write(update).await, Err(code), "{text}");
    }
    assert_eq!(
        controller.try_write(Update::modify(default)).await,
        Err(PermissionDenied)
    );
    for wrong in [
        Entity::from(nothing),
        ActionProfileMember {
            member_id: 1,
            ..ActionProfileMember::default()
        }
        .into(),
        group(&testbed, 9, &[]).into(),
    ] {
        assert!(controller.read(vec![wrong]).await.is_err());
    }
}

#[tokio::test]
async fn members_are_not_selected_while_their_watched_port_is_down() {
    let mut testbed = testbed_with_ports(2).await;
    let mut controller = testbed.controller().await;
    let watching = |members: &[(u32, u8)]| {
        let mut group = group(&testbed, 1, &[(1, 1), (2, 1)]);
        for (member, port) in members {
            let found = group.members.iter_mut().find(|m| m.member_id == *member);
            let kind = member::WatchKind::WatchPort(vec![*port]);
            found.expect("a member").watch_kind = Some(kind);
        }
        group
    };
    let entities = vec![
        member(&testbed, "spread", 1, 10).into(),
        member(&testbed, "spread", 2, 20).into(),
        watching(&[(1, 1), (2, 2)]).into(),
        entry(
            &testbed,
            "spread_exact",
            1,
            ActionType::ActionProfileGroupId(1),
        )
        .into(),
    ];
    let unknown_port = Update::modify(watching(&[(1, 9)]));
    controller.insert(entities).await;
    assert_eq!(
        controller.try_write(unknown_port).await,
        Err(Code::InvalidArgument)
    );
    let picked = |testbed: &Testbed| {
        (0..32)
            .map(|flow| ask(testbed, 2, 1, flow).0)
            .collect::<Vec<_>>()
    };
    let both = picked(&testbed);
    assert!(both.contains(&10) && both.contains(&20), "{both:?}");
    testbed.peers.remove(&2);
    while testbed.port(2).await.connected {}
    assert_eq!(picked(&testbed), [10; 32]);
}

#[tokio::test]
async fn one_shot_entries_are_read_as_they_were_written() {
    let testbed = testbed().await;
    let mut controller = testbed.controller().await;
    let mut plain = one_shot(&testbed, 1, &[(1, 1), (2, 1), (1, 1)]);
    set(&mut plain).action_profile_actions[0].watch_kind = Some(WatchKind::WatchPort(vec![1]));
    let written = [plain, one_shot(&testbed, 2, &[(9, 4)])];
    controller
        .insert(written.iter().cloned().map(Entity::from).collect())
        .await;
    let table = testbed.names.table("counted").expect("table");
    let expected: Vec<_> = written.iter().cloned().map(Kind::TableEntry).collect();
    assert_eq!(read(&mut controller, table.all_entries()).await, expected);
    assert_eq!(
        read(&mut controller, ActionProfileGroup::default()).await,
        []
    );
    // The hash is the identity, so the flow selects the member.
    let picked: Vec<_> = (0..6).map(|flow| ask(&testbed, 4, 1, flow).0).collect();
    assert_eq!(picked, [1, 2, 1, 1, 2, 1]);
    assert_eq!(ask(&testbed, 4, 2, 7), (9, true));

    let mut hash = written[1].clone();
    set(&mut hash).action_selection_mode = ActionSelectionMode::Hash.into();
    let mut by_weights = written[1].clone();
    set(&mut by_weights).size_semantics = SizeSemantics::SumOfWeights.into();
    #[expect(deprecated, reason = "the field that is rejected")]
    let kind = WatchKind::Watch(1);
    let mut watching = written[1].clone();
    set(&mut watching).action_profile_actions[0].watch_kind = Some(kind);
    let mut with_group_action = written[1].clone();
    set(&mut with_group_action).group_action = set(&mut with_group_action).action_profile_actions
        [0]
    .action
    .clone();
    for other in [hash, by_weights, watching, with_group_action] {
        let outcome = controller.try_write(Update::modify(other)).await;
        assert_eq!(outcome, Err(Code::Unimplemented));
    }
    let member = member(&testbed, "counted_selector", 1, 1);
    assert_eq!(
        controller.try_write(Update::insert(member)).await,
        Err(Code::InvalidArgument)
    );
    let deletions = written.iter().cloned().map(Update::delete).collect();
    controller.write(deletions).await.expect("written");
    assert_eq!(ask(&testbed, 4, 2, 7), (0, false));
}
