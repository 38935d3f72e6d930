//! Percentiles and means with bootstrap intervals.

use std::fmt;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// Resamples of a bootstrap (Efron, 1979).
const RESAMPLES: usize = 1_000;

/// A value with its 95 % interval by percentile bootstrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interval { value, low, high } = self;
        write!(f, "{value:.2} ({low:.2} to {high:.2})")
    }
}

/// A function of a sample, such as its median. The sample has at least one value; the function may reorder it.
pub type Statistic = fn(&mut [f64]) -> f64;

/// The median.
pub fn p50(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The 95th percentile.
pub fn p95(values: &mut [f64]) -> f64 {
    quantile(values, 0.95)
}

/// The 99th percentile.
pub fn p99(values: &mut [f64]) -> f64 {
    quantile(values, 0.99)
}

/// The 99th percentile divided by the median.
pub fn p99_over_p50(values: &mut [f64]) -> f64 {
    p99(values) / p50(values)
}

/// The arithmetic mean.
pub fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The smallest value that is not below the share `share` of all (nearest rank).
fn quantile(values: &mut [f64], share: f64) -> f64 {
    // A share of at most 1, so a rank of at most the length.
    let rank = (share * values.len() as f64).ceil() as usize;
    let (_, value, _) = values.select_nth_unstable_by(rank.max(1) - 1, f64::total_cmp);
    *value
}

/// A statistic of `values`; `None` if there are none.
pub fn interval(values: &[f64], statistic: Statistic) -> Option<Interval> {
    ratio(values, &[1.0], statistic)
}

/// The statistic of `above` divided by that of `below`; `None` if one of them is empty.
pub fn ratio(above: &[f64], below: &[f64], statistic: Statistic) -> Option<Interval> {
    if above.is_empty() || below.is_empty() {
        return None;
    }
    let value = statistic(&mut above.to_vec()) / statistic(&mut below.to_vec());
    // A fixed seed: the same times give the same report.
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut resampled = |values: &[f64]| {
        let draw = |_| values[random.random_range(0..values.len())];
        statistic(&mut (0..values.len()).map(draw).collect::<Vec<_>>())
    };
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| resampled(above) / resampled(below))
        .collect();
    Some(Interval {
        value,
        low: quantile(&mut ratios, 0.025),
        high: quantile(&mut ratios, 0.975),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(p50(&mut values), 50.0);
        assert_eq!(p99(&mut values), 99.0);
        assert_eq!(p99_over_p50(&mut values), 99.0 / 50.0);
        assert_eq!(p99(&mut [7.0]), 7.0);
        assert_eq!(mean(&mut [1.0, 2.0, 6.0]), 3.0);
    }

    #[test]
    fn intervals_contain_their_value_and_shrink() {
        let few: Vec<f64> = (0..20).map(|it| f64::from(it % 10)).collect();
        let many = few.repeat(50);
        let [few, many] = [few, many].map(|it| interval(&it, mean).expect("values"));
        for it in [few, many] {
            assert!(it.low <= it.value && it.value <= it.high, "{it:?}");
        }
        assert!(many.high - many.low < few.high - few.low, "{few} {many}");
        let ratio = ratio(&[4.0; 10], &[2.0; 10], p50).expect("values");
        assert_eq!(ratio.to_string(), "2.00 (2.00 to 2.00)");
        assert_eq!(interval(&[], p50), None);
    }
}
