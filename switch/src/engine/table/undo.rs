//! Entries as they were before they were written to (see the engine's `undo`).

use super::super::error::ControlError;
use super::matcher::EntryKey;
use super::{Entry, FieldMatch, Owner, Table};

/// An entry as it was, or that there was none.
#[derive(Debug)]
pub(in crate::engine) struct SavedEntry(Option<Entry>);

/// The default entry as it was.
#[derive(Debug)]
pub(in crate::engine) struct SavedDefault(Entry);

impl Table {
    /// The key by which an entry is kept, however its values are written.
    pub(in crate::engine) fn key_of(
        &self,
        key: &[FieldMatch],
        priority: i32,
    ) -> Result<EntryKey, ControlError> {
        let owner = Owner::Table(&self.declared.name);
        let (key, _) = self.declared.key.encode(owner, key, priority)?;
        Ok(key)
    }

    /// Keeps what the entry with this key is.
    pub(in crate::engine) fn save(&self, key: &EntryKey) -> SavedEntry {
        let at = self.matcher.find(key);
        SavedEntry(at.map(|at| self.live(at).clone()))
    }

    /// Keeps what the default entry is.
    pub(in crate::engine) fn save_default(&self) -> SavedDefault {
        SavedDefault(self.default.clone())
    }

    /// Puts an entry back. What it refers to in an action profile is put back with the profile.
    pub(in crate::engine) fn restore(&mut self, key: &EntryKey, SavedEntry(entry): SavedEntry) {
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

    /// Puts the default entry back.
    pub(in crate::engine) fn restore_default(&mut self, SavedDefault(entry): SavedDefault) {
        self.default = entry;
    }
}
