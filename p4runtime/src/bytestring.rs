//! Unsigned numbers as big-endian bytestrings of any width (P4Runtime §8.3).
//!
//! A sender uses the canonical form: the shortest that holds the value, and at least one byte. A receiver accepts any
//! length above zero if the value fits its P4 type.

use std::cmp::Ordering;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An unsigned number in canonical form. Ordered by value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Bytestring(Vec<u8>);

/// Why received bytes are not a valid number. Servers respond with `OUT_OF_RANGE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BytestringError {
    /// There are no bytes. The value 0 takes one byte.
    #[error("empty bytestring: expected at least one byte")]
    Empty,
    /// The value needs more bits than its type has.
    #[error("value of {needed} bits: expected at most {bitwidth}")]
    TooWide {
        /// Bits that the value needs.
        needed: usize,
        /// Bits of the type.
        bitwidth: usize,
    },
}

/// Returns the canonical bytes of a number.
///
/// ```
/// use ultima_p4runtime::bytestring::encode;
/// assert_eq!(encode(0x63u32), [0x63]);
/// assert_eq!(encode(0u64), [0]);
/// assert_eq!(encode(std::net::Ipv4Addr::new(10, 0, 0, 1)), [10, 0, 0, 1]);
/// ```
pub fn encode(value: impl Into<Bytestring>) -> Vec<u8> {
    value.into().0
}

/// Reads received bytes as an unsigned integer, canonical or not.
///
/// # Errors
/// [`BytestringError`] when there are no bytes, or `T` cannot hold the value.
pub fn decode<T: TryFrom<u128>>(bytes: &[u8]) -> Result<T, BytestringError> {
    let value = Bytestring::read(bytes, u128::BITS as usize)?;
    let number = value
        .0
        .iter()
        .fold(0, |number, &byte| number << 8 | u128::from(byte));
    T::try_from(number).map_err(|_| BytestringError::TooWide {
        needed: value.bits(),
        bitwidth: 8 * size_of::<T>(),
    })
}

impl Bytestring {
    /// Returns the number in big-endian bytes of any length. No bytes are 0.
    pub fn from_be_bytes(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        match &bytes[zeros..] {
            [] => Bytestring(vec![0]),
            significant => Bytestring(significant.to_vec()),
        }
    }

    /// Reads received bytes as a value of `bit<bitwidth>`, canonical or not.
    ///
    /// # Errors
    /// [`BytestringError`] when there are no bytes, or the value does not fit.
    pub fn read(bytes: &[u8], bitwidth: usize) -> Result<Self, BytestringError> {
        if bytes.is_empty() {
            return Err(BytestringError::Empty);
        }
        let value = Self::from_be_bytes(bytes);
        match value.bits() {
            needed if needed > bitwidth => Err(BytestringError::TooWide { needed, bitwidth }),
            _ => Ok(value),
        }
    }

    /// Returns the number of bits that the value needs; 0 needs one.
    pub fn bits(&self) -> usize {
        (8 * self.0.len() - self.0[0].leading_zeros() as usize).max(1)
    }

    /// Returns the canonical bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True if the value is 0.
    pub fn is_zero(&self) -> bool {
        self.0 == [0]
    }

    /// True if the value is the largest of `bit<bitwidth>`.
    pub fn is_max(&self, bitwidth: usize) -> bool {
        let [first, rest @ ..] = &self.0[..] else {
            return false;
        };
        // 2^k - 1 has no bit in common with its successor.
        !self.is_zero()
            && self.bits() == bitwidth
            && first & first.wrapping_add(1) == 0
            && rest.iter().all(|&byte| byte == 0xff)
    }

    /// Returns the value with its `count` lowest bits cleared.
    pub fn clear_low_bits(&self, count: usize) -> Self {
        let mut bytes = self.0.clone();
        for (place, byte) in bytes.iter_mut().rev().enumerate() {
            let below = count.saturating_sub(8 * place).min(8);
            *byte &= 0xffu8.checked_shl(below as u32).unwrap_or(0);
        }
        Self::from_be_bytes(&bytes)
    }

    /// Returns the bits of the value that are set in `mask`.
    pub fn masked(&self, mask: &Self) -> Self {
        let mask = mask.0.iter().rev().chain(std::iter::repeat(&0));
        let mut bytes = self.0.clone();
        bytes
            .iter_mut()
            .rev()
            .zip(mask)
            .for_each(|(byte, mask)| *byte &= mask);
        Self::from_be_bytes(&bytes)
    }
}

impl Ord for Bytestring {
    fn cmp(&self, other: &Self) -> Ordering {
        // Without leading zeros the longer number is the larger.
        self.0
            .len()
            .cmp(&other.0.len())
            .then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Bytestring {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `0x` and the bytes in hexadecimal.
impl fmt::Display for Bytestring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Bytestring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Bytestring> for Vec<u8> {
    fn from(value: Bytestring) -> Vec<u8> {
        value.0
    }
}

macro_rules! from_unsigned {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Bytestring {
            fn from(value: $integer) -> Self {
                Self::from_be_bytes(&value.to_be_bytes())
            }
        }
    )*};
}

from_unsigned!(u8, u16, u32, u64, u128);

impl From<Ipv4Addr> for Bytestring {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_be_bytes(&address.octets())
    }
}

