//! The type of the values in packets, and rounding to it.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use ultima_wire::Dtype;

use crate::codec::simd::{Cpu, Simd, Task};

/// Type of the values in packets. Ranks compute in f32. The same on every rank. With recycling, rounding
/// errors are carried into later operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// Unrounded.
    #[default]
    F32,
    /// The upper half of an f32, rounded: relative errors up to 2^-8.
    Bf16,
    /// IEEE 754 binary16: relative errors up to 2^-11 from 6·10^-5 to 65,504, the limit of larger values.
    F16,
}

impl Element {
    /// All variants.
    pub const ALL: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
        }
    }

    pub(crate) const fn dtype(self) -> Dtype {
        match self {
            Element::F32 => Dtype::F32,
            Element::Bf16 => Dtype::Bf16,
            Element::F16 => Dtype::F16,
        }
    }

    /// Bytes of one value.
    pub(crate) const fn size(self) -> usize {
        self.dtype().size()
    }

    /// Writes values, little-endian, to the front of `buf`.
    pub(crate) fn write(self, values: &[f32], buf: &mut [u8]) {
        fn each<const N: usize>(values: &[f32], buf: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
            let (chunks, _) = buf.as_chunks_mut::<N>();
            for (chunk, value) in chunks[..values.len()].iter_mut().zip(values) {
                *chunk = bytes(*value);
            }
        }
        match self {
            Element::F32 if self.is_in_place() => {
                let bytes = in_place(values);
                buf[..bytes.len()].copy_from_slice(bytes);
            }
            Element::F32 => each(values, buf, f32::to_le_bytes),
            Element::Bf16 => {
                let (chunks, _) = buf.as_chunks_mut();
                Cpu::fastest().run(WriteBf16(values, &mut chunks[..values.len()]));
            }
            Element::F16 => each(values, buf, |value| to_f16(value).to_le_bytes()),
        }
    }

    /// True if packets carry values as they are in memory: [`in_place`].
    pub(crate) const fn is_in_place(self) -> bool {
        matches!(self, Element::F32) && cfg!(target_endian = "little")
    }

    /// Reads values into all of the given room.
    pub(crate) fn read(self, bytes: &[u8], values: &mut [f32]) {
        fn each<const N: usize>(bytes: &[u8], values: &mut [f32], value: impl Fn([u8; N]) -> f32) {
            let (chunks, _) = bytes.as_chunks::<N>();
            for (place, chunk) in values.iter_mut().zip(chunks) {
                *place = value(*chunk);
            }
        }
        match self {
            Element::F32 => each(bytes, values, f32::from_le_bytes),
            Element::Bf16 => {
                let (chunks, _) = bytes.as_chunks();
                Cpu::fastest().run(ReadBf16(chunks, values));
            }
            Element::F16 => each(bytes, values, |bytes| f16::from_le_bytes(bytes).to_f32()),
        }
    }

    /// Adds values to all of `sums`.
    pub(crate) fn add(self, bytes: &[u8], sums: &mut [f32]) {
        match self {
            Element::F32 => Cpu::fastest().run(AddF32(bytes.as_chunks().0, sums)),
            Element::Bf16 => Cpu::fastest().run(AddBf16(bytes.as_chunks().0, sums)),
            Element::F16 => {
                for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                    *sum += f16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }

    /// True if values change when they are written and read.
    pub(crate) const fn rounds(self) -> bool {
        !matches!(self, Element::F32)
    }

    /// A value as the others will read it.
    pub(crate) fn rounded(self, value: f32) -> f32 {
        match self {
            Element::F32 => value,
            Element::Bf16 => bf16::from_f32(value).to_f32(),
            Element::F16 => to_f16(value).to_f32(),
        }
    }

    /// Rounding error of the sum of `count` contributions whose mean is `value`. Zero if it is not finite: a
    /// carried infinity or NaN would stay in every later sum.
    pub(crate) fn rounded_off(self, value: f32, count: u16) -> f32 {
        let taken = f32::from(count) * (value - self.rounded(value));
        match taken.is_finite() {
            true => taken,
            false => 0.0,
        }
    }

    /// Rounds values as the others will read them.
    pub(crate) fn round(self, values: &mut [f32]) {
        match self {
            Element::F32 => {}
            Element::Bf16 => Cpu::fastest().run(RoundBf16(values)),
            Element::F16 => values
                .iter_mut()
                .for_each(|value| *value = self.rounded(*value)),
        }
    }
}

/// The bytes of values in memory.
pub(crate) fn in_place(values: &[f32]) -> &[u8] {
    // SAFETY: bytes need no alignment and have no invalid content, so all of the values are in the middle.
    unsafe { values.align_to() }.1
}

/// Writes values as bf16, little-endian, with the instructions of the CPU at hand.
struct WriteBf16<'a>(&'a [f32], &'a mut [[u8; 2]]);

impl Task for WriteBf16<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let WriteBf16(values, chunks) = self;
        for (chunk, value) in chunks.iter_mut().zip(values) {
            *chunk = bf16_bits(*value).to_le_bytes();
        }
    }
}

