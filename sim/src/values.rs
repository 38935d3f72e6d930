//! The values of buckets, and runs without values.

use std::ops::Range;

use ultima_host::{ValueStore, Values};

/// Buckets of a simulated rank.
pub(crate) trait Payload: ValueStore {
    /// True if packets carry values.
    const HAS_VALUES: bool;

    /// Creates a bucket of `count` values: `values`, if packets carry them.
    fn of(values: Vec<f32>, count: usize) -> Self;
}

impl Payload for Values {
    const HAS_VALUES: bool = true;

    fn of(values: Vec<f32>, count: usize) -> Self {
        debug_assert_eq!(values.len(), count);
        values.into()
    }
}

/// The number of a bucket's values, without memory for them. Packets have the same lengths and times.
#[derive(Default)]
pub(crate) struct Counted(usize);

impl Payload for Counted {
    const HAS_VALUES: bool = false;

    fn of(_: Vec<f32>, count: usize) -> Self {
        Self(count)
    }
}

impl ValueStore for Counted {
    fn count(&self) -> usize {
        self.0
    }

    fn resize(&mut self, count: usize) {
        self.0 = count;
    }

    fn get(&self, _: Range<usize>) -> &[f32] {
        &[]
    }

    fn get_mut(&mut self, _: Range<usize>) -> &mut [f32] {
        &mut []
    }

    fn into_values(self) -> Values {
        Values::default()
    }
}

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
