//! Ternary match by tuple space search (Srinivasan, Suri, Varghese: SIGCOMM 1999): entries with one
//! mask share a hash table, and the tables are searched in order of the highest priority in them
//! until no later one can win. What a lookup costs grows with the number of different masks, and of entries with ranges that
//! have a mask and a value in common: those are tried one by one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxBuildHasher;

use super::entry_key::{Candidate, EntryKey, Range, Words};
use super::words::WordMap;

#[derive(Debug, Default)]
pub(crate) struct Ternary {
    /// Tuples keep their number while they have entries.
    tuples: Vec<Tuple>,
    free: Vec<usize>,
    by_mask: HashMap<Words, usize, FxBuildHasher>,
    /// The tuples, those with the highest priorities first.
    order: Vec<(Reverse<i32>, usize)>,
    inserted: u64,
}

/// The entries with one mask.
#[derive(Debug, Default)]
struct Tuple {
    mask: Words,
    /// The priorities of its entries, and how many have each.
    priorities: BTreeMap<i32, usize>,
    entries: WordMap<Bucket>,
}

/// Entries with the same masked value. They differ in priority or in their ranges.
#[derive(Debug, Default)]
struct Bucket {
    /// Within reach: most buckets have one entry.
    best: Option<Rule>,
    /// The best first.
    others: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    candidate: Candidate,
    /// The first word of the entry's first range: its position in the key, and its ends. Any value fits an entry without ranges.
    at: usize,
    low: u64,
    high: u64,
    /// Further ranges that must match.
    ranges: Box<[Range]>,
}

impl Rule {
    fn new(key: &EntryKey, candidate: Candidate) -> Rule {
        let (at, low, high) = key.first_range().unwrap_or((0, 0, u64::MAX));
        Rule {
            candidate,
            at,
            low,
            high,
            ranges: key.further_ranges().into(),
        }
    }

    #[inline]
    fn holds(&self, key: &[u64]) -> bool {
        // Without a range, the key may have no words.
        let word = key.get(self.at).copied().unwrap_or_default();
        self.low <= word && word <= self.high && self.ranges.iter().all(|range| range.holds(key))
    }

    /// True if the rule is that of an entry with this key.
    fn is_of(&self, key: &EntryKey) -> bool {
        let first = key.first_range().unwrap_or((0, 0, u64::MAX));
        self.candidate.priority == key.rank()
            && (self.at, self.low, self.high) == first
            && *self.ranges == *key.further_ranges()
    }
}

impl Bucket {
    fn insert(&mut self, new: Rule) {
        let at = match &mut self.best {
            Some(best) if best.candidate > new.candidate => {
                (self.others).partition_point(|other| other.candidate > new.candidate)
            }
            best => match best.replace(new) {
                Some(old) => return self.others.insert(0, old),
                None => return,
            },
        };
        self.others.insert(at, new);
    }

    #[inline]
    fn lookup(&self, key: &[u64]) -> Option<Candidate> {
        let mut rules = self.best.iter().chain(&self.others);
        Some(rules.find(|rule| rule.holds(key))?.candidate)
    }

    fn find(&self, key: &EntryKey) -> Option<Candidate> {
        let priority = key.rank();
        let others = &self.others;
        let first = others.partition_point(|other| other.candidate.priority > priority);
        let others = others[first..].iter();
        let others = others.take_while(|other| other.candidate.priority == priority);
        let mut rules = self.best.iter().chain(others);
        Some(rules.find(|rule| rule.is_of(key))?.candidate)
    }

    fn remove(&mut self, gone: Candidate) {
        if (self.best.as_ref()).is_some_and(|best| best.candidate == gone) {
            self.best = (!self.others.is_empty()).then(|| self.others.remove(0));
        } else {
            self.others.retain(|other| other.candidate != gone);
        }
    }
}

impl Ternary {
    #[inline]
    pub fn lookup(&self, key: &[u64], scratch: &mut Vec<u64>) -> Option<u32> {
        let mut best: Option<Candidate> = None;
        for (Reverse(priority), tuple) in &self.order {
            if best.is_some_and(|best| best.priority > *priority) {
                break;
            }
            let tuple = &self.tuples[*tuple];
            let Some(bucket) = tuple.entries.get_masked(key, &tuple.mask, scratch) else {
                continue;
            };
            best = best.max(bucket.lookup(key));
        }
        best.map(|candidate| candidate.entry)
    }

    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        let tuple = &self.tuples[*self.by_mask.get(&key.mask)?];
        let found = tuple.entries.get(&key.value)?.find(key);
        found.map(|candidate| candidate.entry)
    }

    pub fn insert(&mut self, key: &EntryKey, entry: u32) {
        let number = match self.by_mask.get(&key.mask) {
            Some(number) => *number,
            None => self.add_tuple(&key.mask),
        };
        let candidate = Candidate {
            priority: key.rank(),
            age: Reverse(self.inserted),
            entry,
        };
        self.inserted += 1;
        let tuple = &mut self.tuples[number];
        let bucket = tuple.entries.entry(&key.value);
        bucket.insert(Rule::new(key, candidate));
        let before = tuple.highest();
        *tuple.priorities.entry(candidate.priority).or_default() += 1;
        let after = tuple.highest();
        self.reorder(number, before, after);
    }

    pub fn remove(&mut self, key: &EntryKey) {
        let Some(&number) = self.by_mask.get(&key.mask) else {
            return;
        };
        let tuple = &mut self.tuples[number];
        let Some(bucket) = tuple.entries.get_mut(&key.value) else {
            return;
        };
        let Some(gone) = bucket.find(key) else { return };
        bucket.remove(gone);
        if bucket.best.is_none() {
            tuple.entries.remove(&key.value);
        }
        let before = tuple.highest();
        if let Some(count) = tuple.priorities.get_mut(&gone.priority) {
            *count -= 1;
            if *count == 0 {
                tuple.priorities.remove(&gone.priority);
            }
        }
        let after = tuple.highest();
        self.reorder(number, before, after);
        if after.is_none() {
            self.by_mask.remove(&key.mask);
            self.tuples[number] = Tuple::default();
            self.free.push(number);
        }
    }

    fn add_tuple(&mut self, mask: &Words) -> usize {
        let tuple = Tuple {
            mask: mask.clone(),
            ..Tuple::default()
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.tuples[number] = tuple;
                number
            }
            None => {
                self.tuples.push(tuple);
                self.tuples.len() - 1
            }
        };
        self.by_mask.insert(mask.clone(), number);
        number
    }

    /// Moves a tuple to the place of its highest priority, or removes an empty one from the order.
    fn reorder(&mut self, tuple: usize, before: Option<i32>, after: Option<i32>) {
        if before == after {
            return;
        }
        let place = |order: &[(Reverse<i32>, usize)], priority| {
            order.partition_point(|other| *other < (Reverse(priority), tuple))
        };
        if let Some(priority) = before {
            self.order.remove(place(&self.order, priority));
        }
        if let Some(priority) = after {
            let at = place(&self.order, priority);
            self.order.insert(at, (Reverse(priority), tuple));
        }
    }
}

impl Tuple {
    fn highest(&self) -> Option<i32> {
        self.priorities
            .last_key_value()
            .map(|(priority, _)| *priority)
    }
}
