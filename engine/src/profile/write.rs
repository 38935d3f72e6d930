//! Writes to action profiles (P4Runtime §9.2).

use std::collections::{BTreeMap, BTreeSet};

use super::super::error::{ControlError, ErrorKind};
use super::super::p4info::ActionScope;
use super::super::table::entry::{ActionCall, EntryAction, OneShot, WeightedCall};
use super::{
    Bound, Choice, GROUP, Group, GroupMember, MEMBER, Member, PortState, Profile, Selector,
};

impl Profile {
    /// Adds a member.
    ///
    /// # Errors
    /// The id is 0 or in use, the profile does not have the action, the profile is full, or its tables use one-shot sets.
    pub fn insert_member(&mut self, id: u32, call: &ActionCall) -> Result<(), ControlError> {
        self.check_id(MEMBER, id)?;
        self.check_named()?;
        let bound = self.bind(call)?;
        if self.members.contains_key(&id) {
            return Err(self.exists(MEMBER, id));
        }
        self.check_room(
            "number of members",
            self.members.len() + 1,
            self.declared.size,
        )?;
        let member = Member {
            copies: vec![self.copies.add(bound.clone())],
            bound,
            entries: 0,
            weights: BTreeMap::new(),
        };
        self.members.insert(id, member);
        Ok(())
    }

    /// Replaces a member's action, also for its groups and entries.
    ///
    /// # Errors
    /// There is no such member, or the profile does not have the action.
    pub fn modify_member(&mut self, id: u32, call: &ActionCall) -> Result<(), ControlError> {
        let missing = self.missing(MEMBER, id);
        if !self.members.contains_key(&id) {
            return Err(missing);
        }
        let bound = self.bind(call)?;
        let member = self.members.get_mut(&id).ok_or(missing)?;
        for copy in member.copies.iter() {
            if let Some(place) = self.copies.get_mut(*copy) {
                *place = bound.clone();
            }
        }
        member.bound = bound;
        Ok(())
    }

    /// Removes a member.
    ///
    /// # Errors
    /// There is no such member, or a group or an entry refers to it.
    pub fn delete_member(&mut self, id: u32) -> Result<(), ControlError> {
        let member = self.members.get(&id);
        let member = member.ok_or_else(|| self.missing(MEMBER, id))?;
        let by = match (member.entries, member.weights.is_empty()) {
            (0, true) => None,
            (0, false) => Some("a group"),
            _ => Some("a table entry"),
        };
        if let Some(by) = by {
            return Err(self.in_use(MEMBER, id, by));
        }
        if let Some(member) = self.members.remove(&id) {
            for copy in member.copies.iter() {
                self.copies.remove(*copy);
            }
        }
        Ok(())
    }

    /// Adds a group of existing members. A `max_size` of 0 means the program's.
    ///
    /// # Errors
    /// The profile has no selector, the id is 0 or in use, a member is unknown or given twice, a weight or size is invalid, the
    /// profile is full, or its tables use one-shot sets.
    pub fn insert_group(
        &mut self,
        id: u32,
        members: Vec<GroupMember>,
        max_size: u32,
    ) -> Result<(), ControlError> {
        self.check_id(GROUP, id)?;
        let max_group_size = self.selector()?.max_group_size;
        self.check_named()?;
        if self.group_ids.contains_key(&id) {
            return Err(self.exists(GROUP, id));
        }
        // §9.2.2.1 wants 1 or more where the program gives a size; BMv2 takes 0 for that size.
        if max_group_size > 0 && max_size as usize > max_group_size {
            let what = format!(
                "group {id}: max_size is {max_size}, the program's max_group_size {max_group_size}"
            );
            return Err(self.wrong(what));
        }
        self.check_group_room()?;
        let weight = self.check_group(id, &members, max_size, 0)?;
        let group = Group {
            written: Vec::new(),
            max_size,
            weight: 0,
            ways: Vec::new(),
            live: Vec::new(),
            entries: 0,
        };
        let at = self.groups.add(group);
        self.group_ids.insert(id, at);
        self.fill(at, members, weight);
        Ok(())
    }

