//! The states of the contributions to the shard that this rank owns, and of its slots. It owns no values: they are in
//! [`Sums`](super::sums::Sums).

use std::ops::Range;

use ultima_wire::Kind;

use crate::bits::Bits;
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::loss_detection::LossDetection;
use crate::rotation::Rotations;
use crate::stats::ClosedBy;
use crate::time::Time;

use super::overtaking::{DataPacket, Order};
use super::states::{Arrival, Change, Ending, Sign, State, States};

/// Number of packets up to which debug builds compare states with what is derived from them.
pub(super) const CHECKED: u64 = 256;

/// The fate of a well-formed packet of this operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    InTime,
    Late,
    Duplicate,
}

/// The state of a slot of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Open {
        /// Number of contributions that this rank waits for: derived from their states.
        awaited: u16,
    },
    Closed,
}

/// The states of the contributions, by slot and source, and those of the slots.
///
/// A source sends its slots in the order of its rotation, so an arrival shows that all missing slots before
/// it are lost. There may be thousands of sources, so little else is stored; counters that can be derived are computed at the
/// end. What is derived and stored for speed says so, and [`Reduce::check`] compares it.
#[derive(Default)]
pub(super) struct Reduce {
    rank: u16,
    ranks: u16,
    rotations: Rotations,
    loss_detection: LossDetection,
    /// True if slots wait for the rest of the shard.
    closes_whole_shards: bool,
    /// By slot and rank.
    states: States,
    slots: Vec<Slot>,
    /// Number of open slots: derived.
    open: u32,
    /// Open slots that wait for no contribution: derived. The last one closes first.
    ready: Vec<u32>,
    /// By source: all contributions at earlier positions have arrived or were given up. Derived, but no further than the last
    /// packet that overtook others.
    given_up_before: Vec<u32>,
    pub(super) order: Order,
    ending: Ending,
    /// Sources of contributions that were overdue when their slot closed. They may be lost for another cause since then.
    overdue: Bits,
    closed_by: ClosedBy,
    /// Slots closed with every contribution.
    whole: u32,
    /// True if slots closed without contributions because no rank waits for them.
    lapsed: bool,
    /// Contributions missing from closed slots.
    lost: Causes,
}

/// A slot that closed.
pub(super) struct Closed {
    pub(super) slot: u32,
    pub(super) contributions: u16,
    pub(super) by: ClosedBy,
}

impl Reduce {
    /// Prepares for an operation whose owned shard has `slots`. Allocates only for the largest operation so far.
    pub(super) fn reset(&mut self, config: &Config, slots: u32, rotations: Rotations) {
        let Config { rank, ranks, .. } = *config;
        self.rank = rank;
        self.ranks = ranks;
        self.rotations = rotations;
        self.loss_detection = config.loss_detection;
        self.closes_whole_shards = config.estimation.closes_whole_shards();
        let contributions = slots as usize * usize::from(ranks);
        self.states.reset(contributions, config.loss_detection);
        self.slots.clear();
        let open = Slot::Open { awaited: ranks - 1 };
        self.slots.resize(slots as usize, open);
        self.open = slots;
        self.given_up_before.clear();
        self.given_up_before.resize(ranks.into(), 0);
        self.order.reset(ranks, config.reorder);
        self.overdue.reset(ranks.into());
        self.ending.reset(ranks);
        self.ending.insert(rank);
        self.ready.clear();
        self.closed_by = ClosedBy::Complete;
        self.whole = 0;
        self.lapsed = false;
        self.lost = Causes::default();
    }

    /// The rank that owns the shard.
    pub(super) fn rank(&self) -> u16 {
        self.rank
    }

