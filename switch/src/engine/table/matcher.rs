//! Lookup structures, from key words to the position of an entry.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

type Words = Box<[u64]>;
type Map<V> = HashMap<Words, V, FxBuildHasher>;

/// The key of an entry, as words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct EntryKey {
    /// Zero where `mask` is; zero in range fields.
    pub value: Words,
    /// The bits that must be equal; zero in range fields.
    pub mask: Words,
    /// The range fields that matter.
    pub ranges: Vec<Range>,
    /// Bits of the longest-prefix field that matter; 0 if there is none.
    pub prefix_len: u32,
    /// The highest wins; 0 where entries cannot overlap or the longest prefix wins.
    pub priority: i32,
}

/// A range of values of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Range {
    /// The field's first word in the key.
    pub at: usize,
    pub low: Words,
    pub high: Words,
}

impl Range {
    fn holds(&self, key: &[u64]) -> bool {
        let value = &key[self.at..self.at + self.low.len()];
        *self.low <= *value && *value <= *self.high
    }
}

/// The structure that suits a table's match kinds.
#[derive(Debug)]
pub(in crate::engine) enum Matcher {
    /// No key: nothing ever matches.
    Keyless,
    Exact(Exact),
    Lpm(Lpm),
    /// Ternary, optional and range fields, whatever else there is.
    Ternary(Ternary),
}

impl Matcher {
    /// For keys that are compared as they are.
    pub fn exact() -> Matcher {
        Matcher::Exact(Exact::default())
    }

    /// For keys with any masks and ranges.
    pub fn ternary() -> Matcher {
        Matcher::Ternary(Ternary::default())
    }

    /// The entry that matches. `scratch` is working memory.
    #[inline]
    pub fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        match self {
            Matcher::Keyless => None,
            Matcher::Exact(exact) => exact.0.get(key).copied(),
            Matcher::Lpm(lpm) => lpm.lookup(key, scratch),
            Matcher::Ternary(ternary) => ternary.lookup(key, scratch),
        }
    }

    /// The entry that was inserted under this very key.
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        match self {
            Matcher::Keyless => None,
            Matcher::Exact(exact) => exact.0.get(&key.value).copied(),
            Matcher::Lpm(lpm) => lpm.find(key),
            Matcher::Ternary(ternary) => ternary.find(key),
        }
    }

    /// Adds an entry whose key is not there.
    pub fn insert(&mut self, key: &EntryKey, entry: u32) {
        match self {
            Matcher::Keyless => {}
            Matcher::Exact(exact) => {
                exact.0.insert(key.value.clone(), entry);
            }
            Matcher::Lpm(lpm) => lpm.insert(key, entry),
            Matcher::Ternary(ternary) => ternary.insert(key, entry),
        }
    }

    /// Removes an entry by the key it was inserted under.
    pub fn remove(&mut self, key: &EntryKey) {
        match self {
            Matcher::Keyless => {}
            Matcher::Exact(exact) => {
                exact.0.remove(&key.value);
            }
            Matcher::Lpm(lpm) => lpm.remove(key),
            Matcher::Ternary(ternary) => ternary.remove(key),
        }
    }
}

/// Exact match: one hash table.
#[derive(Debug, Default)]
pub(in crate::engine) struct Exact(Map<u32>);

/// Longest prefix match, perhaps beside exact fields: a hash table for each prefix length in use,
/// longest first.
#[derive(Debug, Default)]
pub(in crate::engine) struct Lpm {
    lengths: Vec<Length>,
}

#[derive(Debug)]
struct Length {
    prefix_len: u32,
    mask: Words,
    entries: Map<u32>,
}

impl Lpm {
    fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        self.lengths.iter().find_map(|length| {
            masked(key, &length.mask, scratch);
            length.entries.get(scratch.as_slice()).copied()
        })
    }

    /// Lengths are in descending order.
    fn position(&self, prefix_len: u32) -> Result<usize, usize> {
        self.lengths
            .binary_search_by(|length| prefix_len.cmp(&length.prefix_len))
    }

    fn find(&self, key: &EntryKey) -> Option<u32> {
        let length = &self.lengths[self.position(key.prefix_len).ok()?];
        length.entries.get(&key.value).copied()
    }

    fn insert(&mut self, key: &EntryKey, entry: u32) {
        let at = self.position(key.prefix_len).unwrap_or_else(|at| {
            let (prefix_len, mask) = (key.prefix_len, key.mask.clone());
            self.lengths.insert(
                at,
                Length {
                    prefix_len,
                    mask,
                    entries: Map::default(),
                },
            );
            at
        });
        self.lengths[at].entries.insert(key.value.clone(), entry);
    }

    fn remove(&mut self, key: &EntryKey) {
        if let Ok(at) = self.position(key.prefix_len) {
            self.lengths[at].entries.remove(&key.value);
            if self.lengths[at].entries.is_empty() {
                self.lengths.remove(at);
            }
        }
    }
}

