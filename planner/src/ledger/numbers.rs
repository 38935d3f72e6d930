//! A set of numbers from 1 that gives out the lowest first.

use std::collections::BTreeSet;

/// The taken numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// All higher numbers are free.
    highest: u16,
    /// The free numbers up to `highest`.
    free: BTreeSet<u16>,
}

impl Numbers {
    /// The free numbers, lowest first.
    pub fn free(&self) -> impl Iterator<Item = u16> {
        let above = (self.highest..u16::MAX).map(|number| number + 1);
        self.free.iter().copied().chain(above)
    }

    /// The number of taken numbers.
    pub fn taken(&self) -> usize {
        usize::from(self.highest) - self.free.len()
    }

    /// Takes a free number.
    pub fn take(&mut self, number: u16) {
        if number > self.highest {
            self.free.extend(self.highest + 1..number);
            self.highest = number;
        } else {
            self.free.remove(&number);
        }
    }

    /// Frees a taken number.
    pub(crate) fn give_back(&mut self, number: u16) {
        self.free.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_numbers_come_first() {
        let mut numbers = Numbers::default();
        let first = |numbers: &Numbers| numbers.free().take(3).collect::<Vec<_>>();
        assert_eq!(first(&numbers), [1, 2, 3]);
        numbers.take(1);
        numbers.take(4);
        assert_eq!(first(&numbers), [2, 3, 5]);
        numbers.take(2);
        numbers.give_back(1);
        assert_eq!((first(&numbers), numbers.taken()), (vec![1, 3, 5], 2));
        numbers.take(u16::MAX);
        assert_eq!(numbers.free().count(), usize::from(u16::MAX) - 3);
        assert_eq!(numbers.free().last(), Some(u16::MAX - 1));
    }
}
