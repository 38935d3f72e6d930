//! The mean of the contributions that arrived.

use super::{Contributions, Estimator};
use crate::sum;

/// The mean of the contributions that arrived: the sum in the order of ranks, divided by their number.
///
/// The owner's own contribution always arrives. If each of the *N*−1 others does with probability *q* =
/// 1−*p*, a source's expected weight is, with *M* ~ Binomial(*N*−2, *q*) other arrivals, *q*·E\[1/(2+*M*)\]
/// for one that is not the owner and E\[1/(1+*M*′)\] = (1−*p*^*N*)/(*Nq*), *M*′ ~ Binomial(*N*−1, *q*), for
/// the owner. A rank owns 1/*N* of all entries, so over a bucket every rank weighs exactly 1/*N* if all lose
/// alike. The variance of the estimate around the true mean, given *m* contributions drawn without
/// replacement, is *s*²/*m*·(1−*m*/*N*), *s*² being the variance between the ranks (with divisor *N*−1); it
/// is zero if all contributions are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArrivedMean;

impl Estimator for ArrivedMean {
    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]) {
        let mut is_empty = contributions.summed == 0;
        for rank in contributions.summed..contributions.ranks() {
            if let Some(values) = contributions.of(rank) {
                match std::mem::take(&mut is_empty) {
                    true => mean.copy_from_slice(values),
                    false => sum::add(mean, values),
                }
            }
        }
        sum::divide(mean, contributions.count());
    }
}

#[cfg(test)]
mod tests {
    use super::super::estimate;
    use super::*;

    #[test]
    fn missing_packets_do_not_count() {
        let of = |values: &[Option<f32>]| estimate(&mut ArrivedMean, 1, values, |_| (1, 1));
        assert_eq!(of(&[Some(1.0), Some(2.0), None, Some(6.0)]), 3.0);
        assert_eq!(of(&[None, Some(2.0), None]), 2.0);
    }
}
