//! From the contributions that arrived to the mean over all ranks.

/// What an owner has of one slot when it closes.
#[derive(Clone, Copy)]
pub struct Contributions<'a> {
    pub(crate) own: &'a [f32],
    pub(crate) rank: u16,
    pub(crate) ranks: u16,
    pub(crate) others: Others<'a>,
}

/// Where the contributions of the other ranks lie.
#[derive(Clone, Copy)]
pub(crate) struct Others<'a> {
    /// The shard's values, one source after the other, the owner left out.
    pub(crate) values: &'a [f32],
    pub(crate) shard_len: usize,
    /// Where the slot begins in the shard.
    pub(crate) start: usize,
    /// Whether the slot's contribution of a source is in.
    pub(crate) arrived: &'a dyn Fn(u16) -> bool,
}

impl<'a> Contributions<'a> {
    /// Ranks of the job, arrived or not.
    pub fn ranks(&self) -> u16 {
        self.ranks
    }

    /// What `rank` contributed, if it arrived; the owner's own always has.
    pub fn of(&self, rank: u16) -> Option<&'a [f32]> {
        if rank == self.rank {
            return Some(self.own);
        }
        let others = &self.others;
        (others.arrived)(rank).then(|| {
            let index = usize::from(rank - u16::from(rank > self.rank));
            &others.values[index * others.shard_len + others.start..][..self.own.len()]
        })
    }

    /// What arrived, in the order of the ranks.
    pub fn arrived(&self) -> impl Iterator<Item = &'a [f32]> + '_ {
        (0..self.ranks).filter_map(|rank| self.of(rank))
    }
}

/// A way to estimate the mean of what all ranks contributed to a slot.
///
/// The result must depend on nothing but the contributions and on what the estimator saw of earlier
/// operations: runs with the same arrivals are bit-identical.
pub trait Estimator: Send {
    /// Writes the estimate to `mean`, which is as long as the contributions.
    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]);
}

/// The mean over what arrived: the sum in the order of ranks, divided by the number of
/// contributions.
///
/// The owner's own contribution always arrives. If each of the *N*−1 others does with probability
/// *q* = 1−*p*, a source's expected weight is, with *M* ~ Binomial(*N*−2, *q*) other arrivals,
/// *q*·E\[1/(2+*M*)\] for one that is not the owner and E\[1/(1+*M*′)\] = (1−*p*^*N*)/(*Nq*), *M*′
/// ~ Binomial(*N*−1, *q*), for the owner. A rank owns 1/*N* of all entries, so over a bucket every
/// rank weighs exactly 1/*N* when all lose alike. The variance of the estimate around the true
/// mean, given *m* contributions drawn without replacement, is *s*²/*m*·(1−*m*/*N*), *s*² being the
/// variance between the ranks (with divisor *N*−1); it is zero where all contribute the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrivedMean;

impl Estimator for ArrivedMean {
    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]) {
        mean.fill(0.0);
        let mut count = 0u16;
        for values in contributions.arrived() {
            for (sum, value) in mean.iter_mut().zip(values) {
                *sum += value;
            }
            count += 1;
        }
        let count = f32::from(count);
        for sum in mean {
            *sum /= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_what_arrived() {
        // Rank 1 of 4 owns a shard of 3 values; the slot is the last two, rank 2's did not arrive.
        let others = Others {
            values: &[0.0, 1.0, 2.0, 9.0, 9.0, 9.0, 0.0, 6.0, 8.0],
            shard_len: 3,
            start: 1,
            arrived: &|rank| rank != 2,
        };
        let contributions = Contributions {
            own: &[2.0, 5.0],
            rank: 1,
            ranks: 4,
            others,
        };
        assert_eq!(contributions.of(2), None);
        assert_eq!(contributions.of(3), Some(&[6.0, 8.0][..]));
        let mut mean = [f32::NAN; 2];
        ArrivedMean.estimate(&contributions, &mut mean);
        assert_eq!(mean, [3.0, 5.0]);
    }
}
