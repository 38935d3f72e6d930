//! Ternary match by tuple space search (Srinivasan, Suri, Varghese: SIGCOMM 1999): entries with one
//! mask share a hash table, and the tables are searched in order of the highest priority in them
//! until no later one can win. What a lookup costs grows with the number of different masks, and of ranges with one mask and value.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use rustc_hash::FxBuildHasher;

use super::matcher::{Candidate, EntryKey, Range, Words};
use super::words::WordMap;

/// Entries with masks and ranges.
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
    /// Entries without ranges, the best last.
    plain: Plain,
    /// Entries with ranges, if there are any.
    ranges: Option<Box<Ranges>>,
}

/// Entries with ranges, which a lookup tries one after the other.
#[derive(Debug, Default)]
struct Ranges {
    /// The best last.
    entries: BTreeMap<Candidate, Ranged>,
    by_key: HashMap<(i32, Box<[Range]>), Candidate, FxBuildHasher>,
}

/// The ranges of an entry.
#[derive(Debug)]
struct Ranged {
    /// The first word of the first range: its position in the key, and its ends. They decide most often.
    at: usize,
    first: RangeInclusive<u64>,
    ranges: Box<[Range]>,
}

impl Ranged {
    fn holds(&self, key: &[u64]) -> bool {
        self.first.contains(&key[self.at]) && self.ranges.iter().all(|range| range.holds(key))
    }
}

/// Candidates in order, the best one within reach.
#[derive(Debug, Default)]
struct Plain {
    best: Option<Candidate>,
    others: Vec<Candidate>,
}

impl Plain {
    fn insert(&mut self, new: Candidate) {
        match self.best {
            Some(best) if best > new => {
                let at = self.others.partition_point(|other| *other < new);
                self.others.insert(at, new);
            }
            best => {
                self.others.extend(best);
                self.best = Some(new);
            }
        }
    }

    fn find(&self, priority: i32) -> Option<Candidate> {
        let best = self.best.filter(|best| best.priority == priority);
        best.or_else(|| {
            let at = (self.others).partition_point(|other| other.priority < priority);
            let found = self.others.get(at).copied();
            found.filter(|found| found.priority == priority)
        })
    }

    fn remove(&mut self, gone: Candidate) {
        if self.best == Some(gone) {
            self.best = self.others.pop();
        } else if let Ok(at) = self.others.binary_search(&gone) {
            self.others.remove(at);
        }
    }
}

impl Bucket {
    fn is_empty(&self) -> bool {
        self.plain.best.is_none() && self.ranges.is_none()
    }

    fn insert(&mut self, key: &EntryKey, candidate: Candidate) {
        let Some(first) = key.ranges.first() else {
            return self.plain.insert(candidate);
        };
        let new = Ranged {
            at: first.at,
            first: first.low[0]..=first.high[0],
            ranges: key.ranges.as_slice().into(),
        };
        let ranges = self.ranges.get_or_insert_default();
        ranges.entries.insert(candidate, new);
        (ranges.by_key).insert(
            (candidate.priority, key.ranges.as_slice().into()),
            candidate,
        );
    }

    fn find(&self, key: &EntryKey) -> Option<Candidate> {
        let rank = key.rank();
        if key.ranges.is_empty() {
            return self.plain.find(rank);
        }
        let ranges = self.ranges.as_ref()?;
        let key = (rank, key.ranges.as_slice().into());
        ranges.by_key.get(&key).copied()
    }

    fn remove(&mut self, key: &EntryKey, gone: Candidate) {
        if key.ranges.is_empty() {
            return self.plain.remove(gone);
        }
        if let Some(ranges) = &mut self.ranges
            && let Some(gone_ranges) = ranges.entries.remove(&gone)
        {
            ranges.by_key.remove(&(gone.priority, gone_ranges.ranges));
            self.ranges.take_if(|ranges| ranges.entries.is_empty());
        }
    }

    /// The best entry that matches a key, if it is better than `best`.
    #[inline]
    fn better(&self, key: &[u64], best: Option<Candidate>) -> Option<Candidate> {
        let best = best.max(self.plain.best);
        let Some(ranges) = &self.ranges else {
            return best;
        };
        let ranges = ranges.entries.iter().rev();
        let mut better = ranges.take_while(|(other, _)| Some(**other) > best);
        let found = better.find(|(_, ranges)| ranges.holds(key));
        found.map_or(best, |(found, _)| Some(*found))
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
            best = bucket.better(key, best);
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
        tuple.entries.entry(&key.value).insert(key, candidate);
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
        bucket.remove(key, gone);
        if bucket.is_empty() {
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
