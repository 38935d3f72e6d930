//! Allocates numbers, the lowest free one first, like BMv2's handles.

use std::collections::{BTreeMap, BTreeSet};

/// Values that keep their number while they live, and whose changes can be taken back.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: BTreeSet<u32>,
    before: Option<Before<T>>,
}

/// What there was before changes that may be taken back.
#[derive(Debug)]
struct Before<T> {
    len: usize,
    /// What has been touched of the first `len` slots, as it was.
    slots: BTreeMap<u32, Option<T>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            slots: Vec::new(),
            free: BTreeSet::new(),
            before: None,
        }
    }
}

impl<T: Clone> Slots<T> {
    pub fn add(&mut self, value: T) -> u32 {
        match self.free.pop_first() {
            Some(at) => {
                self.keep(at);
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
        self.keep(at);
        let value = self.slots.get_mut(at as usize)?.take()?;
        self.free.insert(at);
        Some(value)
    }

    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.keep(at);
        self.slots.get_mut(at as usize)?.as_mut()
    }

    /// For changes that are not taken back.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        debug_assert!(self.before.is_none());
        self.slots.iter_mut().flatten()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// From now on, changes may be taken back.
    pub fn begin(&mut self) {
        self.before = Some(Before {
            len: self.slots.len(),
            slots: BTreeMap::new(),
        });
    }

    /// The changes stay.
    pub fn accept(&mut self) {
        self.before = None;
    }

    /// Takes the changes back.
    pub fn undo(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        for (at, slot) in before.slots {
            match slot {
                Some(_) => self.free.remove(&at),
                None => self.free.insert(at),
            };
            self.slots[at as usize] = slot;
        }
        self.slots.truncate(before.len);
        let _added = self.free.split_off(&(before.len as u32));
    }

    fn keep(&mut self, at: u32) {
        if let Some(before) = &mut self.before
            && (at as usize) < before.len
        {
            let now = &self.slots[at as usize];
            before.slots.entry(at).or_insert_with(|| now.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    fn change(slots: &mut Slots<u8>, changes: &[(u8, u8)]) {
        for (at, value) in changes {
            match value % 3 {
                0 => drop(slots.remove(u32::from(*at))),
                1 => drop(slots.add(*value)),
                _ => {
                    if let Some(slot) = slots.get_mut(u32::from(*at)) {
                        *slot = *value;
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn undo_restores_slots(
            first in prop::collection::vec((0u8..8, any::<u8>()), 0..20),
            second in prop::collection::vec((0u8..12, any::<u8>()), 0..20),
        ) {
            let mut slots = Slots::default();
            change(&mut slots, &first);
            let (before, free) = (slots.slots.clone(), slots.free.clone());
            slots.begin();
            change(&mut slots, &second);
            slots.undo();
            prop_assert_eq!((slots.slots, slots.free), (before, free));
        }
    }
}
