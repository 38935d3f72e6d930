//! Lookup structures: map key words to the position of an entry.

use std::cmp::Reverse;

use super::ternary::Ternary;
use super::trie::Trie;
use super::words::WordMap;

pub(super) type Words = Box<[u64]>;

/// The key of an entry, as words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct EntryKey {
    /// Zero where `mask` is; zero in range fields.
    pub value: Words,
    /// The bits to compare; zero in range fields.
    pub mask: Words,
    /// The range fields, without those that match anything.
    pub ranges: Vec<Range>,
    /// Prefix length of the longest-prefix field; 0 if there is none.
    pub prefix_len: u32,
    /// The highest wins; 0 where entries cannot overlap or the longest prefix wins.
    pub priority: i32,
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

/// The lookup structure for a table's match kinds.
#[derive(Debug)]
pub(crate) enum Matcher {
    /// No key: no entry matches.
    Keyless,
    Exact(WordMap<u32>),
    Lpm(Lpm),
    /// Keys with ternary, optional or range fields.
    Ternary(Ternary),
}

impl Matcher {
    /// For keys that are compared as they are.
    pub fn exact() -> Matcher {
        Matcher::Exact(WordMap::default())
    }

    /// For keys with any masks and ranges.
    pub fn ternary() -> Matcher {
        Matcher::Ternary(Ternary::default())
    }

    /// For keys of `words` words, of which those from `at` on are one field of `width` bits that is
    /// matched by its longest prefix, and all others are compared as they are.
    pub fn lpm(words: usize, at: usize, width: u32) -> Matcher {
        if width > MAX_TRIE_BITS {
            return Matcher::ternary();
        }
        let field = at..at + width.div_ceil(64) as usize;
        let ones = |word: usize| if field.contains(&word) { 0 } else { u64::MAX };
        Matcher::Lpm(Lpm {
            first_bit: field.end as u32 * 64 - width,
            exact: (0..words).map(ones).collect(),
            tries: WordMap::default(),
            longest: WordMap::default(),
            width,
        })
    }

    /// Returns the matching entry. `scratch` is working memory.
    #[inline]
    pub fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        match self {
            Matcher::Keyless => None,
            Matcher::Exact(exact) => exact.get(key).copied(),
            Matcher::Lpm(lpm) => {
                if let Some(entry) = lpm.longest.get(key) {
                    return Some(*entry);
                }
                let trie = lpm.tries.get_masked(key, &lpm.exact, scratch)?;
                trie.lookup(key, lpm.first_bit)
            }
            Matcher::Ternary(ternary) => ternary.lookup(key, scratch),
        }
    }

    /// Returns the entry with exactly this key.
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        match self {
            Matcher::Keyless => None,
            Matcher::Exact(exact) => exact.get(&key.value).copied(),
            Matcher::Lpm(lpm) if lpm.is_longest(key) => lpm.longest.get(&key.value).copied(),
            Matcher::Lpm(lpm) => {
                let trie = lpm.tries.get(&lpm.exact_part(key))?;
                trie.find(&key.value, lpm.first_bit, key.prefix_len)
            }
            Matcher::Ternary(ternary) => ternary.find(key),
        }
    }

    /// Adds an entry with a new key.
    pub fn insert(&mut self, key: &EntryKey, entry: u32) {
        match self {
            Matcher::Keyless => {}
            Matcher::Exact(exact) => *exact.entry(&key.value) = entry,
            Matcher::Lpm(lpm) if lpm.is_longest(key) => *lpm.longest.entry(&key.value) = entry,
            Matcher::Lpm(lpm) => {
                let trie = lpm.tries.entry(&lpm.exact_part(key));
                trie.insert(&key.value, lpm.first_bit, key.prefix_len, entry);
            }
            Matcher::Ternary(ternary) => ternary.insert(key, entry),
        }
    }

    /// Removes the entry with exactly this key.
    pub fn remove(&mut self, key: &EntryKey) {
        match self {
            Matcher::Keyless => {}
            Matcher::Exact(exact) => {
                exact.remove(&key.value);
            }
            Matcher::Lpm(lpm) if lpm.is_longest(key) => {
                lpm.longest.remove(&key.value);
            }
            Matcher::Lpm(lpm) => lpm.remove(key),
            Matcher::Ternary(ternary) => ternary.remove(key),
        }
    }
}

/// Widest field for a trie, in bits. Wider fields are matched as ternary.
const MAX_TRIE_BITS: u32 = 256;

/// Longest prefix match: a trie for each value of the exact fields, and a hash table for prefixes of all bits, which need no steps.
#[derive(Debug)]
pub(crate) struct Lpm {
    /// Bits of the field.
    width: u32,
    /// Where the field starts in the key, the most significant bit of the first word being 0.
    first_bit: u32,
    /// The words of the exact fields.
    exact: Words,
    tries: WordMap<Trie>,
    /// Entries whose prefix has all bits, by the whole key.
    longest: WordMap<u32>,
}

impl Lpm {
    fn is_longest(&self, key: &EntryKey) -> bool {
        key.prefix_len == self.width
    }

    fn exact_part(&self, key: &EntryKey) -> Vec<u64> {
        let words = key.value.iter().zip(&self.exact);
        words.map(|(value, exact)| value & exact).collect()
    }

