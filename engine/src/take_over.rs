//! Moves counters, meters and registers from one program to the next.

use num_bigint::BigInt;

use super::error::ControlError;
use super::{Counter, CounterCell, Engine, Meter, MeterCell, Register, find};

/// An entry that two programs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twin {
    /// The table's P4Info id, the same in both.
    pub table: u32,
    /// The entry's place in the old program (see [`Table::place_of`](super::Table::place_of)).
    pub old: u32,
    /// Its place in the new one.
    pub new: u32,
}

impl Engine {
    /// Takes counters, meters and registers over from a program that no packet runs through any
    /// more, and the direct counters and meters of these entries and of default entries.
    ///
    /// Arrays of one shape change hands as they are, whatever their size; of others, each cell is
    /// copied.
    ///
    /// # Errors
    /// A cell that has been written to has no place here, or its value does not fit: then nothing
    /// has changed.
    pub fn take_over(&mut self, old: &mut Engine, twins: &[Twin]) -> Result<(), ControlError> {
        for (id, at) in &old.counter_ids {
            let written = |cell: &CounterCell| *cell != CounterCell::default();
            let to = self.counter_ids.get(id).map(|at| &self.state.counters[*at]);
            let to = to.map(|to| (to.name(), to.cells.len()));
            check_room(
                ("counter", *id),
                &old.state.counters[*at].cells,
                written,
                to,
            )?;
        }
        for (id, at) in &old.meter_ids {
            let written = |cell: &MeterCell| cell.config().is_some();
            let to = self.meter_ids.get(id).map(|at| &self.state.meters[*at]);
            let to = to.map(|to| (to.name(), to.cells.len()));
            check_room(("meter", *id), &old.state.meters[*at].cells, written, to)?;
        }
        for (id, at) in &old.register_ids {
            let to = self.register_ids.get(id);
            old.state.registers[*at].check_move(*id, to.map(|at| &self.state.registers[*at]))?;
        }
        for (id, at) in &old.counter_ids {
            if let Some(to) = self.counter_ids.get(id) {
                self.state.counters[*to].take_over(&mut old.state.counters[*at]);
            }
        }
        for (id, at) in &old.meter_ids {
            if let Some(to) = self.meter_ids.get(id) {
                self.state.meters[*to].take_over(&mut old.state.meters[*at]);
            }
        }
        for (id, at) in &old.register_ids {
            if let Some(to) = self.register_ids.get(id) {
                self.state.registers[*to].take_over(&mut old.state.registers[*at]);
            }
        }
        for (id, at) in &old.table_ids {
            if let Some(to) = self.table_ids.get(id) {
                self.tables[*to].take_over_default(&old.tables[*at]);
            }
        }
        for twin in twins {
            let from = find("table", &old.table_ids, twin.table)?;
            let to = find("table", &self.table_ids, twin.table)?;
            self.tables[to].take_over(twin.new, &old.tables[from], twin.old);
        }
        Ok(())
    }
}

/// Checks that all cells of an array that have been written to have a place in another, given by its
/// name and size.
fn check_room<T>(
    (kind, id): (&'static str, u32),
    from: &[T],
    written: impl Fn(&T) -> bool,
    to: Option<(&str, usize)>,
) -> Result<(), ControlError> {
    let room = to.map_or(0, |(_, size)| size);
    let beyond = from.get(room..).unwrap_or_default();
    match (beyond.iter().position(written), to) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(ControlError::UnknownId { kind, id }),
        (Some(at), Some((name, size))) => Err(ControlError::Index {
            kind,
            name: name.to_owned(),
            index: (room + at) as u64,
            size,
        }),
    }
}

/// The cells of one array go to another; a part of them if that is shorter.
fn hand_over<T: Clone, C: AsMut<[T]>>(from: &mut C, to: &mut C) {
    if from.as_mut().len() == to.as_mut().len() {
        return std::mem::swap(from, to);
    }
    for (to, from) in to.as_mut().iter_mut().zip(from.as_mut()) {
        to.clone_from(from);
    }
}

