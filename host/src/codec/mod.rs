//! Coding of gradient buckets for transmission. It knows nothing of packets.
//!
//! [`Coding::Hadamard`] cuts the bucket into *B* blocks of 2^k entries (the last one padded with zeros),
//! gives every entry a random sign, transforms each block with the orthonormal Walsh–Hadamard matrix and
//! interleaves the blocks: first coefficient 0 of every block, then coefficient 1 of every block. From 16 blocks of
//! at least 1,024 entries on, these are units of *U* = 16 coefficients, else *U* = 1.
//! [`tile`] has the order, the same on all ranks, whatever their CPUs. It cuts the bucket into tiles of 16 blocks: a
//! unit of a tile is 1 KiB in a row, because memory is slow in smaller pieces.
//! A run of *S* missing values, which is what a lost packet is, takes at least *U*·⌊*S*/*UB*⌋ and at most
//! *U*·⌈*S*/*UB*⌉ coefficients out of every block; so does a tail that is never sent.
//!
//! If a share *p* of a block's coefficients is missing and replaced by zero, each of its entries *x* is
//! decoded as (1−*p*)·*x* plus noise of zero mean over the signs and of variance *p*(1−*p*) times the block's
//! mean square. The squared error is *p* times the block's energy. OptiReduce (NSDI 2025) transforms the
//! bucket as a whole; interleaved blocks of 2^12 stay in cache and spread a packet as widely.
//!
//! A tile of 16 blocks is transformed in registers of 16 rows: a pass does four stages. The first pass reads the
//! bucket and flips signs, the last one scales and writes the encoded bucket, so each is passed over once.
//! Threads share a large bucket's tiles; the result is the same for any number of them.

mod hadamard;
mod signs;
pub(crate) mod simd;
mod threads;
mod tile;

use crate::memory::Buffer;
use crate::operation::OperationId;
use signs::Signs;
use simd::{Cpu, LANES, Row};
use threads::{Columns, share_out};
use tile::{Blocks, Decode, Encode};

/// Values for which another thread pays: 2 MB take a thread about ten times as long as its start.
const VALUES_PER_THREAD: usize = 1 << 19;

/// Coding of a bucket for a network that loses packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// No coding: a lost packet takes a run of neighbouring entries.
    Identity,
    /// Random signs and a Hadamard transform in interleaved blocks.
    Hadamard {
        /// *k* for large buckets, 0 to [`Coding::MAX_LOG2_BLOCK`]. A bucket takes the largest *k* up to this
        /// one whose padding adds at most 1/64 of its entries; of fewer than 16,384, at most 256 entries and 1/16.
        log2_block: u8,
    },
}

impl Coding {
    /// The largest *k*: a tile of sixteen blocks then takes 4 MiB.
    pub const MAX_LOG2_BLOCK: u8 = 16;

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
        // Padding is sent like values. Less than a packet of it costs little, and small blocks spread losses less.
        let allowed = (len / 64).max(256).min(len / 16);
        (0..=log2_block)
            .rev()
            .map(|k| 1 << k)
            .find(|&block| len.next_multiple_of(block) - len <= allowed)
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
    cpu: Cpu,
    /// Memory for a tile, for each thread.
    rows: Vec<Vec<Row>>,
    /// The last block with its padding.
    padded: Vec<f32>,
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
            cpu: Cpu::fastest(),
            rows: vec![Vec::new()],
            padded: Vec::new(),
        }
    }

    /// Has large buckets coded on up to `threads` threads, this one included. The default is 1.
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.rows.resize(threads.max(1), Vec::new());
        self
    }

    /// The threads that code large buckets.
    pub(crate) fn threads(&self) -> usize {
        self.rows.len()
    }

    /// Writes the encoding of `bucket` in operation `id` to `encoded`, whose allocation is reused.
    pub fn encode(&mut self, id: OperationId, bucket: &[f32], encoded: &mut Buffer) {
        let len = self.coding.encoded_len(bucket.len());
        encoded.resize(len);
        let Some(block) = self.coding.block(bucket.len()) else {
            return self.copy(bucket, encoded);
        };
        let (whole, rest) = bucket.split_at(bucket.len() / block * block);
        let cpu = self.cpu;
        self.padded.resize(block, 0.0);
        self.padded[..rest.len()].copy_from_slice(rest);
        self.padded[rest.len()..].fill(0.0);
        let shape = Blocks {
            count: len / block,
            len: block,
        };
        let signs = Signs::new(self.seed, id);
        let encoded = Columns::new(encoded);
        let padded = &self.padded;
        let threads = threads_for(&mut self.rows, bucket.len());
        share_out(threads, shape.tiles(), |rows, tile| {
            let whole = &whole[tile.first_block * block..];
            let mut lanes: [&[f32]; LANES] = [&[]; LANES];
            let parts = (whole.chunks_exact(tile.lane)).chain(padded.chunks_exact(tile.lane));
            for (part, at) in parts.zip(tile.lanes(shape)) {
                lanes[at] = part;
            }
            cpu.run(Encode {
                place: tile.place(shape, reserved(rows, block), signs),
                lanes,
                encoded: encoded.from(tile.first_value(shape)),
            });
        });
    }

    /// Copies a bucket that has no code.
    fn copy(&mut self, from: &[f32], to: &mut [f32]) {
        let threads = threads_for(&mut self.rows, from.len());
        let parts = (from.chunks(VALUES_PER_THREAD)).zip(to.chunks_mut(VALUES_PER_THREAD));
        share_out(threads, parts, |_, (from, to)| to.copy_from_slice(from));
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
            return self.copy(encoded, bucket);
        };
        let cpu = self.cpu;
        let threads = threads_for(&mut self.rows, bucket.len());
        self.padded.resize(block, 0.0);
        let (whole, rest) = bucket.split_at_mut(bucket.len() / block * block);
        let shape = Blocks {
            count: encoded.len() / block,
            len: block,
        };
        let signs = Signs::new(self.seed, id);
        let mut left = (whole, self.padded.as_mut_slice());
        let tiles = shape.tiles().map(|tile| {
            // Only the last tile has the padded block.
            let len = (tile.blocks * block).min(left.0.len());
            let own = left.0.split_off_mut(..len).expect("not longer");
            let padded = match len < tile.blocks * block {
                true => std::mem::take(&mut left.1),
                false => &mut [],
            };
            (tile, own, padded)
        });
        share_out(threads, tiles, |rows, (tile, own, padded)| {
            let mut lanes: [&mut [f32]; LANES] = Default::default();
            let parts = (own.chunks_exact_mut(tile.lane)).chain(padded.chunks_exact_mut(tile.lane));
            for (part, at) in parts.zip(tile.lanes(shape)) {
                lanes[at] = part;
            }
            cpu.run(Decode {
                place: tile.place(shape, reserved(rows, block), signs),
                lanes,
                encoded: &encoded[tile.first_value(shape)..],
            });
        });
        rest.copy_from_slice(&self.padded[..rest.len()]);
    }
}

