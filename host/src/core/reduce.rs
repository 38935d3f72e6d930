//! The shard that this rank owns: contributions come in, slots close.

use std::ops::Range;

use crate::bits::Bits;
use crate::cause::{Cause, Causes};
use crate::config::Config;
use crate::element::Element;
use crate::estimator::{Contributions, Estimator, Others};
use crate::layout::Layout;
use crate::rotation::Rotation;
use crate::stats::ClosedBy;
use crate::values::Values;

use super::cuts::Cuts;
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
/// it and is not here is lost. Of each source one position says up to where that is settled.
#[derive(Default)]
pub(super) struct Reduce {
    rank: u16,
    ranks: u16,
    /// Packets of one source that may overtake each other.
    reorder: u32,
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
    sources: Vec<Source>,
    /// Other sources whose last packets have not begun to come.
    coming: u16,
    /// Slots that nothing more is awaited for.
    ready: Vec<u32>,
    closed_by: ClosedBy,
    /// By number of contributions: slots closed with as many.
    histogram: Vec<u32>,
    /// Contributions that closed slots lack.
    lost: Causes,
}

#[derive(Clone, Copy)]
struct Source {
    rotation: Rotation,
    /// Every position before this one is in or known to be gone.
    settled: u32,
    /// Packets heard that were sent after the last of this shard's.
    sent_after: u32,
    /// Its contributions that are here.
    came: u32,
    /// It is not waited for because it was silent, not because of what it sent.
    silent: bool,
    /// Its last packets have begun to come, or nothing of it is awaited.
    ending: bool,
    /// A bound passed while something of it was awaited.
    overdue: bool,
}

/// A slot that closed.
pub(super) struct Closed {
    pub(super) slot: u32,
    pub(super) contributions: u16,
    pub(super) by: ClosedBy,
}

impl Reduce {
    /// Prepares for an operation whose values are `stored` or only counted; `rotation` gives each source's. Allocates
    /// only for the largest operation so far.
    pub(super) fn reset(
        &mut self,
        layout: &Layout,
        (rank, ranks): (u16, u16),
        config: &Config,
        stored: bool,
        rotation: impl Fn(u16) -> Rotation,
    ) {
        let slots = layout.slots(rank);
        let others = usize::from(ranks - 1);
        self.rank = rank;
        self.ranks = ranks;
        self.reorder = config.reorder;
        self.element = config.element;
        self.shard = layout.shard(rank);
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
        self.sources.clear();
        self.sources.extend((0..ranks).map(|rank| Source {
            rotation: rotation(rank),
            settled: 0,
            sent_after: 0,
            came: 0,
            silent: false,
            ending: false,
            overdue: false,
        }));
        self.coming = ranks - 1;
        self.ready.clear();
        self.closed_by = ClosedBy::Complete;
        self.histogram.clear();
        self.histogram.resize(usize::from(ranks) + 1, 0);
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

    /// Slots by number of contributions.
    pub(super) fn histogram(&self) -> &[u32] {
        &self.histogram
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
        self.histogram[0] = self.slots;
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
        let Source {
            rotation, settled, ..
        } = self.sources[usize::from(source)];
        let position = rotation.position(slot, self.slots);
        let verdict = if self.closed.contains(slot as usize) {
            Verdict::Late
        } else {
            self.arrived.insert(bit);
            self.sources[usize::from(source)].came += 1;
            let range = layout.slot(self.rank, slot);
            let start = self.index(source) * self.shard.len() + range.start - self.shard.start;
            let place = self.values.get_mut(start..start + range.len());
            payload.read(self.element, place);
            if position >= settled && !self.cuts.contains(bit) {
                self.settle_one(slot);
            }
            Verdict::InTime
        };
        self.settle_before(source, position.saturating_sub(self.reorder));
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
        let Source {
            rotation, settled, ..
        } = self.sources[usize::from(source)];
        let position = rotation.position(slot, self.slots);
        if position >= settled {
            self.settle_one(slot);
        }
        self.settle_before(source, position.saturating_sub(self.reorder));
        true
    }

    /// A packet of `source` came that it sent after its last contribution to this shard.
    pub(super) fn sent_after(&mut self, source: u16) {
        let source_state = &mut self.sources[usize::from(source)];
        source_state.sent_after = source_state.sent_after.saturating_add(1);
        if source_state.sent_after > self.reorder {
            self.settle_before(source, self.slots);
        }
    }

    /// All that `source` sends is out, by its own word: nothing of it is awaited any more; what
    /// comes nevertheless counts while its slot is open.
    pub(super) fn give_up(&mut self, source: u16) {
        self.settle_before(source, self.slots);
    }

    /// `source` was silent too long to be waited for.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        self.sources[usize::from(source)].silent = true;
        self.give_up(source);
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
        while let Some(slot) = self.ready.pop() {
            closed(self.close(layout, slot, own, result, estimator, ClosedBy::KnownLoss));
        }
    }

    /// Whether everyone's last packets have begun to come, or nothing of them is awaited.
    pub(super) fn is_ending(&self) -> bool {
        self.coming == 0
    }

    /// Contributions of `source` that are here.
    pub(super) fn came(&self, source: u16) -> u32 {
        self.sources[usize::from(source)].came
    }

    /// Whether a bound passed while contributions of `source` were awaited.
    pub(super) fn is_overdue(&self, source: u16) -> bool {
        self.sources[usize::from(source)].overdue
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
        if self.open > 0 {
            let (rank, slots) = (self.rank, self.slots);
            for (source, state) in (0u16..).zip(&mut self.sources) {
                state.overdue = source != rank && state.settled < slots;
            }
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
        let counted = |&source: &u16| source == self.rank || arrived(source);
        let count = (0..self.ranks).filter(counted).count() as u16;
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
                    came: &|source| (self.sources[usize::from(source)].came, self.slots),
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
                    *rounding = f32::from(count) * (mean - self.element.rounded(*mean));
                }
            }
            self.element.round(mean);
            own.copy_from_slice(mean);
        }

        self.closed.insert(slot as usize);
        self.open -= 1;
        self.histogram[usize::from(count)] += 1;
        let by = match count < self.ranks {
            true => incomplete,
            false => ClosedBy::Complete,
        };
        self.closed_by = self.closed_by.max(by);
        if count < self.ranks {
            for source in 0..self.ranks {
                if source != self.rank && !self.arrived.contains(self.bit(slot, source)) {
                    self.lost.count(self.cause(slot, source), 1);
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
        let Source {
            rotation,
            settled,
            silent,
            ..
        } = self.sources[usize::from(source)];
        match self.cuts.cause(self.bit(slot, source)) {
            Some(cause) => cause,
            None if silent => Cause::Silent,
            None if rotation.position(slot, self.slots) < settled => Cause::Overtaken,
            None => Cause::Overdue,
        }
    }

    /// Counts every position of `source` before `end` that is not in as gone.
    fn settle_before(&mut self, source: u16, end: u32) {
        let Source {
            rotation, settled, ..
        } = self.sources[usize::from(source)];
        for position in settled..end {
            let slot = rotation.slot(position, self.slots);
            let bit = self.bit(slot, source);
            if !self.arrived.contains(bit) && !self.cuts.contains(bit) {
                self.settle_one(slot);
            }
        }
        self.sources[usize::from(source)].settled = settled.max(end);
        if end >= self.slots {
            self.ending(source);
        }
    }

    fn ending(&mut self, source: u16) {
        if !std::mem::replace(&mut self.sources[usize::from(source)].ending, true) {
            self.coming -= 1;
        }
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
