//! Direct counters and meters, within table entries and as entities (P4Runtime §9.1.7, §9.3.1, §9.4.1).

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::{DirectCounterEntry, DirectMeterEntry, MeterCounterData, TableEntry};

use super::read::{for_tables, select};
use super::scan::Scan;
use super::table_entry::{
    check_default, counter_cell, counter_data, key, key_message, meter_config, meter_message,
};
use super::write::Edit;
use crate::engine::{
    CounterCell, EntryKey, EntryRef, EntryView, MeterConfig, Schema, Table, TableDeclaration,
    TableMut,
};
use crate::pipeline::Pipeline;
use crate::target::Refusal;

/// The direct resources of a written table entry.
pub(crate) struct Direct {
    counter: Option<CounterCell>,
    meter: Option<MeterConfig>,
}

impl Direct {
    /// Checks the direct resources before anything is written.
    pub(super) fn of(table: &TableDeclaration, message: &TableEntry) -> Result<Direct, Refusal> {
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

    /// True if [`Direct::write`] changes something.
    pub(super) fn writes(&self, table: &TableDeclaration) -> bool {
        self.counter.is_some() || table.has_meter()
    }

    /// Writes the direct resources. A missing meter configuration resets the meter; a missing counter keeps its value.
    pub(super) fn write(&self, table: &mut TableMut, of: EntryRef) -> Result<(), Refusal> {
        if let Some(value) = self.counter {
            table.set_counter(of, value)?;
        }
        if table.has_meter() {
            table.set_meter(of, self.meter)?;
        }
        Ok(())
    }
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
            check_default(&of)?;
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

    /// Checks that the entry exists.
    fn check(&self, table: &Table) -> Result<(), Refusal> {
        if let Some(key) = &self.key {
            table.check(key)?;
        }
        Ok(())
    }
}

pub(super) fn read_counters(
    pipeline: &Pipeline,
    request: &DirectCounterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let of = request.table_entry.clone().unwrap_or_default();
    read(pipeline, &of, scan, "counter", |table, view| {
        view.counter.map(|cell| {
            found.push(Entity::DirectCounterEntry(DirectCounterEntry {
                table_entry: Some(key_message(table, view, of.is_default_action)),
                data: Some(counter_data(cell)),
            }));
        })
    })
}

pub(super) fn read_meters(
    pipeline: &Pipeline,
    request: &DirectMeterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let of = request.table_entry.clone().unwrap_or_default();
    read(pipeline, &of, scan, "meter", |table, view| {
        view.meter.map(|config| {
            found.push(Entity::DirectMeterEntry(DirectMeterEntry {
                table_entry: Some(key_message(table, view, of.is_default_action)),
                config: config.map(meter_message),
                counter_data: None,
            }));
        })
    })
}

/// Reads direct resources. `push` returns nothing if the table has no such resource: that is an error for a read of one table,
/// and no result for a read of all tables.
fn read(
    pipeline: &Pipeline,
    of: &TableEntry,
    scan: &mut Scan,
    kind: &str,
    mut push: impl FnMut(&Table, &EntryView) -> Option<()>,
) -> Result<(), Refusal> {
    for_tables(pipeline, of, scan, |table, scan| {
        let (mut found, mut without) = (scan.found, 0);
        select(table, of, scan, |view| {
            found = true;
            without += u32::from(push(table, &view).is_none());
        })?;
        if of.table_id != 0 && without > 0 {
            return Err(no_direct(table, kind));
        }
        scan.found = found;
        // §9.3.1: of a single entry that is not there.
        if !found && !scan.is_paused() && !of.r#match.is_empty() {
            let name = table.name();
            return Err(Refusal::new(
                Code::NotFound,
                format!("table {name} has no such entry"),
            ));
        }
        Ok(())
    })
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
