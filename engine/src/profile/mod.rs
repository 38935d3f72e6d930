//! Action profiles: actions that table entries share, as members or as groups from which a selector picks by a hash.
//!
//! BMv2 picks member number (hash modulo count) in the order of its member handles. A member of weight w has w handles. This
//! switch numbers handles in the same way, so both pick the same member after equal writes. A group without a live member
//! executes `NoAction` (P4Runtime §9.2.4).

mod slots;
mod write;

use std::collections::BTreeMap;

use self::slots::Slots;
use super::checksum::Calculation;
use super::error::{ControlError, ErrorKind};
use super::table::entry::ActionCall;
use super::table::key::Owner;
use super::table::signature::Signature;

#[derive(Debug)]
pub(super) struct Declaration {
    /// The profile's P4Info id.
    pub id: u32,
    pub name: String,
    /// The actions of its tables, which all have the same actions.
    pub actions: Vec<Signature>,
    pub selector: Option<Selector>,
    /// Largest number of members.
    pub size: usize,
    /// Largest number of groups, from the switch's limits.
    pub max_groups: usize,
    /// Largest sum of weights of all groups.
    pub max_weight: usize,
}

#[derive(Debug)]
pub(super) struct Selector {
    pub hash: Calculation,
    /// Largest sum of weights of a group; 0 if the program sets none.
    pub max_group_size: usize,
}

/// An action profile, with or without a selector.
#[derive(Debug)]
pub struct Profile {
    declared: Declaration,
    members: BTreeMap<u32, Member>,
    /// Positions of groups by id.
    group_ids: BTreeMap<u32, u32>,
    /// Groups, and one-shot sets of entries.
    groups: Slots<Group>,
    /// Members by BMv2's handles.
    copies: Slots<Bound>,
    /// Number of entries with a one-shot set.
    one_shots: usize,
    /// Sum of weights of all groups and sets.
    weight: usize,
    /// Ports that are not up.
    ports: BTreeMap<u16, PortState>,
}

/// An action with its arguments.
#[derive(Debug, Clone)]
struct Bound {
    /// Position among the profile's actions.
    action: usize,
    args: Box<[u8]>,
}

#[derive(Debug)]
struct Member {
    bound: Bound,
    /// One per unit of the member's greatest weight, at least one.
    copies: Vec<u32>,
    /// Number of entries that refer to it.
    entries: usize,
    /// The member's weights in groups, each with the number of groups.
    weights: BTreeMap<u32, usize>,
}

#[derive(Debug)]
struct Group {
    written: Vec<GroupMember>,
    max_size: u32,
    weight: usize,
    /// Copies of members with the ports that they need, in order of copies.
    ways: Vec<(u32, Option<u16>)>,
    /// Copies whose port is up.
    live: Vec<u32>,
    /// Number of entries that refer to it.
    entries: usize,
}

/// A member as part of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's id.
    pub member: u32,
    /// Its weight, 1 or more.
    pub weight: u32,
    /// The port that must be up for the selector to pick it.
    pub watch: Option<u16>,
}

/// The state of a watched port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// The port has a peer.
    Up,
    /// The port has no peer.
    Down,
    /// The switch has no such port. New members cannot watch it.
    Absent,
}

/// A group, for reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// Members in the order in which they were written.
    pub members: Vec<GroupMember>,
    /// Largest size, as written; 0 means the program's.
    pub max_size: u32,
}

/// The target of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Member(u32),
    Group(u32),
}

impl Profile {
    pub(super) fn new(declared: Declaration) -> Profile {
        Profile {
            declared,
            members: BTreeMap::new(),
            group_ids: BTreeMap::new(),
            groups: Slots::default(),
            copies: Slots::default(),
            one_shots: 0,
            weight: 0,
            ports: BTreeMap::new(),
        }
    }

    /// The profile's P4Info id.
    pub fn id(&self) -> u32 {
        self.declared.id
    }

    /// Returns its P4Info name.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Iterates over members by id, with canonical values, starting at `first`.
    pub fn members_from(&self, first: u32) -> impl Iterator<Item = (u32, ActionCall)> + '_ {
        let members = self.members.range(first..);
        members.map(|(id, member)| (*id, self.call(&member.bound)))
    }

    /// Returns the action of a member.
    ///
    /// # Errors
    /// There is no such member.
    pub fn member(&self, id: u32) -> Result<ActionCall, ControlError> {
        let member = self.members.get(&id);
        let member = member.ok_or_else(|| self.missing(MEMBER, id))?;
        Ok(self.call(&member.bound))
    }

    /// Iterates over groups by id, starting at `first`.
    pub fn groups_from(&self, first: u32) -> impl Iterator<Item = (u32, GroupView)> + '_ {
        let groups = self.group_ids.range(first..);
        groups.filter_map(|(id, at)| Some((*id, self.groups.get(*at)?.view())))
    }

    /// Returns a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group(&self, id: u32) -> Result<GroupView, ControlError> {
        let group = self.group_ids.get(&id).and_then(|at| self.groups.get(*at));
        let group = group.ok_or_else(|| self.missing(GROUP, id))?;
        Ok(group.view())
    }

    /// Returns the action of an entry: its position among the profile's actions, and its arguments. `None` if the entry's group
    /// has no live member.
    #[inline]
    pub(super) fn choose(
        &self,
        choice: Choice,
        hash: impl FnOnce(&Calculation) -> u64,
    ) -> Option<(usize, &[u8])> {
        let copy = match choice {
            Choice::Member(copy) => copy,
            Choice::Group(at) => {
                let live = &self.groups.get(at)?.live;
                // BMv2 keeps 32 bits of the hash.
                let hash = hash(&self.declared.selector.as_ref()?.hash) as u32;
                live[(hash as usize).checked_rem(live.len())?]
            }
        };
        let bound = self.copies.get(copy)?;
        Some((bound.action, &bound.args))
    }

    /// Sets port states. A selector picks a member with a watch port only while that port is up. Ports are up until set
    /// otherwise.
    pub(super) fn set_ports(&mut self, ports: &[(u16, PortState)]) {
        for (port, state) in ports {
            match state {
                PortState::Up => self.ports.remove(port),
                state => self.ports.insert(*port, *state),
            };
        }
        for group in self.groups.iter_mut() {
            group.revive(&self.ports);
        }
    }

    fn call(&self, bound: &Bound) -> ActionCall {
        self.declared.actions[bound.action].call(&bound.args)
    }

    fn owner(&self) -> Owner<'_> {
        Owner("action profile", &self.declared.name)
    }

    fn missing(&self, kind: &'static str, id: u32) -> ControlError {
        let text = format!("{} has no {kind} {id}", self.owner());
        ControlError::new(ErrorKind::NotFound, text)
    }

    fn error(&self, kind: ErrorKind, what: impl Into<String>) -> ControlError {
        let (owner, what) = (self.owner(), what.into());
        ControlError::new(kind, format!("{owner}: {what}"))
    }
}

const MEMBER: &str = "member";
const GROUP: &str = "group";

impl Group {
    fn view(&self) -> GroupView {
        GroupView {
            members: self.written.to_vec(),
            max_size: self.max_size,
        }
    }

    fn revive(&mut self, not_up: &BTreeMap<u16, PortState>) {
        let up = |watch: &Option<u16>| watch.is_none_or(|port| !not_up.contains_key(&port));
        let ways = self.ways.iter().filter(|(_, watch)| up(watch));
        self.live = ways.map(|(copy, _)| *copy).collect();
    }
}
