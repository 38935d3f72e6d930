//! Direct counters and meters, within table entries and as entities (P4Runtime §9.1.7, §9.3.1, §9.4.1).

use tonic::Code;
use ultima_p4runtime::v1::{DirectCounterEntry, DirectMeterEntry, MeterCounterData, TableEntry};

use super::edit::{Direct, Edit};
use super::filter::Filter;
use super::query::{EntryRow, Query, Row};
use super::table_entry::{
    self, check_default, counter_cell, counter_data, key, key_message, meter_config,
};
use crate::target::Refusal;
use ultima_engine::{EntryKey, EntryRef, Schema, Table, TableDeclaration};

/// Reads the direct resources of a written entry.
pub(super) fn resources(table: &TableDeclaration, message: &TableEntry) -> Result<Direct, Refusal> {
    if message.counter_data.is_some() && !table.has_counter() {
        return Err(no_direct(table, "counter"));
    }
    refuse_counts(message.meter_counter_data.as_ref())?;
    if message.meter_config.is_some() && !table.has_meter() {
        return Err(no_direct(table, "meter"));
    }
    let counter = message.counter_data.as_ref().map(counter_cell);
    let meter = message
        .meter_config
        .as_ref()
        .map(meter_config)
        .transpose()?;
    if let Some(config) = meter {
        config.check(table.name())?;
    }
    Ok(Direct {
        counter: counter.transpose()?,
        meter,
    })
}

pub(super) fn write_counter(schema: &Schema, message: DirectCounterEntry) -> Result<Edit, Refusal> {
    let target = Target::new(schema, message.table_entry)?;
    let data = message.data.as_ref().map(counter_cell);
    Edit::new(move |pipeline| {
        let mut table = pipeline.engine.table_mut(target.table)?;
        target.check(&table)?;
        if !table.has_counter() {
            return Err(no_direct(&table, "counter"));
        }
        // §9.3.1: without data the counter is not modified; the key is checked all the same.
        if let Some(data) = data {
            table.set_counter(target.entry(), data?)?;
        }
        Ok(())
    })
}

pub(super) fn write_meter(schema: &Schema, message: DirectMeterEntry) -> Result<Edit, Refusal> {
    refuse_counts(message.counter_data.as_ref())?;
    let target = Target::new(schema, message.table_entry)?;
    let config = message.config.as_ref().map(meter_config).transpose();
    Edit::new(move |pipeline| {
        let mut table = pipeline.engine.table_mut(target.table)?;
        target.check(&table)?;
        Ok(table.set_meter(target.entry(), config?)?)
    })
}

/// The entry of a direct resource.
struct Target {
    table: u32,
    /// `None` for the default entry.
    key: Option<EntryKey>,
}

impl Target {
    fn new(schema: &Schema, of: Option<TableEntry>) -> Result<Target, Refusal> {
        let of = of.ok_or_else(|| {
            Refusal::invalid("table_entry is not set: expected the entry of the direct resource")
        })?;
        if of.is_default_action {
            check_default(&of.r#match, of.priority)?;
        }
        let given = key(of.r#match)?;
        let table = schema.table(of.table_id)?;
        let keyed = !of.is_default_action;
        let key = keyed.then(|| table.encode_key(&given, of.priority));
        Ok(Target {
            table: of.table_id,
            key: key.transpose()?,
        })
    }

    fn entry(&self) -> EntryRef<'_> {
        self.key.as_ref().map_or(EntryRef::Default, EntryRef::Keyed)
    }

    fn check(&self, table: &Table) -> Result<(), Refusal> {
        if let Some(key) = &self.key {
            table.check(key)?;
        }
        Ok(())
    }
}

pub(super) fn counter_message(row: EntryRow) -> DirectCounterEntry {
    DirectCounterEntry {
        data: row.view.counter.map(counter_data),
        table_entry: Some(key_message(row)),
    }
}

pub(super) fn meter_message(row: EntryRow) -> DirectMeterEntry {
    DirectMeterEntry {
        config: row.view.meter.flatten().map(table_entry::meter_message),
        table_entry: Some(key_message(row)),
        counter_data: None,
    }
}

pub(super) fn read_counters(request: DirectCounterEntry) -> Result<Query, Refusal> {
    read(request.table_entry, "counter", |row| {
        let exists = row.view.counter.is_some();
        exists.then_some(Row::DirectCounter(row))
    })
}

pub(super) fn read_meters(request: DirectMeterEntry) -> Result<Query, Refusal> {
    read(request.table_entry, "meter", |row| {
        let exists = row.view.meter.is_some();
        exists.then_some(Row::DirectMeter(row))
    })
}

/// Reads direct resources. `of` returns nothing if the table has no such resource: that is an error for a read of one table,
/// and no result for a read of all tables.
fn read(
    request: Option<TableEntry>,
    kind: &'static str,
    of: fn(EntryRow) -> Option<Row>,
) -> Result<Query, Refusal> {
    let filter = Filter::new(request.unwrap_or_default())?;
    Ok(Box::new(move |pipeline, scan, rows| {
        filter.for_tables(pipeline, scan, |table, scan| {
            let (mut found, mut without) = (scan.found, 0);
            filter.select(table, scan, |row| {
                found = true;
                match of(row) {
                    Some(row) => rows.push(row),
                    None => without += 1,
                }
            })?;
            if filter.table != 0 && without > 0 {
                return Err(no_direct(table, kind));
            }
            scan.found = found;
            // §9.3.1: of a single entry that is not there.
            if !found && !scan.is_paused() && !filter.key.is_empty() {
                let name = table.name();
                return Err(Refusal::new(
                    Code::NotFound,
                    format!("table {name} has no such entry"),
                ));
            }
            Ok(())
        })
    }))
}

/// Rejects counts of a meter by colour, which this switch does not have.
pub(super) fn refuse_counts(data: Option<&MeterCounterData>) -> Result<(), Refusal> {
    match data {
        None => Ok(()),
        Some(_) => Err(Refusal::unimplemented(
            "counts of a meter by colour: leave them unset",
        )),
    }
}

fn no_direct(table: &TableDeclaration, kind: &str) -> Refusal {
    Refusal::invalid(format!("table {} has no direct {kind}", table.name()))
}
