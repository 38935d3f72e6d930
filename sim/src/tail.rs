//! The tail: random delays of messages.

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::clock::Ps;

/// The standard normal distribution's 99th percentile.
const Z99: f64 = 2.326_347_874_040_841;

/// A message whose time is *T* without delays takes *T*·max(1, *X*), with *X* log-normal with median 1 and
/// 99th percentile *R*. Half of the messages take *T*, and the 99th percentile over the median is *R* for
/// messages of any length.
///
/// The one parameter of *X* follows: σ = ln *R* / z₉₉. The sender waits for the time beyond *T* before it
/// starts to send. A draw depends on a seed, an operation, a stage and a sender, so algorithms in a
/// comparison meet the same ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    sigma: f64,
    seed: u64,
}

impl Tail {
    /// Creates a tail with p99/p50 of `ratio`, 1 or more.
    pub fn new(ratio: f64, seed: u64) -> Self {
        Self {
            sigma: ratio.ln() / Z99,
            seed,
        }
    }

    /// max(1, *X*) of `sender`'s messages in `stage` of `operation`.
    pub fn factor(&self, operation: u32, stage: u32, sender: u32) -> f64 {
        if self.sigma == 0.0 {
            return 1.0;
        }
        let z: f64 = StandardNormal.sample(&mut random(self.seed, operation, stage, sender));
        self.quantile(z)
    }

    /// max(1, *X*) at *z* standard deviations of ln *X*.
    pub fn quantile(&self, z: f64) -> f64 {
        (self.sigma * z).exp().max(1.0)
    }

    /// The wait of a message's sender, for the usual duration `usual`.
    pub fn wait(usual: Ps, factor: f64) -> Ps {
        Ps((usual.0 as f64 * (factor - 1.0)).round() as u64)
    }
}

/// The random generator of `rank` in `stage` of `operation`.
pub(crate) fn random(seed: u64, operation: u32, stage: u32, rank: u32) -> Xoshiro256PlusPlus {
    let words = [
        seed,
        u64::from(stage) << 32 | u64::from(operation),
        rank.into(),
        0,
    ];
    // Neighbouring seeds are similar; SplitMix64 in `seed_from_u64` separates them.
    let word = words.into_iter().fold(0u64, |state, word| {
        (state ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    });
    Xoshiro256PlusPlus::seed_from_u64(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_requested_one() {
        for ratio in [1.0, 1.5, 3.0] {
            let tail = Tail::new(ratio, 7);
            let mut factors: Vec<f64> = (0..200_000)
                .map(|n| tail.factor(n % 200, n / 20_000, n / 200 % 100))
                .collect();
            factors.sort_by(f64::total_cmp);
            let [p50, p99] = [100_000, 198_000].map(|at| factors[at]);
            // With 200,000 draws the 99th percentile's relative standard deviation is under 1 %.
            assert!((p50 - 1.0).abs() < 0.01, "{p50}");
            assert!((p99 / p50 / ratio - 1.0).abs() < 0.03, "{p99}");
        }
    }

    #[test]
    fn a_draw_is_its_own() {
        let tail = Tail::new(3.0, 7);
        let all = [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 4), (0, 4, 0)];
        let all = all.map(|(o, t, s)| (0..20).map(|n| tail.factor(o, t, s + 8 * n)).sum::<f64>());
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one));
        }
        assert_eq!(tail.factor(3, 1, 9), Tail::new(3.0, 7).factor(3, 1, 9));
        assert_ne!(
            Tail::new(3.0, 8).factor(3, 1, 9),
            Tail::new(3.0, 7).factor(3, 1, 9)
        );
    }
}
