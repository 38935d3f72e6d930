//! Match-action tables: entries, lookups, direct resources.

mod entry;

pub use entry::{ActionCall, EntryView, FieldMatch, Match, TableEntry};

use super::counter::CounterCell;
use super::error::ControlError;
use super::meter::MeterConfig;

/// A match-action table.
#[derive(Debug)]
pub struct Table {
    id: u32,
    name: String,
}

impl Table {
    /// Its P4Info id; 0 for a table that the compiler made and P4Info does not have.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its P4Info name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of entries, without the default entry.
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether it has no entry but the default.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    pub fn insert(&mut self, _entry: TableEntry) -> Result<(), ControlError> {
        unimplemented!()
    }

    /// Replaces action, arguments and metadata of the entry with this key and priority; its
    /// counter and meter stay.
    pub fn modify(&mut self, _entry: TableEntry) -> Result<(), ControlError> {
        unimplemented!()
    }

    /// Removes the entry with this key and priority.
    pub fn delete(&mut self, _key: &[FieldMatch], _priority: i32) -> Result<(), ControlError> {
        unimplemented!()
    }

    /// All entries but the default, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = EntryView> + '_ {
        std::iter::empty()
    }

    /// The entry with this key and priority.
    pub fn get(&self, _key: &[FieldMatch], _priority: i32) -> Result<EntryView, ControlError> {
        unimplemented!()
    }

    /// The default entry; its key is empty.
    pub fn default_entry(&self) -> EntryView {
        unimplemented!()
    }

    /// Sets the default entry; `None` restores the program's.
    pub fn set_default(&mut self, _entry: Option<TableEntry>) -> Result<(), ControlError> {
        unimplemented!()
    }

    /// Sets the direct counter of an entry.
    pub fn set_counter(
        &mut self,
        _key: &[FieldMatch],
        _priority: i32,
        _value: CounterCell,
    ) -> Result<(), ControlError> {
        unimplemented!()
    }

    /// Configures the direct meter of an entry; `None` removes the configuration.
    pub fn set_meter(
        &mut self,
        _key: &[FieldMatch],
        _priority: i32,
        _config: Option<MeterConfig>,
    ) -> Result<(), ControlError> {
        unimplemented!()
    }
}
