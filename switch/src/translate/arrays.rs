//! Counters, meters and registers (P4Runtime §9.3, §9.4, §9.7).
//!
//! An omitted index means all cells. A write changes them at once. A read returns them step by step, and an id of 0 means all
//! arrays.

use std::ops::Range;

use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::{CounterEntry, Index, MeterEntry, P4Data, RegisterEntry};

use super::direct::refuse_counts;
use super::edit::Edit;
use super::query::{Query, Row};
use super::table_entry::{counter_cell, counter_data, meter_config, meter_message};
use crate::target::Refusal;
use ultima_engine::{ControlError, Counter, CounterCell, Engine, Meter, MeterConfig, Register};

/// The cells of a request: of one index, or all.
#[derive(Debug, Clone, Copy)]
struct Cells(Option<u64>);

impl Cells {
    fn new(index: Option<Index>) -> Result<Cells, Refusal> {
        let negative = |index| Refusal::invalid(format!("index {index} is negative"));
        let index = index.map(|Index { index }| u64::try_from(index).map_err(|_| negative(index)));
        index.transpose().map(Cells)
    }

    /// Returns the cells in an array of this size. The array itself rejects an index beyond its end.
    fn of(self, size: usize) -> Range<u64> {
        match self.0 {
            None => 0..size as u64,
            Some(index) => index..index.saturating_add(1),
        }
    }
}

fn index_message(index: u64) -> Option<Index> {
    Some(Index {
        index: index as i64,
    })
}

pub(super) fn write_counter(entry: &CounterEntry) -> Result<Edit, Refusal> {
    let (id, cells) = (entry.counter_id, Cells::new(entry.index)?);
    // §9.3: without data the counter is not modified; the key is checked all the same.
    let value = entry.data.as_ref().map(counter_cell).transpose()?;
    Edit::new(move |pipeline| {
        let counter = pipeline.engine.counter_mut(id)?;
        for index in cells.of(counter.cells().len()) {
            match value {
                Some(value) => counter.write(index, value)?,
                None => counter.read(index).map(|_| ())?,
            }
        }
        Ok(())
    })
}

pub(super) fn counter(counter_id: u32, index: u64, cell: CounterCell) -> CounterEntry {
    CounterEntry {
        counter_id,
        index: index_message(index),
        data: Some(counter_data(cell)),
    }
}

pub(super) fn read_counters(request: &CounterEntry) -> Result<Query, Refusal> {
    let size = |counter: &Counter| (counter.id(), counter.cells().len());
    read(
        (request.counter_id, request.index),
        Engine::counters_of,
        size,
        |counter, at| Ok(Row::Counter(counter.id(), at, counter.read(at)?)),
    )
}

pub(super) fn write_meter(entry: &MeterEntry) -> Result<Edit, Refusal> {
    refuse_counts(entry.counter_data.as_ref())?;
    let (id, cells) = (entry.meter_id, Cells::new(entry.index)?);
    let config = entry.config.as_ref().map(meter_config).transpose()?;
    Edit::new(move |pipeline| {
        let meter = pipeline.engine.meter_mut(id)?;
        for index in cells.of(meter.cells().len()) {
            meter.write(index, config)?;
        }
        Ok(())
    })
}

pub(super) fn meter(meter_id: u32, index: u64, config: Option<MeterConfig>) -> MeterEntry {
    MeterEntry {
        meter_id,
        index: index_message(index),
        config: config.map(meter_message),
        counter_data: None,
    }
}

pub(super) fn read_meters(request: &MeterEntry) -> Result<Query, Refusal> {
    let size = |meter: &Meter| (meter.id(), meter.cells().len());
    read(
        (request.meter_id, request.index),
        Engine::meters_of,
        size,
        |meter, at| Ok(Row::Meter(meter.id(), at, meter.read(at)?)),
    )
}

pub(super) fn write_register(entry: RegisterEntry) -> Result<Edit, Refusal> {
    let (id, cells) = (entry.register_id, Cells::new(entry.index)?);
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
        for index in cells.of(register.size()) {
            register.write(index, &value)?;
        }
        Ok(())
    })
}

pub(super) fn register(register_id: u32, index: u64, value: Vec<u8>) -> RegisterEntry {
    let data = Some(Data::Bitstring(value));
    RegisterEntry {
        register_id,
        index: index_message(index),
        data: Some(P4Data { data }),
    }
}

pub(super) fn read_registers(request: &RegisterEntry) -> Result<Query, Refusal> {
    let size = |register: &Register| (register.id(), register.size());
    read(
        (request.register_id, request.index),
        Engine::registers_of,
        size,
        |register, at| Ok(Row::Register(register.id(), at, register.read(at)?)),
    )
}

/// Reads one cell, all cells of an array, or with id 0 all cells of all arrays. `size` returns an array's id and size.
fn read<T: 'static>(
    (id, index): (u32, Option<Index>),
    arrays: fn(&Engine, u32) -> Result<Vec<&T>, ControlError>,
    size: fn(&T) -> (u32, usize),
    row: fn(&T, u64) -> Result<Row, ControlError>,
) -> Result<Query, Refusal> {
    if let (0, Some(_)) = (id, index) {
        return Err(Refusal::invalid(
            "an index without an array's id: expected an id, or neither to read all",
        ));
    }
    let cells = Cells::new(index)?;
    Ok(Box::new(move |pipeline, scan, found| {
        for array in arrays(&pipeline.engine, id)? {
            let (id, size) = size(array);
            if scan.is_past(id) {
                continue;
            }
            let cells = cells.of(size);
            for cell in cells.start.max(scan.first(id))..cells.end {
                if !scan.admits(id, cell, 1) {
                    return Ok(());
                }
                found.push(row(array, cell)?);
            }
        }
        Ok(())
    }))
}
