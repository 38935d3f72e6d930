//! Independent streams of random numbers from the run's one seed.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The purpose of a stream of random numbers.
///
/// Each purpose has its own stream, so that more numbers for one do not change the others: a run
/// with other shards still starts from the same weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Which examples are held out, and the order of the rest.
    Split,
    /// Which worker trains on which example.
    Deal,
    /// The model's first weights.
    Weights,
    /// The order in which a worker goes through its shard.
    Batches,
    /// Before which steps a worker sleeps.
    Stragglers,
}

/// The stream of `purpose` for `rank` (0 where all ranks must draw the same).
///
/// Streams start at least 2^128 numbers apart in one sequence of xoshiro256++, hence never overlap.
pub fn stream(seed: u64, purpose: Purpose, rank: usize) -> Xoshiro256PlusPlus {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    for _ in 0..purpose as usize {
        rng.long_jump();
    }
    for _ in 0..rank {
        rng.jump();
    }
    rng
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::HashSet;

    #[test]
    fn streams_differ_by_seed_purpose_and_rank() {
        let mut first = HashSet::new();
        for seed in 0..3 {
            for purpose in [
                Purpose::Split,
                Purpose::Deal,
                Purpose::Weights,
                Purpose::Batches,
            ] {
                for rank in 0..32 {
                    first.insert(stream(seed, purpose, rank).next_u64());
                }
            }
        }
        assert_eq!(first.len(), 3 * 4 * 32);
    }

    #[test]
    fn a_stream_is_the_same_each_time() {
        let draw = || stream(7, Purpose::Batches, 3).next_u64();
        assert_eq!(draw(), draw());
    }
}
