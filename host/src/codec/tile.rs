//! Coding of a tile: 16 lanes that are transformed together.
//!
//! A wide tile has one block per lane. A narrow one has *L* < 16 blocks, cut into *P* = 16/*L* parts each:
//! part *p* of block *l* is lane *pL* + *l*, and stages across the lanes complete the transform. A small tile
//! has blocks of few entries.

use super::hadamard;
use super::signs::{Signs, TileSigns};
use super::simd::{LANES, Row, Simd, Task};
use super::threads::Columns;

/// The blocks of a bucket.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub count: usize,
    /// Entries of a block.
    pub len: usize,
}

impl Blocks {
    /// Cuts the bucket into wide tiles, then narrow or small ones.
    pub(super) fn tiles(self) -> impl Iterator<Item = Tile> {
        let mut first_block = 0;
        std::iter::from_fn(move || {
            let left = (self.count - first_block).min(LANES);
            let power_of_two = 1 << left.checked_ilog2()?;
            let narrow = self.len * power_of_two / LANES;
            let (blocks, lane) = match narrow >= GROUP {
                true => (power_of_two, narrow),
                false => (left, self.len),
            };
            let tile = Tile {
                first_block,
                blocks,
                lane,
            };
            first_block += blocks;
            Some(tile)
        })
    }
}

/// Blocks that are transformed together.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub first_block: usize,
    /// At most [`LANES`].
    pub blocks: usize,
    /// Entries of a lane.
    pub lane: usize,
}

impl Tile {
    /// The lane of each part of each block.
    pub(super) fn lanes(self, shape: Blocks) -> impl Iterator<Item = usize> {
        let (blocks, parts) = (self.blocks, shape.len / self.lane);
        (0..blocks).flat_map(move |block| (0..parts).map(move |part| part * blocks + block))
    }

    pub(super) fn place(self, shape: Blocks, rows: &mut [Row], signs: Signs) -> Place<'_> {
        Place {
            tile: &mut rows[..self.lane],
            signs: signs.of_tile(self.first_block),
            scale: hadamard::scale(shape.len),
            blocks: self.blocks,
            parts: shape.len / self.lane,
            pitch: shape.count,
        }
    }
}

/// Entries of a lane that are transposed together.
const GROUP: usize = 16;

/// Groups of a lane to prefetch ahead of the one to load or to store.
const GROUPS_AHEAD: usize = 4;

/// Rows of the encoded bucket to prefetch ahead of the one to load or to store. No hardware prefetcher follows their
/// stride. At a distance of 16, they evict each other: a tenth slower.
const ROWS_AHEAD: usize = 4;

/// The parameters that encoding and decoding a tile have in common.
pub(super) struct Place<'a> {
    /// A row per entry of a lane.
    pub tile: &'a mut [Row],
    pub signs: TileSigns,
    pub scale: f32,
    /// Blocks of the tile.
    pub blocks: usize,
    /// Lanes of a block.
    pub parts: usize,
    /// Blocks of the bucket: the distance between a block's coefficients.
    pub pitch: usize,
}

impl Place<'_> {
    /// True if lanes are missing or too short for the fast passes.
    fn is_small(&self) -> bool {
        self.tile.len() < GROUP || self.blocks * self.parts < LANES
    }
}

/// Encodes a tile.
pub(super) struct Encode<'a> {
    pub place: Place<'a>,
    pub lanes: [&'a [f32]; LANES],
    /// The encoded bucket from the tile's first block on. Of each coefficient, the tile's blocks are written.
    pub encoded: Columns<'a>,
}

