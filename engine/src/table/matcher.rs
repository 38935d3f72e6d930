//! Lookup structures: map key words to the position of an entry.

use super::super::p4info::MatchKind;
use super::entry_key::EntryKey;
use super::ternary::Ternary;
use super::words::WordMap;

/// The lookup structure for a table's match kinds.
#[derive(Debug)]
pub(crate) enum Matcher {
    /// Keys that are compared as they are. Without fields, there are no entries.
    Exact(WordMap<u32>),
    /// Keys with masks or ranges. A prefix is a mask; its length is the priority.
    Ternary(Ternary),
}

impl Matcher {
    /// The structure for fields of these kinds.
    pub fn new(mut kinds: impl Iterator<Item = MatchKind>) -> Matcher {
        match kinds.all(|kind| kind == MatchKind::Exact) {
            true => Matcher::Exact(WordMap::default()),
            false => Matcher::Ternary(Ternary::default()),
        }
    }

    /// Returns the matching entry. `scratch` is working memory.
    #[inline]
    pub fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        match self {
            Matcher::Exact(exact) => exact.get(key).copied(),
            Matcher::Ternary(ternary) => ternary.lookup(key, scratch),
        }
    }

    /// Returns the entry with exactly this key.
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        match self {
            Matcher::Exact(exact) => exact.get(&key.value).copied(),
            Matcher::Ternary(ternary) => ternary.find(key),
        }
    }

    /// Adds an entry with a new key.
    pub fn insert(&mut self, key: &EntryKey, entry: u32) {
        match self {
            Matcher::Exact(exact) => *exact.entry(&key.value) = entry,
            Matcher::Ternary(ternary) => ternary.insert(key, entry),
        }
    }

    /// Removes the entry with exactly this key.
    pub fn remove(&mut self, key: &EntryKey) {
        match self {
            Matcher::Exact(exact) => _ = exact.remove(&key.value),
            Matcher::Ternary(ternary) => ternary.remove(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry_key::Range;
    use super::*;
    use proptest::prelude::*;

    fn ternary() -> Matcher {
        Matcher::new([MatchKind::Ternary].into_iter())
    }

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
        let mut lpm = ternary();
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
    fn ranges_are_checked_over_several_words() {
        let mut range = key(0, 0, 1);
        (range.value, range.mask) = ([0, 0].into(), [0, 0].into());
        range.ranges = vec![Range {
            at: 0,
            low: [1, 5].into(),
            high: [2, 0].into(),
        }];
        let mut ternary = ternary();
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
            let mut ternary = ternary();
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
