//! The others' shards: aggregates come in.

use std::ops::Range;

use crate::answers::Answers;
use crate::bits::{Bits, RareBits};
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::element::Element;
use crate::layout::{Layout, SlotNumbers};
use crate::operation::Part;
use crate::recycling::Known;
use crate::values::Values;

use super::cuts::Cuts;
use super::overtaking::SentAfter;
use super::packet::Payload;
use super::reduce::Verdict;

/// Which aggregates are here, and how many are still awaited.
///
/// Slots close in an order that depends on the data's arrival, so that a gap among an owner's
/// aggregates says nothing; its notice that the last one is out does, and any packet that it sent
/// for a later step.
///
/// Of each owner a few bits are kept, and one for each of its slots: there may be thousands.
#[derive(Default)]
pub(super) struct Collect {
    ranks: u16,
    answers: Answers,
    element: Element,
    /// Slots are numbered over all shards.
    numbers: SlotNumbers,
    received: Bits,
    /// Of these, the ones that lack this rank's contribution.
    uncounted: RareBits,
    cuts: Cuts,
    /// Owners of which nothing is awaited any more.
    given_up: Bits,
    /// Of these, the ones that were silent: it is not because of what they sent.
    silent: Bits,
    /// Owners whose last packets have begun to come, or of which nothing is awaited.
    ending: Bits,
    sent_after: SentAfter,
    /// Aggregates of the others.
    owed: u64,
    /// Aggregates neither here nor known to be gone.
    awaited: u32,
    /// Other owners whose last packets have not begun to come.
    coming: u16,
    /// Aggregates here that lack contributions.
    incomplete: u32,
}

/// Aggregates of the others for which zero is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) slots: u32,
    pub(super) values: usize,
    pub(super) causes: Causes,
}

impl Collect {
    /// Prepares for an operation, of a [`Part::Scatter`] for no aggregate. Allocates only for the largest one so far.
    pub(super) fn reset(
        &mut self,
        layout: &Layout,
        part: Part,
        (rank, ranks): (u16, u16),
        config: &Config,
    ) {
        let layout = match part {
            Part::Scatter => Layout::new(0, ranks, 1),
            Part::Whole | Part::Gather => *layout,
        };
        self.ranks = ranks;
        self.answers = config.answers;
        self.element = config.element;
        self.numbers = layout.numbers();
        for owners in [&mut self.given_up, &mut self.silent, &mut self.ending] {
            owners.reset(ranks.into());
        }
        self.sent_after.reset(ranks, config.reorder);
        self.awaited = 0;
        self.incomplete = 0;
        self.coming = 0;
        for owner in (0..ranks).filter(|owner| *owner != rank) {
            let slots = layout.slots(owner);
            self.awaited += slots;
            if slots > 0 {
                self.coming += 1;
            } else {
                self.ending.insert(owner.into());
            }
        }
        self.ending.insert(rank.into());
        self.owed = self.awaited.into();
        let slots = (self.awaited + layout.slots(rank)) as usize;
        self.received.reset(slots);
        self.uncounted.reset(slots);
        self.cuts.reset(slots);
    }

    /// Aggregates here that lack contributions.
    pub(super) fn incomplete(&self) -> u32 {
        self.incomplete
    }

    /// Slots of `owner`'s shard whose aggregates are here.
    pub(super) fn came(&self, owner: u16) -> u32 {
        self.received.count(self.of(owner)) as u32
    }

    /// The numbers of `owner`'s slots.
    fn of(&self, owner: u16) -> Range<usize> {
        self.numbers.first(owner) as usize..self.numbers.first(owner + 1) as usize
    }

    /// The number of `owner`'s `slot`.
    fn index(&self, owner: u16, slot: u32) -> usize {
        (self.numbers.first(owner) + slot) as usize
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
        if self.ending.insert(owner.into()) {
            self.coming -= 1;
        }
    }

