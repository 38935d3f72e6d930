//! Coding of a tile: 16 lanes that are transformed together.
//!
//! A wide tile has one block per lane. A narrow one has *L* < 16 blocks, cut into *P* = 16/*L* parts each:
//! part *p* of block *l* is lane *pL* + *l*, and stages across the lanes complete the transform. A small tile
//! has blocks of few entries.
//!
//! In the encoded bucket, coefficient *c* of the tile's block *b* is in unit ⌊*c*/*U*⌋, which has *U* coefficients of all
//! blocks of the bucket. There, the tile's values follow those of the tiles before it: *c* mod *U* · *L* + *b*.

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
    /// Coefficients of a block that its tile has together in the encoded bucket.
    fn unit(self) -> usize {
        match self.count >= LANES && self.len >= LONG {
            true => GROUP,
            false => 1,
        }
    }

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

    /// True if each lane is a block, and long enough for the fast passes.
    fn is_wide(self) -> bool {
        self.blocks == LANES && self.lane >= GROUP
    }

    /// The tile's first value in the encoded bucket.
    pub(super) fn first_value(self, shape: Blocks) -> usize {
        shape.unit() * self.first_block
    }

    pub(super) fn place(self, shape: Blocks, rows: &mut [Row], signs: Signs) -> Place<'_> {
        let gaps = match self.is_wide() {
            true => MAX_RUNS,
            false => 0,
        };
        Place {
            tile: &mut rows[..self.lane + gaps],
            rows: self.lane,
            signs: signs.of_tile(self.first_block),
            scale: hadamard::scale(shape.len),
            blocks: self.blocks,
            parts: shape.len / self.lane,
            unit: shape.unit(),
            pitch: shape.unit() * shape.count,
        }
    }
}

/// Entries of a lane that are transposed together.
const GROUP: usize = 16;

/// Rows of memory for a tile of `len` rows: the rows and the gaps between them.
pub(super) const fn rows_of(len: usize) -> usize {
    len + MAX_RUNS
}

/// A wide tile has at most this many runs of rows with a gap behind each.
const MAX_RUNS: usize = 16;

/// Entries of a block from which on a bucket with a wide tile has units of 16 coefficients: a unit is then a sixty-fourth of a block at
/// most.
const LONG: usize = 64 * GROUP;

/// Groups of a lane to prefetch ahead of the one to load or to store.
const GROUPS_AHEAD: usize = 4;

/// Rows of the encoded bucket to prefetch ahead of the one to load or to store. No hardware prefetcher finds the next
/// unit.
const ROWS_AHEAD: usize = 4;

/// The parameters that encoding and decoding a tile have in common.
pub(super) struct Place<'a> {
    /// A row per entry of a lane. A wide tile has room for gaps: see [`Place::gap`].
    pub tile: &'a mut [Row],
    /// Entries of a lane.
    pub rows: usize,
    pub signs: TileSigns,
    pub scale: f32,
    /// Blocks of the tile.
    pub blocks: usize,
    /// Lanes of a block.
    pub parts: usize,
    /// Coefficients of each block in a run of the tile's values: 1 or [`GROUP`].
    unit: usize,
    /// The distance of these runs in the encoded bucket.
    pitch: usize,
}

impl Place<'_> {
    /// Rows that the memory of a wide tile leaves out after each run of `far` rows. The last pass of encoding, and the first of
    /// decoding, use rows that are `far` apart: without a gap, all of them would be in one set of the first-level cache.
    #[inline(always)]
    fn gap(&self, far: usize) -> usize {
        usize::from(self.blocks == LANES && far >= hadamard::CONFLICT)
    }

    /// True if lanes are missing or too short for the fast passes.
    fn is_small(&self) -> bool {
        self.rows < GROUP || self.blocks * self.parts < LANES
    }

    /// The index of a coefficient in the encoded bucket, from the tile's first value on. For a power of two and a smaller
    /// number, the index of the sum is the sum of the indices.
    #[inline(always)]
    fn index(&self, coefficient: usize) -> usize {
        match self.unit {
            1 => coefficient * self.pitch,
            _ => coefficient / GROUP * self.pitch + coefficient % GROUP * self.blocks,
        }
    }

    /// The indices of the coefficients of `R` rows of a wide tile that are `stride` apart, a power of two.
    #[inline(always)]
    fn indices<const R: usize>(&self, stride: usize) -> [usize; R] {
        let mut indices = [0; R];
        for (k, index) in indices.iter_mut().enumerate() {
            *index = self.index(k * stride);
        }
        indices
    }
}