    /// Replaces the members of a group. `max_size` must not change.
    ///
    /// # Errors
    /// As for an insertion, or there is no such group.
    pub fn modify_group(
        &mut self,
        id: u32,
        members: Vec<GroupMember>,
        max_size: u32,
    ) -> Result<(), ControlError> {
        let missing = || self.missing(GROUP, id);
        let at = *self.group_ids.get(&id).ok_or_else(missing)?;
        let old = self.groups.get(at).ok_or_else(missing)?;
        if old.max_size != max_size {
            let what = format!(
                "group {id}: max_size is {max_size}, it was inserted with {} and cannot be changed",
                old.max_size
            );
            return Err(self.wrong(what));
        }
        let weight = self.check_group(id, &members, max_size, old.weight)?;
        self.fill(at, members, weight);
        Ok(())
    }

    /// Removes a group, but not its members.
    ///
    /// # Errors
    /// There is no such group, or an entry refers to it.
    pub fn delete_group(&mut self, id: u32) -> Result<(), ControlError> {
        let at = self.group_ids.get(&id).copied();
        let at = at.ok_or_else(|| self.missing(GROUP, id))?;
        if self.groups.get(at).is_some_and(|group| group.entries > 0) {
            return Err(self.in_use(GROUP, id, "a table entry"));
        }
        self.fill(at, Vec::new(), 0);
        self.groups.remove(at);
        self.group_ids.remove(&id);
        Ok(())
    }

    /// Acquires the target of an entry's action. Returns it with the action in canonical form.
    ///
    /// # Errors
    /// The action refers to an unknown member or group, or is an invalid set.
    pub(crate) fn acquire(
        &mut self,
        action: &EntryAction,
    ) -> Result<(Choice, EntryAction), ControlError> {
        match action {
            EntryAction::Call(_) => Err(self.wrong(
                "its tables' entries have no actions of their own: expected a member, a group or \
                 a set",
            )),
            EntryAction::Member(id) => {
                let missing = self.missing(MEMBER, *id);
                let member = self.members.get_mut(id).ok_or(missing)?;
                member.entries += 1;
                Ok((Choice::Member(member.copies[0]), action.clone()))
            }
            EntryAction::Group(id) => {
                self.selector()?;
                let missing = || self.missing(GROUP, *id);
                let at = *self.group_ids.get(id).ok_or_else(missing)?;
                if let Some(group) = self.groups.get_mut(at) {
                    group.entries += 1;
                }
                Ok((Choice::Group(at), action.clone()))
            }
            EntryAction::OneShot(set) => {
                let (choice, set) = self.acquire_set(set)?;
                Ok((choice, EntryAction::OneShot(set)))
            }
        }
    }

    pub(crate) fn release(&mut self, choice: Choice, action: &EntryAction) {
        match (choice, action) {
            (_, EntryAction::Member(id)) => {
                if let Some(member) = self.members.get_mut(id) {
                    member.entries -= 1;
                }
            }
            (Choice::Group(at), EntryAction::OneShot(_)) => {
                self.one_shots -= 1;
                if let Some(set) = self.groups.remove(at) {
                    self.weight -= set.weight;
                    for (copy, _) in set.ways.iter() {
                        self.copies.remove(*copy);
                    }
                }
            }
            (Choice::Group(at), _) => {
                if let Some(group) = self.groups.get_mut(at) {
                    group.entries -= 1;
                }
            }
            (Choice::Member(_), _) => {}
        }
    }

