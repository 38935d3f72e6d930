//! Butterflies of the Walsh–Hadamard transform on the rows of a tile: every lane is a vector of its own.
//!
//! [`up`] does stages from the nearest rows to the farthest, [`down`] the reverse. Stages in the same order
//! add the same values in the same order, whatever the number of stages per pass.

use super::simd::{LANES, Row, Simd};

// In loops that should be unrolled, the functions below index arrays and use no closures: the compiler keeps
// those arrays in registers, and does not inline vector instructions into closures.

/// Stages at distances 1, 2, … `R`/2.
#[inline(always)]
pub(crate) fn up<S: Simd, const R: usize>(simd: S, rows: &mut [S::Vector; R]) {
    let mut distance = 1;
    while distance < R {
        stage(simd, rows, distance);
        distance *= 2;
    }
}

/// Stages at distances `R`/2, `R`/4, … 1.
#[inline(always)]
pub(crate) fn down<S: Simd, const R: usize>(simd: S, rows: &mut [S::Vector; R]) {
    let mut distance = R / 2;
    while distance > 0 {
        stage(simd, rows, distance);
        distance /= 2;
    }
}

#[inline(always)]
fn stage<S: Simd, const R: usize>(simd: S, rows: &mut [S::Vector; R], distance: usize) {
    for at in 0..R {
        if at & distance == 0 {
            let (a, b) = (rows[at], rows[at | distance]);
            (rows[at], rows[at | distance]) = (simd.add(a, b), simd.sub(a, b));
        }
    }
}

/// [`up`] or [`down`] on `R` rows that are `stride` apart, for each of the first `stride` rows.
#[inline(always)]
pub(crate) fn pass<S: Simd, const R: usize, const UP: bool>(
    simd: S,
    rows: &mut [Row],
    stride: usize,
) {
    assert_eq!(rows.len(), R * stride);
    if R == 16 && stride >= CONFLICT {
        // Stages at distances of `stride`, then of four times as much, or the reverse.
        for stride in if UP {
            [stride, 4 * stride]
        } else {
            [4 * stride, stride]
        } {
            for rows in rows.chunks_exact_mut(4 * stride) {
                radix::<S, 4, UP>(simd, rows, stride);
            }
        }
    } else {
        radix::<S, R, UP>(simd, rows, stride);
    }
}

/// Rows that are a multiple of this apart share a set of a first-level cache, which has room for 8 to 12 of them:
/// 16 would evict each other between load and store.
pub(crate) const CONFLICT: usize = 64;

#[inline(always)]
fn radix<S: Simd, const R: usize, const UP: bool>(simd: S, rows: &mut [Row], stride: usize) {
    assert_eq!(rows.len(), R * stride);
    for first in 0..stride {
        let rows = rows[first..].as_mut_ptr();
        for part in 0..LANES / S::WIDTH {
            let mut vectors = [simd.zero(); R];
            for (k, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: `first` is less than `stride`, and there are `R * stride` rows.
                *vector = simd.load(unsafe { &(*rows.add(k * stride)).0 }, part);
            }
            match UP {
                true => up::<S, R>(simd, &mut vectors),
                false => down::<S, R>(simd, &mut vectors),
            }
            for (k, vector) in vectors.iter().enumerate() {
                // SAFETY: as above.
                simd.store(*vector, unsafe { &mut (*rows.add(k * stride)).0 }, part);
            }
        }
    }
}

/// [`pass`] over rows that are at most 16 times `stride`.
#[inline(always)]
pub(crate) fn far_pass<S: Simd, const UP: bool>(simd: S, rows: &mut [Row], stride: usize) {
    match rows.len() / stride {
        1 => (),
        2 => pass::<S, 2, UP>(simd, rows, stride),
        4 => pass::<S, 4, UP>(simd, rows, stride),
        8 => pass::<S, 8, UP>(simd, rows, stride),
        16 => pass::<S, 16, UP>(simd, rows, stride),
        _ => unreachable!("passes of {} rows", rows.len() / stride),
    }
}

/// Stride of the pass with the farthest rows, if the others have radix `R`.
pub(crate) fn far_stride<const R: usize>(rows: usize) -> usize {
    let mut stride = R;
    while stride * R < rows {
        stride *= R;
    }
    stride
}

/// The passes between the nearest rows and the farthest that the first `done` rows are ready for.
#[inline(always)]
pub(crate) fn ascend<S: Simd, const R: usize>(
    simd: S,
    tile: &mut [Row],
    done: usize,
    far_stride: usize,
) {
    let mut stride = R;
    while stride < far_stride && done.is_multiple_of(R * stride) {
        pass::<S, R, true>(simd, &mut tile[done - R * stride..done], stride);
        stride *= R;
    }
}

/// The passes between the farthest rows and the nearest that the rows from `at` need next.
#[inline(always)]
pub(crate) fn descend<S: Simd, const R: usize>(
    simd: S,
    tile: &mut [Row],
    at: usize,
    far_stride: usize,
) {
    let mut stride = far_stride / R;
    while stride >= R {
        if at.is_multiple_of(R * stride) {
            pass::<S, R, false>(simd, &mut tile[at..at + R * stride], stride);
        }
        stride /= R;
    }
}

/// Stages between the lanes of a row that are `FROM`, 2·`FROM`, … 8 apart, up or down.
#[inline(always)]
pub(crate) fn across<S: Simd, const FROM: usize, const UP: bool>(simd: S, row: &mut Row) {
    let mut parts = [simd.zero(); MAX_PARTS];
    for (part, vector) in parts[..LANES / S::WIDTH].iter_mut().enumerate() {
        *vector = simd.load(&row.0, part);
    }
    for distance in [1, 2, 4, 8] {
        let distance = if UP { distance } else { 8 / distance };
        if distance < FROM {
            continue;
        }
        for part in 0..LANES / S::WIDTH {
            if distance < S::WIDTH {
                parts[part] = simd.across(parts[part], distance);
            } else if part & (distance / S::WIDTH) == 0 {
                let other = part | (distance / S::WIDTH);
                let (a, b) = (parts[part], parts[other]);
                (parts[part], parts[other]) = (simd.add(a, b), simd.sub(a, b));
            }
        }
    }
    for (part, vector) in parts[..LANES / S::WIDTH].iter().enumerate() {
        simd.store(*vector, &mut row.0, part);
    }
}

/// Parts of a row in the narrowest vectors.
const MAX_PARTS: usize = LANES / 4;

/// The factor that makes a transform of `len` values orthonormal, and therefore its own inverse.
pub(crate) fn scale(len: usize) -> f32 {
    (1.0 / (len as f64).sqrt()) as f32
}
