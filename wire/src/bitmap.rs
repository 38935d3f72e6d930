//! Bitmaps in payloads: number *k* is bit *k* mod 8, counted from the lowest, of byte *k* / 8.

/// Bytes of a bitmap for numbers below `count`.
pub const fn len(count: usize) -> usize {
    count.div_ceil(8)
}

/// True if the bitmap contains `number`. False beyond its end.
pub fn contains(bitmap: &[u8], number: usize) -> bool {
    bitmap
        .get(number / 8)
        .is_some_and(|byte| byte >> (number % 8) & 1 != 0)
}

/// Adds `number`.
///
/// # Panics
/// If the bitmap is too short: the caller sizes its buffers.
pub fn insert(bitmap: &mut [u8], number: usize) {
    bitmap[number / 8] |= 1 << (number % 8);
}

/// Number of elements.
pub fn count(bitmap: &[u8]) -> usize {
    bitmap.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// The elements, increasing.
pub fn numbers(bitmap: &[u8]) -> impl Iterator<Item = usize> + '_ {
    (0..8 * bitmap.len()).filter(|&number| contains(bitmap, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_of_the_first_byte_is_zero() {
        let mut bitmap = [0; len(10)];
        for number in [0, 3, 9] {
            insert(&mut bitmap, number);
        }
        assert_eq!(bitmap, [0b1001, 0b10]);
        assert!(numbers(&bitmap).eq([0, 3, 9]));
        assert_eq!(count(&bitmap), 3);
        assert!(!contains(&bitmap, 1) && !contains(&bitmap, 16));
    }
}
