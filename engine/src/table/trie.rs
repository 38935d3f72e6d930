//! Longest prefix match on one field: a trie with [`STRIDE`] bits per step whose nodes are compressed by two bitmaps
//! (Eatherton, Varghese, Dittia: Tree Bitmap, CCR 2004). Lookups and updates take as many steps as the longest prefix has
//! strides, independent of the number of prefixes.

/// Bits of one step: the prefixes that end within it, 2^6 - 1, are one word's bits, and so are its
/// continuations, 2^6.
const STRIDE: u32 = 6;

/// A node: the prefixes that share the bits on the path to it.
#[derive(Debug, Default)]
pub(super) struct Trie {
    /// A bit for each prefix that ends here, by [`position`].
    ends: u64,
    /// A bit for each of the next strides that some longer prefix has.
    branches: u64,
    /// The entries of the prefixes that end here, by position.
    entries: Vec<u32>,
    /// The nodes of the branches, in order.
    nodes: Vec<Trie>,
}

/// Returns the bit of a prefix that ends within a stride: first the empty prefix, then those of one bit, then those of two.
fn position(stride: usize, bits: u32) -> u32 {
    (1 << bits) - 1 + (stride >> (STRIDE - bits)) as u32
}

/// For each stride the positions of all prefixes of it.
static COVERING: [u64; 1 << STRIDE] = {
    let mut covering = [0; 1 << STRIDE];
    let mut stride = 0;
    while stride < covering.len() {
        let mut bits = 0;
        while bits < STRIDE {
            covering[stride] |= 1 << ((1 << bits) - 1 + (stride >> (STRIDE - bits)));
            bits += 1;
        }
        stride += 1;
    }
    covering
};

/// The stride that starts at bit `at` of the words, the most significant being 0; zeros follow
/// the last word.
#[inline]
fn stride(words: &[u64], at: u32) -> usize {
    let (word, skip) = ((at / 64) as usize, at % 64);
    let mut bits = words.get(word).copied().unwrap_or(0) << skip;
    if skip > 64 - STRIDE {
        bits |= words.get(word + 1).copied().unwrap_or(0) >> (64 - skip);
    }
    (bits >> (64 - STRIDE)) as usize
}

/// Returns the number of bits set below a position, which is its element's index in a list.
fn rank(bitmap: u64, position: u32) -> usize {
    (bitmap & ((1 << position) - 1)).count_ones() as usize
}

impl Trie {
    pub fn is_empty(&self) -> bool {
        self.ends == 0 && self.branches == 0
    }

    /// Returns the entry with the longest prefix of a value, which starts at bit `at` of the words.
    #[inline]
    pub fn lookup(&self, words: &[u64], mut at: u32) -> Option<u32> {
        let (mut node, mut best) = (self, None);
        loop {
            let stride = stride(words, at);
            let covering = node.ends & COVERING[stride];
            if covering != 0 {
                best = Some((node, covering.ilog2()));
            }
            if node.branches >> stride & 1 == 0 {
                break;
            }
            node = &node.nodes[rank(node.branches, stride as u32)];
            at += STRIDE;
        }
        best.map(|(node, position)| node.entries[rank(node.ends, position)])
    }

    /// Returns the entry with exactly this prefix of `bits` bits.
    pub fn find(&self, words: &[u64], mut at: u32, mut bits: u32) -> Option<u32> {
        let mut node = self;
        while bits >= STRIDE {
            let stride = stride(words, at);
            if node.branches >> stride & 1 == 0 {
                return None;
            }
            node = &node.nodes[rank(node.branches, stride as u32)];
            (at, bits) = (at + STRIDE, bits - STRIDE);
        }
        let position = position(stride(words, at), bits);
        let found = node.ends >> position & 1 == 1;
        found.then(|| node.entries[rank(node.ends, position)])
    }

    /// Adds a new prefix.
    pub fn insert(&mut self, words: &[u64], mut at: u32, mut bits: u32, entry: u32) {
        let mut node = self;
        while bits >= STRIDE {
            let stride = stride(words, at) as u32;
            let place = rank(node.branches, stride);
            if node.branches >> stride & 1 == 0 {
                node.branches |= 1 << stride;
                node.nodes.insert(place, Trie::default());
            }
            node = &mut node.nodes[place];
            (at, bits) = (at + STRIDE, bits - STRIDE);
        }
        let position = position(stride(words, at), bits);
        node.ends |= 1 << position;
        node.entries.insert(rank(node.ends, position), entry);
    }

    /// Removes an existing prefix, and nodes that lead only to it.
    pub fn remove(&mut self, words: &[u64], at: u32, bits: u32) {
        let next = stride(words, at);
        if bits < STRIDE {
            let position = position(next, bits);
            self.entries.remove(rank(self.ends, position));
            self.ends &= !(1 << position);
            return;
        }
        let place = rank(self.branches, next as u32);
        self.nodes[place].remove(words, at + STRIDE, bits - STRIDE);
        if self.nodes[place].is_empty() {
            self.nodes.remove(place);
            self.branches &= !(1 << next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn has_prefix(value: &[u64; 2], at: u32, prefix: &[u64; 2], bits: u32) -> bool {
        let whole = |words: &[u64; 2]| u128::from(words[0]) << 64 | u128::from(words[1]);
        let shift = |words: &[u64; 2]| (whole(words) << at).checked_shr(128 - bits).unwrap_or(0);
        shift(value) == shift(prefix)
    }

    /// A value of few different bits, so that prefixes overlap.
    fn value() -> impl Strategy<Value = [u64; 2]> {
        let word = || prop::sample::select(vec![0, 1, u64::MAX, 0xff << 40, 1 << 63, 0xf0f0]);
        (word(), word()).prop_map(|(high, low)| [high, low])
    }

    proptest! {
        #[test]
        fn lookups_agree_with_a_list(
            at in 0u32..70,
            prefixes in prop::collection::vec((value(), 0u32..=128), 0..60),
            removed in prop::collection::vec(any::<bool>(), 60),
            values in prop::collection::vec(value(), 10),
        ) {
            let (mut trie, mut list) = (Trie::default(), Vec::new());
            for (entry, (prefix, bits)) in prefixes.iter().enumerate() {
                let bits = (*bits).min(128 - at);
                let same = |(other, len, _): &&([u64; 2], u32, u32)| {
                    *len == bits && has_prefix(other, at, prefix, bits)
                };
                let known = list.iter().find(same).map(|known| known.2);
                prop_assert_eq!(trie.find(prefix, at, bits), known);
                if known.is_none() {
                    trie.insert(prefix, at, bits, entry as u32);
                    list.push((*prefix, bits, entry as u32));
                }
            }
            list.retain(|(prefix, bits, entry)| {
                let gone = removed[*entry as usize];
                if gone {
                    trie.remove(prefix, at, *bits);
                }
                !gone
            });
            prop_assert_eq!(trie.is_empty(), list.is_empty());
            for value in &values {
                let longest = list
                    .iter()
                    .filter(|(prefix, bits, _)| has_prefix(value, at, prefix, *bits))
                    .max_by_key(|(_, bits, _)| *bits);
                prop_assert_eq!(trie.lookup(value, at), longest.map(|found| found.2));
            }
        }
    }
}
