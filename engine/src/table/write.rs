//! Writes to tables.

use super::super::p4info::ActionScope;
use std::ops::{Deref, DerefMut};

use super::super::error::{ControlError, ErrorKind};
use super::super::profile::Profile;
use super::encode::EncodedAction;
use super::{
    Age, EncodedEntry, Entry, EntryAction, EntryKey, FieldMatch, Owner, Table, TableEntry, Target,
};

/// A table for writing, with its action profile.
#[derive(Debug)]
pub struct TableMut<'a> {
    table: &'a mut Table,
    profile: Option<&'a mut Profile>,
}

impl Deref for TableMut<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        self.table
    }
}

impl DerefMut for TableMut<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        self.table
    }
}

impl<'a> TableMut<'a> {
    pub(crate) fn new(table: &'a mut Table, profiles: &'a mut [Profile]) -> TableMut<'a> {
        let at = table
            .declared
            .indirect
            .as_ref()
            .map(|shared| shared.profile);
        let profile = at.and_then(|at| profiles.get_mut(at));
        TableMut { table, profile }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The key, priority or action is invalid for the table, the entry exists, the table is full or constant, or its action
    /// profile does not have the entry's member or group.
    pub fn insert(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        self.insert_encoded(self.encode_entry(entry))
    }

    /// Adds an entry that the table's declaration has encoded, as [`TableMut::insert`] does.
    ///
    /// # Errors
    /// As there.
    pub fn insert_encoded(&mut self, entry: EncodedEntry) -> Result<(), ControlError> {
        if self.table.declared.is_const {
            return Err(self.constant("its list of entries"));
        }
        self.add(entry, false)
    }

    pub(crate) fn insert_initial(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        let is_const = self.table.declared.is_const;
        self.add(self.encode_entry(entry), is_const)
    }

    fn add(&mut self, entry: EncodedEntry, is_const: bool) -> Result<(), ControlError> {
        let declared = &self.table.declared;
        if declared.key.fields.is_empty() {
            return Err(ControlError::invalid(format!(
                "table {} has no key: only its default entry can be changed",
                declared.name
            )));
        }
        let key = entry.key?;
        let Some(action) = entry.action else {
            let owner = Owner("table", &declared.name);
            return Err(ControlError::invalid(format!(
                "{owner}: an entry needs an action"
            )));
        };
        self.table.check_idle_timeout(entry.idle_timeout_ns)?;
        let target = self.target(action)?;
        let (table, size) = (self.table.name(), self.table.declared.size);
        let refused = if self.table.matcher.find(&key).is_some() {
            let text = format!("table {table} has this entry already");
            Some(ControlError::new(ErrorKind::AlreadyExists, text))
        } else if self.table.len() >= size {
            let text = format!("table {table} is full: {size} entries");
            Some(ControlError::new(ErrorKind::ResourceExhausted, text))
        } else {
            None
        };
        if let Some(error) = refused {
            self.release(&target);
            return Err(error);
        }
        let table = &mut *self.table;
        let at = table.place();
        table.matcher.insert(&key, at);
        table.entries[at as usize] = Some(Entry {
            key: Some(key),
            written: entry.written,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata,
            is_const,
            age: Age::new(table.alarms.now_us, entry.idle_timeout_ns),
            ..Entry::new(target)
        });
        table.restart(at);
        Ok(())
    }

    /// Replaces action, arguments, metadata and idle timeout of the entry with this key and priority. Counter and meter stay. A
    /// changed idle timeout restarts. Without an action, the entry keeps its action, and metadata and an idle timeout that are
    /// empty or 0 (P4Runtime §9.1.2).
    ///
    /// # Errors
    /// There is no such entry, it is constant, or the table does not have the action.
    pub fn modify(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        self.modify_encoded(self.encode_entry(entry))
    }

