//! Members and groups of action profiles, and one-shot action sets (P4Runtime §9.2).

use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::v1::action_profile_action::WatchKind as ActionWatch;
use ultima_p4runtime::v1::action_profile_group::Member as MemberMessage;
use ultima_p4runtime::v1::action_profile_group::member::WatchKind as MemberWatch;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    ActionProfileAction, ActionProfileActionSet, ActionProfileGroup, ActionProfileMember,
};

use super::action::{action_message, call};
use super::edit::Edit;
use super::query::{ENTRY, Query, Row, Scan, cost_of};
use crate::config::MAX_PORT;
use crate::pipeline::Pipeline;
use crate::target::Refusal;
use ultima_engine::{ActionCall, GroupMember, GroupView, OneShot, Profile, WeightedCall};

pub(super) fn write_member(
    update: UpdateType,
    message: ActionProfileMember,
) -> Result<Edit, Refusal> {
    let (profile, id) = (message.action_profile_id, message.member_id);
    let action = message.action.map(call).ok_or_else(|| {
        Refusal::invalid(format!(
            "member {id} has no action: expected one of its tables' actions"
        ))
    });
    Edit::new(move |pipeline| {
        let profile = pipeline.engine.profile_mut(profile)?;
        match update {
            UpdateType::Insert => profile.insert_member(id, &action?)?,
            UpdateType::Modify => profile.modify_member(id, &action?)?,
            _ => profile.delete_member(id)?,
        }
        Ok(())
    })
}

pub(super) fn write_group(
    update: UpdateType,
    message: &ActionProfileGroup,
) -> Result<Edit, Refusal> {
    let (profile, id) = (message.action_profile_id, message.group_id);
    let members = message.members.iter().map(group_member);
    let members = members.collect::<Result<Vec<_>, _>>();
    let max_size = u32::try_from(message.max_size).map_err(|_| {
        let size = message.max_size;
        Refusal::invalid(format!("group {id}: max_size {size} is negative"))
    });
    Edit::new(move |pipeline| {
        let profile = pipeline.engine.profile_mut(profile)?;
        match update {
            UpdateType::Insert => profile.insert_group(id, members?, max_size?)?,
            UpdateType::Modify => profile.modify_group(id, members?, max_size?)?,
            _ => profile.delete_group(id)?,
        }
        Ok(())
    })
}

pub(super) fn member(
    action_profile_id: u32,
    member_id: u32,
    call: ActionCall,
) -> ActionProfileMember {
    ActionProfileMember {
        action_profile_id,
        member_id,
        action: Some(action_message(call)),
    }
}

pub(super) fn group(action_profile_id: u32, group_id: u32, group: GroupView) -> ActionProfileGroup {
    ActionProfileGroup {
        action_profile_id,
        group_id,
        members: group.members.iter().map(member_message).collect(),
        // It came as one.
        max_size: group.max_size as i32,
    }
}

/// Reads one member, all members of a profile (member id 0), or all members (no profile id).
pub(super) fn read_members(request: &ActionProfileMember) -> Result<Query, Refusal> {
    let (profile, member) = (request.action_profile_id, request.member_id);
    check_ids("member", profile, member)?;
    Ok(Box::new(move |pipeline, scan, found| {
        in_profiles(pipeline, profile, scan, |profile, scan, first| {
            if member != 0 {
                found.push(Row::Member(profile.id(), member, profile.member(member)?));
                return Ok(());
            }
            for (id, call) in profile.members_from(first) {
                if !scan.admits(profile.id(), u64::from(id), ENTRY) {
                    break;
                }
                found.push(Row::Member(profile.id(), id, call));
            }
            Ok(())
        })
    }))
}

/// Reads groups, like [`read_members`].
pub(super) fn read_groups(request: &ActionProfileGroup) -> Result<Query, Refusal> {
    let (profile, group) = (request.action_profile_id, request.group_id);
    check_ids("group", profile, group)?;
    Ok(Box::new(move |pipeline, scan, found| {
        in_profiles(pipeline, profile, scan, |profile, scan, first| {
            if group != 0 {
                found.push(Row::Group(profile.id(), group, profile.group(group)?));
                return Ok(());
            }
            for (id, view) in profile.groups_from(first) {
                if !scan.admits(profile.id(), u64::from(id), cost_of(view.members.len())) {
                    break;
                }
                found.push(Row::Group(profile.id(), id, view));
            }
            Ok(())
        })
    }))
}

