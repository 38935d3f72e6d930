//! Counters, meters and registers (P4Runtime §9.3, §9.4, §9.7).
//!
//! An omitted index means all cells. A write changes them at once. A read returns them step by step, and an id of 0 means all
//! arrays.

use std::ops::Range;

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::{CounterEntry, Index, MeterEntry, P4Data, RegisterEntry};

use super::direct::refuse_counts;
use super::scan::Scan;
use super::table_entry::{counter_cell, counter_data, meter_config, meter_message};
use super::write::Edit;
use crate::engine::{Counter, Engine, Meter, Register};
use crate::target::Refusal;

/// Returns the cells of an index in an array of this size. The array itself rejects an index beyond its end.
fn cells(index: Option<Index>, size: usize) -> Result<Range<u64>, Refusal> {
    match index {
        None => Ok(0..size as u64),
        Some(Index { index }) => match u64::try_from(index) {
            Ok(index) => Ok(index..index.saturating_add(1)),
            Err(_) => Err(Refusal::invalid(format!("index {index} is negative"))),
        },
    }
}

fn index_message(index: u64) -> Option<Index> {
    Some(Index {
        index: index as i64,
    })
}

pub(super) fn write_counter(entry: &CounterEntry) -> Result<Edit, Refusal> {
    let (id, index) = (entry.counter_id, entry.index);
    // §9.3: without data the counter is not modified; the key is checked all the same.
    let value = entry.data.as_ref().map(counter_cell).transpose();
    Edit::new(move |pipeline| {
        let counter = pipeline.engine.counter_mut(id)?;
        let cells = cells(index, counter.cells().len())?;
        let value = value?;
        for index in cells {
            match value {
                Some(value) => counter.write(index, value)?,
                None => counter.read(index).map(|_| ())?,
            }
        }
        Ok(())
    })
}

pub(super) fn read_counters(
    engine: &Engine,
    request: &CounterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let (id, index) = (request.counter_id, request.index);
    let all = match id {
        0 => engine.counters().collect(),
        id => vec![engine.counter(id)?],
    };
    let size = |counter: &Counter| (counter.id(), counter.cells().len());
    walk(all, size, (id, index), scan, |counter, at| {
        found.push(Entity::CounterEntry(CounterEntry {
            counter_id: counter.id(),
            index: index_message(at),
            data: Some(counter_data(counter.read(at)?)),
        }));
        Ok(())
    })
}

pub(super) fn write_meter(entry: &MeterEntry) -> Result<Edit, Refusal> {
    refuse_counts(entry.counter_data.as_ref())?;
    let (id, index) = (entry.meter_id, entry.index);
    let config = entry.config.as_ref().map(meter_config).transpose();
    Edit::new(move |pipeline| {
        let meter = pipeline.engine.meter_mut(id)?;
        let config = config?;
        for index in cells(index, meter.cells().len())? {
            meter.write(index, config)?;
        }
        Ok(())
    })
}

pub(super) fn read_meters(
    engine: &Engine,
    request: &MeterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let (id, index) = (request.meter_id, request.index);
    let all = match id {
        0 => engine.meters().collect(),
        id => vec![engine.meter(id)?],
    };
    let size = |meter: &Meter| (meter.id(), meter.cells().len());
    walk(all, size, (id, index), scan, |meter, at| {
        let config = meter.read(at)?;
        found.push(Entity::MeterEntry(MeterEntry {
            meter_id: meter.id(),
            index: index_message(at),
            config: config.map(meter_message),
            counter_data: None,
        }));
        Ok(())
    })
}

pub(super) fn write_register(entry: RegisterEntry) -> Result<Edit, Refusal> {
    let (id, index) = (entry.register_id, entry.index);
    let value = match entry.data.and_then(|data| data.data) {
        Some(Data::Bitstring(value)) => Some(value),
        _ => None,
    };
    Edit::new(move |pipeline| {
        let register = pipeline.engine.register_mut(id)?;
        let Some(value) = value else {
            return Err(Refusal::invalid(format!(
                "register {}: expected data of {} bits as a bitstring",
                register.name(),
                register.width()
            )));
        };
        for index in cells(index, register.size())? {
            register.write(index, &value)?;
        }
        Ok(())
    })
}

pub(super) fn read_registers(
    engine: &Engine,
    request: &RegisterEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let (id, index) = (request.register_id, request.index);
    let all = match id {
        0 => engine.registers().collect(),
        id => vec![engine.register(id)?],
    };
    let size = |register: &Register| (register.id(), register.size());
    walk(all, size, (id, index), scan, |register, at| {
        let data = Some(Data::Bitstring(register.read(at)?));
        found.push(Entity::RegisterEntry(RegisterEntry {
            register_id: register.id(),
            index: index_message(at),
            data: Some(P4Data { data }),
        }));
        Ok(())
    })
}

/// Passes on the cells of a request, by id and index, from the walk's position. `size` returns an array's id and size.
fn walk<T>(
    arrays: Vec<&T>,
    size: impl Fn(&T) -> (u32, usize),
    request: (u32, Option<Index>),
    scan: &mut Scan,
    mut each: impl FnMut(&T, u64) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if let (0, Some(_)) = request {
        return Err(Refusal::invalid(
            "an index without an array's id: expected an id, or neither to read all",
        ));
    }
    for array in arrays {
        let (id, size) = size(array);
        if scan.is_past(id) {
            continue;
        }
        let cells = cells(request.1, size)?;
        for cell in cells.start.max(scan.first(id))..cells.end {
            if !scan.admits(id, cell, 1) {
                return Ok(());
            }
            each(array, cell)?;
        }
    }
    Ok(())
}
