//! The shard that this rank owns: which contributions have arrived, and when its slots close. It owns no values: they are in
//! [`Sums`](super::sums::Sums).

use std::ops::Range;

use ultima_wire::Kind;

use crate::answers::Answers;
use crate::bits::{Bits, RareBits};
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::rotation::Rotations;
use crate::stats::ClosedBy;
use crate::time::Time;

use super::overtaking::{Order, Packet};
use super::states::{Change, Ending, Sign, State, States};

/// The fate of a well-formed packet of this operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    InTime,
    Late,
    Duplicate,
}

/// The states of the contributions, by slot and source.
///
/// A source sends its slots in the order of its rotation, so an arrival shows that all missing slots before
/// it are lost. A position per source says before which slot nothing is outstanding. There may be thousands of
/// sources, so little else is stored; counters that can be derived are computed at the end.
#[derive(Default)]
pub(super) struct Reduce {
    rank: u16,
    ranks: u16,
    rotations: Rotations,
    answers: Answers,
    slots: u32,
    /// True if slots wait for the rest of the shard.
    closes_whole_shards: bool,
    /// By slot and rank.
    states: States,
    /// Contributions that arrived after their slot had closed, numbered like `states`.
    late: RareBits,
    /// By slot: number of contributions that this rank waits for.
    awaited: Vec<u16>,
    closed: Bits,
    open: u32,
    /// By source: no contribution at an earlier position is outstanding.
    passed: Vec<u32>,
    pub(super) order: Order,
    ending: Ending,
    /// Sources with an outstanding contribution when a bound passed.
    overdue: Bits,
    /// Slots with nothing outstanding.
    ready: Vec<u32>,
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
        self.answers = config.answers;
        self.slots = slots;
        self.closes_whole_shards = config.estimation.closes_whole_shards();
        let contributions = slots as usize * usize::from(ranks);
        self.states.reset(contributions, config.answers);
        self.late.reset(contributions);
        self.awaited.clear();
        self.awaited.resize(slots as usize, ranks - 1);
        self.closed.reset(slots as usize);
        self.open = slots;
        self.passed.clear();
        self.passed.resize(ranks.into(), 0);
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
        self.slots
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
        for slot in (0..self.slots).filter(|slot| self.closed.contains(*slot as usize)) {
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
        for slot in 0..self.slots {
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
        u64::from(self.slots) * u64::from(self.ranks - 1)
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
        for slot in 0..self.slots {
            self.closed.insert(slot as usize);
        }
        self.open = 0;
        self.ready.clear();
        self.lapsed = true;
        self.closed_by = ClosedBy::KnownLoss;
        let missing = u64::from(self.slots) * u64::from(self.ranks - 1);
        self.lost.count(Cause::Overdue, missing);
    }

    /// Notes that the contribution of `source` to `slot` arrived.
    pub(super) fn contribute(
        &mut self,
        (arrival, source): (Time, u16),
        (slot, last): (u32, bool),
    ) -> Acceptance {
        if last {
            self.ending.insert(source);
        }
        let is_closed = self.closed.contains(slot as usize);
        let before = match is_closed {
            true => self.states.of(self.bit(slot, source)),
            false => self.note(slot, source, Sign::Arrival).from,
        };
        if before == State::Arrived {
            return Acceptance::Duplicate;
        }
        let position = self.rotations.of(source).position(slot, self.slots);
        if !is_closed || self.late.insert(self.bit(slot, source)) {
            self.note_order(arrival, source, position, before);
        }
        self.overtaken(arrival, source, self.order.before(position));
        match is_closed {
            true => Acceptance::Late,
            false => Acceptance::InTime,
        }
    }

    /// Notes that a switch removed the payload of `source`'s contribution to `slot`. Returns false if that
    /// was known or the contribution is here.
    pub(super) fn trimmed(
        &mut self,
        (arrival, source): (Time, u16),
        (slot, last): (u32, bool),
        cause: Cause,
    ) -> bool {
        if last {
            self.ending.insert(source);
        }
        let change = self.note(slot, source, Sign::Header(cause));
        if !change.is_new {
            return false;
        }
        let position = self.rotations.of(source).position(slot, self.slots);
        self.note_order(arrival, source, position, change.from);
        self.overtaken(arrival, source, self.order.before(position));
        true
    }

    /// Contributions that did not arrive, from the last slot on.
    pub(super) fn missing(&self) -> impl Iterator<Item = Packet> + '_ {
        let others = move || (0..self.ranks).filter(|source| *source != self.rank);
        let all = (0..self.slots)
            .rev()
            .flat_map(move |slot| others().map(move |source| (slot, source)));
        let missing = all.filter(|(slot, source)| {
            let bit = self.bit(*slot, *source);
            !self.states.has_arrived(bit) && !self.late.contains(bit)
        });
        missing.map(|(slot, source)| (Kind::Scatter, source, slot))
    }

