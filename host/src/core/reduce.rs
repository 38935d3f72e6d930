//! The shard that this rank owns: contributions come in, slots close.

use std::ops::Range;

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
use crate::values::Values;

use super::cuts::Cuts;
use super::overtaking::SentAfter;
use super::packet::Payload;

/// What became of a packet that is well-formed and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    InTime,
    Late,
    Duplicate,
}

/// Contributions by slot and source, and what is still awaited.
///
/// A source sends its slots in its rotation's order, so that an arrival shows that what came before
/// it and is not here is lost. Of each source one position says up to where that is settled, and little else is kept:
/// there may be thousands, and what can be counted from what is here is counted at the end.
#[derive(Default)]
pub(super) struct Reduce {
    rank: u16,
    ranks: u16,
    rotations: Rotations,
    answers: Answers,
    element: Element,
    shard: Range<usize>,
    slots: u32,
    /// The others' values, one shard after the other by rank.
    values: Values,
    /// With recycling, where elements round: by value of the shard, what that took from the sum of its closed slots.
    rounding: Values,
    /// By slot and rank.
    arrived: Bits,
    /// By slot and rank.
    cuts: Cuts,
    /// By slot: sources whose contribution is neither in nor known to be gone.
    awaited: Vec<u16>,
    closed: Bits,
    open: u32,
    /// Packets of one source that may overtake each other.
    reorder: u32,
    /// By source: every position before this one is in or known to be gone.
    settled: Vec<u32>,
    /// After the last ones of this shard.
    sent_after: SentAfter,
    /// Sources that are not waited for because they were silent, not because of what they sent.
    silent: Bits,
    /// Sources whose last packets have begun to come, or of which nothing is awaited.
    ending: Bits,
    /// Sources of which something had neither come nor been answered when a bound passed.
    overdue: Bits,
    /// Other sources whose last packets have not begun to come.
    coming: u16,
    /// Slots that nothing more is awaited for.
    ready: Vec<u32>,
    closed_by: ClosedBy,
    /// Slots closed with every contribution.
    whole: u32,
    /// Slots closed with none, as nobody waits for them.
    lapsed: bool,
    /// By source, its contributions that are here: only for estimators that close whole shards, while they do.
    came: Vec<u32>,
    /// Contributions that closed slots lack.
    lost: Causes,
}

/// A slot that closed.
pub(super) struct Closed {
    pub(super) slot: u32,
    pub(super) contributions: u16,
    pub(super) by: ClosedBy,
}

impl Reduce {
    /// Prepares for an operation whose values are `stored` or only counted, of a [`Part::Gather`] for no contribution.
    /// Allocates only for the largest operation so far.
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
        self.reorder = config.reorder;
        self.answers = config.answers;
        self.element = config.element;
        self.shard = shard;
        self.slots = slots;
        self.values.resize(self.shard.len() * others, stored);
        let rounds = config.element.rounds() && config.recycling.is_some();
        self.rounding
            .resize(if rounds { self.shard.len() } else { 0 }, stored);
        self.arrived.reset(slots as usize * usize::from(ranks));
        self.cuts.reset(slots as usize * usize::from(ranks));
        self.awaited.clear();
        self.awaited.resize(slots as usize, ranks - 1);
        self.closed.reset(slots as usize);
        self.open = slots;
        self.settled.clear();
        self.settled.resize(ranks.into(), 0);
        self.sent_after.reset(ranks, config.reorder);
        for sources in [&mut self.silent, &mut self.ending, &mut self.overdue] {
            sources.reset(ranks.into());
        }
        self.coming = ranks - 1;
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

    /// The worst of what closed a slot so far.
    pub(super) fn closed_by(&self) -> ClosedBy {
        self.closed_by
    }

    /// Slots closed with every contribution.
    pub(super) fn whole(&self) -> u32 {
        self.whole
    }

    /// Whether nobody waits for this shard.
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

    /// Contributions to a slot that are in, with this rank's own.
    fn count(&self, slot: u32) -> u16 {
        let start = self.bit(slot, 0);
        self.arrived.count(start..start + usize::from(self.ranks)) as u16 + 1
    }

