//! Register arrays: state that the program reads and writes from the data plane.

use num_bigint::{BigInt, Sign};

use super::bits::{SLACK, Slot, mask};
use super::error::ControlError;

/// A register array; every cell starts at zero.
#[derive(Debug, Clone)]
pub struct Register {
    pub(super) id: u32,
    pub(super) name: String,
    size: usize,
    /// Cells that are machine words: all or none. Machine code accesses no others.
    pub(super) words: usize,
    /// True if the control plane reads and writes the cells as signed numbers.
    signed: bool,
    /// Cell 0; a machine word if that has enough bits.
    first: Slot,
    /// Bytes from one cell to the next.
    stride: usize,
    pub(super) bytes: Box<[u8]>,
}

impl Register {
    pub(super) fn new(id: u32, name: String, size: usize, width: u32, signed: bool) -> Register {
        let (first, stride) = match Slot::new(0, width, false) {
            cell if (1..=64).contains(&width) => (cell.in_word(), size_of::<u64>()),
            cell => (cell, cell.bytes()),
        };
        Register {
            id,
            name,
            size,
            words: if first.is_word() { size } else { 0 },
            signed,
            first,
            stride,
            bytes: vec![0; size * stride + SLACK].into(),
        }
    }

    /// Number of cells.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Width of a cell in bits.
    pub fn width(&self) -> u32 {
        self.first.width
    }

    /// Returns one cell as the shortest big-endian bytes, in two's complement if the cells are signed (P4Runtime §8.3).
    ///
    /// # Errors
    /// The index is outside the array.
    pub fn read(&self, index: u64) -> Result<Vec<u8>, ControlError> {
        let value = self.value(index)?;
        Ok(match self.signed {
            true => value.to_signed_bytes_be(),
            false => value.to_bytes_be().1,
        })
    }

    /// Sets one cell from big-endian bytes, in two's complement if the cells are signed.
    ///
    /// # Errors
    /// The index is outside the array, or the value is empty or does not fit the cell's width.
    pub fn write(&mut self, index: u64, value: &[u8]) -> Result<(), ControlError> {
        let cell = self.find(index)?;
        if value.is_empty() {
            return Err(self.fault("the value is empty"));
        }
        let value = match self.signed {
            true => BigInt::from_signed_bytes_be(value),
            false => BigInt::from_bytes_be(Sign::Plus, value),
        };
        self.check(&value)?;
        cell.store_big(&mut self.bytes, &value);
        Ok(())
    }

    fn value(&self, index: u64) -> Result<BigInt, ControlError> {
        let cell = self.find(index)?.with_sign(self.signed);
        Ok(cell.load_big(&self.bytes))
    }

    /// Checks that a number fits a cell.
    fn check(&self, value: &BigInt) -> Result<(), ControlError> {
        let bits = match (self.signed, value.sign()) {
            (true, Sign::Minus) => (!value).bits() + 1,
            (true, _) => value.bits() + 1,
            (false, Sign::Minus) => u64::MAX,
            (false, _) => value.bits(),
        };
        if bits > u64::from(self.width()) {
            return Err(self.fault("the value does not fit"));
        }
        Ok(())
    }

    fn fault(&self, fault: &'static str) -> ControlError {
        ControlError::value(&format!("register {}", self.name), self.width(), fault)
    }

    fn find(&self, index: u64) -> Result<Slot, ControlError> {
        self.cell(index).ok_or_else(|| self.outside(index))
    }

    #[inline(always)]
    fn start(&self, index: u64) -> Option<usize> {
        let index = usize::try_from(index).ok().filter(|i| *i < self.size)?;
        Some(index * self.stride)
    }

    fn cell(&self, index: u64) -> Option<Slot> {
        Some(self.first.at(self.start(index)?))
    }

    /// A cell's low 64 bits; `None` outside the array.
    #[inline(always)]
    pub(super) fn load_word(&self, index: u64) -> Option<u64> {
        let at = self.start(index)?;
        Some(match self.bytes[at..].first_chunk() {
            Some(word) if self.first.is_word() => u64::from_ne_bytes(*word),
            _ => self.first.at(at).load_word(&self.bytes),
        })
    }

