//! Fields as bit ranges of a byte buffer, most significant bit first, as on the wire.
//!
//! Buffers that hold slots end in [`SLACK`] unused bytes, so that a field of up to 57 bits is one
//! unaligned 8-byte access wherever it stands.
//!
//! A metadata field of up to 64 bits has a machine word of its own instead, in the processor's byte order, its unused bits zero.

use num_bigint::{BigInt, BigUint};

use super::value::{canonical, word_of};

/// Unused bytes at the end of every buffer that slots point into.
pub(super) const SLACK: usize = 8;

/// A field's place in a buffer, and its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    /// First byte that the field touches.
    byte: u32,
    /// Bits of that byte before the field, 0..8; in a word, the bits below the field.
    skip: u8,
    /// True if the field has bits and one 8-byte access holds it.
    short: bool,
    /// Bits of 64 that the field does not have, if it is short.
    spare: u8,
    /// True if the field is in a machine word of its own.
    word: bool,
    /// True if it is a part of the field in that word.
    part: bool,
    /// True if the value is a two's complement integer.
    pub signed: bool,
    /// Width in bits.
    pub width: u32,
}

/// The widest value that a program can have anywhere: no frame is longer.
pub(super) const MAX_BITS: u32 = 65_535 * 8;

/// The widest key of a table, parser state or value set, in all. Every entry has room for one.
pub(super) const MAX_KEY_BITS: u64 = 1 << 14;

impl Slot {
    pub fn new(bit: usize, width: u32, signed: bool) -> Slot {
        let skip = (bit % 8) as u8;
        let short = width > 0 && width.saturating_add(skip.into()) <= 64;
        Slot {
            byte: (bit / 8) as u32,
            skip,
            short,
            spare: if short { 64 - width as u8 } else { 0 },
            word: false,
            part: false,
            signed,
            width,
        }
    }

    /// The same field as a machine word.
    pub fn in_word(self) -> Slot {
        debug_assert!(self.short && self.skip == 0);
        Slot { word: true, ..self }
    }

    /// Returns the place of a field that one access reads, or `None` if the field takes more or is out of reach.
    pub fn place(self) -> Option<Place> {
        let byte = u16::try_from(self.byte).ok().filter(|_| self.short)?;
        let (skip, spare) = (self.skip, self.spare);
        Some(match (self.word, self.part) {
            (true, false) => Place::Word(byte),
            (true, true) => Place::Part(byte, skip),
            (false, _) => Place::Wire(Wire { byte, skip, spare }),
        })
    }

    /// True if the field is in a machine word.
    pub fn is_word(self) -> bool {
        self.word
    }

    /// The same field, read as a signed or an unsigned number.
    pub fn with_sign(self, signed: bool) -> Slot {
        Slot { signed, ..self }
    }

    /// The bit at which the field starts.
    pub fn bit(self) -> usize {
        self.byte as usize * 8 + usize::from(self.skip)
    }

    /// The same field in an object `bytes` further on.
    pub fn at(self, bytes: usize) -> Slot {
        Slot {
            byte: self.byte + bytes as u32,
            ..self
        }
    }

    /// Bits `low..low + width` of this field, bit 0 being the least significant.
    pub fn part(self, low: u32, width: u32) -> Slot {
        debug_assert!(low + width <= self.width);
        if self.word && width > 0 {
            return Slot {
                skip: self.skip + low as u8,
                spare: 64 - width as u8,
                part: self.part || width < self.width,
                width,
                signed: false,
                ..self
            };
        }
        Slot::new(
            self.bit() + (self.width - low - width) as usize,
            width,
            false,
        )
    }

    /// This field and the one behind it as one; `None` if `next` stands elsewhere, or they are too wide for one access.
    pub fn joined(self, next: Slot) -> Option<Slot> {
        let plain = |slot: Slot| !slot.word && !slot.signed;
        let follows = self.bit() + self.width as usize == next.bit();
        let both = Slot::new(self.bit(), self.width + next.width, false);
        (plain(self) && plain(next) && follows && both.short).then_some(both)
    }

    /// Bytes that a canonical value of this width needs at most.
    pub fn bytes(self) -> usize {
        self.width.div_ceil(8) as usize
    }

