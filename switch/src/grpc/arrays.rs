//! Counters, meters and registers (P4Runtime §9.3, §9.4, §9.7).
//!
//! An omitted index means all cells. A write changes them at once. A read returns them step by step, and an id of 0 means all
//! arrays.

use std::ops::Range;

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::{CounterEntry, Index, MeterEntry, P4Data, RegisterEntry};

use super::direct::{clears_counts, counts_message};
use super::error::EntityError;
use super::scan::Scan;
use super::table_entry::{counter_cell, counter_data, meter_config, meter_message};
use crate::engine::{Counter, Engine, Meter, Register};

/// Returns the cells of an index in an array of this size. The array itself rejects an index beyond its end.
fn cells(index: Option<Index>, size: usize) -> Result<Range<u64>, EntityError> {
    match index {
        None => Ok(0..size as u64),
        Some(Index { index }) => match u64::try_from(index) {
            Ok(index) => Ok(index..index.saturating_add(1)),
            Err(_) => Err(EntityError::invalid(format!("index {index} is negative"))),
        },
    }
}

fn index_message(index: u64) -> Option<Index> {
    Some(Index {
        index: index as i64,
    })
}

pub(super) fn write_counter(engine: &mut Engine, entry: &CounterEntry) -> Result<(), EntityError> {
    let counter = engine.counter_mut(entry.counter_id)?;
    let cells = cells(entry.index, counter.cells().len())?;
    // §9.3: without data the counter is not modified; the key is checked all the same.
    let value = entry.data.as_ref().map(counter_cell).transpose()?;
    for index in cells {
        match value {
            Some(value) => counter.write(index, value)?,
            None => counter.read(index).map(|_| ())?,
        }
    }
    Ok(())
}

pub(super) fn read_counters(
    engine: &Engine,
    request: &CounterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let mut read = |counter: &Counter, scan: &mut Scan| {
        let cells = cells(request.index, counter.cells().len())?;
        walk(counter.id(), cells, scan, |index| {
            let data = Some(counter_data(counter.read(index)?));
            let (counter_id, index) = (counter.id(), index_message(index));
            found.push(Entity::CounterEntry(CounterEntry {
                counter_id,
                index,
                data,
            }));
            Ok(())
        })
    };
    match request.counter_id {
        0 => in_all(
            request.index,
            "counter",
            engine.counters(),
            Counter::id,
            scan,
            read,
        ),
        id => read(engine.counter(id)?, scan),
    }
}

pub(super) fn write_meter(engine: &mut Engine, entry: &MeterEntry) -> Result<(), EntityError> {
    let clears_counts = clears_counts(entry.counter_data.as_ref())?;
    let meter = engine.meter_mut(entry.meter_id)?;
    let config = entry.config.as_ref().map(meter_config).transpose()?;
    for index in cells(entry.index, meter.cells().len())? {
        meter.write(index, config)?;
        if clears_counts {
            meter.clear_counts(index)?;
        }
    }
    Ok(())
}

pub(super) fn read_meters(
    engine: &Engine,
    request: &MeterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let mut read = |meter: &Meter, scan: &mut Scan| {
        let cells = cells(request.index, meter.cells().len())?;
        walk(meter.id(), cells, scan, |index| {
            let view = meter.read(index)?;
            let counts = request.counter_data.is_some();
            found.push(Entity::MeterEntry(MeterEntry {
                meter_id: meter.id(),
                index: index_message(index),
                config: view.config.map(meter_message),
                counter_data: counts.then(|| counts_message(view.counts)),
            }));
            Ok(())
        })
    };
    match request.meter_id {
        0 => in_all(
            request.index,
            "meter",
            engine.meters(),
            Meter::id,
            scan,
            read,
        ),
        id => read(engine.meter(id)?, scan),
    }
}

pub(super) fn write_register(
    engine: &mut Engine,
    entry: &RegisterEntry,
) -> Result<(), EntityError> {
    let register = engine.register_mut(entry.register_id)?;
    let Some(Data::Bitstring(value)) = entry.data.as_ref().and_then(|data| data.data.as_ref())
    else {
        return Err(EntityError::invalid(format!(
            "register {}: expected data of {} bits as a bitstring",
            register.name(),
            register.width()
        )));
    };
    for index in cells(entry.index, register.size())? {
        register.write(index, value)?;
    }
    Ok(())
}

pub(super) fn read_registers(
    engine: &Engine,
    request: &RegisterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let mut read = |register: &Register, scan: &mut Scan| {
        let cells = cells(request.index, register.size())?;
        walk(register.id(), cells, scan, |index| {
            let data = Some(P4Data {
                data: Some(Data::Bitstring(register.read(index)?)),
            });
            let (register_id, index) = (register.id(), index_message(index));
            found.push(Entity::RegisterEntry(RegisterEntry {
                register_id,
                index,
                data,
            }));
            Ok(())
        })
    };
    match request.register_id {
        0 => in_all(
            request.index,
            "register",
            engine.registers(),
            Register::id,
            scan,
            read,
        ),
        id => read(engine.register(id)?, scan),
    }
}

/// Passes on the cells of an array from the walk's position.
fn walk(
    array: u32,
    cells: Range<u64>,
    scan: &mut Scan,
    mut each: impl FnMut(u64) -> Result<(), EntityError>,
) -> Result<(), EntityError> {
    for index in cells.start.max(scan.first(array))..cells.end {
        if !scan.admits(array, index, 1) {
            break;
        }
        each(index)?;
    }
    Ok(())
}

fn in_all<'a, T: 'a>(
    index: Option<Index>,
    kind: &str,
    arrays: impl Iterator<Item = &'a T>,
    id: impl Fn(&T) -> u32,
    scan: &mut Scan,
    mut read: impl FnMut(&T, &mut Scan) -> Result<(), EntityError>,
) -> Result<(), EntityError> {
    if index.is_some() {
        return Err(EntityError::invalid(format!(
            "an index without a {kind} id: expected an id, or neither to read all"
        )));
    }
    for array in arrays {
        if scan.is_past(id(array)) {
            continue;
        }
        read(array, scan)?;
        if scan.is_paused() {
            break;
        }
    }
    Ok(())
}
