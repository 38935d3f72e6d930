//! Direct resources: the counter and meter of every entry of a table, including the default entry.

use super::super::counter::CounterCell;
use super::super::error::ControlError;
use super::super::meter::MeterConfig;
use super::{Entry, EntryKey, Table};

/// An entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRef<'a> {
    /// The entry with this key.
    Keyed(&'a EntryKey),
    /// The default entry.
    Default,
}

impl Table {
    /// Sets the counter of an entry.
    ///
    /// # Errors
    /// The table has no direct counter, or there is no such entry.
    pub fn set_counter(&mut self, of: EntryRef, value: CounterCell) -> Result<(), ControlError> {
        if !self.has_counter() {
            return Err(self.no_direct("counter"));
        }
        self.entry_mut(of)?.counter = value;
        Ok(())
    }

    /// Configures the meter of an entry; `None` removes the configuration. The default entry's meter is active only while it is
    /// configured: BMv2 cannot configure it and does not meter misses.
    ///
    /// # Errors
    /// The table has no direct meter, there is no such entry, or the rates are inconsistent.
    pub fn set_meter(
        &mut self,
        of: EntryRef,
        config: Option<MeterConfig>,
    ) -> Result<(), ControlError> {
        if !self.has_meter() {
            return Err(self.no_direct("meter"));
        }
        let declared = self.declared.clone();
        let entry = self.entry_mut(of)?;
        entry.meter.configure(&declared.name, config)
    }

    fn entry_mut(&mut self, of: EntryRef) -> Result<&mut Entry, ControlError> {
        match of {
            EntryRef::Keyed(key) => {
                let at = self.find(key)?;
                Ok(self.live_mut(at))
            }
            EntryRef::Default => Ok(&mut self.default),
        }
    }

    fn no_direct(&self, kind: &'static str) -> ControlError {
        ControlError::invalid(format!("table {} has no direct {kind}", self.declared.name))
    }
}