    /// What is known of `owner`'s `slot`.
    pub(super) fn known(&self, owner: u16, slot: u32) -> Known {
        let index = self.index(owner, slot);
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
        let index = self.index(owner, slot);
        if !self.received.insert(index) {
            return Verdict::Duplicate;
        }
        if !counted {
            self.uncounted.insert(index);
        }
        payload.read(self.element, result.get_mut(layout.slot(owner, slot)));
        self.incomplete += u32::from(contributions < self.ranks);
        // It may be a whole copy of what was cut, which is not awaited any more.
        let is_answered = self.answers.cuts() && self.cuts.contains(index);
        if !self.given_up.contains(owner.into()) && !is_answered {
            self.awaited -= 1;
        }
        Verdict::InTime
    }

    /// A switch cut the aggregate of `owner`'s `slot`: it is not awaited. False if that was known,
    /// or the aggregate is here.
    pub(super) fn cut(&mut self, owner: u16, slot: u32, cause: Cause) -> bool {
        let index = self.index(owner, slot);
        if self.received.contains(index) || !self.cuts.insert(index, cause) {
            return false;
        }
        if !self.given_up.contains(owner.into()) && self.answers.cuts() {
            self.awaited -= 1;
        }
        true
    }

    /// A packet of `owner` came that it sent after its last aggregate.
    pub(super) fn sent_after(&mut self, owner: u16) {
        if self.sent_after.heard(owner) {
            self.give_up(owner);
        }
    }

    /// All that `owner` sends is out: nothing of it is awaited any more; what comes nevertheless counts until the operation
    /// ends.
    pub(super) fn give_up(&mut self, owner: u16) {
        if self.answers.order() {
            self.settle(owner);
        }
    }

    /// Nothing of `owner` is awaited any more.
    fn settle(&mut self, owner: u16) {
        self.ending(owner);
        if self.given_up.insert(owner.into()) {
            let of = self.of(owner);
            let missing = of.len() - self.received.count(of.clone());
            let answered = if self.answers.cuts() {
                self.cut_of(of)
            } else {
                0
            };
            self.awaited -= (missing - answered) as u32;
        }
    }

    /// How many of these aggregates, which are one owner's, were cut and did not come whole either.
    fn cut_of(&self, of: Range<usize>) -> usize {
        match self.cuts.count(of.clone()) {
            0 => 0,
            _ => of
                .filter(|index| self.cuts.contains(*index) && !self.received.contains(*index))
                .count(),
        }
    }

    /// `owner` was silent too long to be waited for.
    pub(super) fn give_up_silent(&mut self, owner: u16) {
        self.silent.insert(owner.into());
        self.settle(owner);
    }

    /// Takes zero for every aggregate of the others that is not here; returns how much that was
    /// and why.
    pub(super) fn zero_missing(&self, layout: &Layout, rank: u16, result: &mut Values) -> Missing {
        let mut missing = Missing::default();
        for owner in (0..self.ranks).filter(|owner| *owner != rank) {
            let of = self.of(owner);
            if self.received.count(of.clone()) == of.len() {
                continue;
            }
            for (slot, index) in (0..).zip(of) {
                if !self.received.contains(index) {
                    let range = layout.slot(owner, slot);
                    missing.slots += 1;
                    missing.values += range.len();
                    missing.causes.count(self.cause(owner, index), 1);
                    if let Some(values) = result.get_mut(range) {
                        values.fill(0.0);
                    }
                }
            }
        }
        missing
    }

    /// Why the aggregate with number `index`, which is `owner`'s, is not here.
    fn cause(&self, owner: u16, index: usize) -> Cause {
        match self.cuts.cause(index) {
            Some(cause) => cause,
            None if self.silent.contains(owner.into()) => Cause::Silent,
            None if self.given_up.contains(owner.into()) => Cause::Overtaken,
            None => Cause::Overdue,
        }
    }
}
