//! Keys of tables and parser states: 64-bit words, most significant first, each field on its own.

use num_bigint::BigUint;

use super::bits::Slot;

/// Words that a field of a key takes.
pub(super) fn word_count(width: u32) -> usize {
    width.div_ceil(64) as usize
}

/// Appends a field's words to a key.
#[inline(always)]
pub(super) fn push_words(slot: Slot, buffer: &[u8], key: &mut Vec<u64>) {
    if slot.width <= 64 {
        if slot.width > 0 {
            // Keys are unsigned, whatever the field is.
            key.push(slot.part(0, slot.width).load_word(buffer));
        }
        return;
    }
    let words = word_count(slot.width) as u32;
    for word in (0..words).rev() {
        let low = word * 64;
        key.push(slot.part(low, (slot.width - low).min(64)).load(buffer) as u64);
    }
}

/// The words of a number of at most `width` bits.
pub(super) fn words_of(value: &BigUint, width: u32) -> Vec<u64> {
    let mut words = value.to_u64_digits();
    words.resize(word_count(width), 0);
    words.reverse();
    words
}

/// The words of big-endian bytes of at most `width` bits.
pub(super) fn words_of_bytes(bytes: &[u8], width: u32) -> Vec<u64> {
    words_of(&BigUint::from_bytes_be(bytes), width)
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
    use crate::bits::SLACK;

    #[test]
    fn fields_and_numbers_have_the_same_words() {
        let mut buffer: Vec<u8> = (1..=40).collect();
        buffer.extend([0; SLACK]);
        for (bit, width) in [
            (3, 1),
            (0, 64),
            (5, 64),
            (2, 65),
            (7, 128),
            (1, 130),
            (0, 256),
        ] {
            let slot = Slot::new(bit, width, false);
            let mut key = Vec::new();
            push_words(slot, &buffer, &mut key);
            let value = slot.load_big(&buffer).to_biguint().unwrap();
            assert_eq!(key, words_of(&value, width), "bit {bit}, width {width}");
        }
    }

    #[test]
    fn prefixes_start_at_the_most_significant_bit() {
        assert_eq!(prefix_words(8, 32), [0xff00_0000]);
        assert_eq!(prefix_words(0, 32), [0]);
        assert_eq!(prefix_words(68, 128), [u64::MAX, 0xf << 60]);
    }
}