    /// Creates the members and the group of a one-shot set.
    fn acquire_set(&mut self, set: &OneShot) -> Result<(Choice, OneShot), ControlError> {
        let selector = self.selector()?;
        if !self.members.is_empty() || !self.group_ids.is_empty() {
            return Err(self.wrong(
                "it has members or groups, so its tables cannot be written with sets as well",
            ));
        }
        let weights = set.actions.iter().map(|one| one.weight);
        let weight = self.check_weights("the set", weights)?;
        let max_group_size = selector.max_group_size;
        if max_group_size > 0 && weight > max_group_size {
            let what = format!(
                "the set's size is {weight}, the program's max_group_size {max_group_size}"
            );
            return Err(self.wrong(what));
        }
        self.check_group_room()?;
        self.check_weight(weight, 0)?;
        let mut watches = set.actions.iter().map(|one| one.watch);
        watches.try_for_each(|watch| self.check_watch(watch))?;
        let bounds = set.actions.iter().map(|one| self.bind(&one.call));
        let bounds = bounds.collect::<Result<Vec<_>, _>>()?;

        let (mut ways, mut actions) = (Vec::new(), Vec::new());
        for (one, bound) in set.actions.iter().zip(bounds) {
            for _ in 0..one.weight {
                ways.push((self.copies.add(bound.clone()), one.watch));
            }
            actions.push(WeightedCall {
                call: self.call(&bound),
                ..*one
            });
        }
        ways.sort_unstable_by_key(|(copy, _)| *copy);
        let mut group = Group {
            written: Vec::new(),
            max_size: 0,
            weight,
            ways,
            live: Vec::new(),
            entries: 1,
        };
        group.revive(&self.ports);
        self.weight += weight;
        self.one_shots += 1;
        let at = self.groups.add(group);
        Ok((Choice::Group(at), OneShot { actions }))
    }

    /// Sets a group's members, which have been checked. Handles change as in BMv2: missing ones are added first, then unused ones
    /// are removed, both in order of ids.
    fn fill(&mut self, at: u32, members: Vec<GroupMember>, weight: usize) {
        let Some(group) = self.groups.get_mut(at) else {
            return;
        };
        let before = std::mem::replace(&mut group.weight, weight);
        let old = std::mem::take(&mut group.written);
        self.weight = self.weight - before + weight;
        let touched: BTreeSet<u32> = old
            .iter()
            .chain(members.iter())
            .map(|one| one.member)
            .collect();
        for id in &touched {
            let Some(member) = self.members.get_mut(id) else {
                continue;
            };
            let weight = |list: &[GroupMember]| {
                let found = list.iter().find(|one| one.member == *id);
                found.map(|one| one.weight)
            };
            if let Some(weight) = weight(&members) {
                while member.copies.len() < weight as usize {
                    let copy = self.copies.add(member.bound.clone());
                    member.copies.push(copy);
                }
                *member.weights.entry(weight).or_default() += 1;
            }
            if let Some(weight) = weight(&old)
                && let Some(groups) = member.weights.get_mut(&weight)
            {
                *groups -= 1;
                if *groups == 0 {
                    member.weights.remove(&weight);
                }
            }
        }
        let mut ways = Vec::with_capacity(weight);
        for one in &members {
            if let Some(member) = self.members.get(&one.member) {
                let copies = member.copies.iter().take(one.weight as usize);
                ways.extend(copies.map(|copy| (*copy, one.watch)));
            }
        }
        ways.sort_unstable_by_key(|(copy, _)| *copy);
        for id in &touched {
            if let Some(member) = self.members.get_mut(id) {
                let needed = member.weights.keys().next_back().map_or(1, |most| *most);
                while member.copies.len() > needed as usize {
                    if let Some(copy) = member.copies.pop() {
                        self.copies.remove(copy);
                    }
                }
            }
        }
        if let Some(group) = self.groups.get_mut(at) {
            (group.written, group.ways) = (members, ways);
            group.revive(&self.ports);
        }
    }