    /// By source, its contributions that are here; of this rank's own none count.
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
                *came += u32::from(self.arrived.contains(self.bit(slot, source)));
            }
        }
        for (source, came) in (0..).zip(came) {
            *came += if source == self.rank { 0 } else { whole };
        }
    }

    /// What rounding took from the sum of this shard's closed slots, value by value; empty where nothing is carried.
    pub(super) fn rounding(&self) -> &[f32] {
        self.rounding
            .get(0..self.rounding.len())
            .unwrap_or_default()
    }

    /// Contributions that the others owe this shard.
    pub(super) fn owed(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.ranks - 1)
    }

    /// Contributions that closed slots lack, by cause.
    pub(super) fn lost(&self) -> Causes {
        self.lost
    }

    /// Whether the aggregate of `slot`, which has closed, has `rank`'s contribution.
    pub(super) fn counts(&self, slot: u32, rank: u16) -> bool {
        rank == self.rank || self.arrived.contains(self.bit(slot, rank))
    }

    /// Closes every slot with no contribution at all, as nobody waits for this shard any more.
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

    /// A contribution of `source` to `slot` came; its length has been checked.
    pub(super) fn contribute(
        &mut self,
        layout: &Layout,
        source: u16,
        (slot, last): (u32, bool),
        payload: Payload<'_>,
    ) -> Verdict {
        if last {
            self.ending(source);
        }
        let bit = self.bit(slot, source);
        if self.arrived.contains(bit) {
            return Verdict::Duplicate;
        }
        let settled = self.settled[usize::from(source)];
        let position = self.rotations.of(source).position(slot, self.slots);
        let verdict = if self.closed.contains(slot as usize) {
            Verdict::Late
        } else {
            self.arrived.insert(bit);
            let range = layout.slot(self.rank, slot);
            let start = self.index(source) * self.shard.len() + range.start - self.shard.start;
            let place = self.values.get_mut(start..start + range.len());
            payload.read(self.element, place);
            if position >= settled && !self.is_answered_by_cut(bit) {
                self.settle_one(slot);
            }
            Verdict::InTime
        };
        self.overtaken(source, position.saturating_sub(self.reorder));
        verdict
    }

    /// A switch cut `source`'s contribution to `slot`: it is not awaited. False if that was known,
    /// or the contribution is here.
    pub(super) fn cut(&mut self, source: u16, (slot, last): (u32, bool), cause: Cause) -> bool {
        if last {
            self.ending(source);
        }
        let bit = self.bit(slot, source);
        if self.arrived.contains(bit) || !self.cuts.insert(bit, cause) {
            return false;
        }
        let settled = self.settled[usize::from(source)];
        let position = self.rotations.of(source).position(slot, self.slots);
        if position >= settled && self.answers.cuts() {
            self.settle_one(slot);
        }
        self.overtaken(source, position.saturating_sub(self.reorder));
        true
    }

    /// A packet of `source` came that it sent after its last contribution to this shard.
    pub(super) fn sent_after(&mut self, source: u16) {
        if self.sent_after.heard(source) {
            self.overtaken(source, self.slots);
        }
    }

    /// All that `source` sends is out, by its own word: nothing of it is awaited any more; what
    /// comes nevertheless counts while its slot is open.
    pub(super) fn give_up(&mut self, source: u16) {
        self.overtaken(source, self.slots);
    }

    /// `source` was silent too long to be waited for.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        self.silent.insert(source.into());
        self.settle_before(source, self.slots);
    }

    /// Closes the slots for which nothing is awaited: writes their estimates to `result`, and over
    /// this rank's own contribution in `own`, from where they are sent.
    pub(super) fn close_ready(
        &mut self,
        layout: &Layout,
        own: &mut Values,
        result: &mut Values,
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
            closed(self.close(layout, slot, own, result, estimator, ClosedBy::KnownLoss));
        }
    }

    /// Whether everyone's last packets have begun to come, or nothing of them is awaited.
    pub(super) fn is_ending(&self) -> bool {
        self.coming == 0
    }

    /// Whether a bound passed while a contribution of `source` had neither come nor been answered.
    pub(super) fn is_overdue(&self, source: u16) -> bool {
        self.overdue.contains(source.into())
    }

    /// Closes every open slot with what it has, because `bound` passed.
    pub(super) fn flush(
        &mut self,
        layout: &Layout,
        own: &mut Values,
        result: &mut Values,
        estimator: &mut dyn Estimator,
        bound: ClosedBy,
        mut closed: impl FnMut(Closed),
    ) {
        if self.open > 0 && estimator.closes_whole_shards() {
            self.count_came();
        }
        for slot in 0..self.slots {
            if !self.closed.contains(slot as usize) {
                closed(self.close(layout, slot, own, result, estimator, bound));
            }
        }
        // What waited for the rest of its shard has closed with it.
        self.ready.clear();
    }

    fn close(
        &mut self,
        layout: &Layout,
        slot: u32,
        own: &mut Values,
        result: &mut Values,
        estimator: &mut dyn Estimator,
        incomplete: ClosedBy,
    ) -> Closed {
        let range = layout.slot(self.rank, slot);
        let arrived = |source| self.arrived.contains(self.bit(slot, source));
        let count = self.count(slot);
        if let (Some(own), Some(mean), Values::Stored(values)) = (
            own.get_mut(range.clone()),
            result.get_mut(range.clone()),
            &self.values,
        ) {
            let contributions = Contributions {
                own,
                rank: self.rank,
                ranks: self.ranks,
                others: Others {
                    values,
                    shard_len: self.shard.len(),
                    start: range.start - self.shard.start,
                    arrived: &arrived,
                    came: &|source| (self.came[usize::from(source)], self.slots),
                },
            };
            estimator.estimate(&contributions, mean);
            let place = range.start - self.shard.start..range.end - self.shard.start;
            let rounding = match self.rounding.len() {
                0 => None,
                _ => self.rounding.get_mut(place),
            };
            // As the others will read it, so that all apply the same.
            if let Some(rounding) = rounding {
                for (rounding, mean) in rounding.iter_mut().zip(&*mean) {
                    *rounding = self.element.rounded_off(*mean, count);
                }
            }
            self.element.round(mean);
            own.copy_from_slice(mean);
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
                if source != self.rank && !self.arrived.contains(self.bit(slot, source)) {
                    let cause = self.cause(slot, source);
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

    /// Why `source`'s contribution to `slot` is not here.
    fn cause(&self, slot: u32, source: u16) -> Cause {
        let position = || self.rotations.of(source).position(slot, self.slots);
        match self.cuts.cause(self.bit(slot, source)) {
            Some(cause) => cause,
            None if self.silent.contains(source.into()) => Cause::Silent,
            None if position() < self.settled[usize::from(source)] => Cause::Overtaken,
            None => Cause::Overdue,
        }
    }

    /// `source` has sent every position before `end`, and what is not in can't come any more.
    fn overtaken(&mut self, source: u16, end: u32) {
        if self.answers.order() {
            self.settle_before(source, end);
        }
    }

    /// Whether a packet is not awaited because its header came without its payload.
    fn is_answered_by_cut(&self, bit: usize) -> bool {
        self.answers.cuts() && self.cuts.contains(bit)
    }

    /// Counts every position of `source` before `end` that is not in as gone.
    fn settle_before(&mut self, source: u16, end: u32) {
        let settled = self.settled[usize::from(source)];
        for position in settled..end {
            let slot = self.rotations.of(source).slot(position, self.slots);
            let bit = self.bit(slot, source);
            if !self.arrived.contains(bit) && !self.is_answered_by_cut(bit) {
                self.settle_one(slot);
            }
        }
        self.settled[usize::from(source)] = settled.max(end);
        if end >= self.slots {
            self.ending(source);
        }
    }

    fn ending(&mut self, source: u16) {
        if self.ending.insert(source.into()) {
            self.coming -= 1;
        }
    }

    /// What [`Estimator::estimate`] is told of the shard.
    fn count_came(&mut self) {
        let mut came = std::mem::take(&mut self.came);
        self.count_sources(&mut came);
        self.came = came;
    }

    fn settle_one(&mut self, slot: u32) {
        let awaited = &mut self.awaited[slot as usize];
        *awaited -= 1;
        if *awaited == 0 && !self.closed.contains(slot as usize) {
            self.ready.push(slot);
        }
    }

    fn bit(&self, slot: u32, source: u16) -> usize {
        slot as usize * usize::from(self.ranks) + usize::from(source)
    }

    /// The place of a source's values among the others'.
    fn index(&self, source: u16) -> usize {
        usize::from(source - u16::from(source > self.rank))
    }
}