/// The `rows` of a tile in order, without its gaps: `far` at a time if there are gaps.
#[inline(always)]
fn runs(tile: &mut [Row], rows: usize, far: usize, gap: usize) -> impl Iterator<Item = &mut [Row]> {
    let run = if gap > 0 { far } else { rows };
    let runs = tile.chunks_mut(run + gap).take(rows / run);
    runs.map(move |rows| &mut rows[..run])
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
        let rows = self.place.rows;
        let far = hadamard::far_stride::<R>(rows);
        assert!(rows.is_power_of_two() && self.lanes.iter().all(|lane| lane.len() == rows));
        let lanes = self.lanes.map(<[f32]>::as_ptr);
        let gap = self.place.gap(far);
        let mut group = 0;
        for run in runs(self.place.tile, rows, far, gap) {
            for done in (GROUP..=run.len()).step_by(GROUP) {
                let signs = self.place.signs.next_group();
                load_group::<S, R>(simd, &lanes, rows, group, signs, &mut run[done - GROUP..]);
                hadamard::ascend::<S, R>(simd, run, done, far);
                group += 1;
            }
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
    /// The last pass of a wide tile: the farthest stages, scaled and interleaved.
    #[inline(always)]
    fn store_wide<S: Simd, const R: usize>(&mut self, simd: S, stride: usize) {
        assert_eq!(self.place.blocks, LANES);
        let scale = self.place.scale;
        let step = stride + self.place.gap(stride);
        let tile = &self.place.tile[..R * step];
        let indices = self.place.indices::<R>(stride);
        let encoded = self.encoded.until(self.place.index(R * stride - 1) + LANES);
        for first in 0..stride {
            if self.place.unit > 1 {
                let ahead = encoded.wrapping_add(self.place.index(first + ROWS_AHEAD));
                for index in indices {
                    simd.prefetch(ahead.wrapping_add(index));
                }
            }
            let encoded = encoded.wrapping_add(self.place.index(first));
            for part in 0..LANES / S::WIDTH {
                let mut rows = [simd.zero(); R];
                for (k, row) in rows.iter_mut().enumerate() {
                    *row = simd.load(&tile[first + k * step].0, part);
                }
                hadamard::up::<S, R>(simd, &mut rows);
                for row in &mut rows {
                    *row = simd.scale(*row, scale);
                }
                for (row, index) in rows.iter().zip(indices) {
                    // SAFETY: one of the `R * stride` rows: coefficients of this tile's sixteen blocks.
                    simd.store(*row, unsafe { &mut *encoded.add(index).cast() }, part);
                }
            }
        }
    }

    /// The last passes of a narrow tile of `L` blocks: the farthest stages, then those across lanes, scaled
    /// and interleaved. A row holds coefficients of neighbouring indices, one per part.
    #[inline(always)]
    fn store_narrow<S: Simd, const L: usize>(&mut self, simd: S, stride: usize) {
        let scale = self.place.scale;
        hadamard::far_pass::<S, true>(simd, self.place.tile, stride);
        for at in 0..self.place.tile.len() {
            let row = &mut self.place.tile[at];
            hadamard::across::<S, L, true>(simd, row);
            let row = row.0.map(|value| value * scale);
            let first = at * (LANES / L);
            if self.place.unit > 1 {
                // SAFETY: coefficients of this tile's blocks, all of one unit.
                unsafe { self.encoded.get(self.place.index(first), LANES) }.copy_from_slice(&row);
                continue;
            }
            for (part, values) in row.as_chunks::<L>().0.iter().enumerate() {
                let index = self.place.index(first + part);
                // SAFETY: coefficients of this tile's blocks.
                unsafe { self.encoded.get(index, L) }.copy_from_slice(values);
            }
        }
    }

    #[inline(always)]
    fn small<S: Simd>(mut self, simd: S) {
        let (scale, blocks) = (self.place.scale, self.place.blocks);
        for (group, rows) in self.place.tile.chunks_mut(GROUP).enumerate() {
            let signs = self.place.signs.next_group();
            for (at, Row(row)) in rows.iter_mut().enumerate() {
                let lanes = row.iter_mut().zip(self.lanes).zip(signs);
                for ((value, lane), signs) in lanes.take(blocks) {
                    *value = flip(lane[GROUP * group + at], signs >> at);
                }
            }
        }
        let mut stride = 1;
        while stride < self.place.tile.len() {
            for rows in self.place.tile.chunks_exact_mut(2 * stride) {
                hadamard::pass::<S, 2, true>(simd, rows, stride);
            }
            stride *= 2;
        }
        for (at, row) in self.place.tile.iter().enumerate() {
            // SAFETY: the coefficients of this tile's blocks.
            let out = unsafe { self.encoded.get(self.place.index(at), blocks) };
            for (out, value) in out.iter_mut().zip(&row.0) {
                *out = value * scale;
            }
        }
    }
}

/// The first pass: loads group `group` of all lanes, of `len` entries each, flips and transposes it, and does its nearest stages.
#[inline(always)]
fn load_group<S: Simd, const R: usize>(
    simd: S,
    lanes: &[*const f32; LANES],
    len: usize,
    group: usize,
    signs: [u16; LANES],
    tile: &mut [Row],
) {
    for (at, lane) in lanes.iter().enumerate() {
        simd.prefetch(lane.wrapping_add(rotated(group + GROUPS_AHEAD, at, len)));
    }
    let tile = &mut tile[..GROUP];
    for part in 0..LANES / S::WIDTH {
        for first in (0..GROUP).step_by(R) {
            let mut rows = [simd.zero(); R];
            for (at, row) in rows.iter_mut().enumerate() {
                let lane = part * S::WIDTH + at % S::WIDTH;
                let column = first + at / S::WIDTH * S::WIDTH;
                // SAFETY: a group of the lane, whose entries are as many as the tile's rows.
                let values = unsafe { &*lanes[lane].add(rotated(group, lane, len)).cast() };
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
        let rows = self.place.rows;
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
        assert!(rows.is_power_of_two() && self.lanes.iter().all(|lane| lane.len() == rows));
        let lanes = self.lanes.map(<[f32]>::as_mut_ptr);
        let mut group = 0;
        let gap = self.place.gap(far);
        for run in runs(self.place.tile, rows, far, gap) {
            for at in (0..run.len()).step_by(GROUP) {
                hadamard::descend::<S, R>(simd, run, at, far);
                let signs = self.place.signs.next_group();
                store_group::<S, R>(simd, &run[at..], signs, &lanes, rows, group);
                group += 1;
            }
        }
    }
}

impl Decode<'_> {
    /// The reverse of [`Encode::store_wide`].
    #[inline(always)]
    fn load_wide<S: Simd, const R: usize>(&mut self, simd: S, stride: usize) {
        assert_eq!(self.place.blocks, LANES);
        let scale = self.place.scale;
        let step = stride + self.place.gap(stride);
        let indices = self.place.indices::<R>(stride);
        let encoded = self.encoded[..self.place.index(R * stride - 1) + LANES].as_ptr();
        for first in 0..stride {
            let ahead = encoded.wrapping_add(self.place.index(first + ROWS_AHEAD));
            for index in indices {
                simd.prefetch(ahead.wrapping_add(index));
            }
            let encoded = encoded.wrapping_add(self.place.index(first));
            for part in 0..LANES / S::WIDTH {
                let mut rows = [simd.zero(); R];
                for (row, index) in rows.iter_mut().zip(indices) {
                    // SAFETY: one of the `R * stride` rows, which the encoded bucket has.
                    *row = simd.load(unsafe { &*encoded.add(index).cast() }, part);
                }
                for row in &mut rows {
                    *row = simd.scale(*row, scale);
                }
                hadamard::down::<S, R>(simd, &mut rows);
                let tile = &mut self.place.tile[..R * step];
                for (k, row) in rows.iter().enumerate() {
                    simd.store(*row, &mut tile[first + k * step].0, part);
                }
            }
        }
    }

    /// The reverse of [`Encode::store_narrow`].
    #[inline(always)]
    fn load_narrow<S: Simd, const L: usize>(&mut self, simd: S, stride: usize) {
        let scale = self.place.scale;
        for group in (0..self.place.tile.len()).step_by(GROUP) {
            for at in group..group + GROUP {
                let first = at * (LANES / L);
                let mut row = [0.0; LANES];
                if self.place.unit > 1 {
                    row.copy_from_slice(&self.encoded[self.place.index(first)..][..LANES]);
                } else {
                    for (part, values) in row.as_chunks_mut::<L>().0.iter_mut().enumerate() {
                        let index = self.place.index(first + part);
                        values.copy_from_slice(&self.encoded[index..][..L]);
                    }
                }
                self.place.tile[at] = Row(row.map(|value| value * scale));
            }
            // A loop of its own: a vector load right after stores of its parts waits for them to reach the cache.
            for row in &mut self.place.tile[group..group + GROUP] {
                hadamard::across::<S, L, false>(simd, row);
            }
        }
        hadamard::far_pass::<S, false>(simd, self.place.tile, stride);
    }

    /// The reverse of [`Encode::small`].
    #[inline(always)]
    fn small<S: Simd>(mut self, simd: S) {
        let (scale, blocks) = (self.place.scale, self.place.blocks);
        for at in 0..self.place.tile.len() {
            let values = &self.encoded[self.place.index(at)..][..blocks];
            for (out, value) in self.place.tile[at].0.iter_mut().zip(values) {
                *out = value * scale;
            }
        }
        let mut stride = self.place.tile.len() / 2;
        while stride > 0 {
            for rows in self.place.tile.chunks_exact_mut(2 * stride) {
                hadamard::pass::<S, 2, false>(simd, rows, stride);
            }
            stride /= 2;
        }
        for (group, rows) in self.place.tile.chunks(GROUP).enumerate() {
            let signs = self.place.signs.next_group();
            for (at, Row(row)) in rows.iter().enumerate() {
                let lanes = row.iter().zip(&mut self.lanes).zip(signs);
                for ((value, lane), signs) in lanes.take(blocks) {
                    lane[GROUP * group + at] = flip(*value, signs >> at);
                }
            }
        }
    }
}

/// The reverse of [`load_group`].
#[inline(always)]
fn store_group<S: Simd, const R: usize>(
    simd: S,
    tile: &[Row],
    signs: [u16; LANES],
    lanes: &[*mut f32; LANES],
    len: usize,
    group: usize,
) {
    for (at, lane) in lanes.iter().enumerate() {
        simd.prefetch(lane.wrapping_add(rotated(group + GROUPS_AHEAD, at, len)));
    }
    let tile = &tile[..GROUP];
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
                // SAFETY: a group of the lane, whose entries are as many as the tile's rows. No other lane has it.
                let out = unsafe { &mut *lanes[lane].add(rotated(group, lane, len)).cast() };
                simd.store(values, out, column / S::WIDTH);
            }
        }
    }
}