    fn remove(&mut self, key: &EntryKey) {
        let exact = self.exact_part(key);
        if let Some(trie) = self.tries.get_mut(&exact) {
            trie.remove(&key.value, self.first_bit, key.prefix_len);
            if trie.is_empty() {
                self.tries.remove(&exact);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(value: u64, mask: u64, priority: i32) -> EntryKey {
        EntryKey {
            value: [value & mask].into(),
            mask: [mask].into(),
            ranges: vec![],
            prefix_len: mask.count_ones(),
            priority,
        }
    }

    #[test]
    fn the_longest_prefix_wins_and_comes_back_when_it_goes() {
        let mut lpm = Matcher::lpm(1, 0, 8);
        let (short, long) = (key(0xa0, 0xf0, 0), key(0xab, 0xff, 0));
        lpm.insert(&short, 1);
        lpm.insert(&long, 2);
        let scratch = &mut Vec::new();
        assert_eq!(lpm.lookup(&[0xab], scratch), Some(2));
        assert_eq!(lpm.lookup(&[0xac], scratch), Some(1));
        assert_eq!(lpm.lookup(&[0xbb], scratch), None);
        lpm.remove(&long);
        assert_eq!(lpm.lookup(&[0xab], scratch), Some(1));
        assert_eq!((lpm.find(&long), lpm.find(&short)), (None, Some(1)));
    }

    #[test]
    fn full_and_shorter_prefixes_are_apart_for_each_value_of_an_exact_field() {
        let key = |exact: u64, value: u64, prefix_len: u32| EntryKey {
            value: [exact, value].into(),
            mask: [u64::MAX, 0xff << (8 - prefix_len) & 0xff].into(),
            ranges: vec![],
            prefix_len,
            priority: 0,
        };
        let mut lpm = Matcher::lpm(2, 1, 8);
        let (full, short, other) = (key(1, 0xab, 8), key(1, 0xa0, 4), key(2, 0xab, 8));
        for (entry, key) in [&full, &short, &other].into_iter().enumerate() {
            lpm.insert(key, entry as u32);
            assert_eq!(lpm.find(key), Some(entry as u32));
        }
        let hits = |lpm: &Matcher| {
            [[1, 0xab], [1, 0xac], [2, 0xab], [2, 0xac]]
                .map(|key: [u64; 2]| lpm.lookup(&key, &mut Vec::new()))
        };
        assert_eq!(hits(&lpm), [Some(0), Some(1), Some(2), None]);
        lpm.remove(&full);
        assert_eq!(hits(&lpm), [Some(1), Some(1), Some(2), None]);
        lpm.remove(&short);
        assert_eq!(hits(&lpm), [None, None, Some(2), None]);
    }

    #[test]
    fn ranges_are_checked_over_several_words() {
        let mut range = key(0, 0, 1);
        (range.value, range.mask) = ([0, 0].into(), [0, 0].into());
        range.ranges = vec![Range {
            at: 0,
            low: [1, 5].into(),
            high: [2, 0].into(),
        }];
        let mut ternary = Matcher::ternary();
        ternary.insert(&range, 7);
        let hit = |high, low| ternary.lookup(&[high, low], &mut Vec::new()).is_some();
        assert!(hit(1, 5) && hit(1, u64::MAX) && hit(2, 0));
        assert!(!hit(1, 4) && !hit(2, 1) && !hit(0, 9));
    }

    #[derive(Debug, Clone)]
    struct Rule {
        key: EntryKey,
        low: u64,
        high: u64,
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let masks = prop::sample::select(vec![0u64, 0xf0, 0x0f, 0xff, 0xc3]);
        (0u64..256, masks, 1i32..5, 0u64..8, 0u64..8).prop_map(|(value, mask, priority, a, b)| {
            let (low, high) = (a.min(b), a.max(b));
            let key = EntryKey {
                value: [value & mask, 0].into(),
                mask: [mask, 0].into(),
                ranges: vec![Range {
                    at: 1,
                    low: [low].into(),
                    high: [high].into(),
                }],
                prefix_len: 0,
                priority,
            };
            Rule { key, low, high }
        })
    }

    proptest! {
        #[test]
        fn ternary_lookup_agrees_with_a_list(
            rules in prop::collection::vec(rule(), 0..40),
            removed in prop::collection::vec(any::<bool>(), 40),
            packets in prop::collection::vec((0u64..256, 0u64..8), 20),
        ) {
            let mut ternary = Matcher::ternary();
            let mut list: Vec<(Rule, u32)> = Vec::new();
            for (entry, rule) in rules.into_iter().enumerate() {
                let known = list.iter().find(|(other, _)| other.key == rule.key);
                prop_assert_eq!(ternary.find(&rule.key), known.map(|(_, entry)| *entry));
                if known.is_none() {
                    ternary.insert(&rule.key, entry as u32);
                    list.push((rule, entry as u32));
                }
            }
            let mut at = 0;
            list.retain(|(rule, _)| {
                at += 1;
                if removed[at - 1] {
                    ternary.remove(&rule.key);
                }
                !removed[at - 1]
            });
            for (value, number) in packets {
                let fits = |rule: &Rule| {
                    value & rule.key.mask[0] == rule.key.value[0]
                        && (rule.low..=rule.high).contains(&number)
                };
                // Of equal priorities the oldest, which is the first in the list.
                let best = list.iter().filter(|(rule, _)| fits(rule)).fold(
                    None,
                    |best: Option<&(Rule, u32)>, other| match best {
                        Some(best) if best.0.key.priority >= other.0.key.priority => Some(best),
                        _ => Some(other),
                    },
                );
                let found = ternary.lookup(&[value, number], &mut Vec::new());
                prop_assert_eq!(found, best.map(|(_, entry)| *entry));
            }
        }
    }
}
