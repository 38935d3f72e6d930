//! Saved entries, to undo writes (see the engine's `undo`).

use super::super::error::ControlError;
use super::matcher::EntryKey;
use super::{Entry, FieldMatch, Owner, Table};

/// A saved entry, or its absence.
#[derive(Debug)]
pub(crate) struct SavedEntry(Option<Entry>);

/// The saved default entry.
#[derive(Debug)]
pub(crate) struct SavedDefault(Entry);

impl Table {
    /// Returns the canonical key of an entry.
    pub(crate) fn key_of(
        &self,
        key: &[FieldMatch],
        priority: i32,
    ) -> Result<EntryKey, ControlError> {
        let owner = Owner::Table(&self.declared.name);
        let (key, _) = self.declared.key.encode(owner, key, priority)?;
        Ok(key)
    }

    /// Saves the entry with this key.
    pub(crate) fn save(&self, key: &EntryKey) -> SavedEntry {
        let at = self.matcher.find(key);
        SavedEntry(at.map(|at| self.live(at).clone()))
    }

    /// Saves the default entry.
    pub(crate) fn save_default(&self) -> SavedDefault {
        SavedDefault(self.default.clone())
    }

    /// Restores an entry. The profile restores its members and groups itself.
    pub(crate) fn restore(&mut self, key: &EntryKey, SavedEntry(entry): SavedEntry) {
        let at = match (&entry, self.matcher.find(key)) {
            (_, Some(at)) => at,
            (Some(_), None) => {
                let at = self.place();
                self.matcher.insert(key, at);
                at
            }
            (None, None) => return,
        };
        if entry.is_none() {
            self.matcher.remove(key);
            self.free.push(at);
        }
        self.entries[at as usize] = entry;
        self.arm(at);
    }

    /// Restores the default entry.
    pub(crate) fn restore_default(&mut self, SavedDefault(entry): SavedDefault) {
        self.default = entry;
    }
}
