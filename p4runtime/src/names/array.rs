//! Counters, meters and registers: arrays of indexed cells (§9.3.2, §9.4.2, §9.7).

use super::P4InfoError;
use crate::config::v1::{self as p4info, counter_spec, meter_spec};
use crate::v1;

/// An index past an array's end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} \"{name}\": there is no cell {index}, expected 0 to {}", size.saturating_sub(1))]
pub struct IndexError {
    /// Counter, meter or register.
    pub kind: &'static str,
    /// Its full name.
    pub name: String,
    /// Its cells.
    pub size: u64,
    /// The index.
    pub index: u64,
}

/// An indirect counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Cells.
    pub size: u64,
    /// The counted unit: packets, bytes or both.
    pub unit: counter_spec::Unit,
}

impl Counter {
    pub(super) fn new(id: u32, name: &str, counter: &p4info::Counter) -> Result<Self, P4InfoError> {
        let size = size(&format!("counter \"{name}\""), counter.size)?;
        let unit = counter.spec.unwrap_or_default().unit();
        Ok(Counter {
            id,
            name: name.into(),
            size,
            unit,
        })
    }

    /// Returns one cell without data, for a read. For a write, fill in `data`.
    ///
    /// # Errors
    /// [`IndexError`] when there is no such cell.
    pub fn cell(&self, index: u64) -> Result<v1::CounterEntry, IndexError> {
        let index = Some(cell_index("counter", &self.name, self.size, index)?);
        Ok(v1::CounterEntry {
            counter_id: self.id,
            index,
            data: None,
        })
    }

    /// Returns all cells, for a read.
    pub fn cells(&self) -> v1::CounterEntry {
        v1::CounterEntry {
            counter_id: self.id,
            ..Default::default()
        }
    }
}

/// An indirect meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Cells.
    pub size: u64,
    /// Unit of rates and bursts.
    pub unit: meter_spec::Unit,
}

impl Meter {
    pub(super) fn new(id: u32, name: &str, meter: &p4info::Meter) -> Result<Self, P4InfoError> {
        let size = size(&format!("meter \"{name}\""), meter.size)?;
        let unit = meter.spec.unwrap_or_default().unit();
        Ok(Meter {
            id,
            name: name.into(),
            size,
            unit,
        })
    }

    /// Returns one cell without configuration, for a read or to reset the cell. For a write, fill in `config`.
    ///
    /// # Errors
    /// [`IndexError`] when there is no such cell.
    pub fn cell(&self, index: u64) -> Result<v1::MeterEntry, IndexError> {
        let index = Some(cell_index("meter", &self.name, self.size, index)?);
        Ok(v1::MeterEntry {
            meter_id: self.id,
            index,
            ..Default::default()
        })
    }

    /// Returns all cells, for a read.
    pub fn cells(&self) -> v1::MeterEntry {
        v1::MeterEntry {
            meter_id: self.id,
            ..Default::default()
        }
    }
}

/// A register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Cells.
    pub size: u64,
}

impl Register {
    pub(super) fn new(
        id: u32,
        name: &str,
        register: &p4info::Register,
    ) -> Result<Self, P4InfoError> {
        let size = size(&format!("register \"{name}\""), register.size.into())?;
        Ok(Register {
            id,
            name: name.into(),
            size,
        })
    }

    /// Returns one cell without data, for a read. For a write, fill in `data`.
    ///
    /// # Errors
    /// [`IndexError`] when there is no such cell.
    pub fn cell(&self, index: u64) -> Result<v1::RegisterEntry, IndexError> {
        let index = Some(cell_index("register", &self.name, self.size, index)?);
        Ok(v1::RegisterEntry {
            register_id: self.id,
            index,
            data: None,
        })
    }

    /// Returns all cells, for a read.
    pub fn cells(&self) -> v1::RegisterEntry {
        v1::RegisterEntry {
            register_id: self.id,
            ..Default::default()
        }
    }
}

/// A size as a P4Info gives it.
pub(super) fn size(place: &str, size: i64) -> Result<u64, P4InfoError> {
    u64::try_from(size).map_err(|_| P4InfoError::Negative {
        place: place.into(),
        what: "the size".into(),
        value: size,
    })
}

fn cell_index(
    kind: &'static str,
    name: &str,
    size: u64,
    index: u64,
) -> Result<v1::Index, IndexError> {
    match i64::try_from(index) {
        Ok(cell) if index < size => Ok(v1::Index { index: cell }),
        _ => Err(IndexError {
            kind,
            name: name.into(),
            size,
            index,
        }),
    }
}