    /// The bytes of the buffer that the field takes, if it takes whole ones.
    pub fn whole_bytes(self) -> Option<std::ops::Range<usize>> {
        let at = self.byte as usize;
        let whole = !self.word && self.skip == 0 && self.width.is_multiple_of(8);
        whole.then(|| at..at + self.bytes())
    }

    /// The field and what is behind it, as the upper bits of a word. The field must be short.
    #[inline(always)]
    fn load_top(&self, buffer: &[u8]) -> u64 {
        let at = self.byte as usize;
        let bytes = buffer[at..at + 8].try_into().expect("eight bytes");
        match self.word {
            true => u64::from_ne_bytes(bytes) >> self.skip << self.spare,
            false => u64::from_be_bytes(bytes) << self.skip,
        }
    }

    /// The field's value, sign-extended to 64 bits if it is signed; of a wider field, the low 64 bits.
    #[inline(always)]
    pub fn load_word(&self, buffer: &[u8]) -> u64 {
        if !self.short {
            return self.load_long(buffer);
        }
        let top = self.load_top(buffer);
        if self.signed {
            ((top as i64) >> self.spare) as u64
        } else {
            top >> self.spare
        }
    }

    /// As [`Slot::load_word`], of a field that no single access holds.
    #[cold]
    fn load_long(self, buffer: &[u8]) -> u64 {
        let low = self.part(0, self.width.min(32));
        let high = self.part(low.width, (self.width - low.width).min(32));
        let high = high.with_sign(self.signed && self.width <= 64);
        match (low.width, high.width) {
            (0, _) => 0,
            (_, 0) => low.load_word(buffer),
            _ => high.load_word(buffer) << 32 | low.load_word(buffer),
        }
    }

    /// Writes the low bits of `value`; zeros above them.
    #[inline(always)]
    pub fn store_word(&self, buffer: &mut [u8], value: u64) {
        if self.short {
            self.store_short(buffer, value);
        } else {
            self.store_long(buffer, value);
        }
    }

    /// As [`Slot::store_word`], of a short field.
    #[inline(always)]
    fn store_short(&self, buffer: &mut [u8], value: u64) {
        let at = self.byte as usize;
        let bytes: &mut [u8; 8] = (&mut buffer[at..at + 8]).try_into().expect("eight bytes");
        *bytes = if self.word {
            let field = (u64::MAX >> self.spare) << self.skip;
            (u64::from_ne_bytes(*bytes) & !field | (value << self.skip) & field).to_ne_bytes()
        } else {
            Wire::insert(*bytes, self.skip, self.spare, value)
        };
    }

    /// As [`Slot::store_word`], of a field that no single access holds.
    #[cold]
    fn store_long(self, buffer: &mut [u8], mut value: u64) {
        let mut done = 0;
        while done < self.width {
            let piece = (self.width - done).min(32);
            self.part(done, piece).store_short(buffer, value);
            value >>= 32;
            done += piece;
        }
    }

    /// The field's value at any width.
    pub fn load_big(self, buffer: &[u8]) -> BigInt {
        if self.width <= 64 {
            let value = self.load_word(buffer);
            return match self.signed {
                true => (value as i64).into(),
                false => value.into(),
            };
        }
        let span = u32::from(self.skip) + self.width;
        let (at, end) = (self.byte as usize, (self.byte + span.div_ceil(8)) as usize);
        let spare = end as u32 * 8 - (self.byte * 8 + span);
        let value = BigUint::from_bytes_be(&buffer[at..end]) >> spare;
        let value = BigInt::from(value & (big_mask(self.width)));
        if self.signed && value.bit(u64::from(self.width - 1)) {
            value - (BigInt::from(1) << self.width)
        } else {
            value
        }
    }

    /// Writes the low bits of `value` at any width.
    pub fn store_big(self, buffer: &mut [u8], value: &BigInt) {
        self.store_bytes(buffer, &low_bits(value, self.width).to_bytes_be());
    }

    /// Writes big-endian bytes, whose value must fit the field.
    pub fn store_bytes(self, buffer: &mut [u8], bytes: &[u8]) {
        // From the least significant end, in pieces that a narrow store takes.
        let mut pieces = bytes.rchunks(8);
        let mut done = 0;
        while done < self.width {
            let piece = (self.width - done).min(64);
            let word = word_of(pieces.next().unwrap_or_default());
            self.part(done, piece).store_word(buffer, word);
            done += piece;
        }
    }

