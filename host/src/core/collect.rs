//! The aggregates of the other ranks' shards. It owns no values: they are in the operation's result.

use std::ops::Range;

use ultima_wire::Kind;

use crate::bits::{Bits, RareBits};
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::layout::{Layout, SlotNumbers};
use crate::loss_detection::LossDetection;
use crate::operation::Part;
use crate::recycling::Known;
use crate::time::Time;
use crate::values::ValueStore;

use super::overtaking::{DataPacket, Order};
use super::reduce::{Acceptance, CHECKED};
use super::states::{Arrival, Change, Ending, Sign, State, States};

/// The states of the aggregates.
///
/// Slots close in the order in which data arrive, so a gap among an owner's aggregates does not show a loss.
/// Two packets show one: the owner's notice after its last aggregate, and any packet of the owner for a later step.
///
/// There may be thousands of ranks: memory is a few bits per owner and one per slot.
#[derive(Default)]
pub(super) struct Collect {
    ranks: u16,
    loss_detection: LossDetection,
    /// Numbers of slots over all shards.
    numbers: SlotNumbers,
    states: States,
    /// Arrived aggregates that lack this rank's contribution: a part of their content, not of their state.
    uncounted: RareBits,
    /// Owners without outstanding aggregates, because this rank gave them up. Derived: so their aggregates are noted once.
    given_up: Bits,
    ending: Ending,
    pub(super) order: Order,
    /// Number of aggregates that the others owe.
    owed: u64,
    /// Number of aggregates that this rank waits for: derived.
    awaited: u32,
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
    pub(super) fn reset(&mut self, layout: &Layout, part: Part, config: &Config) {
        let Config { rank, ranks, .. } = *config;
        let layout = match part {
            Part::Scatter => Layout::new(0, ranks, 1),
            Part::Whole | Part::Gather => *layout,
        };
        self.ranks = ranks;
        self.loss_detection = config.loss_detection;
        self.numbers = layout.numbers();
        self.given_up.reset(ranks.into());
        self.ending.reset(ranks);
        self.order.reset(ranks, config.reorder);
        self.awaited = 0;
        self.incomplete = 0;
        for owner in (0..ranks).filter(|owner| *owner != rank) {
            let slots = layout.slots(owner);
            self.awaited += slots;
            if slots == 0 {
                self.ending.insert(owner);
            }
        }
        self.ending.insert(rank);
        self.owed = self.awaited.into();
        let slots = (self.awaited + layout.slots(rank)) as usize;
        self.states.reset(slots, config.loss_detection);
        self.uncounted.reset(slots);
    }

    /// Arrived aggregates that lack contributions.
    pub(super) fn incomplete(&self) -> u32 {
        self.incomplete
    }

    /// Number of arrived aggregates of `owner`'s shard.
    pub(super) fn came(&self, owner: u16) -> u32 {
        self.states.count_arrived(self.of(owner)) as u32
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

    /// Aggregates that this rank waits for.
    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// True if every owner's last packets have begun to arrive, or it has nothing outstanding.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_complete()
    }

    /// Notes that `owner`'s last packets have begun to arrive.
    fn ending(&mut self, owner: u16) {
        self.ending.insert(owner);
    }

    /// The state of `owner`'s `slot`.
    pub(super) fn known(&self, owner: u16, slot: u32) -> Known {
        let index = self.index(owner, slot);
        match self.states.of(index) {
            State::Outstanding => Known::Overdue,
            State::Lost(_) => Known::Lost,
            _ if self.uncounted.contains(index) => Known::Uncounted,
            State::Arrived | State::TooLate => Known::Counted,
        }
    }

    /// Notes that an aggregate of this many `contributions` arrived. `counted` is true if this rank's is one of them.
    pub(super) fn store(
        &mut self,
        arrival: Arrival,
        contributions: u16,
        counted: bool,
    ) -> Acceptance {
        let owner = arrival.source;
        if arrival.last {
            self.ending(owner);
        }
        let index = self.index(owner, arrival.slot);
        let before = self.note(index, Sign::Arrival).from;
        if before == State::Arrived {
            return Acceptance::Duplicate;
        }
        (self.order).arrived(arrival.at, owner, 0, before.is_overtaken());
        if !counted {
            self.uncounted.insert(index);
        }
        self.incomplete += u32::from(contributions < self.ranks);
        Acceptance::InTime
    }

