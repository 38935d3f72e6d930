//! Action profiles: actions that entries of one or more tables share, each by itself or in groups
//! from which a selector picks by a hash.
//!
//! BMv2 picks the n-th of a group's members in the order of its own member handles, n being the
//! hash modulo their number; a member of weight w has w handles. Handles are numbered here as
//! there, so that both pick the same member for a packet when they were written in the same order.
//! A group without a live member does nothing, as P4Runtime has it (§9.2.4, `NoAction`).

mod map;
mod slots;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::map::Map;
use self::slots::Slots;
use super::checksum::Calculation;
use super::error::ControlError;
use super::table::{ActionCall, Owner, Signature};

/// How the sizes of a selector are counted (P4Runtime §6.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeSemantics {
    /// By the weights of members in groups.
    SumOfWeights,
    /// By members in groups, each of at most this weight; 0 for any.
    SumOfMembers { max_weight: u32 },
}

/// What the program says of a profile.
#[derive(Debug)]
pub(super) struct Declaration {
    /// Its P4Info id.
    pub id: u32,
    pub name: String,
    /// What its tables may do; they have the same actions.
    pub actions: Vec<Signature>,
    pub selector: Option<Selector>,
    /// Members it has room for; with a selector, also the sum over all groups.
    pub size: usize,
    /// Groups it may have, from the switch's limits.
    pub max_groups: usize,
    /// Weights of all groups together, from the switch's limits.
    pub max_weight: usize,
}

/// What picks a member of a group.
#[derive(Debug)]
pub(super) struct Selector {
    pub hash: Calculation,
    pub semantics: SizeSemantics,
    /// Size of a group; 0 if the program does not say.
    pub max_group_size: usize,
    /// Members have no weight, so all have the same.
    pub weights_disallowed: bool,
}

/// An action profile, with or without a selector.
#[derive(Debug)]
pub struct Profile {
    declared: Declaration,
    members: Map<Member>,
    /// Positions of groups by id.
    group_ids: Map<u32>,
    /// Named groups, and the sets that entries have to themselves.
    groups: Slots<Group>,
    /// Members by BMv2's handles.
    copies: Slots<Bound>,
    /// Entries that have a set to themselves.
    one_shots: usize,
    used: Used,
    /// `one_shots` and `used` before changes that may be taken back.
    before: Option<(usize, Used)>,
    /// Ports that are not up.
    ports: BTreeMap<u16, PortState>,
}

/// What groups and sets take, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Used {
    /// In the unit of the selector's sizes.
    size: usize,
    weight: usize,
}

/// An action with its arguments.
#[derive(Debug, Clone)]
struct Bound {
    /// Position among the profile's actions.
    action: usize,
    args: Arc<[u8]>,
}

#[derive(Debug, Clone)]
struct Member {
    bound: Bound,
    /// As many as its greatest weight, at least one.
    copies: Arc<Vec<u32>>,
    /// Entries that refer to it.
    entries: usize,
    /// The weights that it has in groups, and in how many groups it has each.
    weights: BTreeMap<u32, usize>,
}

#[derive(Debug, Clone)]
struct Group {
    written: Arc<[GroupMember]>,
    max_size: u32,
    used: Used,
    /// Copies of members with the ports that they need, in order of copies.
    ways: Arc<[(u32, Option<u16>)]>,
    /// Copies whose port is up.
    live: Arc<[u32]>,
    /// Entries that refer to it.
    entries: usize,
}

/// A member as part of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's id.
    pub member: u32,
    /// Its share among the members' weights: 1 or more, 0 where the program disallows weights.
    pub weight: u32,
    /// The port without which it is not picked.
    pub watch: Option<Watch>,
}

/// A port that a member of a group needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// The port.
    pub port: u16,
    /// Whether it was given in the message's older field, `watch`, and is to be read there.
    pub deprecated: bool,
}

/// How a port is, to those who watch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It is there and reaches somebody.
    Up,
    /// It is there and reaches nobody.
    Down,
    /// The switch has no such port; nobody can start to watch it.
    Absent,
}