    /// The field's bits as the shortest big-endian bytes, at least one: P4Runtime's canonical form.
    pub fn canonical(self, buffer: &[u8]) -> Vec<u8> {
        if self.width <= 64 {
            let word = self.with_sign(false).load_word(buffer);
            return canonical(word.to_be_bytes().into());
        }
        self.with_sign(false).load_big(buffer).to_bytes_be().1
    }

    /// Copies the field's bits from one buffer to a field of the same width in another.
    pub fn copy_to(self, from: &[u8], slot: Slot, to: &mut [u8]) {
        debug_assert_eq!(self.width, slot.width);
        let mut done = 0;
        while done < self.width {
            let piece = (self.width - done).min(64);
            slot.part(done, piece)
                .store_word(to, self.part(done, piece).load_word(from));
            done += piece;
        }
    }
}

/// The place of an unsigned field of up to 64 bits, as an offset of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A machine word, by its first byte.
    Word(u16),
    /// Bits of a machine word, above this many others.
    Part(u16, u8),
    Wire(Wire),
}

/// An unsigned field that one 8-byte access holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wire {
    byte: u16,
    skip: u8,
    spare: u8,
}

/// Bytes that a place can reach.
pub(super) const NEAR: usize = u16::MAX as usize + 9;

impl Wire {
    /// The first byte, the bits of that byte before the field, and the field's width.
    pub fn place(self) -> (usize, u8, u8) {
        (self.byte.into(), self.skip, 64 - self.spare)
    }

    /// Writes the low bits of `value`.
    #[inline(always)]
    pub fn store(self, buffer: &mut [u8; NEAR], value: u64) {
        let at = usize::from(self.byte);
        let bytes: &mut [u8; 8] = (&mut buffer[at..at + 8]).try_into().expect("eight bytes");
        *bytes = Wire::insert(*bytes, self.skip, self.spare, value);
    }

    #[inline(always)]
    fn insert(bytes: [u8; 8], skip: u8, spare: u8, value: u64) -> [u8; 8] {
        let shift = spare.wrapping_sub(skip) % 64;
        let field = (u64::MAX >> (spare % 64)) << shift;
        (u64::from_be_bytes(bytes) & !field | (value << shift) & field).to_be_bytes()
    }
}

