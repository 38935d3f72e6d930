//! Generated data: every rank can compute the contributions of all others.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// The data of a job.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// The seed, the same on all hosts.
    pub seed: u64,
    /// Number of values in an operation.
    pub len: usize,
    /// Number of ranks.
    pub ranks: u16,
}

impl Data {
    /// The contribution of `rank` to operation `step`: uniform in [−1, 1), multiples of 2^−23.
    pub fn contribution(&self, step: u32, rank: u16) -> Vec<f32> {
        let mut random = self.stream(step, rank);
        (0..self.len).map(|_| value(&mut random)).collect()
    }

    /// The squared error of `result` relative to the exact mean's square: ‖r − m‖² / ‖m‖².
    pub fn error(&self, step: u32, result: &[f32]) -> f64 {
        let mut streams: Vec<_> = (0..self.ranks)
            .map(|rank| self.stream(step, rank))
            .collect();
        let (mut error, mut norm) = (0.0, 0.0);
        for result in result {
            let sum: f64 = streams
                .iter_mut()
                .map(|stream| f64::from(value(stream)))
                .sum();
            let mean = sum / f64::from(self.ranks);
            error += (f64::from(*result) - mean).powi(2);
            norm += mean.powi(2);
        }
        if norm == 0.0 { error } else { error / norm }
    }

    fn stream(&self, step: u32, rank: u16) -> Xoshiro256PlusPlus {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&step.to_le_bytes());
        seed[12..14].copy_from_slice(&rank.to_le_bytes());
        // An all-zero seed is invalid for this generator.
        seed[31] = 1;
        let mut stream = Xoshiro256PlusPlus::from_seed(seed);
        // Seeds that differ in few bits give similar first values.
        stream.jump();
        stream
    }
}

fn value(random: &mut Xoshiro256PlusPlus) -> f32 {
    (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// SHA-256 of values as little-endian bytes, in hexadecimal.
pub fn sha256(values: &[f32]) -> String {
    let mut hash = Sha256::new();
    for value in values {
        hash.update(value.to_le_bytes());
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_mean_has_no_error() {
        let data = Data {
            seed: 7,
            len: 1000,
            ranks: 3,
        };
        let contributions: Vec<_> = (0..3).map(|rank| data.contribution(2, rank)).collect();
        let mean = |ranks: &[usize]| -> Vec<f32> {
            let of = |at: usize| {
                ranks
                    .iter()
                    .map(|r| f64::from(contributions[*r][at]))
                    .sum::<f64>()
            };
            (0..1000)
                .map(|at| (of(at) / ranks.len() as f64) as f32)
                .collect()
        };
        assert!(data.error(2, &mean(&[0, 1, 2])) < 1e-13);
        // The mean of two of the three contributions.
        assert!((0.3..0.8).contains(&data.error(2, &mean(&[0, 1]))));
        assert!(data.error(1, &mean(&[0, 1, 2])) > 1.0);
        assert_eq!(data.error(2, &vec![0.0; 1000]), 1.0);
    }

    #[test]
    fn digests_cover_the_bytes() {
        // printf '\x00\x00\x80\x3f' | sha256sum
        let one = "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c";
        assert_eq!(sha256(&[1.0]), one);
    }
}
