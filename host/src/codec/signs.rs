//! Random signs.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::simd::LANES;
use crate::operation::OperationId;
use crate::seed::{Purpose, Seeds};

/// The random signs of an operation. Every tile has its own generator, so tiles can be coded in any order.
#[derive(Clone, Copy)]
pub(super) struct Signs(Seeds);

impl Signs {
    pub(super) fn new(seed: u64, id: OperationId) -> Self {
        Self(Seeds::new(seed, Purpose::Signs, id))
    }

    /// The signs of the tile whose first block is `first`.
    pub(super) fn of_tile(self, first: usize) -> TileSigns {
        TileSigns(Xoshiro256PlusPlus::seed_from_u64(self.0.of(first as u64)))
    }
}

/// The random signs of a tile.
pub(super) struct TileSigns(Xoshiro256PlusPlus);

impl TileSigns {
    /// The signs of the next 16 entries of each lane. A set bit negates.
    #[inline(always)]
    pub(super) fn next_group(&mut self) -> [u16; LANES] {
        let mut bits = [0; LANES];
        for four in bits.as_chunks_mut::<4>().0 {
            let word = self.0.next_u64();
            *four = std::array::from_fn(|i| (word >> (16 * i)) as u16);
        }
        bits
    }
}
