//! Counters: indirect counter arrays, and cells of direct counters.

use std::fmt;

use super::error::ControlError;
use super::octets::plural;

/// The counts of one cell. As in BMv2, it counts both, even if the program declares one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CounterCell {
    /// Packets.
    pub packets: u64,
    /// Bytes, by the length at which the packets entered the switch.
    pub bytes: u64,
}

impl CounterCell {
    pub(super) fn count(&mut self, bytes: u32) {
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
    }
}

impl fmt::Display for CounterCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (packets, bytes) = (plural(self.packets, "packet"), plural(self.bytes, "byte"));
        write!(f, "{packets}, {bytes}")
    }
}

/// The position of an array's cell; `None` outside the array.
#[inline]
pub(super) fn cell(index: u64, size: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|at| *at < size)
}

/// An indirect counter: cells that the program addresses by index.
#[derive(Debug, Clone)]
pub struct Counter {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) cells: Box<[CounterCell]>,
}

impl Counter {
    /// All cells, by index.
    pub fn cells(&self) -> &[CounterCell] {
        &self.cells
    }

    /// One cell.
    pub fn read(&self, index: u64) -> Result<CounterCell, ControlError> {
        let found = cell(index, self.cells.len());
        found
            .map(|at| self.cells[at])
            .ok_or_else(|| self.outside(index))
    }

    /// Sets one cell.
    pub fn write(&mut self, index: u64, value: CounterCell) -> Result<(), ControlError> {
        let found = cell(index, self.cells.len());
        self.cells[found.ok_or_else(|| self.outside(index))?] = value;
        Ok(())
    }

    /// Counts a packet; an index outside the array counts nothing, as in BMv2.
    pub(super) fn count(&mut self, index: u64, bytes: u32) {
        if let Some(at) = cell(index, self.cells.len()) {
            self.cells[at].count(bytes);
        }
    }

    fn outside(&self, index: u64) -> ControlError {
        ControlError::index(&format!("counter {}", self.name), index, self.cells.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_index_and_ignores_what_is_outside() {
        let cells = vec![CounterCell::default(); 2];
        let mut counter = Counter {
            id: 1,
            name: "c".into(),
            cells: cells.into(),
        };
        counter.count(1, 100);
        counter.count(1, 50);
        counter.count(2, 7);
        counter.count(u64::MAX, 7);
        assert_eq!(counter.cells()[0], CounterCell::default());
        assert_eq!(
            counter.read(1).unwrap(),
            CounterCell {
                packets: 2,
                bytes: 150
            }
        );
        assert_eq!(
            counter.read(2).unwrap_err().to_string(),
            "counter c: index 2 is outside 0..2"
        );
        counter.write(1, CounterCell::default()).unwrap();
        assert_eq!(counter.read(1).unwrap(), CounterCell::default());
    }
}
