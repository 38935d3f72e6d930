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

/// The words of the number that has ones in its bits from `from` to `width`.
pub(super) fn ones(width: u32, from: u32) -> impl Iterator<Item = u64> {
    let words = (0..word_count(width) as u32).rev();
    let below = |bits: u32| 1_u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1);
    words.map(move |word| {
        let [width, from] = [width, from].map(|bits| below(bits.saturating_sub(word * 64)));
        width & !from
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_end_at_the_width() {
        let ones = |width, from| ones(width, from).collect::<Vec<_>>();
        assert_eq!(ones(32, 24), [0xff00_0000]);
        assert_eq!(ones(32, 32), [0]);
        assert_eq!(ones(64, 0), [u64::MAX]);
        assert_eq!(ones(128, 60), [u64::MAX, 0xf << 60]);
        assert_eq!(ones(65, 0), [1, u64::MAX]);
    }
}
