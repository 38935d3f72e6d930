//! The values of buckets, in runs with values.

/// `rank`'s contribution to `operation` at `entry`: a small integer, so sums are exact in any order.
pub(crate) fn contribution(operation: u32, rank: u32, entry: usize) -> f32 {
    ((rank as usize * 31 + entry * 17 + operation as usize) % 64) as f32
}

/// The largest distance of `result`, which starts at entry `first` of the bucket, from the mean over `ranks`.
pub(crate) fn worst_error(operation: u32, ranks: u32, first: usize, result: &[f32]) -> f32 {
    let error = |(entry, value): (usize, &f32)| {
        let sum: f32 = (0..ranks)
            .map(|rank| contribution(operation, rank, entry))
            .sum();
        (value - sum / ranks as f32).abs()
    };
    (first..).zip(result).map(error).fold(0.0, f32::max)
}
