//! Ternary match by tuple space search (Srinivasan, Suri, Varghese: SIGCOMM 1999): entries with one
//! mask share a hash table, and the tables are searched in order of the highest priority in them
//! until no later one can win. What a lookup costs grows with the number of different masks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxBuildHasher;

use super::interval::{Interval, Intervals};
use super::matcher::{Candidate, EntryKey, Words};
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
    /// Entries with ranges, by the first word of their first range field.
    ranges: Vec<(usize, Intervals)>,
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
        self.plain.best.is_none() && self.ranges.is_empty()
    }

    fn intervals(&self, at: usize) -> Option<&Intervals> {
        let found = self.ranges.iter().find(|(other, _)| *other == at);
        found.map(|(_, intervals)| intervals)
    }

    fn insert(&mut self, key: &EntryKey, candidate: Candidate) {
        let Some((at, low, high)) = key.first_range() else {
            return self.plain.insert(candidate);
        };
        let place = self.ranges.iter().position(|(other, _)| *other == at);
        let place = place.unwrap_or_else(|| {
            self.ranges.push((at, Intervals::default()));
            self.ranges.len() - 1
        });
        self.ranges[place].1.insert(Interval {
            low,
            high,
            candidate,
            ranges: key.further_ranges().into(),
        });
    }

    fn find(&self, key: &EntryKey) -> Option<Candidate> {
        match key.first_range() {
            None => self.plain.find(key.rank()),
            Some((at, low, high)) => {
                let intervals = self.intervals(at)?;
                intervals.find(low, high, key.rank(), key.further_ranges())
            }
        }
    }

    fn remove(&mut self, key: &EntryKey, gone: Candidate) {
        let Some((at, low, high)) = key.first_range() else {
            return self.plain.remove(gone);
        };
        for (other, intervals) in &mut self.ranges {
            if *other == at {
                intervals.remove(low, high, gone);
            }
        }
        self.ranges.retain(|(_, intervals)| !intervals.is_empty());
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
            best = best.max(bucket.plain.best);
            for (at, intervals) in &bucket.ranges {
                intervals.search(key[*at], key, &mut best);
            }
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
