//! Coding of gradient buckets for transmission. It knows nothing of packets.
//!
//! [`Coding::Hadamard`] cuts the bucket into *B* blocks of 2^k entries (the last one padded with zeros),
//! gives every entry a random sign, transforms each block with the orthonormal Walsh–Hadamard matrix and
//! interleaves the blocks: coefficient *c* of block *b* has index *cB* + *b*. A run of *S* missing values,
//! which is what a lost packet is, takes ⌈*S*/*B*⌉ or ⌊*S*/*B*⌋ coefficients out of every block; so does a
//! tail that is never sent.
//!
//! If a share *p* of a block's coefficients is missing and replaced by zero, each of its entries *x* is
//! decoded as (1−*p*)·*x* plus noise of zero mean over the signs and of variance *p*(1−*p*) times the block's
//! mean square. The squared error is *p* times the block's energy. OptiReduce (NSDI 2025) transforms the
//! bucket as a whole; interleaved blocks of 2^12 stay in cache and spread a packet as widely.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::hadamard::{self, LANES, Row};
use crate::operation::OperationId;
use crate::seed::{self, Purpose};

/// Coding of a bucket for a network that loses packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// No coding: a lost packet takes a run of neighbouring entries.
    Identity,
    /// Random signs and a Hadamard transform in interleaved blocks.
    Hadamard {
        /// *k* for large buckets, 0 to [`Coding::MAX_LOG2_BLOCK`]. A bucket takes the largest *k* up to this
        /// one whose padding adds at most a sixteenth of its entries.
        log2_block: u8,
    },
}

impl Coding {
    /// The largest *k*: a tile of sixteen blocks then takes 4 MiB.
    pub const MAX_LOG2_BLOCK: u8 = 16;

    /// Padding adds at most one entry per this many.
    const ENTRIES_PER_PADDING: usize = 16;

    /// Length of the encoding of a bucket of `len` entries.
    pub fn encoded_len(self, len: usize) -> usize {
        self.block(len)
            .map_or(len, |block| len.next_multiple_of(block))
    }

    fn check(self) {
        if let Coding::Hadamard { log2_block } = self {
            assert!(
                log2_block <= Coding::MAX_LOG2_BLOCK,
                "blocks of 2^{log2_block}"
            );
        }
    }

    /// Block length 2^k for a bucket of `len` entries. None if the bucket is sent without a transform.
    fn block(self, len: usize) -> Option<usize> {
        let Coding::Hadamard { log2_block } = self else {
            return None;
        };
        (0..=log2_block)
            .rev()
            .map(|k| 1 << k)
            .find(|&block| (len.next_multiple_of(block) - len) * Self::ENTRIES_PER_PADDING <= len)
    }
}

impl Default for Coding {
    /// Hadamard in blocks of 2^12: a tile of them, 256 KiB, fits a second-level cache.
    fn default() -> Self {
        Coding::Hadamard { log2_block: 12 }
    }
}

/// Encodes and decodes buckets, and keeps the memory for it.
pub struct Codec {
    coding: Coding,
    seed: u64,
    tile: Vec<Row>,
}

impl Codec {
    /// Creates a codec for a job with `seed`. All ranks of a job use the same coding and seed.
    ///
    /// # Panics
    /// If a block is larger than 2^[`Coding::MAX_LOG2_BLOCK`].
    pub fn new(coding: Coding, seed: u64) -> Self {
        coding.check();
        Self {
            coding,
            seed,
            tile: Vec::new(),
        }
    }

    /// Writes the encoding of `bucket` in operation `id` to `encoded`, whose allocation is reused.
    pub fn encode(&mut self, id: OperationId, bucket: &[f32], encoded: &mut Vec<f32>) {
        let Some(block) = self.coding.block(bucket.len()) else {
            encoded.clear();
            encoded.extend_from_slice(bucket);
            return;
        };
        encoded.resize(self.coding.encoded_len(bucket.len()), 0.0);
        let blocks = encoded.len() / block;
        let scale = hadamard::scale(block);
        let mut signs = Signs::new(self.seed, id);
        self.tile.resize(block, [0.0; LANES]);
        for first in (0..blocks).step_by(LANES) {
            let lanes = LANES.min(blocks - first);
            gather(&mut self.tile, &bucket[first * block..]);
            signs.flip(&mut self.tile);
            hadamard::transform(&mut self.tile);
            for (row, out) in self.tile.iter().zip(encoded[first..].chunks_mut(blocks)) {
                for (out, value) in out[..lanes].iter_mut().zip(row) {
                    *out = value * scale;
                }
            }
        }
    }

