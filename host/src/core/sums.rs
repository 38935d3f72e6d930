//! The values of the others' contributions to this rank's shard, and their sums. It decides nothing: [`Reduce`] says which
//! contributions count.

use std::ops::Range;

use crate::config::Config;
use crate::element::Element;
use crate::estimator::{self, Estimation};
use crate::rotation::Rotations;
use crate::sum;
use crate::values::{Bucket, ValueStore};

use super::reduce::Reduce;
use super::states::Arrival;

/// Contributions by rank, unless they were added as they arrived.
#[derive(Default)]
pub(super) struct Sums<V> {
    rank: u16,
    ranks: u16,
    element: Element,
    estimation: Estimation,
    shard: Range<usize>,
    slots: u32,
    /// The others' values, by rank.
    others: V,
    /// With [`Estimation::ArrivedMean`]: the other ranks by the first slot of their rotation, the last slot first.
    by_start: Vec<(u32, u16)>,
    /// By slot, with [`Estimation::ArrivedMean`]: contributions that were added to this rank's, in the bucket, in the order of
    /// [`Sums::nth`].
    summed: Vec<u16>,
    /// With [`Estimation::Scaled`], once slots close: the number of arrived contributions by source.
    came: Vec<u32>,
    /// With recycling and 16-bit elements: the rounding error in the sum of closed slots, by value of the shard.
    rounding: V,
    rounds: bool,
}

impl<V: ValueStore> Sums<V> {
    /// Prepares for an operation whose owned `shard` has `slots`. Allocates only for the largest operation so far.
    pub(super) fn reset(
        &mut self,
        config: &Config,
        shard: Range<usize>,
        slots: u32,
        rotations: Rotations,
    ) {
        let Config { rank, ranks, .. } = *config;
        self.rank = rank;
        self.ranks = ranks;
        self.element = config.element;
        self.estimation = config.estimation;
        self.shard = shard;
        self.slots = slots;
        self.others
            .resize(self.shard.len() * usize::from(ranks - 1));
        self.by_start.clear();
        self.summed.clear();
        if self.estimation == Estimation::ArrivedMean {
            let others = (0..ranks).filter(|source| *source != rank);
            let starts = others.map(|source| (rotations.of(source).start(slots), source));
            self.by_start.extend(starts);
            self.by_start.sort_unstable_by(|a, b| b.cmp(a));
            self.summed.resize(slots as usize, 0);
        }
        self.came.clear();
        self.rounds = config.element.rounds() && config.recycling.is_some();
        let rounded = if self.rounds { self.shard.len() } else { 0 };
        self.rounding.resize(rounded);
    }

    /// Rounding error in the sum of this shard's closed slots, by value. Empty without recycling or rounding.
    pub(super) fn rounding(&self) -> &[f32] {
        self.rounding.get(0..self.rounding.count())
    }

    /// Takes the values of a contribution that arrived in time, the `range` of the bucket. Adds them to this rank's
    /// contribution if they are the next ones.
    pub(super) fn take(
        &mut self,
        reduce: &Reduce,
        Arrival { source, slot, .. }: Arrival,
        payload: &[u8],
        range: &Range<usize>,
        bucket: &mut Bucket<V>,
    ) {
        let summed = self.summed.get(slot as usize);
        if summed.is_none_or(|summed| self.nth(slot, *summed) != source) {
            let place = self.place(source, range);
            return self.element.read(payload, self.others.get_mut(place));
        }
        let own = bucket.own_mut().get_mut(range.clone());
        self.element.add(payload, own);
        let mut summed = self.summed[slot as usize] + 1;
        // Those that waited for it.
        while summed + 1 < self.ranks {
            let next = self.nth(slot, summed);
            if !reduce.counts(slot, next) {
                break;
            }
            sum::add(own, self.others.get(self.place(next, range)));
            summed += 1;
        }
        self.summed[slot as usize] = summed;
    }

    /// The source of the contribution that is added to `slot` after `before` others: of these ranks, the one whose
    /// rotation comes to the slot first. So most contributions are added when they arrive, always in the same order.
    fn nth(&self, slot: u32, before: u16) -> u16 {
        let first = self.by_start.partition_point(|(start, _)| *start > slot);
        let (_, source) = self.by_start[(first + usize::from(before)) % self.by_start.len()];
        source
    }

    /// The place of `source`'s contribution to the values in `range` of the bucket.
    fn place(&self, source: u16, range: &Range<usize>) -> Range<usize> {
        let index = usize::from(source - u16::from(source > self.rank));
        let start = index * self.shard.len() + range.start - self.shard.start;
        start..start + range.len()
    }

    /// Replaces this rank's contribution to the closed `slot`, the `range` of the bucket, by the estimate of all ranks' mean,
    /// rounded as the others will read it, so that all ranks apply the same.
    pub(super) fn close(
        &mut self,
        reduce: &Reduce,
        slot: u32,
        range: Range<usize>,
        bucket: &mut Bucket<V>,
    ) {
        let mean = bucket.own_mut().get_mut(range.clone());
        self.estimate(reduce, slot, &range, mean);
        if self.rounds {
            let count = reduce.count(slot);
            let place = range.start - self.shard.start..range.end - self.shard.start;
            for (rounding, mean) in self.rounding.get_mut(place).iter_mut().zip(&*mean) {
                *rounding = self.element.rounded_off(*mean, count);
            }
        }
        self.element.round(mean);
        bucket.close(range);
    }

    fn estimate(&mut self, reduce: &Reduce, slot: u32, range: &Range<usize>, own: &mut [f32]) {
        match self.estimation {
            Estimation::ArrivedMean => {
                for before in self.summed[slot as usize]..self.ranks - 1 {
                    let source = self.nth(slot, before);
                    if reduce.counts(slot, source) {
                        sum::add(own, self.others.get(self.place(source, range)));
                    }
                }
                sum::divide(own, reduce.count(slot));
            }
            Estimation::Scaled => {
                // All slots close at once, so this does not change before the last one.
                if self.came.is_empty() {
                    self.came = reduce.came();
                }
                sum::divide(own, self.ranks);
                let others = (0..self.ranks).filter(|source| *source != self.rank);
                for source in others.filter(|source| reduce.counts(slot, *source)) {
                    let came = self.came[usize::from(source)];
                    let weight = estimator::scaled_weight(self.ranks, came, self.slots);
                    let values = self.others.get(self.place(source, range));
                    for (sum, value) in own.iter_mut().zip(values) {
                        *sum += weight * value;
                    }
                }
            }
        }
    }
}
