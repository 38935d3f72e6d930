//! The shard that this rank owns: contributions, and when its slots close.

use std::ops::Range;

use ultima_wire::Kind;

use crate::answers::Answers;
use crate::bits::Bits;
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::element::Element;
use crate::estimator::{Contributions, Estimator, Others};
use crate::layout::Layout;
use crate::operation::Part;
use crate::rotation::Rotations;
use crate::stats::ClosedBy;
use crate::sum;
use crate::values::{Bucket, Values};

use super::overtaking::{Order, Packet};
use super::packet::Payload;
use super::states::{Change, Ending, Sign, State, States};

/// The fate of a well-formed packet of this operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    InTime,
    Late,
    Duplicate,
}

/// Contributions by slot and source, and the outstanding ones.
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
    element: Element,
    shard: Range<usize>,
    slots: u32,
    /// The others' values, by rank, unless they were added as they arrived.
    values: Values,
    /// True if contributions are added as they arrive, where that keeps the order of ranks.
    adds_early: bool,
    /// By slot: ranks from 0 on whose contributions are in the sum, which is in the bucket.
    summed: Vec<u16>,
    /// The estimate of a slot that lacks contributions, until it replaces the own one.
    estimate: Vec<f32>,
    /// With recycling and 16-bit elements: the rounding error in the sum of closed slots, by value of the
    /// shard.
    rounding: Values,
    /// By slot and rank.
    states: States,
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
    /// By source: number of its arrived contributions. Filled only for estimators that close whole shards,
    /// while they do.
    came: Vec<u32>,
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
    /// Prepares for an operation, with values that are `stored` or only counted, and without contributions
    /// for a [`Part::Gather`]. Allocates only for the largest operation so far.
    pub(super) fn reset(
        &mut self,
        layout: &Layout,
        part: Part,
        (rank, ranks): (u16, u16),
        config: &Config,
        stored: bool,
        rotations: Rotations,
    ) {
        let (slots, shard) = match part {
            Part::Gather => (0, 0..0),
            Part::Whole | Part::Scatter => (layout.slots(rank), layout.shard(rank)),
        };
        let others = usize::from(ranks - 1);
        self.rank = rank;
        self.ranks = ranks;
        self.rotations = rotations;
        self.answers = config.answers;
        self.element = config.element;
        self.shard = shard;
        self.slots = slots;
        self.values.resize(self.shard.len() * others, stored);
        self.adds_early = config.estimation.is_sum_in_order() && stored;
        self.summed.clear();
        self.summed
            .resize(if self.adds_early { slots as usize } else { 0 }, 0);
        let rounds = config.element.rounds() && config.recycling.is_some();
        self.rounding
            .resize(if rounds { self.shard.len() } else { 0 }, stored);
        self.states
            .reset(slots as usize * usize::from(ranks), config.answers);
        self.awaited.clear();
        self.awaited.resize(slots as usize, ranks - 1);
        self.closed.reset(slots as usize);
        self.open = slots;
        self.passed.clear();
        self.passed.resize(ranks.into(), 0);
        self.order.reset(ranks, config.reorder, true);
        self.overdue.reset(ranks.into());
        self.ending.reset(ranks);
        self.ending.insert(rank);
        self.ready.clear();
        self.closed_by = ClosedBy::Complete;
        self.whole = 0;
        self.lapsed = false;
        self.lost = Causes::default();
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
    fn count(&self, slot: u32) -> u16 {
        let start = self.bit(slot, 0);
        let others = start..start + usize::from(self.ranks);
        self.states.count_arrived(others) as u16 + 1
    }

    /// By source: number of its arrived contributions. This rank's own do not count.
    pub(super) fn came(&self) -> Vec<u32> {
        let mut came = Vec::new();
        self.count_sources(&mut came);
        came
    }

    fn count_sources(&self, came: &mut Vec<u32>) {
        came.clear();
        came.resize(self.ranks.into(), 0);
        let mut whole = 0;
        for slot in 0..self.slots {
            if self.count(slot) == self.ranks {
                whole += 1;
                continue;
            }
            for (source, came) in (0..self.ranks).zip(&mut *came) {
                *came += u32::from(self.states.has_arrived(self.bit(slot, source)));
            }
        }
        for (source, came) in (0..).zip(came) {
            *came += if source == self.rank { 0 } else { whole };
        }
    }

    /// Rounding error in the sum of this shard's closed slots, by value. Empty without recycling or rounding.
    pub(super) fn rounding(&self) -> &[f32] {
        self.rounding
            .get(0..self.rounding.len())
            .unwrap_or_default()
    }

    /// Contributions that the others owe this shard.
    pub(super) fn owed(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.ranks - 1)
    }

    /// Contributions missing from closed slots, by cause.
    pub(super) fn lost(&self) -> Causes {
        self.lost
    }

    /// True if the aggregate of the closed `slot` includes `rank`'s contribution.
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

    /// Adds a contribution of `source` to `slot`, whose length was checked. A sum in the order of ranks is
    /// computed as far as the contributions have arrived.
    pub(super) fn contribute(
        &mut self,
        layout: &Layout,
        source: u16,
        (slot, last): (u32, bool),
        payload: Payload<'_>,
        bucket: &mut Bucket,
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
        self.note_order(source, position, before);
        let acceptance = if is_closed {
            Acceptance::Late
        } else {
            let range = layout.slot(self.rank, slot);
            match bucket.own_mut().get_mut(range.clone()) {
                Some(own) if self.adds_next(slot, source) => {
                    self.add(slot, source, payload, (&range, own));
                }
                _ => {
                    let place = self.place(source, &range);
                    payload.read(self.element, self.values.get_mut(place));
                }
            }
            Acceptance::InTime
        };
        self.overtaken(source, position.saturating_sub(self.order.tolerance()));
        acceptance
    }

    /// True if the sum of `slot` lacks only this rank's own contribution before that of `source`.
    fn adds_next(&self, slot: u32, source: u16) -> bool {
        let summed = self.summed.get(slot as usize).copied();
        summed
            .is_some_and(|summed| summed == source || (summed == self.rank && summed + 1 == source))
    }

    /// Adds the contribution of `source` to the sum of `slot`, and those that waited for it. Until this rank's
    /// turn, the sum is in the place of rank 0's contribution, then in that of its own.
    fn add(
        &mut self,
        slot: u32,
        source: u16,
        payload: Payload<'_>,
        (range, own): (&Range<usize>, &mut [f32]),
    ) {
        let first = self.place(0, range);
        let mut next = self.summed[slot as usize];
        while next < self.ranks {
            let is_here = next == source
                || next == self.rank
                || self.states.has_arrived(self.bit(slot, next));
            let place = self.place(next, range);
            let Values::Stored(values) = &mut self.values else {
                return;
            };
            if !is_here {
                break;
            }
            let is_before = next < self.rank;
            if next == self.rank {
                if next > 0 {
                    sum::add(own, &values[first.clone()]);
                }
            } else if next == source {
                let sum = if is_before {
                    &mut values[first.clone()]
                } else {
                    &mut *own
                };
                match next {
                    0 => payload.read(self.element, Some(sum)),
                    _ => payload.add(self.element, sum),
                }
            } else if is_before {
                let (sums, others) = values.split_at_mut(place.start);
                sum::add(&mut sums[first.clone()], &others[..range.len()]);
            } else {
                sum::add(own, &values[place]);
            }
            next += 1;
        }
        self.summed[slot as usize] = next;
    }

    /// The place of `source`'s contribution to the values in `range` of the bucket.
    fn place(&self, source: u16, range: &Range<usize>) -> Range<usize> {
        let start = self.index(source) * self.shard.len() + range.start - self.shard.start;
        start..start + range.len()
    }

    /// Notes that a switch removed the payload of `source`'s contribution to `slot`. Returns false if that
    /// was known or the contribution is here.
    pub(super) fn cut(&mut self, source: u16, (slot, last): (u32, bool), cause: Cause) -> bool {
        if last {
            self.ending.insert(source);
        }
        let change = self.note(slot, source, Sign::Header(cause));
        if !change.is_new {
            return false;
        }
        let position = self.rotations.of(source).position(slot, self.slots);
        self.note_order(source, position, change.from);
        self.overtaken(source, position.saturating_sub(self.order.tolerance()));
        true
    }

    /// Contributions that did not arrive, from the last slot on.
    pub(super) fn missing(&self) -> impl Iterator<Item = Packet> + '_ {
        let others = move || (0..self.ranks).filter(|source| *source != self.rank);
        let all = (0..self.slots)
            .rev()
            .flat_map(move |slot| others().map(move |source| (slot, source)));
        let missing =
            all.filter(|(slot, source)| !self.states.has_arrived(self.bit(*slot, *source)));
        missing.map(|(slot, source)| (Kind::Scatter, source, slot))
    }

    /// Notes the order of a packet that arrives for the first time.
    fn note_order(&mut self, source: u16, position: u32, before: State) {
        self.order.arrived(source, position, before.is_overtaken());
    }

    /// Notes a packet that `source` sent after its last contribution to this shard.
    pub(super) fn sent_after(&mut self, source: u16) {
        if self.order.sent_after(source) {
            self.overtaken(source, self.slots);
        }
    }

    /// Gives up the outstanding contributions of `source`, which has sent all its packets. Contributions that
    /// still arrive count while their slot is open.
    pub(super) fn give_up(&mut self, source: u16) {
        self.overtaken(source, self.slots);
    }

    /// Gives up `source` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        self.passes(source, self.slots, Sign::Silence);
    }

    /// Closes the slots with nothing outstanding, and writes their estimates.
    pub(super) fn close_ready(
        &mut self,
        layout: &Layout,
        bucket: &mut Bucket,
        estimator: &mut dyn Estimator,
        mut closed: impl FnMut(Closed),
    ) {
        if estimator.closes_whole_shards() && self.ready.len() < self.open as usize {
            return;
        }
        if estimator.closes_whole_shards() && !self.ready.is_empty() {
            self.count_came();
        }
        while let Some(slot) = self.ready.pop() {
            closed(self.close(layout, slot, bucket, estimator, ClosedBy::KnownLoss));
        }
    }

    /// True if every source's last packets have begun to arrive, or it has nothing outstanding.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_complete()
    }

    /// True if a bound passed while a contribution of `source` was outstanding.
    pub(super) fn is_overdue(&self, source: u16) -> bool {
        self.overdue.contains(source.into())
    }

    /// Closes every open slot with the contributions that arrived, because `bound` passed.
    pub(super) fn flush(
        &mut self,
        layout: &Layout,
        bucket: &mut Bucket,
        estimator: &mut dyn Estimator,
        bound: ClosedBy,
        mut closed: impl FnMut(Closed),
    ) {
        if self.open > 0 && estimator.closes_whole_shards() {
            self.count_came();
        }
        for slot in 0..self.slots {
            if !self.closed.contains(slot as usize) {
                closed(self.close(layout, slot, bucket, estimator, bound));
            }
        }
        // Slots that waited for the rest of the shard closed with it.
        self.ready.clear();
    }

    fn close(
        &mut self,
        layout: &Layout,
        slot: u32,
        bucket: &mut Bucket,
        estimator: &mut dyn Estimator,
        incomplete: ClosedBy,
    ) -> Closed {
        let range = layout.slot(self.rank, slot);
        let summed = self.summed.get(slot as usize).copied().unwrap_or_default();
        let first = self.place(0, &range);
        let mut estimate = std::mem::take(&mut self.estimate);
        let arrived = |source| self.states.has_arrived(self.bit(slot, source));
        let count = self.count(slot);
        if let (Some(mean), Values::Stored(values)) =
            (bucket.own_mut().get_mut(range.clone()), &self.values)
        {
            let mut contributions = Contributions {
                own: &[],
                rank: self.rank,
                ranks: self.ranks,
                summed,
                others: Others {
                    values,
                    shard_len: self.shard.len(),
                    start: range.start - self.shard.start,
                    arrived: &arrived,
                    came: &|source| (self.came[usize::from(source)], self.slots),
                },
            };
            if summed == self.ranks {
                estimator.estimate(&contributions, mean);
            } else {
                let is_before = (1..=self.rank).contains(&summed);
                estimate.clear();
                estimate.extend_from_slice(if is_before { &values[first] } else { &*mean });
                contributions.own = mean;
                estimator.estimate(&contributions, &mut estimate);
                mean.copy_from_slice(&estimate);
            }
            let place = range.start - self.shard.start..range.end - self.shard.start;
            let rounding = match self.rounding.len() {
                0 => None,
                _ => self.rounding.get_mut(place),
            };
            // Rounded as the others will read it, so that all ranks apply the same.
            if let Some(rounding) = rounding {
                for (rounding, mean) in rounding.iter_mut().zip(&*mean) {
                    *rounding = self.element.rounded_off(*mean, count);
                }
            }
            self.element.round(mean);
            bucket.close(range);
        }
        self.estimate = estimate;

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

    /// Notes that `source` has sent every position before `end`, so that missing ones are lost.
    fn overtaken(&mut self, source: u16, end: u32) {
        if self.answers.order() {
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

    /// Fills the counters for [`Estimator::estimate`].
    fn count_came(&mut self) {
        let mut came = std::mem::take(&mut self.came);
        self.count_sources(&mut came);
        self.came = came;
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

    /// Index of a source's values among the others'.
    fn index(&self, source: u16) -> usize {
        usize::from(source - u16::from(source > self.rank))
    }
}