    /// The coding in use.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Sets the coding.
    ///
    /// # Panics
    /// As [`Codec::new`].
    pub fn set_coding(&mut self, coding: Coding) {
        coding.check();
        self.coding = coding;
    }

    /// The reverse of [`Codec::encode`], for a bucket of the same length and operation.
    ///
    /// # Panics
    /// If `encoded` is not as long as this bucket's encoding.
    pub fn decode(&mut self, id: OperationId, encoded: &[f32], bucket: &mut [f32]) {
        self.decode_as(self.coding, id, encoded, bucket);
    }

    /// Decodes a bucket that was encoded with `coding`.
    pub(crate) fn decode_as(
        &mut self,
        coding: Coding,
        id: OperationId,
        encoded: &[f32],
        bucket: &mut [f32],
    ) {
        assert_eq!(encoded.len(), coding.encoded_len(bucket.len()));
        let Some(block) = coding.block(bucket.len()) else {
            bucket.copy_from_slice(encoded);
            return;
        };
        let blocks = encoded.len() / block;
        let scale = hadamard::scale(block);
        let mut signs = Signs::new(self.seed, id);
        self.tile.resize(block, [0.0; LANES]);
        for first in (0..blocks).step_by(LANES) {
            let lanes = LANES.min(blocks - first);
            for (row, values) in self.tile.iter_mut().zip(encoded[first..].chunks(blocks)) {
                for (value, encoded) in row.iter_mut().zip(&values[..lanes]) {
                    *value = encoded * scale;
                }
            }
            hadamard::transform(&mut self.tile);
            signs.flip(&mut self.tile);
            scatter(&self.tile, &mut bucket[first * block..]);
        }
    }
}

/// Rows to fill from one block before the next block's turn: a cache line of it. Blocks are a power of two
/// apart, so reading one value of each in turn would evict their lines before the next value is needed.
const LINE: usize = 16;

/// Copies the next blocks of a bucket to the lanes of a tile, padded with zeros.
fn gather(tile: &mut [Row], bucket: &[f32]) {
    let block = tile.len();
    let present = bucket.len().min(LANES * block);
    if present < LANES * block {
        tile.fill([0.0; LANES]);
    }
    for (line, rows) in tile.chunks_mut(LINE).enumerate() {
        for (lane, values) in bucket[..present].chunks(block).enumerate() {
            let values = values.get(line * LINE..).unwrap_or_default();
            for (row, value) in rows.iter_mut().zip(values) {
                row[lane] = *value;
            }
        }
    }
}

/// The reverse of [`gather`].
fn scatter(tile: &[Row], bucket: &mut [f32]) {
    let block = tile.len();
    let present = bucket.len().min(LANES * block);
    for (line, rows) in tile.chunks(LINE).enumerate() {
        for (lane, values) in bucket[..present].chunks_mut(block).enumerate() {
            let values = values.get_mut(line * LINE..).unwrap_or_default();
            for (value, row) in values.iter_mut().zip(rows) {
                *value = row[lane];
            }
        }
    }
}

/// The random signs of an operation in the order of tiles, rows and lanes, one bit each.
struct Signs(Xoshiro256PlusPlus);

impl Signs {
    fn new(seed: u64, id: OperationId) -> Self {
        let seed = seed::derive(seed, Purpose::Signs, id, 0);
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Multiplies every entry of a tile by its sign.
    fn flip(&mut self, tile: &mut [Row]) {
        const ROWS_PER_WORD: usize = 64 / LANES;
        for rows in tile.chunks_mut(ROWS_PER_WORD) {
            let mut bits = self.0.next_u64();
            for four in rows.iter_mut().flat_map(|row| row.as_chunks_mut::<4>().0) {
                let masks = &SIGNS_OF_FOUR[bits as usize % 16];
                for (value, mask) in four.iter_mut().zip(masks) {
                    *value = f32::from_bits(value.to_bits() ^ mask);
                }
                bits >>= 4;
            }
        }
    }
}

/// The sign bits of four values, by the four random bits that decide them. Not every CPU has vector shifts by
/// lane.
const SIGNS_OF_FOUR: [[u32; 4]; 16] = {
    let mut signs = [[0; 4]; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut at = 0;
        while at < 4 {
            signs[bits][at] = (bits as u32 >> at & 1) << 31;
            at += 1;
        }
        bits += 1;
    }
    signs
};

#[cfg(test)]
mod tests {
    use super::*;

    const ID: OperationId = OperationId { step: 3, bucket: 1 };
    const SIZES: [usize; 14] = [
        0, 1, 2, 3, 7, 64, 65, 1000, 4095, 4096, 4097, 70_001, 100_003, 300_000,
    ];