impl Task for Encode<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(mut self, simd: S) {
        if self.place.is_small() {
            return self.small(simd);
        }
        let rows = self.place.tile.len();
        let far = hadamard::far_stride::<R>(rows);
        let lanes = self.lanes.map(|lane| lane.as_chunks().0);
        for group in 0..rows / GROUP {
            self.load_group::<S, R>(simd, &lanes, group);
            hadamard::ascend::<S, R>(simd, self.place.tile, GROUP * (group + 1), far);
        }
        match (self.place.blocks, rows / far) {
            (1, _) => self.store_narrow::<S, 1>(simd, far),
            (2, _) => self.store_narrow::<S, 2>(simd, far),
            (4, _) => self.store_narrow::<S, 4>(simd, far),
            (8, _) => self.store_narrow::<S, 8>(simd, far),
            (_, 1) => self.store_wide::<S, 1>(simd, far),
            (_, 2) => self.store_wide::<S, 2>(simd, far),
            (_, 4) => self.store_wide::<S, 4>(simd, far),
            (_, 8) => self.store_wide::<S, 8>(simd, far),
            _ => self.store_wide::<S, 16>(simd, far),
        }
    }
}

impl Encode<'_> {
    /// The first pass: loads, flips and transposes the next 16 entries, and does their nearest stages.
    #[inline(always)]
    fn load_group<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        lanes: &[&[[f32; GROUP]]; LANES],
        group: usize,
    ) {
        let signs = self.place.signs.next_group();
        for (at, lane) in lanes.iter().enumerate() {
            prefetch_ahead(simd, lane, group, at);
        }
        let tile: &mut [Row; GROUP] = &mut self.place.tile.as_chunks_mut().0[group];
        for part in 0..LANES / S::WIDTH {
            for first in (0..GROUP).step_by(R) {
                let mut rows = [simd.zero(); R];
                for (at, row) in rows.iter_mut().enumerate() {
                    let lane = part * S::WIDTH + at % S::WIDTH;
                    let column = first + at / S::WIDTH * S::WIDTH;
                    let values = &lanes[lane][rotated(group, lane, lanes[lane].len())];
                    *row = simd.flip(simd.load(values, column / S::WIDTH), signs[lane] >> column);
                }
                for square in rows.chunks_exact_mut(S::WIDTH) {
                    simd.transpose(square);
                }
                hadamard::up::<S, R>(simd, &mut rows);
                for (at, row) in rows.iter().enumerate() {
                    simd.store(*row, &mut tile[first + at].0, part);
                }
            }
        }
    }

    /// The last pass of a wide tile: the farthest stages, scaled and interleaved.
    #[inline(always)]
    fn store_wide<S: Simd, const R: usize>(&mut self, simd: S, stride: usize) {
        let (scale, pitch) = (self.place.scale, self.place.pitch);
        let tile = &self.place.tile[..R * stride];
        let encoded = &mut self.encoded;
        for first in 0..stride {
            for k in 0..R {
                let ahead = (first + ROWS_AHEAD + k * stride) * pitch;
                simd.prefetch(encoded.address(ahead));
                simd.prefetch(encoded.address(ahead + LANES - 1));
            }
            for part in 0..LANES / S::WIDTH {
                let mut rows = [simd.zero(); R];
                for (k, row) in rows.iter_mut().enumerate() {
                    *row = simd.load(&tile[first + k * stride].0, part);
                }
                hadamard::up::<S, R>(simd, &mut rows);
                for row in &mut rows {
                    *row = simd.scale(*row, scale);
                }
                for (k, row) in rows.iter().enumerate() {
                    // SAFETY: the coefficients of this tile's sixteen blocks.
                    let out = unsafe { encoded.get((first + k * stride) * pitch, LANES) };
                    simd.store(*row, out.first_chunk_mut().expect("sixteen"), part);
                }
            }
        }
    }

    /// The last passes of a narrow tile of `L` blocks: the farthest stages, then those across lanes, scaled
    /// and interleaved. A row holds coefficients of neighbouring indices, one per part.
    #[inline(always)]
    fn store_narrow<S: Simd, const L: usize>(&mut self, simd: S, stride: usize) {
        let Place {
            tile, scale, pitch, ..
        } = &mut self.place;
        hadamard::far_pass::<S, true>(simd, tile, stride);
        for (at, row) in tile.iter_mut().enumerate() {
            hadamard::across::<S, L, true>(simd, row);
            let row = row.0.map(|value| value * *scale);
            let at = at * (LANES / L) * *pitch;
            if L == *pitch {
                // SAFETY: the bucket has no other blocks.
                unsafe { self.encoded.get(at, LANES) }.copy_from_slice(&row);
            } else {
                for (part, values) in row.as_chunks::<L>().0.iter().enumerate() {
                    // SAFETY: the coefficients of this tile's blocks.
                    unsafe { self.encoded.get(at + part * *pitch, L) }.copy_from_slice(values);
                }
            }
        }
    }

    #[inline(always)]
    fn small<S: Simd>(mut self, simd: S) {
        let Place {
            tile,
            mut signs,
            scale,
            blocks,
            pitch,
            ..
        } = self.place;
        for (group, rows) in tile.chunks_mut(GROUP).enumerate() {
            let signs = signs.next_group();
            for (at, Row(row)) in rows.iter_mut().enumerate() {
                let lanes = row.iter_mut().zip(self.lanes).zip(signs);
                for ((value, lane), signs) in lanes.take(blocks) {
                    *value = flip(lane[GROUP * group + at], signs >> at);
                }
            }
        }
        let mut stride = 1;
        while stride < tile.len() {
            for rows in tile.chunks_exact_mut(2 * stride) {
                hadamard::pass::<S, 2, true>(simd, rows, stride);
            }
            stride *= 2;
        }
        for (at, row) in tile.iter().enumerate() {
            // SAFETY: the coefficients of this tile's blocks.
            let out = unsafe { self.encoded.get(at * pitch, blocks) };
            for (out, value) in out.iter_mut().zip(&row.0) {
                *out = value * scale;
            }
        }
    }
}

