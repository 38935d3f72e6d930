//! Sums of buckets' parts, with the instructions of the CPU at hand.

use crate::codec::simd::{Cpu, Simd, Task};

/// Adds `values` to `sums`, one to one.
pub(crate) fn add(sums: &mut [f32], values: &[f32]) {
    Cpu::fastest().run(Add(sums, values));
}

/// Divides `sums` by `count`.
pub(crate) fn divide(sums: &mut [f32], count: u16) {
    Cpu::fastest().run(Divide(sums, count));
}

struct Add<'a>(&'a mut [f32], &'a [f32]);

impl Task for Add<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let Add(sums, values) = self;
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
}

struct Divide<'a>(&'a mut [f32], u16);

impl Task for Divide<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let Divide(sums, count) = self;
        let divisor = f32::from(count);
        // The same bits: a multiplication by a power of two is exact, or rounds the same number.
        if count.is_power_of_two() {
            let factor = divisor.recip();
            sums.iter_mut().for_each(|sum| *sum *= factor);
        } else {
            sums.iter_mut().for_each(|sum| *sum /= divisor);
        }
    }
}
