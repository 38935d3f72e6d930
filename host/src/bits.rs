//! Sets of small numbers that keep their memory from one operation to the next.

/// A fixed-length bit set.
#[derive(Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Empties the set for numbers below `len`. Allocates only if the set was never this large.
    pub(crate) fn reset(&mut self, len: usize) {
        self.words.clear();
        self.words.resize(len.div_ceil(64), 0);
    }

    /// Adds `index`. Returns false if it was present.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Removes `index`. Returns false if it was absent.
    pub(crate) fn remove(&mut self, index: usize) -> bool {
        let there = self.contains(index);
        self.words[index / 64] &= !(1 << (index % 64));
        there
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 != 0
    }
}

/// A bit set that is usually empty. It takes no memory until its first insertion.
#[derive(Default)]
pub(crate) struct RareBits {
    bits: Bits,
    len: usize,
    used: bool,
}

impl RareBits {
    /// Empties the set, whose numbers are below `len` from now on.
    pub(crate) fn reset(&mut self, len: usize) {
        self.len = len;
        self.used = false;
    }

    /// Adds `index`. Returns false if it was present.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        if !std::mem::replace(&mut self.used, true) {
            self.bits.reset(self.len);
        }
        self.bits.insert(index)
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.used && self.bits.contains(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set() {
        let mut bits = Bits::default();
        bits.reset(130);
        assert!(bits.insert(129));
        assert!(!bits.insert(129));
        assert!(bits.contains(129) && !bits.contains(128));
        assert!(bits.remove(129) && !bits.remove(129));
        assert!(bits.insert(129));
        bits.reset(130);
        assert!(!bits.contains(129));
    }

    #[test]
    fn a_rare_set_is_there_when_it_is_needed() {
        let mut bits = RareBits::default();
        bits.reset(130);
        assert!(!bits.contains(129));
        assert_eq!(bits.bits.words.capacity(), 0);
        assert!(bits.insert(129) && !bits.insert(129));
        assert!(bits.contains(129) && !bits.contains(128));
        bits.reset(130);
        assert!(!bits.contains(129));
        bits.insert(1);
        assert!(!bits.contains(129));
    }
}