/// A group as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// Its members, in the order in which they were given.
    pub members: Vec<GroupMember>,
    /// Its greatest size as it was given; 0 stands for the program's.
    pub max_size: u32,
}

/// What an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// A copy of a member.
    Member(u32),
    /// A group, by position.
    Group(u32),
}

impl Profile {
    pub(super) fn new(declared: Declaration) -> Profile {
        Profile {
            declared,
            members: Map::default(),
            group_ids: Map::default(),
            groups: Slots::default(),
            copies: Slots::default(),
            one_shots: 0,
            used: Used::default(),
            before: None,
            ports: BTreeMap::new(),
        }
    }

    /// Its P4Info id.
    pub fn id(&self) -> u32 {
        self.declared.id
    }

    /// Its P4Info name.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Whether it has groups.
    pub fn has_selector(&self) -> bool {
        self.declared.selector.is_some()
    }

    /// All members by id, values canonical.
    pub fn members(&self) -> impl Iterator<Item = (u32, ActionCall)> + '_ {
        self.members_from(0)
    }

    /// Members by id, from this one on.
    pub fn members_from(&self, first: u32) -> impl Iterator<Item = (u32, ActionCall)> + '_ {
        let members = self.members.range(first..);
        members.map(|(id, member)| (*id, self.call(&member.bound)))
    }

    /// The action of a member.
    ///
    /// # Errors
    /// There is no such member.
    pub fn member(&self, id: u32) -> Result<ActionCall, ControlError> {
        let member = self.members.get(&id);
        let member = member.ok_or_else(|| self.missing(MEMBER, id))?;
        Ok(self.call(&member.bound))
    }

    /// All groups by id.
    pub fn groups(&self) -> impl Iterator<Item = (u32, GroupView)> + '_ {
        self.groups_from(0)
    }

    /// Groups by id, from this one on.
    pub fn groups_from(&self, first: u32) -> impl Iterator<Item = (u32, GroupView)> + '_ {
        let groups = self.group_ids.range(first..);
        groups.filter_map(|(id, at)| Some((*id, self.groups.get(*at)?.view())))
    }

    /// A group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group(&self, id: u32) -> Result<GroupView, ControlError> {
        let group = self.group_ids.get(&id).and_then(|at| self.groups.get(*at));
        let group = group.ok_or_else(|| self.missing(GROUP, id))?;
        Ok(group.view())
    }

    /// The action that runs for an entry: its position among the profile's, and its arguments.
    /// `None` when the entry's group has no live member.
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

    /// Says how ports are: members that watch one are picked only while it is up. Ports count as
    /// up until this says otherwise.
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

    /// From now on, writes may be taken back; no port comes or goes until that is decided.
    pub(super) fn begin(&mut self) {
        self.members.begin();
        self.group_ids.begin();
        self.groups.begin();
        self.copies.begin();
        self.before = Some((self.one_shots, self.used));
    }

    /// What was written stays.
    pub(super) fn accept(&mut self) {
        self.members.accept();
        self.group_ids.accept();
        self.groups.accept();
        self.copies.accept();
        self.before = None;
    }

    /// Takes back what was written, at the cost of what it touched.
    pub(super) fn undo(&mut self) {
        self.members.undo();
        self.group_ids.undo();
        self.groups.undo();
        self.copies.undo();
        if let Some((one_shots, used)) = self.before.take() {
            (self.one_shots, self.used) = (one_shots, used);
        }
    }

    fn call(&self, bound: &Bound) -> ActionCall {
        self.declared.actions[bound.action].call(&bound.args)
    }

    fn owner(&self) -> Owner<'_> {
        Owner::Profile(&self.declared.name)
    }

    fn missing(&self, kind: &'static str, id: u32) -> ControlError {
        ControlError::NoSuchShared {
            profile: self.declared.name.clone(),
            kind,
            id,
        }
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
