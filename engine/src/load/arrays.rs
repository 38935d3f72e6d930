//! Loads counter, meter and register arrays, and other state that outlives packets.

use std::collections::HashMap;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::action::State;
use super::super::counter::{Counter, CounterCell};
use super::super::error::LoadError;
use super::super::json;
use super::super::limits::Limits;
use super::super::meter::{Meter, MeterCell, MeterUnit};
use super::super::p4info::{ArrayInfo, P4Info};
use super::super::register::Register;
use super::super::value_set::ValueSet;

pub(super) fn indirect_counters(
    file: &json::Program,
) -> impl Iterator<Item = (&json::CounterArray, u64)> {
    let indirect = file
        .counter_arrays
        .iter()
        .filter(|counter| !counter.is_direct);
    indirect.map(|counter| (counter, counter.size.unwrap_or(0)))
}

pub(super) fn indirect_meters(file: &json::Program) -> impl Iterator<Item = &json::MeterArray> {
    file.meter_arrays.iter().filter(|meter| !meter.is_direct)
}

pub(super) fn state(
    file: &json::Program,
    p4info: Option<&P4Info>,
    value_sets: Vec<ValueSet>,
    limits: &Limits,
) -> Result<State, LoadError> {
    let mut cells = Cells {
        used: 0,
        limit: limits.array_cells as u64,
    };
    let mut counters = Vec::new();
    for (counter, size) in indirect_counters(file) {
        let id = array_id(
            "counter",
            &counter.name,
            size,
            p4info.map(|it| &it.counters),
        )?;
        let size = cells.take("counter", &counter.name, size, 1)?;
        let (name, cells) = (counter.name.clone(), vec![CounterCell::default(); size]);
        let cells = cells.into();
        counters.push(Counter { id, name, cells });
    }
    let mut meters = Vec::new();
    for meter in indirect_meters(file) {
        let id = array_id(
            "meter",
            &meter.name,
            meter.size,
            p4info.map(|it| &it.meters),
        )?;
        let size = cells.take("meter", &meter.name, meter.size, METER_WORDS)?;
        let (name, cells) = (meter.name.clone(), vec![MeterCell::default(); size]);
        meters.push(Meter {
            id,
            name,
            unit: unit(meter)?,
            cells,
        });
    }
    let mut registers = Vec::new();
    for register in &file.register_arrays {
        let (name, width) = (&register.name, register.bitwidth);
        let id = array_id(
            "register",
            name,
            register.size,
            p4info.map(|it| &it.registers),
        )?;
        let found = p4info.and_then(|it| it.registers.get(name));
        let signed = found.is_some_and(|found| found.signed);
        let words = u64::from(width.div_ceil(64).max(1));
        let size = cells.take("register", name, register.size, words)?;
        // A slot's first byte is a number of 32 bits.
        let (what, at) = ("size in bytes", format!("register {name}"));
        LoadError::check(what, size as u64 * words * 8, u32::MAX.into(), &at)?;
        registers.push(Register::new(id, name.clone(), size, width, signed));
    }
    Ok(State {
        counters,
        meters,
        registers,
        value_sets,
        rng: Xoshiro256PlusPlus::seed_from_u64(0),
        learned: Vec::new(),
        args: Vec::new(),
        scratch: Vec::new(),
        key: Vec::new(),
        masked: Vec::new(),
        trace: None,
    })
}

pub(super) fn unit(meter: &json::MeterArray) -> Result<MeterUnit, LoadError> {
    let at = format!("meter {}", meter.name);
    if meter.rate_count != 2 {
        let what = format!("a meter with {} rates", meter.rate_count);
        return Err(LoadError::unsupported(what, at));
    }
    match meter.unit.as_str() {
        "packets" => Ok(MeterUnit::Packets),
        "bytes" => Ok(MeterUnit::Bytes),
        other => Err(LoadError::unsupported(format!("a meter of {other}"), at)),
    }
}

fn array_id(
    kind: &str,
    name: &str,
    size: u64,
    listed: Option<&HashMap<String, ArrayInfo>>,
) -> Result<u32, LoadError> {
    let Some(listed) = listed else { return Ok(0) };
    match listed.get(name) {
        None => Err(LoadError::p4info(format!(
            "the P4Info has no {kind} {name}"
        ))),
        Some(found) if found.size != size => {
            let what = format!(
                "{kind} {name} has {size} cells, {} in the P4Info",
                found.size
            );
            Err(LoadError::p4info(what))
        }
        Some(found) => Ok(found.id),
    }
}

/// Words of 64 bits that a meter cell takes, with its configuration and two buckets.
const METER_WORDS: u64 = size_of::<MeterCell>().div_ceil(8) as u64;

/// The cells of all arrays together, and their limit.
struct Cells {
    used: u64,
    limit: u64,
}

impl Cells {
    /// Takes an array of `size` cells, each as large as `weight` of the smallest.
    fn take(&mut self, kind: &str, name: &str, size: u64, weight: u64) -> Result<usize, LoadError> {
        let at = format!("{kind} {name}");
        self.used = size.saturating_mul(weight).saturating_add(self.used);
        let (what, found, limit) = ("number of cells, with those before,", self.used, self.limit);
        if found > limit {
            return Err(LoadError::Limit {
                what,
                at,
                found,
                limit,
            });
        }
        Ok(size as usize)
    }
}
