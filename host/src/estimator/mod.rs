//! Estimators of the mean over all ranks from the contributions that arrived.
//!
//! | file | content |
//! | --- | --- |
//! | `arrived_mean.rs` | [`Estimation::ArrivedMean`]: the mean of those that arrived |
//! | `scaled.rs` | [`Estimation::Scaled`]: as published; missing values are zero, and sources are scaled up |
//!
//! `ultima-research study estimators` compares them.

mod arrived_mean;
mod scaled;

use serde::{Deserialize, Serialize};

use arrived_mean::ArrivedMean;
use scaled::Scaled;

/// How an owner estimates the mean over all ranks. The same on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimation {
    /// A slot's sum, divided by the contributions in it.
    #[default]
    ArrivedMean,
    /// A missing contribution is zero, and a source's arrived contributions are multiplied by sent/arrived
    /// (OptiReduce, NSDI 2025). It needs these totals, so shards close as a whole.
    Scaled,
}

impl Estimation {
    /// All variants.
    pub const ALL: [Estimation; 2] = [Estimation::ArrivedMean, Estimation::Scaled];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Estimation::ArrivedMean => "arrived-mean",
            Estimation::Scaled => "scaled",
        }
    }

    /// True if the estimate adds contributions in the order of ranks and divides them at the end.
    pub(crate) fn is_sum_in_order(self) -> bool {
        self == Estimation::ArrivedMean
    }

    pub(crate) fn estimator(self) -> Box<dyn Estimator> {
        match self {
            Estimation::ArrivedMean => Box::new(ArrivedMean),
            Estimation::Scaled => Box::new(Scaled),
        }
    }
}

/// An owner's data of one slot when it closes.
#[derive(Clone, Copy)]
pub(crate) struct Contributions<'a> {
    pub(crate) own: &'a [f32],
    pub(crate) rank: u16,
    pub(crate) ranks: u16,
    /// Ranks from 0 on whose contributions are already in the sum, if the estimate is one
    /// ([`Estimation::is_sum_in_order`]).
    pub(crate) summed: u16,
    pub(crate) others: Others<'a>,
}

/// The contributions of the other ranks.
#[derive(Clone, Copy)]
pub(crate) struct Others<'a> {
    /// The shard's values by source, without the owner.
    pub(crate) values: &'a [f32],
    pub(crate) shard_len: usize,
    /// Start of the slot in the shard.
    pub(crate) start: usize,
    /// True if the slot's contribution of a source has arrived.
    pub(crate) arrived: &'a dyn Fn(u16) -> bool,
    /// Number of the shard's slots that arrived from a source, and their total.
    pub(crate) came: &'a dyn Fn(u16) -> (u32, u32),
}

impl<'a> Contributions<'a> {
    /// Number of ranks in the job.
    pub(crate) fn ranks(&self) -> u16 {
        self.ranks
    }

    /// `rank`'s contribution, if it arrived. The owner's own always has.
    pub(crate) fn of(&self, rank: u16) -> Option<&'a [f32]> {
        if rank == self.rank {
            return Some(self.own);
        }
        let others = &self.others;
        (others.arrived)(rank).then(|| {
            let index = usize::from(rank - u16::from(rank > self.rank));
            &others.values[index * others.shard_len + others.start..][..self.own.len()]
        })
    }

    /// The share of the shard's slots that arrived from `rank`; 1 for the owner.
    pub(crate) fn share(&self, rank: u16) -> f64 {
        if rank == self.rank {
            return 1.0;
        }
        let (came, of) = (self.others.came)(rank);
        f64::from(came) / f64::from(of)
    }

    /// Number of contributions that arrived.
    pub(crate) fn count(&self) -> u16 {
        let arrived = |rank| rank == self.rank || (self.others.arrived)(rank);
        (0..self.ranks).filter(|rank| arrived(*rank)).count() as u16
    }
}

/// Estimates the mean of all ranks' contributions to a slot.
///
/// The result must depend only on the contributions: runs with the same arrivals are bit-identical.
pub(crate) trait Estimator: Send {
    /// True if slots must wait for the rest of their shard, because [`Contributions::share`] is used.
    fn closes_whole_shards(&self) -> bool {
        false
    }

    /// Writes the estimate to `mean`, which is as long as the contributions and holds what is summed of them.
    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]);
}

/// The weighted sum of the contributions that arrived, in the order of ranks.
fn weighted(contributions: &Contributions<'_>, weight: impl Fn(u16) -> f32, mean: &mut [f32]) {
    mean.fill(0.0);
    for rank in 0..contributions.ranks() {
        if let Some(values) = contributions.of(rank) {
            let weight = weight(rank);
            for (sum, value) in mean.iter_mut().zip(values) {
                *sum += weight * value;
            }
        }
    }
}

/// Contributions of tests: a slot of one value.
#[cfg(test)]
pub(crate) fn estimate(
    estimator: &mut dyn Estimator,
    rank: u16,
    values: &[Option<f32>],
    came: impl Fn(u16) -> (u32, u32),
) -> f32 {
    let owner = usize::from(rank);
    let mut others: Vec<f32> = values
        .iter()
        .map(|value| value.unwrap_or(f32::NAN))
        .collect();
    others.remove(owner);
    let contributions = Contributions {
        own: &[values[owner].expect("the owner's own is there")],
        rank,
        ranks: values.len() as u16,
        summed: 0,
        others: Others {
            values: &others,
            shard_len: 1,
            start: 0,
            arrived: &|rank| values[usize::from(rank)].is_some(),
            came: &came,
        },
    };
    let mut mean = [f32::NAN];
    estimator.estimate(&contributions, &mut mean);
    mean[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_are_found_by_rank() {
        // Rank 1 of 4 owns a shard of 3 values; the slot is the last two, rank 2's did not arrive.
        let others = Others {
            values: &[0.0, 1.0, 2.0, 9.0, 9.0, 9.0, 0.0, 6.0, 8.0],
            shard_len: 3,
            start: 1,
            arrived: &|rank| rank != 2,
            came: &|_| (2, 2),
        };
        let contributions = Contributions {
            own: &[2.0, 5.0],
            rank: 1,
            ranks: 4,
            summed: 0,
            others,
        };
        let found = [0, 1, 2, 3].map(|rank| contributions.of(rank));
        let expected = [[1.0, 2.0], [2.0, 5.0], [6.0, 8.0]];
        let [first, second, fourth] = expected.each_ref().map(|values| Some(&values[..]));
        assert_eq!(found, [first, second, None, fourth]);
        assert_eq!(contributions.count(), 3);
    }
}