    /// Stores the low bits of a word; an index outside the array stores nothing, as in BMv2.
    #[inline(always)]
    pub(super) fn store_word(&mut self, index: u64, value: u64) {
        let Some(at) = self.start(index) else { return };
        match self.bytes[at..].first_chunk_mut() {
            Some(word) if self.first.is_word() => {
                *word = (value & mask(self.first.width)).to_ne_bytes();
            }
            _ => self.first.at(at).store_word(&mut self.bytes, value),
        }
    }

    /// A cell's value at any width; zero outside the array.
    pub(super) fn load_big(&self, index: u64) -> BigInt {
        self.cell(index)
            .map(|cell| cell.load_big(&self.bytes))
            .unwrap_or_default()
    }

    /// Copies a cell's low bits to `slot`; an index outside the array copies nothing.
    pub(super) fn read_into(&self, index: u64, slot: Slot, buffer: &mut [u8]) {
        if let Some(cell) = self.cell(index) {
            slot.store_big(buffer, &cell.load_big(&self.bytes));
        }
    }

    /// Stores the low bits of a value of any width.
    pub(super) fn store_big(&mut self, index: u64, value: &BigInt) {
        if let Some(cell) = self.cell(index) {
            cell.store_big(&mut self.bytes, value);
        }
    }

    fn outside(&self, index: u64) -> ControlError {
        ControlError::index(&format!("register {}", self.name), index, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_wrap_at_their_width_and_do_not_touch_their_neighbours() {
        let mut register = Register::new(1, "r".into(), 3, 12, false);
        register.store_word(1, 0x1fff);
        let words = [0, 1, 2, 3].map(|index| register.load_word(index));
        assert_eq!(words, [Some(0), Some(0xfff), Some(0), None]);
        register.store_word(3, 7);
        register.store_word(u64::MAX, 7);
        assert_eq!(register.read(1).unwrap(), [0x0f, 0xff]);
        assert_eq!(register.read(0).unwrap(), [0]);
        assert!(register.read(3).is_err());
    }

    #[test]
    fn written_values_must_fit() {
        let mut register = Register::new(1, "r".into(), 2, 12, false);
        register.write(1, &[0x0a, 0xbc]).unwrap();
        assert_eq!(register.load_word(1), Some(0xabc));
        let error = register.write(1, &[0x1a, 0xbc]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "register r is 12 bits wide: the value does not fit"
        );
        assert_eq!(register.load_word(1), Some(0xabc));
    }

    /// The `int` rows of the specification's tables of valid and invalid encodings (P4Runtime §8.3).
    #[test]
    fn signed_values_are_read_and_written_in_twos_complement() {
        let int = |width| Register::new(1, "r".into(), 1, width, true);
        for (width, bytes, canonical, value) in [
            (8, &[0x63][..], &[0x63][..], 99),
            (8, &[0x9d], &[0x9d], -99),
            (8, &[0xff, 0x9d], &[0x9d], -99),
            (12, &[0xfd, 0x1d], &[0xfd, 0x1d], -739),
            (16, &[0, 0], &[0], 0),
            (16, &[0xff; 5], &[0xff], -1),
            (200, &[0x80], &[0x80], -128),
        ] {
            let mut register = int(width);
            register.write(0, bytes).unwrap();
            assert_eq!(register.read(0).unwrap(), canonical, "{bytes:x?}");
            assert_eq!(register.value(0).unwrap(), value.into());
            // Packets see the same bits.
            let bits = BigInt::from(super::super::bits::low_bits(&value.into(), width));
            assert_eq!(register.load_big(0), bits);
        }
        for (width, bytes) in [(8, &[0x00, 0x9d][..]), (12, &[0x8d, 0x1d]), (16, &[])] {
            let mut register = int(width);
            let error = register.write(0, bytes).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::OutOfRange, "{error}");
            assert_eq!(register.read(0).unwrap(), [0]);
        }
    }

    #[test]
    fn wide_cells_keep_all_their_bits() {
        let mut register = Register::new(1, "r".into(), 2, 200, false);
        let value = (BigInt::from(1) << 199) + 5;
        register.store_big(1, &value);
        assert_eq!(register.load_big(1), value);
        assert_eq!(register.load_word(1), Some(5));
        assert_eq!(register.load_big(2), BigInt::ZERO);
    }
}
