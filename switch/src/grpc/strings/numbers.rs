//! Allocates numbers for the strings of one URI, counts their uses, and reuses free ones.

use std::collections::{HashMap, HashSet, VecDeque};

/// Why a string gets no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Strings with their numbers, from 1 to `max`. A string without uses keeps its number until no other number is free.
#[derive(Debug)]
pub(super) struct Numbers {
    max: u64,
    numbers: HashMap<Vec<u8>, u64>,
    strings: HashMap<u64, Known>,
    /// The next number to allocate in order. Higher ones may be in use for decimal strings.
    next: u64,
    /// Numbers that became unused, each once, in that order.
    idle: VecDeque<u64>,
    before: Option<Before>,
}

/// An allocated number.
#[derive(Debug, Clone)]
struct Known {
    string: Vec<u8>,
    /// Number of uses.
    users: usize,
    /// True if the number is in `idle`.
    is_idle: bool,
}

/// The state before changes that may be undone.
#[derive(Debug, Default)]
struct Before {
    /// Changed numbers.
    strings: HashMap<u64, Option<Known>>,
    /// Numbers taken from the front of `idle`.
    taken: HashSet<u64>,
    /// Number of elements added at the back of `idle`.
    added: usize,
}

impl Numbers {
    pub(super) fn new(max: u64) -> Numbers {
        Numbers {
            max,
            numbers: HashMap::new(),
            strings: HashMap::new(),
            next: 1,
            idle: VecDeque::new(),
            before: None,
        }
    }

    /// Returns the greatest number.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Lowers the greatest number to `max`.
    pub(super) fn limit(&mut self, max: u64) {
        self.max = self.max.min(max);
    }

    /// Returns the number of a string.
    pub(super) fn number(&self, string: &[u8]) -> Option<u64> {
        self.numbers.get(string).copied()
    }

    /// Returns the string of a number.
    pub(super) fn string(&self, number: u64) -> Option<&[u8]> {
        Some(&self.strings.get(&number)?.string)
    }

    /// Counts one more use of a string, and allocates its number if needed.
    pub(super) fn hold_string(&mut self, string: &[u8]) -> Result<u64, Exhausted> {
        let number = match self.number(string) {
            Some(number) => number,
            None => {
                let number = self.free(string)?;
                self.name(number, string.to_vec());
                number
            }
        };
        self.hold(number);
        Ok(number)
    }

    /// Counts one more use of a number. A number without a string gets its decimal digits.
    pub(super) fn hold(&mut self, number: u64) {
        if !self.strings.contains_key(&number) {
            self.name(number, number.to_string().into_bytes());
        }
        self.keep(number);
        if let Some(known) = self.strings.get_mut(&number) {
            known.users += 1;
        }
    }

    /// Counts one use less of a number.
    pub(super) fn release(&mut self, number: u64) {
        self.keep(number);
        let Some(known) = self.strings.get_mut(&number) else {
            return;
        };
        known.users = known.users.saturating_sub(1);
        if known.users == 0 && !known.is_idle && (1..=self.max).contains(&number) {
            known.is_idle = true;
            self.idle.push_back(number);
            if let Some(before) = &mut self.before {
                before.added += 1;
            }
        }
    }

    /// Starts recording changes for undo.
    pub(super) fn begin(&mut self) {
        self.before = Some(Before::default());
    }

    /// Accepts the recorded changes.
    pub(super) fn accept(&mut self) {
        self.before = None;
    }

    /// Undoes the recorded changes. The order of free numbers may differ, which is not observable.
    pub(super) fn undo(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        let idle = self.idle.len().saturating_sub(before.added);
        self.idle.truncate(idle);
        for number in before.strings.keys() {
            self.forget(*number);
        }
        for (number, known) in before.strings {
            let Some(known) = known else {
                self.next = self.next.min(number.max(1));
                continue;
            };
            if known.is_idle && before.taken.contains(&number) {
                self.idle.push_back(number);
            }
            self.numbers.insert(known.string.clone(), number);
            self.strings.insert(number, known);
        }
    }