/// The first of the 16 entries that `lane` has in the rows of `group`, in a lane of `len` entries. Each lane starts with
/// another group: lanes are a power of two apart, and equal groups of theirs would compete for the same cache lines.
#[inline(always)]
fn rotated(group: usize, lane: usize, len: usize) -> usize {
    ((group + lane) * GROUP) & (len - 1)
}

/// Negates `value` if the lowest bit of `signs` is set.
fn flip(value: f32, signs: u16) -> f32 {
    f32::from_bits(value.to_bits() ^ u32::from(signs) << 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ultima_testing::{cases, per_run};

    use super::super::simd::Cpu;
    use super::super::{Codec, Coding};
    use super::*;
    use crate::memory::Buffer;
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

    /// The encoding of some whole blocks, from the layout of tiles: the values by their index.
    fn reference(
        shape: Blocks,
        seed: u64,
        bucket: &[f32],
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let mut encoded = Vec::new();
        let unit = match shape.count >= 16 && shape.len >= 1024 {
            true => 16,
            false => 1,
        };
        for tile in shape.tiles() {
            let parts = shape.len / tile.lane;
            let is_small = tile.lane < GROUP || tile.blocks * parts < LANES;
            let mut signs = Signs::new(seed, ID).of_tile(tile.first_block);
            let signs: Vec<_> = (0..tile.lane.div_ceil(GROUP))
                .map(|_| signs.next_group())
                .collect();
            for block in (0..tile.blocks).filter(|block| wanted(tile.first_block + block)) {
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
                    let index = coefficient / unit * unit * shape.count
                        + unit * tile.first_block
                        + coefficient % unit * tile.blocks
                        + block;
                    encoded.push((index, value * hadamard::scale(shape.len)));
                }
            }
        }
        encoded
    }

    /// Integers, whose sums are exact.
    fn integers(len: usize, stir: u32) -> Vec<f32> {
        let value = |at: u32| ((at ^ stir).wrapping_mul(0x9e37_79b9) >> 24) as f32 - 128.0;
        (0..len as u32).map(value).collect()
    }

    /// Checks the codec on every instruction set against the reference.
    fn check(shape: Blocks, seed: u64, stir: u32, wanted: impl Fn(usize) -> bool) {
        let bucket = integers(shape.count * shape.len, stir);
        let expected = reference(shape, seed, &bucket, wanted);
        let log2_block = shape.len.ilog2() as u8;
        for cpu in Cpu::available() {
            let mut codec = Codec::new(Coding::Hadamard { log2_block }, seed);
            codec.cpu = cpu;
            let (mut encoded, mut decoded) = (Buffer::default(), vec![0.0; bucket.len()]);
            codec.encode(ID, &bucket, &mut encoded);
            assert_eq!(encoded.len(), bucket.len());
            for (index, value) in &expected {
                assert_eq!(encoded[*index], *value, "{cpu:?}, index {index}");
            }
            codec.decode(ID, &encoded, &mut decoded);
            for (decoded, value) in decoded.iter().zip(&bucket) {
                assert!((decoded - value).abs() < 1e-3, "{cpu:?}");
            }
        }
    }

    /// Some blocks of wide and narrow tiles of a bucket with units.
    #[test]
    fn every_instruction_set_encodes_units_like_the_matrix() {
        for count in [256, 257, 259, 263, 271] {
            let shape = Blocks { count, len: 1024 };
            check(shape, 3, 5, |block| {
                [0, 100, 257].contains(&block) || block + 2 >= count
            });
        }
    }

    /// The block of each value of the encoded bucket.
    fn blocks_by_value(shape: Blocks) -> Vec<usize> {
        let mut blocks = vec![usize::MAX; shape.count * shape.len];
        let mut rows = vec![Row::ZERO; rows_of(shape.len)];
        for tile in shape.tiles() {
            let place = tile.place(shape, &mut rows, Signs::new(1, ID));
            for coefficient in 0..shape.len {
                let first = tile.first_value(shape) + place.index(coefficient);
                for block in 0..tile.blocks {
                    let previous =
                        std::mem::replace(&mut blocks[first + block], tile.first_block + block);
                    assert_eq!(previous, usize::MAX, "value {first}+{block} is used twice");
                }
            }
        }
        blocks
    }

    #[test]
    fn a_run_takes_as_many_coefficients_of_every_block_but_for_a_unit() {
        for (count, len, unit) in [
            (1, 128, 1),
            (63, 128, 1),
            (15, 1024, 1),
            (16, 1024, 16),
            (300, 128, 1),
            (256, 1024, 16),
            (301, 1024, 16),
        ] {
            let shape = Blocks { count, len };
            let blocks = blocks_by_value(shape);
            for run in [1, 16, 100, 352, 16 * count, 10_000] {
                let run = run.min(blocks.len());
                for missing in blocks.windows(run).step_by(977) {
                    let mut taken = vec![0; count];
                    missing.iter().for_each(|&block| taken[block] += 1);
                    let least = unit * (run / (unit * count));
                    let most = unit * run.div_ceil(unit * count);
                    assert!(
                        taken.iter().all(|taken| (least..=most).contains(taken)),
                        "{count} blocks, a run of {run}: {taken:?}"
                    );
                }
            }
        }
    }

    /// The default block lengths, in buckets with and without units. The last blocks are in tiles of 16, 8, 4, 2 and 1.
    #[test]
    fn every_instruction_set_encodes_default_blocks_like_the_matrix() {
        let all = [(271, 1 << 11), (31, 1 << 12), (31, 1 << 11), (271, 1 << 12)];
        for (count, len) in all.into_iter().take(per_run(2, all.len())) {
            let of_each_width = [16, 15, 7, 3, 1].map(|from_end| count - from_end);
            check(Blocks { count, len }, 11, 13, |block| {
                of_each_width.contains(&block)
            });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(2, 8)))]

        /// The default block lengths, with any number of tiles: two blocks of each bucket.
        #[test]
        fn blocks_of_default_lengths_are_encoded_like_the_matrix(
            log2_block in 11u8..=12,
            blocks in prop_oneof![1usize..50, 256usize..310],
            block: proptest::sample::Index,
            seed: u64,
            stir: u32,
        ) {
            let block = block.index(blocks);
            check(Blocks { count: blocks, len: 1 << log2_block }, seed, stir, |at| {
                at == block || at + 1 == blocks
            });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Integers this small have exact sums, so the fast transform returns the very bits of the plain one.
        #[test]
        fn every_instruction_set_encodes_like_the_matrix(
            log2_block in 0u8..=9, blocks in 1usize..50, seed: u64, stir: u32,
        ) {
            check(Blocks { count: blocks, len: 1 << log2_block }, seed, stir, |_| true);
        }
    }
}