/// As many threads as pay for a bucket of `len` values.
fn threads_for(rows: &mut [Vec<Row>], len: usize) -> &mut [Vec<Row>] {
    let threads = (len / VALUES_PER_THREAD).clamp(1, rows.len());
    &mut rows[..threads]
}

/// Makes room for the rows of a tile.
fn reserved(rows: &mut Vec<Row>, block: usize) -> &mut [Row] {
    if rows.len() < tile::rows_of(block) {
        rows.resize(tile::rows_of(block), Row::ZERO);
    }
    rows
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

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
        let mut encoded = Buffer::default();
        Codec::new(coding, 42).encode(ID, bucket, &mut encoded);
        encoded.to_vec()
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
        for len in (0..5000).chain([16_385, 38_282, 99_999, 1_000_003]) {
            let padding = Coding::default().encoded_len(len) - len;
            let most = if len < 16_384 {
                256.min(len / 16)
            } else {
                len / 64
            };
            assert!(padding <= most, "{len}: {padding}");
        }
        // The largest block if the bucket is large enough for any padding to be small.
        assert_eq!(Coding::default().block(64 << 12), Some(1 << 12));
        assert_eq!(Coding::default().block(63 << 12 | 1), Some(1 << 11));
        assert_eq!(Coding::default().block(100_000), Some(1 << 11));
    }

    fn codec_on(cpu: Cpu, coding: Coding, seed: u64) -> Codec {
        Codec {
            cpu,
            ..Codec::new(coding, seed)
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Every code path, at the lengths where tiles change their shape. Zeros of both signs, subnormal and large numbers show a
    /// difference that is computed otherwise.
    #[test]
    fn instruction_sets_agree_bit_by_bit() {
        for log2_block in [0, 1, 3, 4, 5, 8, 9, 12, 13] {
            let coding = Coding::Hadamard { log2_block };
            let near = [1, 2, 3, 15, 16, 17, 31, 32, 33, 47].map(|blocks| blocks << log2_block);
            for len in near.into_iter().chain(SIZES.into_iter().take(11)) {
                let mut original = bucket(len);
                let special = [0.0, -0.0, 1e-40, 1e30, -1e-40].into_iter().cycle();
                for (value, special) in original.iter_mut().step_by(3).zip(special) {
                    *value = special;
                }
                let mut decoded = vec![0.0; len];
                let mut results = Cpu::available().map(|cpu| {
                    let mut codec = codec_on(cpu, coding, 42);
                    let mut encoded = Buffer::default();
                    codec.encode(ID, &original, &mut encoded);
                    codec.decode(ID, &encoded, &mut decoded);
                    (bits(&encoded), bits(&decoded))
                });
                let portable = results.next();
                assert!(
                    results.all(|result| Some(result) == portable),
                    "{coding:?} {len}"
                );
            }
        }
    }

    /// Lengths with a last tile that is wide, narrow, padded or alone in its share.
    #[test]
    fn threads_change_no_bit() {
        for coding in [Coding::Identity, Coding::default()] {
            for len in [1000, (1 << 20) + 4096, 1_700_001, (1 << 21) - 1] {
                let original = bucket(len);
                let mut results = [1, 2, 5].map(|threads| {
                    let mut codec = Codec::new(coding, 42).with_threads(threads);
                    let (mut encoded, mut decoded) = (Buffer::default(), vec![0.0; len]);
                    codec.encode(ID, &original, &mut encoded);
                    codec.decode(ID, &encoded, &mut decoded);
                    (bits(&encoded), bits(&decoded))
                });
                let (first, others) = results.split_first_mut().expect("three");
                assert!(
                    others.iter().all(|other| other == first),
                    "{coding:?} {len}"
                );
            }
        }
    }

    #[test]
    fn operations_have_their_own_signs() {
        let original = bucket(4096);
        let mut codec = Codec::new(Coding::default(), 42);
        let (mut a, mut b) = (Buffer::default(), Buffer::default());
        codec.encode(ID, &original, &mut a);
        codec.encode(OperationId { step: 4, ..ID }, &original, &mut b);
        let product: f64 = a.iter().zip(&*b).map(|(a, b)| f64::from(a * b)).sum();
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
