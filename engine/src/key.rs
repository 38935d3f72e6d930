//! Keys of tables and parser states: 64-bit words, most significant first, each field on its own.

use num_bigint::BigUint;

/// Words that a field of a key takes.
pub(super) fn word_count(width: u32) -> usize {
    width.div_ceil(64) as usize
}

/// The words of a number of at most `width` bits.
pub(super) fn words_of(value: &BigUint, width: u32) -> Vec<u64> {
    let mut words = value.to_u64_digits();
    words.resize(word_count(width), 0);
    words.reverse();
    words
}

/// The words with the first `ones` of `width` bits set.
pub(super) fn prefix_words(ones: u32, width: u32) -> Vec<u64> {
    let all = super::bits::big_mask(width);
    let low = super::bits::big_mask(width - ones);
    words_of(&(all ^ low), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_start_at_the_most_significant_bit() {
        assert_eq!(prefix_words(8, 32), [0xff00_0000]);
        assert_eq!(prefix_words(0, 32), [0]);
        assert_eq!(prefix_words(68, 128), [u64::MAX, 0xf << 60]);
    }
}
