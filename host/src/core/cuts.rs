//! The set of packets whose payload a switch removed, with the cause.

use std::ops::Range;

use crate::bits::RareBits;
use crate::cause::Cause;

/// By packet: whether its payload was removed, and why.
#[derive(Default)]
pub(super) struct Cuts {
    trimmed: RareBits,
    late: RareBits,
}

impl Cuts {
    /// Empties the set.
    pub(super) fn reset(&mut self, len: usize) {
        self.trimmed.reset(len);
        self.late.reset(len);
    }

    /// Notes that the payload of packet `index` was removed. Returns false if that was known. The first cause
    /// counts: a network that duplicates packets may trim one copy and mark the other late.
    pub(super) fn insert(&mut self, index: usize, cause: Cause) -> bool {
        if self.contains(index) {
            return false;
        }
        match cause {
            Cause::Late => self.late.insert(index),
            _ => self.trimmed.insert(index),
        }
    }

    pub(super) fn contains(&self, index: usize) -> bool {
        self.cause(index).is_some()
    }

    /// Number of packets of `range` without a payload.
    pub(super) fn count(&self, range: Range<usize>) -> usize {
        self.trimmed.count(range.clone()) + self.late.count(range)
    }

    /// The cause of packet `index` having no payload.
    pub(super) fn cause(&self, index: usize) -> Option<Cause> {
        if self.trimmed.contains(index) {
            Some(Cause::Trimmed)
        } else {
            self.late.contains(index).then_some(Cause::Late)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_counts() {
        let mut cuts = Cuts::default();
        cuts.reset(3);
        assert!(cuts.insert(2, Cause::Late));
        assert!(!cuts.insert(2, Cause::Trimmed));
        assert_eq!((cuts.cause(1), cuts.cause(2)), (None, Some(Cause::Late)));
        cuts.reset(3);
        assert!(!cuts.contains(2));
    }
}
