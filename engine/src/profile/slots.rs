//! Allocates numbers, the lowest free one first, like BMv2's handles.

use std::collections::BTreeSet;

/// Values that keep their number while they live.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: BTreeSet<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            slots: Vec::new(),
            free: BTreeSet::new(),
        }
    }
}

impl<T> Slots<T> {
    pub fn add(&mut self, value: T) -> u32 {
        match self.free.pop_first() {
            Some(at) => {
                self.slots[at as usize] = Some(value);
                at
            }
            None => {
                self.slots.push(Some(value));
                self.slots.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.slots.get_mut(at as usize)?.take()?;
        self.free.insert(at);
        Some(value)
    }

    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut slots = Slots::default();
        assert_eq!([slots.add('a'), slots.add('b'), slots.add('c')], [0, 1, 2]);
        assert_eq!((slots.remove(1), slots.remove(1)), (Some('b'), None));
        assert_eq!(slots.remove(0), Some('a'));
        assert_eq!(slots.len(), 1);
        assert_eq!([slots.add('d'), slots.add('e'), slots.add('f')], [0, 1, 3]);
        assert_eq!((slots.get(1), slots.get(4)), (Some(&'e'), None));
    }
}
