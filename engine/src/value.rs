//! Values as P4Runtime writes them: big-endian bytes.

use std::cmp::Ordering;

use super::error::ControlError;

/// Checks that `bytes` are a number of at most `bits` bits. Leading zeros are accepted, as the
/// specification asks of servers; reads return the canonical, shortest form.
pub(super) fn check_bytes(
    bytes: &[u8],
    bits: u32,
    what: impl FnOnce() -> String,
) -> Result<(), ControlError> {
    let fault = if bytes.is_empty() {
        "the value is empty"
    } else if bit_length(bytes) > u64::from(bits) {
        "the value does not fit"
    } else {
        return Ok(());
    };
    Err(ControlError::value(&what(), bits, fault))
}

/// The shortest form of a number, at least one byte.
pub(super) fn canonical(mut bytes: Vec<u8>) -> Vec<u8> {
    let zeros = significant(&bytes).len().max(1);
    bytes.drain(..bytes.len().saturating_sub(zeros));
    bytes
}

/// The bytes without leading zeros.
pub(super) fn significant(bytes: &[u8]) -> &[u8] {
    let first = bytes.iter().position(|byte| *byte != 0);
    &bytes[first.unwrap_or(bytes.len())..]
}

/// Bits up to and including the most significant one that is set.
pub(super) fn bit_length(bytes: &[u8]) -> u64 {
    match significant(bytes) {
        [first, below @ ..] => below.len() as u64 * 8 + u64::from(8 - first.leading_zeros()),
        [] => 0,
    }
}

/// Zeros below the least significant bit that is set; `None` for 0.
pub(super) fn trailing_zeros(bytes: &[u8]) -> Option<u64> {
    let zeros = bytes.iter().rev().position(|byte| *byte != 0)?;
    let last = bytes[bytes.len() - 1 - zeros];
    Some(zeros as u64 * 8 + u64::from(last.trailing_zeros()))
}

/// True for the largest number of `bits` bits.
pub(super) fn is_largest(bytes: &[u8], bits: u32) -> bool {
    let ones = bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    ones == bits && bit_length(bytes) == u64::from(bits)
}

/// Compares numbers.
pub(super) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (significant(a), significant(b));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// Writes the low bits of a number to words, the most significant first, as many as there are.
pub(super) fn read_words(bytes: &[u8], words: &mut [u64]) {
    words.fill(0);
    for (word, bytes) in words.iter_mut().rev().zip(bytes.rchunks(size_of::<u64>())) {
        *word = word_of(bytes);
    }
}

/// The number of at most 8 bytes.
pub(super) fn word_of(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter();
    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    #[test]
    fn values_fit_their_width_or_are_refused() {
        let check = |bytes: &[u8], bits| check_bytes(bytes, bits, || "x".into()).is_ok();
        assert!(check(&[0], 1) && check(&[1], 1) && !check(&[2], 1));
        assert!(check(&[0x01, 0xff], 9) && !check(&[0x02, 0x00], 9));
        assert!(check(&[0, 0, 0, 1], 1));
        assert!(!check(&[], 8));
    }

    #[test]
    fn canonical_is_shortest_but_never_empty() {
        assert_eq!(canonical(vec![0, 0, 7]), [7]);
        assert_eq!(canonical(vec![0, 0]), [0]);
        assert_eq!(canonical(vec![]), [0u8; 0]);
        assert_eq!(canonical(vec![1, 0]), [1, 0]);
    }

    proptest! {
        #[test]
        fn bytes_are_numbers(a in vec(select(&[0, 1, 0x80, 0xff][..]), 0..20), b in vec(any::<u8>(), 0..20)) {
            let (x, y) = (BigUint::from_bytes_be(&a), BigUint::from_bytes_be(&b));
            prop_assert_eq!(compare(&a, &b), x.cmp(&y));
            prop_assert_eq!(bit_length(&a), x.bits());
            prop_assert_eq!(trailing_zeros(&a), x.trailing_zeros());
            for bits in [0, 8, 9, 16, 64] {
                prop_assert_eq!(is_largest(&a, bits), x == (BigUint::from(1_u8) << bits) - 1_u8);
            }
            let mut words = [7; 2];
            read_words(&b, &mut words);
            let low = u128::from(words[0]) << 64 | u128::from(words[1]);
            prop_assert_eq!(BigUint::from(low), y % (BigUint::from(1_u8) << 128));
        }
    }
}
