//! The shard that this rank owns: contributions, and when its slots close.

use std::ops::Range;

use ultima_wire::Kind;

use crate::answers::Answers;
use crate::bits::{Bits, RareBits};
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::element::Element;
use crate::estimator::{self, Estimation};
use crate::layout::Layout;
use crate::operation::Part;
use crate::rotation::Rotations;
use crate::stats::ClosedBy;
use crate::sum;
use crate::time::Time;
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
    estimation: Estimation,
    /// With stored values and [`Estimation::ArrivedMean`]: the other ranks by the first slot of their rotation, the last
    /// slot first.
    by_start: Vec<(u32, u16)>,
    /// By slot: contributions that were added to this rank's, in the bucket, in the order of [`Reduce::nth`].
    summed: Vec<u16>,
    /// With recycling and 16-bit elements: the rounding error in the sum of closed slots, by value of the
    /// shard.
    rounding: Values,
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
        self.estimation = config.estimation;
        self.by_start.clear();
        self.summed.clear();
        if config.estimation == Estimation::ArrivedMean && stored {
            let others = (0..ranks).filter(|source| *source != rank);
            let starts = others.map(|source| (rotations.of(source).start(slots), source));
            self.by_start.extend(starts);
            self.by_start.sort_unstable_by(|a, b| b.cmp(a));
            self.summed.resize(slots as usize, 0);
        }
        let rounds = config.element.rounds() && config.recycling.is_some();
        self.rounding
            .resize(if rounds { self.shard.len() } else { 0 }, stored);
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

    /// Adds a contribution of `source` to `slot`, whose length was checked. The sum is computed as far as the
    /// contributions have arrived.
    pub(super) fn contribute(
        &mut self,
        layout: &Layout,
        (arrival, source): (Time, u16),
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
        if !is_closed || self.late.insert(self.bit(slot, source)) {
            self.note_order(arrival, source, position, before);
        }
        let acceptance = if is_closed {
            Acceptance::Late
        } else {
            let range = layout.slot(self.rank, slot);
            match bucket.own_mut().get_mut(range.clone()) {
                Some(own) if self.adds_next(slot, source) => {
                    self.add(slot, payload, (&range, own));
                }
                _ => {
                    let place = self.place(source, &range);
                    payload.read(self.element, self.values.get_mut(place));
                }
            }
            Acceptance::InTime
        };
        self.overtaken(arrival, source, self.order.before(position));
        acceptance
    }

    /// The source of the contribution that is added to `slot` after `before` others: of these ranks, the one whose
    /// rotation comes to the slot first. So most contributions are added when they arrive, always in the same order.
    fn nth(&self, slot: u32, before: u16) -> u16 {
        let first = self.by_start.partition_point(|(start, _)| *start > slot);
        let (_, source) = self.by_start[(first + usize::from(before)) % self.by_start.len()];
        source
    }

    /// True if the contribution of `source` is the next to add to the sum of `slot`.
    fn adds_next(&self, slot: u32, source: u16) -> bool {
        let summed = self.summed.get(slot as usize);
        summed.is_some_and(|summed| self.nth(slot, *summed) == source)
    }

    /// Adds a contribution to the sum of `slot`, and those that waited for it.
    fn add(&mut self, slot: u32, payload: Payload<'_>, (range, own): (&Range<usize>, &mut [f32])) {
        payload.add(self.element, own);
        let mut summed = self.summed[slot as usize] + 1;
        while summed + 1 < self.ranks {
            let next = self.nth(slot, summed);
            let values = self.values.get(self.place(next, range));
            match values.filter(|_| self.states.has_arrived(self.bit(slot, next))) {
                Some(values) => sum::add(own, values),
                None => break,
            }
            summed += 1;
        }
        self.summed[slot as usize] = summed;
    }

    /// The place of `source`'s contribution to the values in `range` of the bucket.
    fn place(&self, source: u16, range: &Range<usize>) -> Range<usize> {
        let start = self.index(source) * self.shard.len() + range.start - self.shard.start;
        start..start + range.len()
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

    /// Closes the slots with nothing outstanding, and writes their estimates.
    pub(super) fn close_ready(
        &mut self,
        layout: &Layout,
        bucket: &mut Bucket,
        mut closed: impl FnMut(Closed),
    ) {
        if self.estimation.closes_whole_shards() {
            if self.ready.len() < self.open as usize {
                return;
            }
            if !self.ready.is_empty() {
                self.count_came();
            }
        }
        while let Some(slot) = self.ready.pop() {
            closed(self.close(layout, slot, bucket, ClosedBy::KnownLoss));
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
        bound: ClosedBy,
        mut closed: impl FnMut(Closed),
    ) {
        if self.open > 0 && self.estimation.closes_whole_shards() {
            self.count_came();
        }
        for slot in 0..self.slots {
            if !self.closed.contains(slot as usize) {
                closed(self.close(layout, slot, bucket, bound));
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
        incomplete: ClosedBy,
    ) -> Closed {
        let range = layout.slot(self.rank, slot);
        let count = self.count(slot);
        if let Some(mean) = bucket.own_mut().get_mut(range.clone()) {
            self.estimate(slot, &range, mean);
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

    /// Replaces this rank's contribution to `slot`, or the sum so far, by the estimate of all ranks' mean.
    fn estimate(&self, slot: u32, range: &Range<usize>, own: &mut [f32]) {
        let arrived = |source| {
            let values = self.values.get(self.place(source, range));
            values.filter(|_| self.states.has_arrived(self.bit(slot, source)))
        };
        match self.estimation {
            Estimation::ArrivedMean => {
                let rest = self.summed[slot as usize]..self.ranks - 1;
                for values in rest.filter_map(|before| arrived(self.nth(slot, before))) {
                    sum::add(own, values);
                }
                sum::divide(own, self.count(slot));
            }
            Estimation::Scaled => {
                sum::divide(own, self.ranks);
                for source in (0..self.ranks).filter(|source| *source != self.rank) {
                    let came = self.came[usize::from(source)];
                    let weight = estimator::scaled_weight(self.ranks, (came, self.slots));
                    for (sum, value) in own.iter_mut().zip(arrived(source).unwrap_or_default()) {
                        *sum += weight * value;
                    }
                }
            }
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

    /// Fills the counters for [`Estimation::Scaled`].
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
