//! The published estimator: arrived contributions of a source stand for all that it sent.

use super::{Contributions, Estimator, weighted};

/// *(1/N)·Σ_i (sent_i/arrived_i)·1{i arrived}·y_i*, the totals being the shard's (OptiReduce, NSDI 2025:
/// receivers count the expected and the received packets of each sender, and scale).
///
/// Unbiased if losses hit slots at random, at any rate. The variance grows with (1−q)/q of each source's own
/// square, unlike the other estimators'. A source without any arrival is zero.
pub(super) struct Scaled;

impl Estimator for Scaled {
    fn closes_whole_shards(&self) -> bool {
        true
    }

    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]) {
        let ranks = f64::from(contributions.ranks());
        let weight = |rank| (1.0 / (ranks * contributions.share(rank))) as f32;
        weighted(contributions, weight, mean);
    }
}

#[cfg(test)]
mod tests {
    use super::super::estimate;
    use super::*;

    #[test]
    fn arrivals_stand_for_all_sent_slots() {
        // Half of rank 2's slots arrived, this one among them; none of rank 3's did.
        let came = |rank| match rank {
            2 => (2, 4),
            3 => (0, 4),
            _ => (4, 4),
        };
        let values = [Some(1.0), Some(2.0), Some(6.0), None];
        assert_eq!(
            estimate(&mut Scaled, 0, &values, came),
            (1.0 + 2.0 + 12.0) / 4.0
        );
        let values = [Some(1.0), Some(2.0), None, None];
        assert_eq!(estimate(&mut Scaled, 0, &values, came), 3.0 / 4.0);
    }
}