    /// Returns the weight of a group of these members, in place of a group of weight `before`.
    fn check_group(
        &self,
        id: u32,
        members: &[GroupMember],
        max_size: u32,
        before: usize,
    ) -> Result<usize, ControlError> {
        let mut seen = BTreeSet::new();
        for GroupMember { member, watch, .. } in members {
            self.check_watch(*watch)?;
            if !seen.insert(*member) {
                let what = format!("group {id}: member {member} is there twice; use its weight");
                return Err(self.wrong(what));
            }
            if !self.members.contains_key(member) {
                return Err(self.missing(MEMBER, *member));
            }
        }
        let weights = members.iter().map(|one| one.weight);
        let weight = self.check_weights(&format!("group {id}"), weights)?;
        let room = match max_size as usize {
            0 => self.selector()?.max_group_size,
            size => size,
        };
        if room > 0 {
            self.check_room("size of a group", weight, room)?;
        }
        self.check_weight(weight, before)?;
        Ok(weight)
    }

    /// Checks that a watched port exists (§9.2.2).
    fn check_watch(&self, watch: Option<u16>) -> Result<(), ControlError> {
        match watch.filter(|port| self.ports.get(port) == Some(&PortState::Absent)) {
            None => Ok(()),
            Some(port) => {
                Err(self.wrong(format!("watch_port {port}: the switch has no such port")))
            }
        }
    }

    /// Returns the sum of weights of a group or set.
    fn check_weights(
        &self,
        at: &str,
        weights: impl Iterator<Item = u32>,
    ) -> Result<usize, ControlError> {
        let mut sum = 0usize;
        for weight in weights {
            if weight == 0 {
                return Err(self.wrong(format!("{at}: weight 0, expected 1 or more")));
            }
            sum = sum.saturating_add(weight as usize);
        }
        Ok(sum)
    }

    /// Checks the profile's size when a group of one weight takes the place of another.
    fn check_weight(&self, weight: usize, before: usize) -> Result<(), ControlError> {
        let all = (self.weight - before).saturating_add(weight);
        self.check_room("size of all groups", all, self.declared.max_weight)
    }

    fn bind(&self, call: &ActionCall) -> Result<Bound, ControlError> {
        let owner = self.owner();
        let actions = &self.declared.actions;
        let action = actions.iter().position(|known| known.id == call.action);
        let action = action.ok_or_else(|| {
            let action = call.action;
            ControlError::invalid(format!(
                "{owner}: action {action:#010x}: it is not an action of its tables"
            ))
        })?;
        actions[action].check_scope(owner, ActionScope::DefaultOnly)?;
        let args = actions[action].arguments(owner, call)?;
        Ok(Bound { action, args })
    }

    fn selector(&self) -> Result<&Selector, ControlError> {
        let selector = self.declared.selector.as_ref();
        selector
            .ok_or_else(|| self.wrong("it has no selector: expected members, not groups or sets"))
    }

    /// Checks that members and groups may be written: not together with one-shot sets (§9.2.3).
    fn check_named(&self) -> Result<(), ControlError> {
        match self.one_shots {
            0 => Ok(()),
            _ => Err(self.wrong(
                "its tables are written with sets, so it cannot have members and groups as well",
            )),
        }
    }

    fn check_id(&self, kind: &'static str, id: u32) -> Result<(), ControlError> {
        match id {
            0 => Err(self.wrong(format!("{kind} 0: expected an id of 1 or more"))),
            _ => Ok(()),
        }
    }

    fn check_room(
        &self,
        what: &'static str,
        found: usize,
        limit: usize,
    ) -> Result<(), ControlError> {
        ControlError::check_room(format_args!("{}: {what}", self.owner()), found, limit)
    }

    /// Checks that there is room for another group or set.
    fn check_group_room(&self) -> Result<(), ControlError> {
        let groups = self.groups.len() + 1;
        self.check_room("number of groups", groups, self.declared.max_groups)
    }

    fn wrong(&self, what: impl Into<String>) -> ControlError {
        self.error(ErrorKind::InvalidArgument, what)
    }

    fn exists(&self, kind: &'static str, id: u32) -> ControlError {
        let text = format!("{} has {kind} {id} already", self.owner());
        ControlError::new(ErrorKind::AlreadyExists, text)
    }

    fn in_use(&self, kind: &'static str, id: u32, by: &'static str) -> ControlError {
        let what = format!("{by} refers to {kind} {id}");
        self.error(ErrorKind::FailedPrecondition, what)
    }
}