/// Decodes a tile: every step of [`Encode`] in reverse.
pub(super) struct Decode<'a> {
    pub place: Place<'a>,
    pub lanes: [&'a mut [f32]; LANES],
    /// The encoded bucket from the tile's first block on.
    pub encoded: &'a [f32],
}

impl Task for Decode<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(mut self, simd: S) {
        if self.place.is_small() {
            return self.small(simd);
        }
        let rows = self.place.tile.len();
        let far = hadamard::far_stride::<R>(rows);
        match (self.place.blocks, rows / far) {
            (1, _) => self.load_narrow::<S, 1>(simd, far),
            (2, _) => self.load_narrow::<S, 2>(simd, far),
            (4, _) => self.load_narrow::<S, 4>(simd, far),
            (8, _) => self.load_narrow::<S, 8>(simd, far),
            (_, 1) => self.load_wide::<S, 1>(simd, far),
            (_, 2) => self.load_wide::<S, 2>(simd, far),
            (_, 4) => self.load_wide::<S, 4>(simd, far),
            (_, 8) => self.load_wide::<S, 8>(simd, far),
            _ => self.load_wide::<S, 16>(simd, far),
        }
        let mut place = self.place;
        let mut lanes = self.lanes.map(|lane| lane.as_chunks_mut().0);
        for group in 0..rows / GROUP {
            hadamard::descend::<S, R>(simd, place.tile, GROUP * group, far);
            store_group::<S, R>(simd, &mut place, &mut lanes, group);
        }
    }
}

