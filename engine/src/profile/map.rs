//! A map by id whose changes can be undone.

use std::collections::BTreeMap;
use std::ops::Deref;

/// Values by id.
#[derive(Debug)]
pub(super) struct Map<T> {
    now: BTreeMap<u32, T>,
    /// What has been touched, as it was before changes that may be taken back.
    before: Option<BTreeMap<u32, Option<T>>>,
}

impl<T> Default for Map<T> {
    fn default() -> Map<T> {
        Map {
            now: BTreeMap::new(),
            before: None,
        }
    }
}

impl<T> Deref for Map<T> {
    type Target = BTreeMap<u32, T>;

    fn deref(&self) -> &BTreeMap<u32, T> {
        &self.now
    }
}

impl<T: Clone> Map<T> {
    pub fn insert(&mut self, id: u32, value: T) {
        self.keep(id);
        self.now.insert(id, value);
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        self.keep(id);
        self.now.remove(&id)
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.keep(id);
        self.now.get_mut(&id)
    }

    /// From now on, changes may be taken back.
    pub fn begin(&mut self) {
        self.before = Some(BTreeMap::new());
    }

    /// The changes stay.
    pub fn accept(&mut self) {
        self.before = None;
    }

    /// Takes the changes back.
    pub fn undo(&mut self) {
        for (id, value) in self.before.take().unwrap_or_default() {
            match value {
                Some(value) => self.now.insert(id, value),
                None => self.now.remove(&id),
            };
        }
    }

    fn keep(&mut self, id: u32) {
        if let Some(before) = &mut self.before {
            let now = self.now.get(&id);
            before.entry(id).or_insert_with(|| now.cloned());
        }
    }
}
