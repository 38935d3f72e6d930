//! Keys of entries, and their order.

use std::cmp::Reverse;

pub(super) type Words = Box<[u64]>;

/// The key of an entry with its priority, as packets are compared with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Zero where `mask` is; zero in range fields.
    pub(crate) value: Words,
    /// The bits to compare; zero in range fields.
    pub(crate) mask: Words,
    /// The range fields, without those that match anything.
    pub(crate) ranges: Vec<Range>,
    /// Prefix length of the longest-prefix field; 0 if there is none.
    pub(crate) prefix_len: u32,
    /// The highest wins; 0 where entries cannot overlap or the longest prefix wins.
    pub(crate) priority: i32,
}

impl EntryKey {
    /// Decides which of two matching entries wins.
    pub(super) fn rank(&self) -> i32 {
        match self.priority {
            0 => self.prefix_len as i32,
            priority => priority,
        }
    }

    /// The first word of the first range: its position in the key, and its ends.
    pub(super) fn first_range(&self) -> Option<(usize, u64, u64)> {
        let range = self.ranges.first()?;
        Some((range.at, range.low[0], range.high[0]))
    }

    /// The ranges other than [`EntryKey::first_range`].
    pub(super) fn further_ranges(&self) -> &[Range] {
        match self.ranges.split_first() {
            Some((first, further)) if first.low.len() == 1 => further,
            _ => &self.ranges,
        }
    }
}

/// A range of values of one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    /// The field's first word in the key.
    pub at: usize,
    pub low: Words,
    pub high: Words,
}

impl Range {
    pub(super) fn holds(&self, key: &[u64]) -> bool {
        let value = &key[self.at..self.at + self.low.len()];
        *self.low <= *value && *value <= *self.high
    }
}

/// An entry that competes with others. The best one compares greatest. Of entries with equal priority the oldest wins;
/// P4Runtime leaves that choice to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub priority: i32,
    pub age: Reverse<u64>,
    pub entry: u32,
}