impl Decode<'_> {
    /// The reverse of [`Encode::store_wide`].
    #[inline(always)]
    fn load_wide<S: Simd, const R: usize>(&mut self, simd: S, stride: usize) {
        let (scale, pitch) = (self.place.scale, self.place.pitch);
        let tile = &mut self.place.tile[..R * stride];
        let encoded = self.encoded;
        for first in 0..stride {
            for k in 0..R {
                // A row may straddle two cache lines.
                let ahead = (first + ROWS_AHEAD + k * stride) * pitch;
                simd.prefetch(encoded.as_ptr().wrapping_add(ahead));
                simd.prefetch(encoded.as_ptr().wrapping_add(ahead + LANES - 1));
            }
            for part in 0..LANES / S::WIDTH {
                let mut rows = [simd.zero(); R];
                for (k, row) in rows.iter_mut().enumerate() {
                    let (values, _) = encoded[(first + k * stride) * pitch..]
                        .split_first_chunk()
                        .expect("a row per coefficient");
                    *row = simd.load(values, part);
                }
                for row in &mut rows {
                    *row = simd.scale(*row, scale);
                }
                hadamard::down::<S, R>(simd, &mut rows);
                for (k, row) in rows.iter().enumerate() {
                    simd.store(*row, &mut tile[first + k * stride].0, part);
                }
            }
        }
    }

    /// The reverse of [`Encode::store_narrow`].
    #[inline(always)]
    fn load_narrow<S: Simd, const L: usize>(&mut self, simd: S, stride: usize) {
        let Place {
            tile, scale, pitch, ..
        } = &mut self.place;
        for (group, rows) in tile.chunks_mut(GROUP).enumerate() {
            for (at, Row(row)) in rows.iter_mut().enumerate() {
                let at = (GROUP * group + at) * (LANES / L) * *pitch;
                if L == *pitch {
                    row.copy_from_slice(&self.encoded[at..][..LANES]);
                } else {
                    for (part, values) in row.as_chunks_mut::<L>().0.iter_mut().enumerate() {
                        values.copy_from_slice(&self.encoded[at + part * *pitch..][..L]);
                    }
                }
            }
            // A loop of its own: a vector load right after stores of its parts waits for them to reach the cache.
            for row in rows {
                row.0 = row.0.map(|value| value * *scale);
                hadamard::across::<S, L, false>(simd, row);
            }
        }
        hadamard::far_pass::<S, false>(simd, tile, stride);
    }

    /// The reverse of [`Encode::small`].
    #[inline(always)]
    fn small<S: Simd>(mut self, simd: S) {
        let Place {
            tile,
            mut signs,
            scale,
            blocks,
            pitch,
            ..
        } = self.place;
        for (row, values) in tile.iter_mut().zip(self.encoded.chunks(pitch)) {
            for (out, value) in row.0.iter_mut().zip(&values[..blocks]) {
                *out = value * scale;
            }
        }
        let mut stride = tile.len() / 2;
        while stride > 0 {
            for rows in tile.chunks_exact_mut(2 * stride) {
                hadamard::pass::<S, 2, false>(simd, rows, stride);
            }
            stride /= 2;
        }
        for (group, rows) in tile.chunks(GROUP).enumerate() {
            let signs = signs.next_group();
            for (at, Row(row)) in rows.iter().enumerate() {
                let lanes = row.iter().zip(&mut self.lanes).zip(signs);
                for ((value, lane), signs) in lanes.take(blocks) {
                    lane[GROUP * group + at] = flip(*value, signs >> at);
                }
            }
        }
    }
}

/// The reverse of [`Encode::load_group`].
#[inline(always)]
fn store_group<S: Simd, const R: usize>(
    simd: S,
    place: &mut Place<'_>,
    lanes: &mut [&mut [[f32; GROUP]]; LANES],
    group: usize,
) {
    let signs = place.signs.next_group();
    for (at, lane) in lanes.iter().enumerate() {
        prefetch_ahead(simd, lane, group, at);
    }
    let tile: &[Row; GROUP] = &place.tile.as_chunks().0[group];
    for part in 0..LANES / S::WIDTH {
        for first in (0..GROUP).step_by(R) {
            let mut rows = [simd.zero(); R];
            for (at, row) in rows.iter_mut().enumerate() {
                *row = simd.load(&tile[first + at].0, part);
            }
            hadamard::down::<S, R>(simd, &mut rows);
            for square in rows.chunks_exact_mut(S::WIDTH) {
                simd.transpose(square);
            }
            for (at, row) in rows.iter().enumerate() {
                let lane = part * S::WIDTH + at % S::WIDTH;
                let column = first + at / S::WIDTH * S::WIDTH;
                let values = simd.flip(*row, signs[lane] >> column);
                let group = rotated(group, lane, lanes[lane].len());
                simd.store(values, &mut lanes[lane][group], column / S::WIDTH);
            }
        }
    }
}

/// The group of 16 entries that `lane` has in the rows of `group`. Each lane starts with another one: lanes are
/// a power of two apart, and equal groups of theirs would compete for the same cache lines.
#[inline(always)]
fn rotated(group: usize, lane: usize, groups: usize) -> usize {
    (group + lane) & (groups - 1)
}