/// Rounds values to bf16, with the instructions of the CPU at hand.
struct RoundBf16<'a>(&'a mut [f32]);

impl Task for RoundBf16<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        for value in self.0 {
            *value = f32::from_bits(u32::from(bf16_bits(*value)) << 16);
        }
    }
}

/// Reads bf16 values, little-endian, with the instructions of the CPU at hand.
struct ReadBf16<'a>(&'a [[u8; 2]], &'a mut [f32]);

impl Task for ReadBf16<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let ReadBf16(chunks, values) = self;
        for (value, chunk) in values.iter_mut().zip(chunks) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*chunk)) << 16);
        }
    }
}

/// Adds f32 values, little-endian, with the instructions of the CPU at hand.
struct AddF32<'a>(&'a [[u8; 4]], &'a mut [f32]);

impl Task for AddF32<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let AddF32(chunks, sums) = self;
        for (sum, chunk) in sums.iter_mut().zip(chunks) {
            *sum += f32::from_le_bytes(*chunk);
        }
    }
}

/// Adds bf16 values, little-endian, with the instructions of the CPU at hand.
struct AddBf16<'a>(&'a [[u8; 2]], &'a mut [f32]);

impl Task for AddBf16<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, _: S) {
        let AddBf16(chunks, sums) = self;
        for (sum, chunk) in sums.iter_mut().zip(chunks) {
            *sum += f32::from_bits(u32::from(u16::from_le_bytes(*chunk)) << 16);
        }
    }
}

/// The nearest bf16, ties to even; a NaN stays one. As [`bf16::from_f32`], in a form that compilers vectorize.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    let bits = if value.is_nan() { quiet } else { rounded };
    (bits >> 16) as u16
}

/// The nearest finite value: an overflow would spread over a block as an infinity. Infinities stay, so that all
/// ranks see them.
fn to_f16(value: f32) -> f16 {
    match value.is_infinite() {
        true => f16::from_f32(value),
        false => f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_rounded() {
        let values: Vec<f32> = (-300i16..300)
            .map(|n| f32::from(n).powi(3) / 700.0)
            .collect();
        for element in Element::ALL {
            let mut bytes = vec![0; values.len() * element.size() + 3];
            element.write(&values, &mut bytes);
            let mut read = vec![f32::NAN; values.len()];
            element.read(&bytes, &mut read);
            let mut rounded = values.clone();
            element.round(&mut rounded);
            assert_eq!(read, rounded, "{element:?}");
            let mut sums = values.clone();
            element.add(&bytes, &mut sums);
            for ((sum, value), read) in sums.iter().zip(&values).zip(&read) {
                assert_eq!(*sum, value + read, "{element:?}");
            }
            let bound = match element {
                Element::F32 => 0.0,
                Element::Bf16 => 1.0 / 256.0,
                Element::F16 => 1.0 / 2048.0,
            };
            for (value, read) in values.iter().zip(&read) {
                assert!(
                    (value - read).abs() <= value.abs() * bound,
                    "{value} {read}"
                );
            }
        }
    }

    #[test]
    fn bf16_is_that_of_half() {
        let special = [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::MIN,
            f32::MAX,
            -0.0,
            1e-40,
        ];
        let bits = (0u32..=u32::MAX).step_by(65_537 / 3).map(f32::from_bits);
        for value in bits.chain(special) {
            assert_eq!(bf16_bits(value), bf16::from_f32(value).to_bits(), "{value}");
        }
    }

    #[test]
    fn overflows_leave_no_rounding_error() {
        for element in Element::ALL {
            for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert_eq!(element.rounded_off(value, 3), 0.0, "{element:?} {value}");
            }
        }
        // An infinity in 16 bits.
        assert_eq!(Element::Bf16.rounded_off(f32::MAX, 1), 0.0);
        // A difference that is finite, and a sum that is not.
        assert!(Element::F16.rounded_off(f32::MAX, 1) > 1e38);
        assert_eq!(Element::F16.rounded_off(f32::MAX, 3), 0.0);
        assert_eq!(Element::F16.rounded_off(65_504.0 + 8.0, 3), 24.0);
    }

    #[test]
    fn large_values_stay_finite() {
        let mut values = [1e9, -1e9];
        Element::F16.round(&mut values);
        assert_eq!(values, [65504.0, -65504.0]);
    }
}