    /// Notes that an aggregate arrived whose payload a switch removed. Returns false if that was known or the aggregate has
    /// arrived.
    pub(super) fn trimmed(&mut self, arrival: Arrival, cause: Cause) -> bool {
        if arrival.last {
            self.ending(arrival.source);
        }
        let index = self.index(arrival.source, arrival.slot);
        self.note(index, Sign::Header(cause)).is_new
    }

    /// Notes an event that concerns the aggregate with number `index`.
    fn note(&mut self, index: usize, sign: Sign) -> Change {
        let change = self.states.note(index, sign);
        self.awaited -= u32::from(change.ends_wait);
        change
    }

    /// Notes a packet that `owner` sent after its last aggregate.
    pub(super) fn sent_after(&mut self, arrival: Time, owner: u16) {
        if self.order.sent_after(owner) {
            self.all_sent(arrival, owner);
        }
    }

    /// Notes that all of `owner`'s packets are sent: gives up the outstanding ones, at once or after a time. Aggregates
    /// that still arrive count until the operation ends.
    pub(super) fn all_sent(&mut self, now: Time, owner: u16) {
        // Aggregates have no order among themselves: all are at position 0.
        if self.loss_detection.order() && self.order.overtakes(now, owner, 1, |_| true) {
            let awaited = self.awaited;
            self.passes(owner, Sign::LaterPacket);
            if self.awaited < awaited {
                self.order.gave_up(now, owner, 0..1);
            }
        }
    }

    /// Gives up overtaken aggregates whose time is over.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(lost) = self.order.take(now) {
            self.passes(lost.rank, Sign::LaterPacket);
        }
    }

    /// Notes `sign` of every missing aggregate of `owner`.
    fn passes(&mut self, owner: u16, sign: Sign) {
        self.ending(owner);
        if self.given_up.insert(owner.into()) {
            for index in self.of(owner) {
                self.note(index, sign);
            }
        }
    }

    /// Aggregates of the owners but `rank` that did not arrive, from each owner's last slot on.
    pub(super) fn missing(&self, rank: u16) -> impl Iterator<Item = DataPacket> + '_ {
        let owners = (0..self.ranks).filter(move |owner| *owner != rank);
        let all = owners.flat_map(|owner| {
            let slots = 0..self.of(owner).len() as u32;
            slots.rev().map(move |slot| (owner, slot))
        });
        let missing =
            all.filter(|(owner, slot)| !self.states.has_arrived(self.index(*owner, *slot)));
        missing.map(|(owner, slot)| (Kind::Gather, owner, slot))
    }

    /// Checks in debug builds that all that is derived agrees with the states, if there are few.
    pub(super) fn check(&self, rank: u16) {
        if !cfg!(debug_assertions) || self.owed > CHECKED {
            return;
        }
        let mut awaited = 0;
        for owner in (0..self.ranks).filter(|owner| *owner != rank) {
            let given_up = self.given_up.contains(owner.into());
            for index in self.of(owner) {
                awaited += u32::from(self.states.is_awaited(index));
                assert!(
                    !given_up || self.states.of(index) != State::Outstanding,
                    "{owner}"
                );
            }
        }
        assert_eq!(self.awaited, awaited);
    }

    /// Gives up `owner` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, owner: u16) {
        self.passes(owner, Sign::Silence);
    }

    /// Replaces every missing aggregate by zero. Returns their number and causes.
    pub(super) fn zero_missing(
        &self,
        layout: &Layout,
        rank: u16,
        result: &mut impl ValueStore,
    ) -> Missing {
        let mut missing = Missing::default();
        for owner in (0..self.ranks).filter(|owner| *owner != rank) {
            let of = self.of(owner);
            if self.states.count_arrived(of.clone()) == of.len() {
                continue;
            }
            for (slot, index) in (0..).zip(of) {
                if let Some(cause) = self.states.of(index).cause() {
                    let range = layout.slot(owner, slot);
                    missing.slots += 1;
                    missing.values += range.len();
                    missing.causes.count(cause, 1);
                    result.get_mut(range).fill(0.0);
                }
            }
        }
        missing
    }
}