#[inline(always)]
pub(super) fn word_at(buffer: &[u8; NEAR], at: u16) -> u64 {
    let at = usize::from(at);
    u64::from_ne_bytes(buffer[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes the machine word at a place.
#[inline(always)]
pub(super) fn set_word_at(buffer: &mut [u8; NEAR], at: u16, value: u64) {
    let at = usize::from(at);
    buffer[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// The lowest `bits` bits set; all of them from 64 on.
pub(super) fn mask(bits: u32) -> u64 {
    1_u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

/// The lowest `bits` bits set, at any width.
pub(super) fn big_mask(bits: u32) -> BigUint {
    (BigUint::from(1u8) << bits) - 1u8
}

/// The lowest `bits` bits of the two's complement of `value`.
pub(super) fn low_bits(value: &BigInt, bits: u32) -> BigUint {
    let low = value & BigInt::from(big_mask(bits));
    low.to_biguint().expect("a masked value is not negative")
}

#[cfg(test)]
mod tests {
    use num_bigint::Sign;
    use proptest::prelude::*;

    use super::*;

    fn reference(buffer: &[u8], slot: Slot) -> BigUint {
        (0..slot.width as usize).fold(BigUint::ZERO, |value, i| {
            let bit = slot.bit() + i;
            (value << 1) | BigUint::from(buffer[bit / 8] >> (7 - bit % 8) & 1)
        })
    }

    #[test]
    fn a_field_reads_as_on_the_wire() {
        let mut buffer = vec![0x45, 0x12, 0x34, 0x80];
        buffer.extend([0; SLACK]);
        assert_eq!(Slot::new(0, 4, false).load_word(&buffer), 4);
        assert_eq!(Slot::new(4, 4, false).load_word(&buffer), 5);
        assert_eq!(Slot::new(12, 13, false).load_word(&buffer), 0x469);
        assert_eq!(Slot::new(24, 1, true).load_word(&buffer), u64::MAX);
        assert_eq!(Slot::new(8, 16, true).load_word(&buffer), 0x1234);
    }

    proptest! {
        #[test]
        fn loads_and_stores_touch_only_the_field(
            content in prop::collection::vec(any::<u8>(), 64),
            bit in 0usize..200,
            width in 1u32..=300,
            value in prop::collection::vec(any::<u8>(), 38),
        ) {
            let mut buffer = content.clone();
            buffer.extend([0xa5; SLACK]);
            let slot = Slot::new(bit, width, false);
            let before = reference(&buffer, slot);
            prop_assert_eq!(slot.load_big(&buffer), BigInt::from(before.clone()));
            prop_assert_eq!(BigUint::from(slot.load_word(&buffer)), before & BigUint::from(u64::MAX));
            let value = BigInt::from_bytes_be(Sign::Minus, &value);
            let mut by_parts = buffer.clone();
            slot.store_big(&mut by_parts, &value);
            prop_assert_eq!(reference(&by_parts, slot), low_bits(&value, width));
            for i in (0..buffer.len() * 8).filter(|i| !(bit..bit + width as usize).contains(i)) {
                prop_assert_eq!(buffer[i / 8] >> (7 - i % 8) & 1, by_parts[i / 8] >> (7 - i % 8) & 1);
            }
            let low = u64::try_from(low_bits(&value, width.min(64))).unwrap();
            let (mut word, mut big) = (buffer.clone(), buffer.clone());
            slot.store_word(&mut word, low);
            slot.store_big(&mut big, &low.into());
            prop_assert_eq!(word, big);
            let mut copied = vec![0; 64 + SLACK];
            let target = Slot::new(3, width, false);
            slot.copy_to(&by_parts, target, &mut copied);
            prop_assert_eq!(target.load_big(&copied), slot.load_big(&by_parts));
        }

        #[test]
        fn signed_fields_extend_their_sign(value: i64, bit in 0usize..16, width in 1u32..=64) {
            let mut buffer = vec![0; 16 + SLACK];
            let slot = Slot::new(bit, width, true);
            slot.store_word(&mut buffer, value as u64);
            let expected = (value << (64 - width)) >> (64 - width);
            prop_assert_eq!(slot.load_word(&buffer), expected as u64);
            prop_assert_eq!(slot.load_big(&buffer), BigInt::from(expected));
        }
    }

    proptest! {
        #[test]
        fn words_and_their_parts_read_and_write_like_fields(
            value: u64,
            other: u64,
            width in 1u32..=64,
            cut in (0u32..64, 1u32..=64),
        ) {
            let value = value >> (64 - width);
            let low = cut.0 % width;
            let size = cut.1.min(width - low);
            let (wire, word) = (Slot::new(64, width, false), Slot::new(64, width, false).in_word());
            let (mut wires, mut words) = (vec![0xa5; 40], vec![0; 40]);
            wire.store_word(&mut wires, value);
            word.store_word(&mut words, value);
            prop_assert_eq!(word.load_word(&words), value);
            let (wire_part, word_part) = (wire.part(low, size), word.part(low, size));
            prop_assert_eq!(word_part.load_word(&words), wire_part.load_word(&wires));
            prop_assert_eq!(word_part.load_big(&words), wire_part.load_big(&wires));
            let near = Wire { byte: 8, skip: 0, spare: 64 - width as u8 };
            prop_assert_eq!(wire.place(), Some(Place::Wire(near)));
            let whole = word_part == word;
            prop_assert_eq!(word_part.place() == Some(Place::Word(8)), whole);
            wire_part.store_word(&mut wires, other);
            word_part.store_word(&mut words, other);
            prop_assert_eq!(word.load_word(&words), wire.load_word(&wires));
            prop_assert_eq!(word.canonical(&words), wire.canonical(&wires));
        }
    }

    #[test]
    fn canonical_bytes_have_no_leading_zeros() {
        let mut buffer = vec![0; 8 + SLACK];
        let slot = Slot::new(3, 20, true);
        assert_eq!(slot.canonical(&buffer), [0]);
        slot.store_bytes(&mut buffer, &[0x0a, 0xbc]);
        assert_eq!(slot.canonical(&buffer), [0x0a, 0xbc]);
        slot.store_word(&mut buffer, u64::MAX);
        assert_eq!(slot.canonical(&buffer), [0x0f, 0xff, 0xff]);
    }
}
