//! The distance between parameters, estimated from a few values of each.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::operation::OperationId;
use crate::seed::{self, Purpose};

/// Sums in a digest: 2^6.
const LOG2_SUMS: u32 = 6;
const SUMS: usize = 1 << LOG2_SUMS;
/// Entries that one random word serves: a sum and a sign each.
const PER_WORD: usize = 64 / (LOG2_SUMS as usize + 1);

/// A random linear map from parameters to a few sums: every entry is added, with a random sign, to one of 64
/// sums drawn at random (the count sketch of Charikar, Chen and Farach-Colton, 2002, with one row).
///
/// It is linear, so the difference of two digests is the digest *d* of the difference *x*. E\[‖d‖²\] = ‖x‖²
/// over the draws, with a variance of at most 2/64·‖x‖⁴: the standard error of a distance is 9 %. Sums are
/// sent as binary32, so differences below 10⁻⁷ of the norm are not visible, but equal parameters have equal
/// digests. It costs one addition per parameter. All ranks draw the same map, a new one for every operation.
pub struct Sketch {
    seed: u64,
}

/// A summary of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Digest {
    /// ‖w‖.
    norm: f32,
    sums: [f32; SUMS],
}

impl Digest {
    /// Number of values.
    pub const LEN: usize = 1 + SUMS;

    /// Its values, as sent.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        std::iter::once(self.norm).chain(self.sums)
    }

    /// Creates a digest from its values. None if their number is not [`Digest::LEN`].
    pub fn from_values(values: &[f32]) -> Option<Self> {
        let (&norm, sums) = values.split_first()?;
        Some(Self {
            norm,
            sums: sums.try_into().ok()?,
        })
    }

    /// The estimated distance from the parameters of `other`.
    pub fn distance(&self, other: &Digest) -> f64 {
        let pairs = self.sums.iter().zip(&other.sums);
        let squares = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
        squares.sum::<f64>().sqrt()
    }
}

impl Sketch {
    /// The sketch of a job with `seed` for operation `id`.
    pub fn new(seed: u64, id: OperationId) -> Self {
        Self {
            seed: seed::derive(seed, Purpose::Digest, id, 0),
        }
    }

    /// The digest of `parameters`.
    pub fn digest(&self, parameters: &[f32]) -> Digest {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let (mut sums, mut square) = ([0.0f64; SUMS], 0.0f64);
        for chunk in parameters.chunks(PER_WORD) {
            let mut word = random.next_u64();
            for value in chunk {
                let value = f64::from(*value);
                square += value * value;
                let sign = 1.0 - 2.0 * (word & 1) as f64;
                sums[(word >> 1) as usize % SUMS] += sign * value;
                word >>= LOG2_SUMS + 1;
            }
        }
        Digest {
            norm: square.sqrt() as f32,
            sums: sums.map(|sum| sum as f32),
        }
    }

    /// The spread of replicas: the largest distance from the first one, as a share of its norm. Zero if all
    /// are equal.
    pub fn spread(digests: &[Digest]) -> f64 {
        let Some((first, others)) = digests.split_first() else {
            return 0.0;
        };
        let distances = others.iter().map(|other| other.distance(first));
        // Not `f64::max`, which ignores NaN.
        let largest = distances.fold(0.0, |largest: f64, next| {
            match next > largest || next.is_nan() {
                true => next,
                false => largest,
            }
        });
        match largest == 0.0 {
            true => 0.0,
            false => largest / f64::from(first.norm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(seed: u64, len: usize, scale: f32) -> Vec<f32> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let unit = |word: u64| (word >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        (0..len).map(|_| scale * unit(random.next_u64())).collect()
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    }

    fn sketch(step: u32) -> Sketch {
        Sketch::new(42, OperationId { step, bucket: 0 })
    }

    /// Mean and deviation of the estimate over many draws are the documented ones, for a difference in all
    /// entries and for one in a few.
    #[test]
    fn distances_are_estimated_as_stated() {
        let a = vector(1, 20_000, 1.0);
        let differences = [
            vector(2, 20_000, 0.01),
            (0..20_000)
                .map(|at| if at < 3 { 1.0 } else { 0.0 })
                .collect(),
        ];
        for difference in differences {
            let b: Vec<f32> = a.iter().zip(&difference).map(|(a, d)| a + d).collect();
            let exact = distance(&a, &b);
            let draws = 300;
            let ratios: Vec<f64> = (0..draws)
                .map(|draw| {
                    let sketch = sketch(draw);
                    sketch.digest(&a).distance(&sketch.digest(&b)).powi(2) / exact.powi(2)
                })
                .collect();
            let mean = ratios.iter().sum::<f64>() / f64::from(draws);
            let variance =
                ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / f64::from(draws);
            println!(
                "mean {mean:.3}, variance {variance:.4} of 2/64 = {:.4}",
                2.0 / 64.0
            );
            // Four standard deviations of a mean of 300.
            assert!(
                (mean - 1.0).abs() < 4.0 * (2.0 / 64.0 / f64::from(draws)).sqrt(),
                "{mean}"
            );
            assert!(variance < 1.5 * 2.0 / 64.0, "{variance}");
        }
    }

    #[test]
    fn equal_parameters_have_no_spread_and_the_furthest_counts() {
        let a = vector(1, 5000, 1.0);
        let digest = |parameters: &[f32]| sketch(0).digest(parameters);
        assert_eq!(Sketch::spread(&[digest(&a), digest(&a)]), 0.0);
        assert_eq!(Sketch::spread(&[]), 0.0);
        let parted = |by: f32| -> Vec<f32> { a.iter().map(|value| value * (1.0 + by)).collect() };
        let near = digest(&parted(0.01));
        let far = digest(&parted(0.1));
        let spread = Sketch::spread(&[digest(&a), far.clone(), near]);
        assert!((spread - 0.1).abs() < 0.04, "{spread}");
        let broken = digest(&[f32::NAN]);
        assert!(Sketch::spread(&[digest(&a), broken, far]).is_nan());
        assert_eq!(
            Digest::from_values(&digest(&a).values().collect::<Vec<_>>()),
            Some(digest(&a))
        );
        assert_eq!(Digest::from_values(&[1.0]), None);
    }
}