    /// Allocates a number for a new string.
    fn free(&mut self, string: &[u8]) -> Result<u64, Exhausted> {
        // A number as the answer shows those of the program's own.
        let shown = std::str::from_utf8(string)
            .ok()
            .and_then(|s| s.parse().ok());
        let own = shown.filter(|number: &u64| {
            *number <= self.max
                && number.to_string().as_bytes() == string
                && !self.strings.contains_key(number)
        });
        if let Some(own) = own {
            return Ok(own);
        }
        while self.next <= self.max {
            if !self.strings.contains_key(&self.next) {
                return Ok(self.next);
            }
            self.next += 1;
        }
        while let Some(number) = self.idle.pop_front() {
            self.keep(number);
            if let Some(before) = &mut self.before {
                before.taken.insert(number);
            }
            let Some(known) = self.strings.get_mut(&number) else {
                continue;
            };
            known.is_idle = false;
            if known.users == 0 {
                self.forget(number);
                return Ok(number);
            }
        }
        Err(Exhausted)
    }

    fn name(&mut self, number: u64, string: Vec<u8>) {
        self.keep(number);
        self.numbers.insert(string.clone(), number);
        let known = Known {
            string,
            users: 0,
            is_idle: false,
        };
        self.strings.insert(number, known);
    }

    fn forget(&mut self, number: u64) {
        if let Some(known) = self.strings.remove(&number) {
            self.numbers.remove(&known.string);
        }
    }

    fn keep(&mut self, number: u64) {
        if let Some(before) = &mut self.before {
            let now = self.strings.get(&number);
            before.strings.entry(number).or_insert_with(|| now.cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(numbers: &mut Numbers, string: &str) -> Result<u64, Exhausted> {
        numbers.hold_string(string.as_bytes())
    }

    #[test]
    fn a_number_is_given_out_again_only_when_there_is_no_other() {
        let mut numbers = Numbers::new(3);
        assert_eq!(hold(&mut numbers, "a"), Ok(1));
        assert_eq!(hold(&mut numbers, "a"), Ok(1));
        assert_eq!(hold(&mut numbers, "b"), Ok(2));
        numbers.release(1);
        numbers.release(2);
        assert_eq!(hold(&mut numbers, "c"), Ok(3));
        assert_eq!(hold(&mut numbers, "d"), Ok(2), "one place still has 1");
        assert_eq!(numbers.number(b"b"), None);
        assert_eq!(hold(&mut numbers, "e"), Err(Exhausted));
        numbers.release(1);
        assert_eq!(hold(&mut numbers, "a"), Ok(1), "not forgotten meanwhile");
        assert_eq!(hold(&mut numbers, "e"), Err(Exhausted));
        assert_eq!(numbers.string(2), Some(&b"d"[..]));
    }

    #[test]
    fn a_string_that_shows_a_number_gets_that() {
        let mut numbers = Numbers::new(9);
        numbers.hold(1);
        assert_eq!(hold(&mut numbers, "1"), Ok(1));
        assert_eq!(hold(&mut numbers, "3"), Ok(3));
        for (string, number) in [("a", 2), ("b", 4), ("03", 5), ("10", 6)] {
            assert_eq!(hold(&mut numbers, string), Ok(number));
        }
    }

    #[test]
    fn undo_restores_all_strings() {
        let mut numbers = Numbers::new(3);
        for string in ["a", "b"] {
            hold(&mut numbers, string).expect("a number");
        }
        numbers.release(2);
        for _ in 0..4 {
            numbers.begin();
            numbers.release(1);
            for (string, number) in [("c", 3), ("d", 2), ("e", 1)] {
                assert_eq!(hold(&mut numbers, string), Ok(number));
            }
            assert_eq!(hold(&mut numbers, "f"), Err(Exhausted));
            numbers.undo();
            let known = ["a", "b", "c", "d"].map(|string| numbers.number(string.as_bytes()));
            assert_eq!(known, [Some(1), Some(2), None, None]);
        }
        assert_eq!(numbers.idle, [2]);
        numbers.begin();
        assert_eq!(hold(&mut numbers, "c"), Ok(3));
        numbers.accept();
        assert_eq!(hold(&mut numbers, "d"), Ok(2));
        assert_eq!(hold(&mut numbers, "e"), Err(Exhausted), "a place has 1");
    }
}
