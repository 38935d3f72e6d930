//! Register arrays: state that the program reads and writes from the data plane.

use num_bigint::BigInt;

use super::bits::{SLACK, Slot};
use super::error::ControlError;
use super::value::check_bytes;

/// A register array; every cell starts at zero.
#[derive(Debug, Clone)]
pub struct Register {
    id: u32,
    name: String,
    size: usize,
    /// Cell 0; the others follow at the same distance.
    first: Slot,
    bytes: Vec<u8>,
}

impl Register {
    pub(super) fn new(id: u32, name: String, size: usize, width: u32) -> Register {
        let first = Slot::new(0, width, false);
        Register {
            id,
            name,
            size,
            first,
            bytes: vec![0; size * first.bytes() + SLACK],
        }
    }

    /// Its P4Info id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its P4Info name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of cells.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Width of a cell in bits.
    pub fn width(&self) -> u32 {
        self.first.width
    }

    /// One cell as canonical big-endian bytes.
    pub fn read(&self, index: u64) -> Result<Vec<u8>, ControlError> {
        let cell = self
            .cell(i128::from(index))
            .ok_or_else(|| self.outside(index))?;
        Ok(cell.canonical(&self.bytes))
    }

    /// Sets one cell from big-endian bytes that fit its width.
    pub fn write(&mut self, index: u64, value: &[u8]) -> Result<(), ControlError> {
        let cell = self
            .cell(i128::from(index))
            .ok_or_else(|| self.outside(index))?;
        check_bytes(value, cell.width, || format!("register {}", self.name))?;
        cell.store_bytes(&mut self.bytes, value);
        Ok(())
    }

    /// Whether it has as many cells, as wide.
    pub(super) fn has_shape_of(&self, other: &Register) -> bool {
        (self.size, self.width()) == (other.size, other.width())
    }

    /// Trades cells with a register of the same shape.
    pub(super) fn swap_cells(&mut self, other: &mut Register) {
        std::mem::swap(&mut self.bytes, &mut other.bytes);
    }

    /// The bytes of some cells; none for cells outside the array.
    pub(super) fn save(&self, cells: std::ops::Range<usize>) -> Vec<u8> {
        let bytes = self.first.bytes();
        let found = self.bytes.get(cells.start * bytes..cells.end * bytes);
        found.unwrap_or_default().to_vec()
    }

    /// Puts the bytes of cells back, from the first of them on.
    pub(super) fn restore(&mut self, from: usize, cells: &[u8]) {
        let at = from * self.first.bytes();
        self.bytes[at..at + cells.len()].copy_from_slice(cells);
    }

    fn cell(&self, index: i128) -> Option<Slot> {
        let index = usize::try_from(index).ok().filter(|i| *i < self.size)?;
        Some(self.first.at(index * self.first.bytes()))
    }

    /// A cell's value, low 128 bits; zero outside the array.
    pub(super) fn load(&self, index: i128) -> i128 {
        match self.cell(index) {
            Some(cell) if cell.is_narrow() => cell.load_int(&self.bytes),
            Some(cell) => cell.part(0, 128).load_int(&self.bytes),
            None => 0,
        }
    }

    /// A cell's value at any width; zero outside the array.
    pub(super) fn load_big(&self, index: i128) -> BigInt {
        self.cell(index)
            .map(|cell| cell.load_big(&self.bytes))
            .unwrap_or_default()
    }

    /// Copies a cell's bits to `slot`; `false` and no change if the index is outside the array.
    pub(super) fn read_into(&self, index: i128, slot: Slot, buffer: &mut [u8]) -> bool {
        let Some(cell) = self.cell(index) else {
            return false;
        };
        if cell.width == slot.width {
            cell.copy_to(&self.bytes, slot, buffer);
        } else {
            slot.store_big(buffer, &cell.load_big(&self.bytes));
        }
        true
    }

    /// Stores the low bits of a value; an index outside the array stores nothing, as in BMv2.
    pub(super) fn store(&mut self, index: i128, value: i128) {
        match self.cell(index) {
            Some(cell) if cell.is_narrow() => cell.store(&mut self.bytes, value as u128),
            Some(cell) => cell.store_big(&mut self.bytes, &BigInt::from(value)),
            None => {}
        }
    }

    /// Stores the low bits of a value of any width.
    pub(super) fn store_big(&mut self, index: i128, value: &BigInt) {
        if let Some(cell) = self.cell(index) {
            cell.store_big(&mut self.bytes, value);
        }
    }

    fn outside(&self, index: u64) -> ControlError {
        let (name, size) = (self.name.clone(), self.size);
        ControlError::Index {
            kind: "register",
            name,
            index,
            size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_wrap_at_their_width_and_do_not_touch_their_neighbours() {
        let mut register = Register::new(1, "r".into(), 3, 12);
        register.store(1, 0x1fff);
        assert_eq!(
            (register.load(0), register.load(1), register.load(2)),
            (0, 0xfff, 0)
        );
        register.store(3, 7);
        register.store(-1, 7);
        assert_eq!(register.read(1).unwrap(), [0x0f, 0xff]);
        assert_eq!(register.read(0).unwrap(), [0]);
        assert!(register.read(3).is_err());
    }

    #[test]
    fn written_values_must_fit() {
        let mut register = Register::new(1, "r".into(), 2, 12);
        register.write(1, &[0x0a, 0xbc]).unwrap();
        assert_eq!(register.load(1), 0xabc);
        let error = register.write(1, &[0x1a, 0xbc]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "register r is 12 bits wide: the value does not fit"
        );
        assert_eq!(register.load(1), 0xabc);
    }

    #[test]
    fn wide_cells_keep_all_their_bits() {
        let mut register = Register::new(1, "r".into(), 2, 200);
        let value = (BigInt::from(1) << 199) + 5;
        register.store_big(1, &value);
        assert_eq!(register.load_big(1), value);
        assert_eq!(register.load(1), 5);
        assert_eq!(register.load_big(2), BigInt::ZERO);
    }
}