    /// Replaces an entry by one that the table's declaration has encoded, as [`TableMut::modify`] does.
    ///
    /// # Errors
    /// As there.
    pub fn modify_encoded(&mut self, mut entry: EncodedEntry) -> Result<(), ControlError> {
        let at = self.table.find(&entry.key?)?;
        let live = self.table.live(at);
        if entry.action.is_none() {
            if entry.controller_metadata == 0 {
                entry.controller_metadata = live.controller_metadata;
            }
            if entry.metadata.is_empty() {
                entry.metadata.clone_from(&live.metadata);
            }
            if entry.idle_timeout_ns == 0 {
                entry.idle_timeout_ns = live.age.timeout_ns;
            }
        }
        let same = entry.controller_metadata == live.controller_metadata
            && entry.metadata == live.metadata
            && entry.idle_timeout_ns == live.age.timeout_ns;
        if live.is_const && (entry.action.is_some() || !same) {
            return Err(self.constant("this entry, except its counter and meter,"));
        }
        self.table.check_idle_timeout(entry.idle_timeout_ns)?;
        let target = match entry.action {
            Some(action) => Some(self.target(action)?),
            None => None,
        };
        let live = self.table.live_mut(at);
        let old = target.map(|target| std::mem::replace(&mut live.target, target));
        live.controller_metadata = entry.controller_metadata;
        live.metadata = entry.metadata;
        if live.age.timeout_ns != entry.idle_timeout_ns {
            live.age.timeout_ns = entry.idle_timeout_ns;
            self.table.restart(at);
        }
        if let Some(old) = old {
            self.release(&old);
        }
        Ok(())
    }

    /// Removes the entry with this key and priority.
    ///
    /// # Errors
    /// There is no such entry, or it is constant.
    pub fn delete(&mut self, key: &[FieldMatch], priority: i32) -> Result<(), ControlError> {
        self.delete_encoded(&self.encode_key(key, priority)?)
    }

    /// Removes the entry with a key that the table's declaration has encoded.
    ///
    /// # Errors
    /// There is no such entry, or it is constant.
    pub fn delete_encoded(&mut self, key: &EntryKey) -> Result<(), ControlError> {
        let at = self.table.find(key)?;
        if self.table.live(at).is_const {
            return Err(self.constant("this entry"));
        }
        self.remove(at);
        Ok(())
    }

    fn remove(&mut self, at: u32) {
        self.table.set_alarm(at, None);
        let Some(entry) = self.table.entries[at as usize].take() else {
            return;
        };
        if let Some(key) = &entry.key {
            self.table.matcher.remove(key);
        }
        self.table.free.push(at);
        self.release(&entry.target);
    }

    /// Sets the default entry. `None`, or an entry without an action, restores the program's. Ignores the entry's key and
    /// priority.
    ///
    /// # Errors
    /// The default entry is constant, as in all tables with an action profile, or the table does not have the action.
    pub fn set_default(&mut self, entry: Option<TableEntry>) -> Result<(), ControlError> {
        if self.table.declared.default_is_const {
            return Err(self.constant("the default action"));
        }
        let Some(TableEntry {
            action: Some(action),
            controller_metadata,
            metadata,
            ..
        }) = entry
        else {
            self.table.default = self.table.program_default();
            return Ok(());
        };
        let EntryAction::Call(call) = &action else {
            return Err(self.no_profile());
        };
        let target = self.table.own(call, ActionScope::EntriesOnly)?;
        let default = &mut self.table.default;
        default.target = target;
        (default.controller_metadata, default.metadata) = (controller_metadata, metadata);
        Ok(())
    }

    /// Acquires the action of an entry.
    fn target(
        &mut self,
        action: Result<EncodedAction, ControlError>,
    ) -> Result<Target, ControlError> {
        match (&mut self.profile, action?) {
            (_, EncodedAction::Own(target)) => Ok(target),
            (None, EncodedAction::Shared(_)) => Err(self.no_profile()),
            (Some(profile), EncodedAction::Shared(action)) => {
                let (choice, asked) = profile.acquire(&action)?;
                Ok(Target::Shared { choice, asked })
            }
        }
    }

    fn release(&mut self, target: &Target) {
        if let (Some(profile), Target::Shared { choice, asked }) = (&mut self.profile, target) {
            profile.release(*choice, asked);
        }
    }

    fn no_profile(&self) -> ControlError {
        ControlError::invalid(format!(
            "table {} has no action profile: expected an action, not a member, group or set",
            self.table.declared.name
        ))
    }
}