impl Counter {
    fn take_over(&mut self, old: &mut Counter) {
        hand_over(&mut old.cells, &mut self.cells);
    }
}

impl Meter {
    /// With another unit, only what a controller has configured moves.
    fn take_over(&mut self, old: &mut Meter) {
        if self.unit == old.unit {
            return hand_over(&mut old.cells, &mut self.cells);
        }
        for (to, from) in self.cells.iter_mut().zip(&old.cells) {
            // It was checked when it was written.
            let _ = to.configure(&self.name, from.config());
        }
    }
}

impl Register {
    fn check_move(&self, id: u32, to: Option<&Register>) -> Result<(), ControlError> {
        if to.is_some_and(|to| self.has_shape_of(to)) {
            return Ok(());
        }
        for index in 0..self.size() as u64 {
            let value = self.value(index)?;
            if value == BigInt::ZERO {
                continue;
            }
            let kind = "register";
            let to = to.ok_or(ControlError::UnknownId { kind, id })?;
            to.value(index)?;
            to.check(&value)?;
        }
        Ok(())
    }

    fn take_over(&mut self, old: &mut Register) {
        if self.has_shape_of(old) {
            return self.swap_cells(old);
        }
        for index in 0..old.size() as u64 {
            // A value that does not fit is zero: `check_move` has checked it.
            if let Ok(value) = old.value(index) {
                self.store_big(index, &value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MeterConfig;
    use super::super::testing::engine;
    use super::*;

    fn ids(engine: &Engine) -> (u32, u32, u32) {
        let counter = engine.counters().next().expect("a counter").id();
        let meter = engine.meters().next().expect("a meter").id();
        let register = engine.registers().next().expect("a register").id();
        (counter, meter, register)
    }

    fn write(engine: &mut Engine, index: u64) {
        let (counter, meter, register) = ids(engine);
        let cell = CounterCell {
            packets: 2,
            bytes: 3,
        };
        let config = Some(MeterConfig {
            cir: 1,
            cburst: 2,
            pir: 3,
            pburst: 4,
        });
        let counter = engine.counter_mut(counter).expect("counter");
        counter.write(index, cell).expect("cell");
        let meter = engine.meter_mut(meter).expect("meter");
        meter.write(index, config).expect("cell");
        let register = engine.register_mut(register).expect("register");
        register.write(index, &[5]).expect("cell");
    }

    fn written(engine: &Engine) -> Vec<[bool; 3]> {
        let (counter, meter, register) = ids(engine);
        let counter = engine.counter(counter).expect("counter");
        let (meter, register) = (engine.meter(meter), engine.register(register));
        let (meter, register) = (meter.expect("meter"), register.expect("register"));
        let cells = 0..counter.cells().len() as u64;
        cells
            .map(|index| {
                [
                    counter.read(index).expect("cell").packets == 2,
                    meter.read(index).expect("cell").config.is_some(),
                    register.read(index).expect("cell") == [5],
                ]
            })
            .collect()
    }

    #[test]
    fn arrays_move_whole_and_by_the_cell() {
        for size in [4, 3, 6] {
            let (mut old, mut new) = (engine(4), engine(size));
            write(&mut old, 2);
            new.take_over(&mut old, &[]).expect("there is room");
            let mut expected = vec![[false; 3]; size as usize];
            expected[2] = [true; 3];
            assert_eq!(written(&new), expected);
        }
    }

    #[test]
    fn a_cell_that_has_no_place_is_refused() {
        let (mut old, mut new) = (engine(4), engine(2));
        write(&mut old, 2);
        let error = new.take_over(&mut old, &[]).expect_err("no room");
        assert!(
            error.to_string().contains("index 2 is outside 0..2"),
            "{error}"
        );
        assert_eq!(written(&new), [[false; 3]; 2]);
    }
}