    /// Notes the order of a packet that arrives for the first time.
    fn note_order(&mut self, arrival: Time, source: u16, position: u32, before: State) {
        let given_up = before.is_overtaken();
        self.order.arrived(arrival, source, position, given_up);
    }

    /// Notes a packet that `source` sent after its last contribution to this shard.
    pub(super) fn sent_after(&mut self, arrival: Time, source: u16) {
        if self.order.sent_after(source) {
            self.overtaken(arrival, source, self.slots);
        }
    }

    /// Notes that `source` has sent all its packets: gives up the outstanding ones, at once or after a time.
    /// Contributions that still arrive count while their slot is open.
    pub(super) fn all_sent(&mut self, now: Time, source: u16) {
        self.overtaken(now, source, self.slots);
    }

    /// Gives up overtaken contributions whose time is over.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some((source, end)) = self.order.take(now) {
            self.passes(source, end, Sign::LaterPacket);
        }
    }

    /// Gives up `source` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        self.passes(source, self.slots, Sign::Silence);
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
        let slot = (from..self.slots).find(|slot| !self.closed.contains(*slot as usize))?;
        Some(self.close(slot, bound))
    }

    fn close(&mut self, slot: u32, incomplete: ClosedBy) -> Closed {
        let count = self.count(slot);
        self.closed.insert(slot as usize);
        self.open -= 1;
        self.whole += u32::from(count == self.ranks);
        let by = match count < self.ranks {
            true => incomplete,
            false => ClosedBy::Complete,
        };
        self.closed_by = self.closed_by.max(by);
        if count < self.ranks {
            for source in 0..self.ranks {
                let cause = self.states.of(self.bit(slot, source)).cause();
                if let Some(cause) = cause.filter(|_| source != self.rank) {
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
        if !self.answers.order() {
            return;
        }
        let (states, ranks) = (&self.states, usize::from(self.ranks));
        let (rotation, slots) = (self.rotations.of(source), self.slots);
        let is_missing = |mut positions: Range<u32>| {
            positions.any(|position| {
                let slot = rotation.slot(position, slots) as usize;
                !states.has_arrived(slot * ranks + usize::from(source))
            })
        };
        if self.order.overtakes(now, source, end, is_missing) {
            self.passes(source, end, Sign::LaterPacket);
        }
    }

    /// Notes `sign` of every missing position of `source` before `end`.
    fn passes(&mut self, source: u16, end: u32, sign: Sign) {
        let passed = self.passed[usize::from(source)];
        for position in passed..end {
            let slot = self.rotations.of(source).slot(position, self.slots);
            self.note(slot, source, sign);
        }
        self.passed[usize::from(source)] = passed.max(end);
        if end >= self.slots {
            self.ending.insert(source);
        }
    }

    /// Notes an event that concerns the contribution of `source` to `slot`.
    fn note(&mut self, slot: u32, source: u16, sign: Sign) -> Change {
        let change = self.states.note(self.bit(slot, source), sign);
        if change.ends_wait {
            let awaited = &mut self.awaited[slot as usize];
            *awaited -= 1;
            if *awaited == 0 && !self.closed.contains(slot as usize) {
                self.ready.push(slot);
            }
        }
        change
    }

    fn bit(&self, slot: u32, source: u16) -> usize {
        slot as usize * usize::from(self.ranks) + usize::from(source)
    }
}
