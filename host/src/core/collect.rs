//! The others' shards: aggregates come in.

use crate::bits::Bits;
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::element::Element;
use crate::layout::Layout;
use crate::recycling::Known;
use crate::values::Values;

use super::cuts::Cuts;
use super::packet::Payload;
use super::reduce::Verdict;

/// Which aggregates are here, and how many are still awaited.
///
/// Slots close in an order that depends on the data's arrival, so that a gap among an owner's
/// aggregates says nothing; its notice that the last one is out does, and any packet that it sent
/// for a later step.
#[derive(Default)]
pub(super) struct Collect {
    reorder: u32,
    element: Element,
    received: Bits,
    /// Of these, the ones that lack this rank's contribution.
    uncounted: Bits,
    cuts: Cuts,
    owners: Vec<Owner>,
    /// Aggregates of the others.
    owed: u64,
    /// Aggregates neither here nor known to be gone.
    awaited: u32,
    /// Other owners whose last packets have not begun to come.
    coming: u16,
    /// Aggregates here that lack contributions.
    incomplete: u32,
}

#[derive(Clone, Copy)]
struct Owner {
    /// The number of its first slot, counted over all shards.
    first: u32,
    /// Slots that are not here.
    missing: u32,
    /// Of these, slots that a switch cut before the owner was given up.
    cut: u32,
    given_up: bool,
    /// Packets heard that were sent after its last aggregate.
    sent_after: u32,
    /// It was given up because it was silent, not because of what it sent.
    silent: bool,
    /// Its last packets have begun to come, or nothing of it is awaited.
    ending: bool,
}

/// Aggregates of the others for which zero is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) slots: u32,
    pub(super) values: usize,
    pub(super) causes: Causes,
}

impl Collect {
    /// Prepares for an operation. Allocates only for the largest one so far.
    pub(super) fn reset(&mut self, layout: &Layout, (rank, ranks): (u16, u16), config: &Config) {
        self.reorder = config.reorder;
        self.element = config.element;
        self.owners.clear();
        let mut first = 0;
        self.awaited = 0;
        self.incomplete = 0;
        self.coming = 0;
        for owner in 0..ranks {
            let slots = layout.slots(owner);
            let missing = if owner == rank { 0 } else { slots };
            self.owners.push(Owner {
                first,
                missing,
                cut: 0,
                given_up: false,
                sent_after: 0,
                silent: false,
                ending: missing == 0,
            });
            self.coming += u16::from(missing > 0);
            self.awaited += missing;
            first += slots;
        }
        self.owed = self.awaited.into();
        self.received.reset(first as usize);
        self.uncounted.reset(first as usize);
        self.cuts.reset(first as usize);
    }

    /// Aggregates here that lack contributions.
    pub(super) fn incomplete(&self) -> u32 {
        self.incomplete
    }

    /// Slots of `owner`'s shard whose aggregates are not here.
    pub(super) fn missing(&self, owner: u16) -> u32 {
        self.owners[usize::from(owner)].missing
    }

    /// Aggregates that the others owe this rank.
    pub(super) fn owed(&self) -> u64 {
        self.owed
    }

    /// Aggregates neither here nor known to be gone.
    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Whether everyone's last packets have begun to come, or nothing of them is awaited.
    pub(super) fn is_ending(&self) -> bool {
        self.coming == 0
    }

    /// A packet of `owner` came that is one of its last.
    pub(super) fn ending(&mut self, owner: u16) {
        if !std::mem::replace(&mut self.owners[usize::from(owner)].ending, true) {
            self.coming -= 1;
        }
    }

    /// What is known of `owner`'s `slot`.
    pub(super) fn known(&self, owner: u16, slot: u32) -> Known {
        let index = (self.owners[usize::from(owner)].first + slot) as usize;
        match self.received.contains(index) {
            false => Known::Nothing,
            true if self.uncounted.contains(index) => Known::Uncounted,
            true => Known::Counted,
        }
    }

    /// The aggregate of `owner`'s `slot` came, of that many contributions, this rank's among them or not: its place in
    /// `result` is written.
    pub(super) fn store(
        &mut self,
        layout: &Layout,
        owner: u16,
        (slot, contributions, counted): (u32, u16, bool),
        payload: Payload<'_>,
        result: &mut Values,
    ) -> Verdict {
        let ranks = self.owners.len();
        let state = &mut self.owners[usize::from(owner)];
        let index = (state.first + slot) as usize;
        if !self.received.insert(index) {
            return Verdict::Duplicate;
        }
        if !counted {
            self.uncounted.insert(index);
        }
        payload.read(self.element, result.get_mut(layout.slot(owner, slot)));
        self.incomplete += u32::from(usize::from(contributions) < ranks);
        state.missing -= 1;
        if !state.given_up {
            // A whole copy of what was cut, which is not awaited any more.
            if self.cuts.contains(index) {
                state.cut -= 1;
            } else {
                self.awaited -= 1;
            }
        }
        Verdict::InTime
    }

    /// A switch cut the aggregate of `owner`'s `slot`: it is not awaited. False if that was known,
    /// or the aggregate is here.
    pub(super) fn cut(&mut self, owner: u16, slot: u32, cause: Cause) -> bool {
        let state = &mut self.owners[usize::from(owner)];
        let index = (state.first + slot) as usize;
        if self.received.contains(index) || !self.cuts.insert(index, cause) {
            return false;
        }
        if !state.given_up {
            state.cut += 1;
            self.awaited -= 1;
        }
        true
    }

    /// A packet of `owner` came that it sent after its last aggregate.
    pub(super) fn sent_after(&mut self, owner: u16) {
        let state = &mut self.owners[usize::from(owner)];
        state.sent_after = state.sent_after.saturating_add(1);
        if state.sent_after > self.reorder {
            self.give_up(owner);
        }
    }

    /// All that `owner` sends is out: nothing of it is awaited any more; what comes nevertheless counts until the operation
    /// ends.
    pub(super) fn give_up(&mut self, owner: u16) {
        self.ending(owner);
        let state = &mut self.owners[usize::from(owner)];
        if !state.given_up {
            state.given_up = true;
            self.awaited -= state.missing - state.cut;
        }
    }

    /// `owner` was silent too long to be waited for.
    pub(super) fn give_up_silent(&mut self, owner: u16) {
        self.owners[usize::from(owner)].silent = true;
        self.give_up(owner);
    }

    /// Takes zero for every aggregate of the others that is not here; returns how much that was
    /// and why.
    pub(super) fn zero_missing(&self, layout: &Layout, rank: u16, result: &mut Values) -> Missing {
        let mut missing = Missing::default();
        for (owner, state) in (0u16..).zip(&self.owners) {
            if owner == rank || state.missing == 0 {
                continue;
            }
            for slot in 0..layout.slots(owner) {
                let index = (state.first + slot) as usize;
                if !self.received.contains(index) {
                    let range = layout.slot(owner, slot);
                    missing.slots += 1;
                    missing.values += range.len();
                    missing.causes.count(self.cause(state, index), 1);
                    if let Some(values) = result.get_mut(range) {
                        values.fill(0.0);
                    }
                }
            }
        }
        missing
    }

    /// Why the aggregate with number `index`, which is `owner`'s, is not here.
    fn cause(&self, owner: &Owner, index: usize) -> Cause {
        match self.cuts.cause(index) {
            Some(cause) => cause,
            None if owner.silent => Cause::Silent,
            None if owner.given_up => Cause::Overtaken,
            None => Cause::Overdue,
        }
    }
}
