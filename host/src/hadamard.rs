//! The Walsh–Hadamard transform, on [`LANES`] blocks at once.
//!
//! Blocks are columns: row *c* of a tile holds entry *c* of every lane's block. A butterfly is then one
//! operation on two whole rows, which every compiler vectorizes, and a row is a contiguous piece of the
//! interleaved buffer that the codec writes.

/// Blocks transformed together: a row is a cache line, as in the interleaved buffer.
pub(crate) const LANES: usize = 16;

/// One entry of each lane's block.
pub(crate) type Row = [f32; LANES];

/// Rows whose butterflies are finished before the next ones start: 16 KiB, which a first-level cache holds. A
/// power of 4, so that all stages run two at a time.
const CACHED_ROWS: usize = 256;

/// Transforms every lane's block in place. The number of rows is a power of two.
///
/// Without the orthonormal factor: apply [`scale`] once where values are copied anyway.
pub(crate) fn transform(rows: &mut [Row]) {
    debug_assert!(rows.len().is_power_of_two());
    for cached in rows.chunks_mut(CACHED_ROWS) {
        stages(cached, 1);
    }
    if rows.len() > CACHED_ROWS {
        stages(rows, CACHED_ROWS);
    }
}

/// The factor that makes a transform of `rows` rows orthonormal, and therefore its own inverse.
pub(crate) fn scale(rows: usize) -> f32 {
    (1.0 / (rows as f64).sqrt()) as f32
}

/// All stages whose butterflies span `half` rows or more, two at a time (radix 4), which halves the memory
/// traffic.
fn stages(rows: &mut [Row], mut half: usize) {
    while 4 * half <= rows.len() {
        for chunk in rows.chunks_exact_mut(4 * half) {
            let (ab, cd) = chunk.split_at_mut(2 * half);
            let (a, b) = ab.split_at_mut(half);
            let (c, d) = cd.split_at_mut(half);
            for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                for lane in 0..LANES {
                    let (sum_ab, diff_ab) = (a[lane] + b[lane], a[lane] - b[lane]);
                    let (sum_cd, diff_cd) = (c[lane] + d[lane], c[lane] - d[lane]);
                    a[lane] = sum_ab + sum_cd;
                    b[lane] = diff_ab + diff_cd;
                    c[lane] = sum_ab - sum_cd;
                    d[lane] = diff_ab - diff_cd;
                }
            }
        }
        half *= 4;
    }
    if 2 * half <= rows.len() {
        for chunk in rows.chunks_exact_mut(2 * half) {
            let (a, b) = chunk.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                for lane in 0..LANES {
                    (a[lane], b[lane]) = (a[lane] + b[lane], a[lane] - b[lane]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entry (r, c) of the Sylvester–Hadamard matrix.
    fn sylvester(row: usize, column: usize) -> f32 {
        if (row & column).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    }

    #[test]
    fn is_the_sylvester_matrix() {
        for log2 in 0..=12 {
            let size = 1 << log2;
            // A unit vector per lane picks a column of the matrix.
            let columns: [usize; LANES] = std::array::from_fn(|lane| (lane * 911 + 7) % size);
            let mut rows = vec![[0.0; LANES]; size];
            for (lane, &column) in columns.iter().enumerate() {
                rows[column][lane] = 1.0;
            }
            transform(&mut rows);
            for (r, row) in rows.iter().enumerate() {
                for (lane, &column) in columns.iter().enumerate() {
                    assert_eq!(row[lane], sylvester(r, column), "2^{log2} ({r}, {column})");
                }
            }
        }
    }

    #[test]
    fn is_its_own_inverse() {
        let size = 2048;
        let original: Vec<Row> = (0..size)
            .map(|r| std::array::from_fn(|lane| ((r * 31 + lane * 17) % 101) as f32 - 50.0))
            .collect();
        let mut rows = original.clone();
        transform(&mut rows);
        transform(&mut rows);
        for (row, original) in rows.iter().zip(&original) {
            for (value, original) in row.iter().zip(original) {
                assert!((value / size as f32 - original).abs() < 1e-3);
            }
        }
    }
}
