//! A bucket's values, or only their number.

use std::ops::Range;

use crate::memory;

/// Values to compute with, or only their number. With the number alone packets have the same lengths and
/// times, and nothing is stored, read or written.
pub(crate) enum Values {
    Stored(Vec<f32>),
    Counted(usize),
}

impl Default for Values {
    fn default() -> Self {
        Values::Stored(Vec::new())
    }
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Stored(values) => values.len(),
            Values::Counted(len) => *len,
        }
    }

    pub(crate) fn is_stored(&self) -> bool {
        matches!(self, Values::Stored(_))
    }

    /// Resizes to `len` values, stored or counted, with any content. Allocates only for the largest number so
    /// far.
    pub(crate) fn resize(&mut self, len: usize, stored: bool) {
        match (stored, &mut *self) {
            (true, Values::Stored(values)) if values.capacity() >= len => values.resize(len, 0.0),
            (true, _) => *self = Values::Stored(memory::zeroed(len)),
            (false, _) => *self = Values::Counted(len),
        }
    }

    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[f32]> {
        match self {
            Values::Stored(values) => Some(&values[range]),
            Values::Counted(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [f32]> {
        match self {
            Values::Stored(values) => Some(&mut values[range]),
            Values::Counted(_) => None,
        }
    }

    /// The values; empty if they were counted.
    pub(crate) fn into_vec(self) -> Vec<f32> {
        match self {
            Values::Stored(values) => values,
            Values::Counted(_) => Vec::new(),
        }
    }
}
