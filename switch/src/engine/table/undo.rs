//! Entries as they were before they were written to (see the engine's `undo`).

use super::super::error::ControlError;
use super::matcher::EntryKey;
use super::{Entry, FieldMatch, Owner, Table};

/// An entry as it was, or that there was none.
#[derive(Debug)]
pub(in crate::engine) struct SavedEntry {
    /// `None`: it is the default entry.
    key: Option<EntryKey>,
    entry: Option<Entry>,
}

impl Table {
    /// Keeps what the entry with this key and priority is.
    pub(in crate::engine) fn save(
        &self,
        key: &[FieldMatch],
        priority: i32,
    ) -> Result<SavedEntry, ControlError> {
        let owner = Owner::Table(&self.declared.name);
        let (key, _) = self.declared.key.encode(owner, key, priority)?;
        let entry = self.matcher.find(&key).map(|at| self.live(at).clone());
        let key = Some(key);
        Ok(SavedEntry { key, entry })
    }

    /// Keeps what the default entry is.
    pub(in crate::engine) fn save_default(&self) -> SavedEntry {
        SavedEntry {
            key: None,
            entry: Some(self.default.clone()),
        }
    }

    /// Puts an entry back. What it refers to in an action profile is put back with the profile.
    pub(in crate::engine) fn restore(&mut self, saved: SavedEntry) {
        let SavedEntry {
            key: Some(key),
            entry,
        } = saved
        else {
            return;
        };
        let at = match (&entry, self.matcher.find(&key)) {
            (_, Some(at)) => at,
            (Some(_), None) => {
                let at = self.place();
                self.matcher.insert(&key, at);
                at
            }
            (None, None) => return,
        };
        if entry.is_none() {
            self.matcher.remove(&key);
            self.free.push(at);
        }
        self.entries[at as usize] = entry;
        self.arm(at);
    }

    /// Puts the default entry back.
    pub(in crate::engine) fn restore_default(&mut self, saved: SavedEntry) {
        if let Some(entry) = saved.entry {
            self.default = entry;
        }
    }
}
