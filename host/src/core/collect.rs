//! The aggregates of the other ranks' shards. It owns no values: they are in the operation's result.

use std::ops::Range;

use ultima_wire::Kind;

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
use super::overtaking::{Order, Packet};
use super::packet::Payload;
use super::reduce::Acceptance;

/// Which aggregates have arrived, and how many are outstanding.
///
/// Slots close in the order in which data arrive, so a gap among an owner's aggregates does not show a loss.
/// The owner's notice that its last aggregate is sent does, and so does any packet that it sent for a later
/// step.
///
/// There may be thousands of ranks: memory is a few bits per owner and one per slot.
#[derive(Default)]
pub(super) struct Collect {
    ranks: u16,
    answers: Answers,
    element: Element,
    /// Numbers of slots over all shards.
    numbers: SlotNumbers,
    received: Bits,
    /// Slots whose aggregate lacks this rank's contribution.
    uncounted: RareBits,
    cuts: Cuts,
    /// Owners whose outstanding aggregates this rank gave up.
    given_up: Bits,
    /// Of these, owners that were silent.
    silent: Bits,
    /// Owners whose last packets have begun to arrive, or that have nothing outstanding.
    ending: Bits,
    pub(super) order: Order,
    /// Number of aggregates that the others owe.
    owed: u64,
    /// Aggregates that have neither arrived nor been lost.
    awaited: u32,
    /// Other owners whose last packets have not begun to arrive.
    coming: u16,
    /// Arrived aggregates that lack contributions.
    incomplete: u32,
}

/// Aggregates of other ranks that were replaced by zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) slots: u32,
    pub(super) values: usize,
    pub(super) causes: Causes,
}

impl Collect {
    /// Prepares for an operation, with no aggregate for a [`Part::Scatter`]. Allocates only for the largest
    /// operation so far.
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
        self.order.reset(ranks, config.reorder, false);
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

    /// Arrived aggregates that lack contributions.
    pub(super) fn incomplete(&self) -> u32 {
        self.incomplete
    }

    /// Number of arrived aggregates of `owner`'s shard.
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

    /// Aggregates that have neither arrived nor been lost.
    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// True if every owner's last packets have begun to arrive, or it has nothing outstanding.
    pub(super) fn is_ending(&self) -> bool {
        self.coming == 0
    }

    /// Notes that `owner`'s last packets have begun to arrive.
    pub(super) fn ending(&mut self, owner: u16) {
        if self.ending.insert(owner.into()) {
            self.coming -= 1;
        }
    }

    /// The state of `owner`'s `slot`.
    pub(super) fn known(&self, owner: u16, slot: u32) -> Known {
        let index = self.index(owner, slot);
        match self.received.contains(index) {
            false => Known::Nothing,
            true if self.uncounted.contains(index) => Known::Uncounted,
            true => Known::Counted,
        }
    }

    /// Notes the aggregate of `owner`'s `slot`, whose values are in `result`: its number of contributions,
    /// and whether this rank's is among them.
    pub(super) fn store(
        &mut self,
        layout: &Layout,
        owner: u16,
        (slot, contributions, counted): (u32, u16, bool),
        payload: Payload<'_>,
        result: &mut Values,
    ) -> Acceptance {
        let index = self.index(owner, slot);
        if !self.received.insert(index) {
            return Acceptance::Duplicate;
        }
        let given_up = self.given_up.contains(owner.into()) && !self.silent.contains(owner.into());
        self.order.arrived(owner, 0, given_up);
        if !counted {
            self.uncounted.insert(index);
        }
        payload.read(self.element, result.get_mut(layout.slot(owner, slot)));
        self.incomplete += u32::from(contributions < self.ranks);
        // It may be a second, whole copy of an aggregate whose payload was removed.
        let is_answered = self.answers.cuts() && self.cuts.contains(index);
        if !self.given_up.contains(owner.into()) && !is_answered {
            self.awaited -= 1;
        }
        Acceptance::InTime
    }

    /// Notes that a switch removed the payload of `owner`'s `slot`. Returns false if that was known or the
    /// aggregate has arrived.
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

    /// Notes a packet that `owner` sent after its last aggregate.
    pub(super) fn sent_after(&mut self, owner: u16) {
        if self.order.sent_after(owner) {
            self.give_up(owner);
        }
    }

    /// Gives up `owner`'s outstanding aggregates, because all its packets are sent. Aggregates that still
    /// arrive count until the operation ends.
    pub(super) fn give_up(&mut self, owner: u16) {
        if self.answers.order() {
            self.settle(owner);
        }
    }

    /// Ends the wait for `owner`.
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

    /// Number of one owner's aggregates whose payload was removed, and of which no whole copy arrived.
    fn cut_of(&self, of: Range<usize>) -> usize {
        match self.cuts.count(of.clone()) {
            0 => 0,
            _ => of
                .filter(|index| self.cuts.contains(*index) && !self.received.contains(*index))
                .count(),
        }
    }

    /// Aggregates of the owners but `rank` that did not arrive, from each owner's last slot on.
    pub(super) fn missing(&self, rank: u16) -> impl Iterator<Item = Packet> + '_ {
        let owners = (0..self.ranks).filter(move |owner| *owner != rank);
        let all = owners.flat_map(|owner| {
            let slots = 0..self.of(owner).len() as u32;
            slots.rev().map(move |slot| (owner, slot))
        });
        let missing =
            all.filter(|(owner, slot)| !self.received.contains(self.index(*owner, *slot)));
        missing.map(|(owner, slot)| (Kind::Gather, owner, slot))
    }

    /// Gives up `owner` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, owner: u16) {
        self.silent.insert(owner.into());
        self.settle(owner);
    }

    /// Replaces every missing aggregate by zero. Returns their number and causes.
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

    /// The cause of the missing aggregate with number `index`, which belongs to `owner`.
    fn cause(&self, owner: u16, index: usize) -> Cause {
        match self.cuts.cause(index) {
            Some(cause) => cause,
            None if self.silent.contains(owner.into()) => Cause::Silent,
            None if self.given_up.contains(owner.into()) => Cause::Overtaken,
            None => Cause::Overdue,
        }
    }
}