/// Ternary match by tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999): entries with
/// one mask share a hash table, and tables are searched in order of the highest priority in them
/// until no later one can win.
#[derive(Debug, Default)]
pub(in crate::engine) struct Ternary {
    tuples: Vec<Tuple>,
    inserted: u64,
}

#[derive(Debug)]
struct Tuple {
    mask: Words,
    /// The highest priority of its entries.
    priority: i32,
    /// Entries with the same value, best first. They differ in priority or in their ranges.
    entries: Map<Vec<Candidate>>,
}

#[derive(Debug)]
struct Candidate {
    priority: i32,
    /// Of entries with one priority, the oldest wins: P4Runtime leaves the choice to the target.
    age: u64,
    entry: u32,
    ranges: Vec<Range>,
}

impl Candidate {
    /// Better candidates compare greater.
    fn rank(&self) -> (i32, std::cmp::Reverse<u64>) {
        (self.priority, std::cmp::Reverse(self.age))
    }
}

impl Ternary {
    fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        let mut best: Option<&Candidate> = None;
        for tuple in &self.tuples {
            if best.is_some_and(|best| best.priority > tuple.priority) {
                break;
            }
            masked(key, &tuple.mask, scratch);
            let Some(candidates) = tuple.entries.get(scratch.as_slice()) else {
                continue;
            };
            let found = candidates
                .iter()
                .find(|c| c.ranges.iter().all(|range| range.holds(key)));
            best = match (best, found) {
                (Some(best), Some(found)) if best.rank() > found.rank() => Some(best),
                (best, found) => found.or(best),
            };
        }
        best.map(|candidate| candidate.entry)
    }

    fn tuple(&self, mask: &[u64]) -> Option<usize> {
        self.tuples.iter().position(|tuple| *tuple.mask == *mask)
    }

    fn find(&self, key: &EntryKey) -> Option<u32> {
        let candidates = self.tuples[self.tuple(&key.mask)?]
            .entries
            .get(&key.value)?;
        let same = |c: &&Candidate| c.priority == key.priority && c.ranges == key.ranges;
        candidates
            .iter()
            .find(same)
            .map(|candidate| candidate.entry)
    }

    fn insert(&mut self, key: &EntryKey, entry: u32) {
        let at = self.tuple(&key.mask).unwrap_or_else(|| {
            let (mask, priority) = (key.mask.clone(), key.priority);
            self.tuples.push(Tuple {
                mask,
                priority,
                entries: Map::default(),
            });
            self.tuples.len() - 1
        });
        let tuple = &mut self.tuples[at];
        tuple.priority = tuple.priority.max(key.priority);
        let candidates = tuple.entries.entry(key.value.clone()).or_default();
        let (priority, ranges, age) = (key.priority, key.ranges.clone(), self.inserted);
        let place = candidates.partition_point(|better| better.priority >= priority);
        candidates.insert(
            place,
            Candidate {
                priority,
                age,
                entry,
                ranges,
            },
        );
        self.inserted += 1;
        self.sort();
    }

    fn remove(&mut self, key: &EntryKey) {
        let Some(at) = self.tuple(&key.mask) else {
            return;
        };
        let tuple = &mut self.tuples[at];
        if let Some(candidates) = tuple.entries.get_mut(&key.value) {
            candidates.retain(|c| c.priority != key.priority || c.ranges != key.ranges);
            if candidates.is_empty() {
                tuple.entries.remove(&key.value);
            }
        }
        if key.priority == tuple.priority {
            // Only the removal of a best entry can change what the tuple is sorted by.
            let best = tuple
                .entries
                .values()
                .map(|candidates| candidates[0].priority)
                .max();
            match best {
                Some(best) => tuple.priority = best,
                None => drop(self.tuples.remove(at)),
            }
            self.sort();
        }
    }

    fn sort(&mut self) {
        if !self.tuples.is_sorted_by(|a, b| a.priority >= b.priority) {
            self.tuples
                .sort_by_key(|tuple| std::cmp::Reverse(tuple.priority));
        }
    }
}

fn masked(key: &[u64], mask: &[u64], out: &mut Vec<u64>) {
    out.clear();
    out.extend(key.iter().zip(mask).map(|(key, mask)| key & mask));
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
        let mut lpm = Matcher::Lpm(Lpm::default());
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
        let mut ternary = Matcher::Ternary(Ternary::default());
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
            let mut ternary = Matcher::Ternary(Ternary::default());
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