/// Asks for the entries of lane number `at` that are the rows of a group soon after `group`.
#[inline(always)]
fn prefetch_ahead<S: Simd>(simd: S, lane: &[[f32; GROUP]], group: usize, at: usize) {
    let ahead = rotated(group + GROUPS_AHEAD, at, lane.len());
    let values = lane.as_flattened().as_ptr();
    simd.prefetch(values.wrapping_add(GROUP * ahead + GROUP - 1));
}

/// Negates `value` if the lowest bit of `signs` is set.
fn flip(value: f32, signs: u16) -> f32 {
    f32::from_bits(value.to_bits() ^ u32::from(signs) << 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::Cpu;
    use super::super::{Codec, Coding};
    use super::*;
    use crate::operation::OperationId;

    const ID: OperationId = OperationId { step: 7, bucket: 2 };

    /// Multiplies by the Sylvester–Hadamard matrix, by its definition.
    fn multiply(values: &[f32]) -> Vec<f32> {
        let sign = |row: usize, column: usize| 1.0 - 2.0 * ((row & column).count_ones() % 2) as f32;
        (0..values.len())
            .map(|row| {
                let terms = values.iter().enumerate();
                terms.map(|(column, value)| sign(row, column) * value).sum()
            })
            .collect()
    }

    /// The encoding of whole blocks, from the layout of tiles.
    fn reference(shape: Blocks, seed: u64, bucket: &[f32]) -> Vec<f32> {
        let mut encoded = vec![0.0; bucket.len()];
        for tile in shape.tiles() {
            let parts = shape.len / tile.lane;
            let is_small = tile.lane < GROUP || tile.blocks * parts < LANES;
            let mut signs = Signs::new(seed, ID).of_tile(tile.first_block);
            let signs: Vec<_> = (0..tile.lane.div_ceil(GROUP))
                .map(|_| signs.next_group())
                .collect();
            for block in 0..tile.blocks {
                let first = (tile.first_block + block) * shape.len;
                let flipped: Vec<f32> = (0..shape.len)
                    .map(|at| {
                        let (part, row) = (at / tile.lane, at % tile.lane);
                        let lane = part * tile.blocks + block;
                        let (group, column) = (row / GROUP, row % GROUP);
                        let turn = if is_small { 0 } else { lane * GROUP };
                        let entry = part * tile.lane + (row + turn) % tile.lane;
                        flip(bucket[first + entry], signs[group][lane] >> column)
                    })
                    .collect();
                for (at, value) in multiply(&flipped).into_iter().enumerate() {
                    let coefficient = at % tile.lane * parts + at / tile.lane;
                    let index = coefficient * shape.count + tile.first_block + block;
                    encoded[index] = value * hadamard::scale(shape.len);
                }
            }
        }
        encoded
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Integers this small have exact sums, so the fast transform returns the very bits of the plain one.
        #[test]
        fn every_instruction_set_encodes_like_the_matrix(
            log2_block in 0u8..=9, blocks in 1usize..50, seed: u64, stir: u32,
        ) {
            let shape = Blocks { count: blocks, len: 1 << log2_block };
            let bucket: Vec<f32> = (0..(blocks << log2_block) as u32)
                .map(|at| ((at ^ stir).wrapping_mul(0x9e37_79b9) >> 24) as f32 - 128.0)
                .collect();
            let expected = reference(shape, seed, &bucket);
            for cpu in Cpu::available() {
                let mut codec = Codec::new(Coding::Hadamard { log2_block }, seed);
                codec.cpu = cpu;
                let (mut encoded, mut decoded) = (Vec::new(), vec![0.0; bucket.len()]);
                codec.encode(ID, &bucket, &mut encoded);
                prop_assert_eq!(&encoded, &expected, "{:?}", cpu);
                codec.decode(ID, &encoded, &mut decoded);
                for (decoded, value) in decoded.iter().zip(&bucket) {
                    prop_assert!((decoded - value).abs() < 1e-3, "{:?}", cpu);
                }
            }
        }
    }
}