    /// Slots of the shard.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    fn is_closed(&self, slot: u32) -> bool {
        self.slots[slot as usize] == Slot::Closed
    }

    /// Slots that have not closed.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// The worst cause that closed a slot so far.
    pub(super) fn closed_by(&self) -> ClosedBy {
        self.closed_by
    }

    /// Slots closed with every contribution.
    pub(super) fn whole(&self) -> u32 {
        self.whole
    }

    /// True if no rank waits for this shard.
    pub(super) fn is_lapsed(&self) -> bool {
        self.lapsed
    }

    /// Closed slots by number of contributions.
    pub(super) fn histogram(&self) -> Vec<u32> {
        let mut histogram = vec![0; usize::from(self.ranks) + 1];
        for slot in (0..self.slots()).filter(|slot| self.is_closed(*slot)) {
            let contributions = if self.lapsed { 0 } else { self.count(slot) };
            histogram[usize::from(contributions)] += 1;
        }
        histogram
    }

    /// Number of contributions to a slot, including this rank's own.
    pub(super) fn count(&self, slot: u32) -> u16 {
        let start = self.bit(slot, 0);
        let others = start..start + usize::from(self.ranks);
        self.states.count_arrived(others) as u16 + 1
    }

    /// By source: number of its arrived contributions. This rank's own do not count.
    pub(super) fn came(&self) -> Vec<u32> {
        let mut came = vec![0; self.ranks.into()];
        let mut whole = 0;
        for slot in 0..self.slots() {
            if self.count(slot) == self.ranks {
                whole += 1;
                continue;
            }
            for (source, came) in (0..self.ranks).zip(&mut came) {
                *came += u32::from(self.states.has_arrived(self.bit(slot, source)));
            }
        }
        for (source, came) in (0..).zip(&mut came) {
            *came += if source == self.rank { 0 } else { whole };
        }
        came
    }

    /// Contributions that the others owe this shard.
    pub(super) fn owed(&self) -> u64 {
        u64::from(self.slots()) * u64::from(self.ranks - 1)
    }

    /// Contributions missing from closed slots, by cause.
    pub(super) fn lost(&self) -> Causes {
        self.lost
    }

    /// True if `slot` has `rank`'s contribution.
    pub(super) fn counts(&self, slot: u32, rank: u16) -> bool {
        rank == self.rank || self.states.has_arrived(self.bit(slot, rank))
    }

    /// Closes every slot without contributions, because no rank waits for this shard.
    pub(super) fn lapse(&mut self) {
        self.slots.fill(Slot::Closed);
        self.open = 0;
        self.ready.clear();
        self.lapsed = true;
        self.closed_by = ClosedBy::KnownLoss;
        self.lost.count(Cause::Overdue, self.owed());
    }

    /// Notes that a contribution arrived.
    pub(super) fn contribute(&mut self, arrival: Arrival) -> Acceptance {
        if arrival.last {
            self.ending.insert(arrival.source);
        }
        let is_closed = self.is_closed(arrival.slot);
        let sign = match is_closed {
            true => Sign::LateArrival,
            false => Sign::Arrival,
        };
        let change = self.note(arrival.slot, arrival.source, sign);
        if change.from == State::Arrived {
            return Acceptance::Duplicate;
        }
        self.note_order(arrival, change);
        match is_closed {
            true => Acceptance::Late,
            false => Acceptance::InTime,
        }
    }

    /// Notes that a contribution arrived whose payload a switch removed. Returns false if that was known or the contribution
    /// is here.
    pub(super) fn trimmed(&mut self, arrival: Arrival, cause: Cause) -> bool {
        if arrival.last {
            self.ending.insert(arrival.source);
        }
        let change = self.note(arrival.slot, arrival.source, Sign::Header(cause));
        if change.is_new {
            self.note_order(arrival, change);
        }
        change.is_new
    }

    /// Contributions that did not arrive, from the last slot on.
    pub(super) fn missing(&self) -> impl Iterator<Item = DataPacket> + '_ {
        let others = move || (0..self.ranks).filter(|source| *source != self.rank);
        let all = (0..self.slots())
            .rev()
            .flat_map(move |slot| others().map(move |source| (slot, source)));
        let missing = all.filter(|(slot, source)| {
            let state = self.states.of(self.bit(*slot, *source));
            !matches!(state, State::Arrived | State::TooLate)
        });
        missing.map(|(slot, source)| (Kind::Scatter, source, slot))
    }

    /// Notes the order of a packet, and what it overtakes.
    fn note_order(&mut self, arrival: Arrival, change: Change) {
        let Arrival {
            at, source, slot, ..
        } = arrival;
        let position = self.rotations.of(source).position(slot, self.slots());
        if change.is_new {
            let given_up = change.from.is_overtaken();
            self.order.arrived(at, source, position, given_up);
        }
        self.overtaken(at, source, self.order.before(position));
    }

    /// Notes a packet that `source` sent after its last contribution to this shard.
    pub(super) fn sent_after(&mut self, arrival: Time, source: u16) {
        if self.order.sent_after(source) {
            self.overtaken(arrival, source, self.slots());
        }
    }

    /// Notes that `source` has sent all its packets: gives up the outstanding ones, at once or after a time.
    /// Contributions that still arrive count while their slot is open.
    pub(super) fn all_sent(&mut self, now: Time, source: u16) {
        self.overtaken(now, source, self.slots());
    }

    /// Gives up overtaken contributions whose time is over.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(lost) = self.order.take(now) {
            self.give_up_before(lost.rank, lost.before, Sign::LaterPacket);
        }
    }

    /// Gives up `source` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        self.give_up_before(source, self.slots(), Sign::Silence);
    }

    /// Closes the next slot with nothing outstanding.
    pub(super) fn close_ready(&mut self) -> Option<Closed> {
        if self.closes_whole_shards && self.ready.len() < self.open as usize {
            return None;
        }
        let slot = self.ready.pop()?;
        Some(self.close(slot, ClosedBy::KnownLoss))
    }

    /// True if every source's last packets have begun to arrive, or it has nothing outstanding.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_complete()
    }

    /// True if a bound passed while a contribution of `source` was outstanding.
    pub(super) fn is_overdue(&self, source: u16) -> bool {
        self.overdue.contains(source.into())
    }

    /// Closes the next open slot from `from` on with the contributions that arrived, because `bound` passed.
    pub(super) fn close_open(&mut self, from: u32, bound: ClosedBy) -> Option<Closed> {
        // Slots that wait for the rest of the shard close with it.
        self.ready.clear();
        let slot = (from..self.slots()).find(|slot| !self.is_closed(*slot))?;
        Some(self.close(slot, bound))
    }

    fn close(&mut self, slot: u32, incomplete: ClosedBy) -> Closed {
        let count = self.count(slot);
        self.slots[slot as usize] = Slot::Closed;
        self.open -= 1;
        self.whole += u32::from(count == self.ranks);
        let by = match count < self.ranks {
            true => incomplete,
            false => ClosedBy::Complete,
        };
        self.closed_by = self.closed_by.max(by);
        if count < self.ranks {
            let rank = self.rank;
            for source in (0..self.ranks).filter(|source| *source != rank) {
                self.note(slot, source, Sign::SlotCloses);
                if let State::Lost(cause) = self.states.of(self.bit(slot, source)) {
                    self.lost.count(cause, 1);
                    if cause == Cause::Overdue {
                        self.overdue.insert(source.into());
                    }
                }
            }
        }
        Closed {
            slot,
            contributions: count,
            by,
        }
    }

    /// Notes that `source` has sent every position before `end`, so that missing ones are overtaken.
    fn overtaken(&mut self, now: Time, source: u16, end: u32) {
        if !self.loss_detection.order() {
            return;
        }
        let (states, ranks) = (&self.states, usize::from(self.ranks));
        let (rotation, slots) = (self.rotations.of(source), self.slots());
        let is_missing = |mut positions: Range<u32>| {
            positions.any(|position| {
                let slot = rotation.slot(position, slots) as usize;
                !states.has_arrived(slot * ranks + usize::from(source))
            })
        };
        if self.order.overtakes(now, source, end, is_missing) {
            let positions = self.given_up_before[usize::from(source)]..end;
            if self.give_up_before(source, end, Sign::LaterPacket) {
                self.order.gave_up(now, source, positions);
            }
        }
    }

    /// Notes `sign` of every missing position of `source` before `end`. Returns true if that ends the wait for one.
    fn give_up_before(&mut self, source: u16, end: u32, sign: Sign) -> bool {
        let from = self.given_up_before[usize::from(source)];
        let mut ends_wait = false;
        for position in from..end {
            let slot = self.rotations.of(source).slot(position, self.slots());
            ends_wait |= self.note(slot, source, sign).ends_wait;
        }
        self.given_up_before[usize::from(source)] = from.max(end);
        if end >= self.slots() {
            self.ending.insert(source);
        }
        ends_wait
    }

    /// Notes an event that concerns the contribution of `source` to `slot`.
    fn note(&mut self, slot: u32, source: u16, sign: Sign) -> Change {
        let change = self.states.note(self.bit(slot, source), sign);
        if change.ends_wait
            && let Slot::Open { awaited } = &mut self.slots[slot as usize]
        {
            *awaited -= 1;
            if *awaited == 0 {
                self.ready.push(slot);
            }
        }
        change
    }

    /// Checks in debug builds that all that is derived agrees with the states, if there are few.
    pub(super) fn check(&self) {
        if !cfg!(debug_assertions) || self.lapsed || self.owed() > CHECKED {
            return;
        }
        let others = || (0..self.ranks).filter(|source| *source != self.rank);
        let mut open = 0;
        for (slot, state) in (0..).zip(&self.slots) {
            let Slot::Open { awaited } = *state else {
                continue;
            };
            open += 1;
            let waits = others().filter(|source| self.states.is_awaited(self.bit(slot, *source)));
            assert_eq!(usize::from(awaited), waits.count(), "slot {slot}");
            assert_eq!(awaited == 0, self.ready.contains(&slot), "slot {slot}");
        }
        assert_eq!(self.open, open);
        for source in others() {
            for position in 0..self.given_up_before[usize::from(source)] {
                let slot = self.rotations.of(source).slot(position, self.slots());
                let state = self.states.of(self.bit(slot, source));
                assert_ne!(state, State::Outstanding, "slot {slot} of {source}");
            }
        }
    }

    fn bit(&self, slot: u32, source: u16) -> usize {
        slot as usize * usize::from(self.ranks) + usize::from(source)
    }
}