impl From<Ipv6Addr> for Bytestring {
    fn from(address: Ipv6Addr) -> Self {
        Self::from_be_bytes(&address.octets())
    }
}

/// Bytes in network order, such as a MAC address.
impl<const N: usize> From<[u8; N]> for Bytestring {
    fn from(bytes: [u8; N]) -> Self {
        Self::from_be_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_encodings_that_the_specification_lists() {
        // Value, bit width, and whether the bytes are canonical: the unsigned rows of the table of
        // valid encodings in §8.3.
        for (bytes, bitwidth, value, canonical) in [
            (&[0x63][..], 8, 99u32, true),
            (&[0x00, 0x63], 16, 99, false),
            (&[0x63], 16, 99, true),
            (&[0x30, 0x64], 16, 12388, true),
            (&[0x00, 0x30, 0x64], 16, 12388, false),
            (&[0x00, 0x63], 12, 99, false),
            (&[0x63], 12, 99, true),
            (&[0x00, 0x00, 0x63], 12, 99, false),
        ] {
            let read = Bytestring::read(bytes, bitwidth).unwrap();
            assert_eq!(read, value.into());
            assert_eq!(read.as_bytes() == bytes, canonical);
            assert_eq!(decode::<u32>(bytes), Ok(value));
        }
        // The unsigned rows of its table of invalid ones.
        for (bytes, bitwidth) in [
            (&[0x01, 0x63][..], 8),
            (&[], 8),
            (&[0x01, 0x00, 0x63], 16),
            (&[0x10, 0x63], 12),
            (&[0x01, 0x00, 0x63], 12),
            (&[0x00, 0x40, 0x63], 12),
        ] {
            assert!(
                Bytestring::read(bytes, bitwidth).is_err(),
                "{bytes:x?} as bit<{bitwidth}>"
            );
        }
    }

    #[test]
    fn values_that_do_not_fit_are_rejected() {
        assert_eq!(
            decode::<u8>(&[1, 0]),
            Err(BytestringError::TooWide {
                needed: 9,
                bitwidth: 8
            })
        );
        assert_eq!(decode::<u8>(&[0, 0, 7]), Ok(7));
        assert_eq!(decode::<u128>(&[0xff; 16]), Ok(u128::MAX));
        let wide = [&[1][..], &[0; 16]].concat();
        assert_eq!(
            decode::<u128>(&wide),
            Err(BytestringError::TooWide {
                needed: 129,
                bitwidth: 128
            })
        );
    }

    #[test]
    fn max_is_all_ones_of_the_width() {
        for bitwidth in 1..=128 {
            let max = u128::MAX >> (128 - bitwidth);
            assert!(Bytestring::from(max).is_max(bitwidth));
            assert!(!Bytestring::from(max - 1).is_max(bitwidth));
            assert!(!Bytestring::from(max).is_max(bitwidth + 1));
        }
        assert!(!Bytestring::from(0u8).is_max(1));
    }

    proptest! {
        #[test]
        fn canonical_is_shortest_and_unique(value: u128, zeros in 0usize..20) {
            let canonical = encode(value);
            prop_assert_eq!(decode::<u128>(&canonical), Ok(value));
            prop_assert!(canonical.len() == 1 || canonical[0] != 0);
            let padded = [vec![0; zeros], canonical.clone()].concat();
            let read = Bytestring::read(&padded, 128).unwrap();
            prop_assert_eq!(read.as_bytes(), &canonical);
        }

        #[test]
        fn width_is_the_position_of_the_highest_one(value: u128) {
            let bits = (128 - value.leading_zeros()).max(1) as usize;
            prop_assert_eq!(Bytestring::from(value).bits(), bits);
            prop_assert!(Bytestring::read(&encode(value), bits).is_ok());
            prop_assert_eq!(
                Bytestring::read(&encode(value), bits - 1),
                Err(BytestringError::TooWide { needed: bits, bitwidth: bits - 1 })
            );
        }

        #[test]
        fn bits_and_order_are_those_of_integers(a: u128, b: u128, shift in 0u32..128, low in 0usize..140) {
            // Shifted, so that lengths differ too.
            let (a, b) = (a >> shift, b >> (shift / 2));
            let (x, y) = (Bytestring::from(a), Bytestring::from(b));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.masked(&y), Bytestring::from(a & b));
            let cleared = a & u128::MAX.checked_shl(low as u32).unwrap_or(0);
            prop_assert_eq!(x.clear_low_bits(low), Bytestring::from(cleared));
        }
    }
}