/// Rejects the id of a member or group without a profile's id.
fn check_ids(kind: &str, profile: u32, id: u32) -> Result<(), Refusal> {
    match (profile, id) {
        (0, 1..) => Err(Refusal::invalid(format!(
            "{kind} {id} without an action profile id: expected an id, or neither to read all"
        ))),
        _ => Ok(()),
    }
}

/// Passes on the profile of an id, or with id 0 all profiles, from the walk's position.
fn in_profiles(
    pipeline: &Pipeline,
    id: u32,
    scan: &mut Scan,
    mut each: impl FnMut(&Profile, &mut Scan, u32) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for profile in pipeline.engine.profiles_of(id)? {
        if !scan.is_past(profile.id()) && !scan.is_paused() {
            let first = u32::try_from(scan.first(profile.id())).unwrap_or(u32::MAX);
            each(profile, scan, first)?;
        }
    }
    Ok(())
}

/// Reads a one-shot action set. Its selector alone determines how it picks and what its size counts.
pub(super) fn one_shot(set: ActionProfileActionSet) -> Result<OneShot, Refusal> {
    if set.group_action.is_some() {
        return Err(Refusal::unimplemented(
            "group_action: this switch does not support it, leave it unset",
        ));
    }
    for (field, value) in [
        ("action_selection_mode", set.action_selection_mode),
        ("size_semantics", set.size_semantics),
    ] {
        if value != 0 {
            return Err(Refusal::unimplemented(format!(
                "{field} {value}: expected the default, which the action selector determines"
            )));
        }
    }
    let actions = set.action_profile_actions.into_iter().map(|one| {
        let Some(action) = one.action else {
            return Err(Refusal::invalid("an action of the set is empty"));
        };
        let watch = match &one.watch_kind {
            Some(ActionWatch::WatchPort(port)) => watch_port(port)?,
            Some(_) => return Err(old_watch()),
            None => None,
        };
        Ok(WeightedCall {
            call: call(action),
            weight: weight(one.weight)?,
            watch,
        })
    });
    Ok(OneShot {
        actions: actions.collect::<Result<_, _>>()?,
    })
}

/// Converts a one-shot action set to a message, as it was written.
pub(super) fn one_shot_message(set: OneShot) -> ActionProfileActionSet {
    let actions = set.actions.into_iter().map(|one| ActionProfileAction {
        action: Some(action_message(one.call)),
        weight: one.weight as i32,
        watch_kind: one
            .watch
            .map(|port| ActionWatch::WatchPort(Bytestring::from(port).into())),
    });
    ActionProfileActionSet {
        action_profile_actions: actions.collect(),
        ..ActionProfileActionSet::default()
    }
}

fn group_member(message: &MemberMessage) -> Result<GroupMember, Refusal> {
    let watch = match &message.watch_kind {
        Some(MemberWatch::WatchPort(port)) => watch_port(port)?,
        Some(_) => return Err(old_watch()),
        None => None,
    };
    Ok(GroupMember {
        member: message.member_id,
        weight: weight(message.weight)?,
        watch,
    })
}

fn member_message(member: &GroupMember) -> MemberMessage {
    MemberMessage {
        member_id: member.member,
        // It came as one.
        weight: member.weight as i32,
        watch_kind: member
            .watch
            .map(|port| MemberWatch::WatchPort(Bytestring::from(port).into())),
    }
}

fn weight(weight: i32) -> Result<u32, Refusal> {
    u32::try_from(weight).map_err(|_| Refusal::invalid(format!("weight {weight} is negative")))
}

fn old_watch() -> Refusal {
    Refusal::unimplemented("watch, which P4Runtime deprecates: expected watch_port")
}

/// Reads a port in bytes. Empty bytes mean no port.
fn watch_port(bytes: &[u8]) -> Result<Option<u16>, Refusal> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let number = bytes.iter().try_fold(0u16, |number, byte| {
        number.checked_mul(256)?.checked_add(u16::from(*byte))
    });
    match number.filter(|port| *port <= MAX_PORT) {
        Some(port) => Ok(Some(port)),
        None => Err(Refusal::invalid(format!(
            "watch_port: expected a port from 0 to {MAX_PORT}"
        ))),
    }
}
