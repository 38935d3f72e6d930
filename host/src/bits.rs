//! A set of small numbers, reused from one operation to the next.

/// A fixed-length bit set.
#[derive(Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Empties the set and makes room for numbers under `len`; allocates only when it was never
    /// this large.
    pub(crate) fn reset(&mut self, len: usize) {
        self.words.clear();
        self.words.resize(len.div_ceil(64), 0);
    }

    /// Adds `index`; false if it was there.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Takes `index` out; false if it was not there.
    pub(crate) fn remove(&mut self, index: usize) -> bool {
        let there = self.contains(index);
        self.words[index / 64] &= !(1 << (index % 64));
        there
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 != 0
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
}