    fn bucket(len: usize) -> Vec<f32> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(len as u64);
        (0..len)
            .map(|_| (rng.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }

    fn energy(values: &[f32]) -> f64 {
        values.iter().map(|v| f64::from(*v).powi(2)).sum()
    }

    fn encode(coding: Coding, bucket: &[f32]) -> Vec<f32> {
        let mut encoded = Vec::new();
        Codec::new(coding, 42).encode(ID, bucket, &mut encoded);
        encoded
    }

    fn decode(coding: Coding, encoded: &[f32], len: usize) -> Vec<f32> {
        let mut bucket = vec![0.0; len];
        Codec::new(coding, 42).decode(ID, encoded, &mut bucket);
        bucket
    }

    #[test]
    fn decoding_inverts_encoding() {
        for coding in [
            Coding::Identity,
            Coding::default(),
            Coding::Hadamard { log2_block: 5 },
        ] {
            for len in SIZES {
                let original = bucket(len);
                let encoded = encode(coding, &original);
                assert_eq!(encoded.len(), coding.encoded_len(len));
                let decoded = decode(coding, &encoded, len);
                for (at, (a, b)) in original.iter().zip(&decoded).enumerate() {
                    assert!((a - b).abs() < 1e-5, "{coding:?} {len} at {at}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn energy_is_preserved() {
        for len in SIZES {
            let original = bucket(len);
            let (before, after) = (
                energy(&original),
                energy(&encode(Coding::default(), &original)),
            );
            assert!(
                (before - after).abs() <= 1e-5 * before,
                "{len}: {before} {after}"
            );
        }
    }

    #[test]
    fn padding_stays_small() {
        for len in (0..5000).chain([99_999, 1_000_003]) {
            let padding = Coding::default().encoded_len(len) - len;
            assert!(padding * 16 <= len, "{len}: {padding}");
        }
        // The largest block if the bucket is large enough for any padding to be small.
        assert_eq!(Coding::default().block(16 << 12), Some(1 << 12));
        assert_eq!(Coding::default().block(100_010), Some(1 << 12));
    }

    #[test]
    fn operations_have_their_own_signs() {
        let original = bucket(4096);
        let mut codec = Codec::new(Coding::default(), 42);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        codec.encode(ID, &original, &mut a);
        codec.encode(OperationId { step: 4, ..ID }, &original, &mut b);
        let product: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).sum();
        assert!(product.abs() < 0.1 * energy(&original), "{product}");
    }

    /// A tail that is never sent: with the transform every entry of the bucket carries a little of the loss
    /// and none more than a few standard deviations. Without the transform the tail is missing.
    #[test]
    fn a_tail_drop_spreads_over_all_entries() {
        let len = 40_960;
        let original = bucket(len);
        let lost = len / 20;
        let errors = |coding| -> Vec<f32> {
            let mut encoded = encode(coding, &original);
            let end = encoded.len();
            encoded[end - lost..].fill(0.0);
            decode(coding, &encoded, len)
                .iter()
                .zip(&original)
                .map(|(a, b)| a - b)
                .collect()
        };
        let share = lost as f64 / len as f64;

        let hadamard = errors(Coding::default());
        let relative = energy(&hadamard) / energy(&original);
        assert!(
            (relative / share - 1.0).abs() < 0.1,
            "lost {share}, error {relative}"
        );
        let sigma = (energy(&hadamard) / len as f64).sqrt();
        let largest = hadamard.iter().fold(0f32, |max, e| max.max(e.abs()));
        // 40,960 normal deviates exceed 6 σ with probability 8e-5; the seed is fixed.
        assert!(
            f64::from(largest) < 6.0 * sigma,
            "largest {largest}, σ {sigma}"
        );
        // Every sixteenth of the bucket carries its share of the noise.
        for part in hadamard.chunks(len / 16) {
            let part_share = energy(part) / energy(&hadamard) * 16.0;
            assert!((0.7..1.3).contains(&part_share), "{part_share}");
        }
        let mean: f64 = hadamard.iter().map(|e| f64::from(*e)).sum::<f64>() / len as f64;
        assert!(
            mean.abs() < 4.0 * sigma / (len as f64).sqrt(),
            "mean {mean}, σ {sigma}"
        );

        let identity = errors(Coding::Identity);
        assert!(identity[..len - lost].iter().all(|e| *e == 0.0));
        assert_eq!(
            energy(&identity[len - lost..]),
            energy(&original[len - lost..])
        );
    }
}
