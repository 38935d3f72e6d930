//! Taking writes back: what an object was is kept before it is first written to, and put back
//! afterwards.
//!
//! No packet comes in between, so putting things back restores the engine exactly: the tokens in
//! meters, the order of entries, and the handles of action profiles. Each thing is kept once, so what
//! is kept is never more than what there is, whatever a batch repeats; of action profiles, which
//! share handles, members and groups are kept one by one as they are touched.

use rustc_hash::FxHashSet;

use super::Engine;
use super::counter::CounterCell;
use super::meter::MeterCell;
use super::pre::{CloneSession, Replica};
use super::table::{EntryKey, FieldMatch, SavedDefault, SavedEntry};

/// What is about to be written to.
#[derive(Debug, Clone)]
pub enum Touched<'a> {
    /// The entry of a table with this key and priority, whether it is there or not.
    Entry {
        /// The table's P4Info id.
        table: u32,
        /// The match fields.
        key: &'a [FieldMatch],
        /// The priority.
        priority: i32,
    },
    /// The default entry of a table.
    DefaultEntry(u32),
    /// The action profile of a table, if it has one.
    ProfileOf(u32),
    /// An action profile.
    Profile(u32),
    /// A cell of a counter array, or all.
    Counters(u32, Option<usize>),
    /// A cell of a meter array, or all.
    Meters(u32, Option<usize>),
    /// A cell of a register array, or all.
    Registers(u32, Option<usize>),
    /// A value set.
    ValueSet(u32),
    /// A multicast group, whether it is there or not.
    Group(u32),
    /// A clone session, whether it is there or not.
    Session(u32),
}

/// What has been kept, from the first write to the decision whether writes stay.
#[derive(Debug, Default)]
pub struct UndoLog {
    kept: FxHashSet<Thing>,
    states: Vec<State>,
}

/// Something that is kept once, by its position in the engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Thing {
    Entry(usize, EntryKey),
    DefaultEntry(usize),
    Profile(usize),
    Cells(Kind, usize),
    Cell(Kind, usize, usize),
    ValueSet(usize),
    Group(u32),
    Session(u32),
}

/// A kind of array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Counter,
    Meter,
    Register,
}

#[derive(Debug)]
enum State {
    Entry(usize, EntryKey, Box<SavedEntry>),
    DefaultEntry(usize, Box<SavedDefault>),
    Profile(usize),
    Counters(usize, usize, Vec<CounterCell>),
    Meters(usize, usize, Vec<MeterCell>),
    Registers(usize, usize, Vec<u8>),
    ValueSet(usize, Vec<Vec<FieldMatch>>),
    Group(u32, Option<Vec<Replica>>),
    Session(u32, Option<CloneSession>),
}

impl UndoLog {
    /// The cells of an array that are to be kept; `None` if they are, or there are none.
    fn cells(
        &mut self,
        kind: Kind,
        at: usize,
        cell: Option<usize>,
        size: usize,
    ) -> Option<std::ops::Range<usize>> {
        let all = Thing::Cells(kind, at);
        match cell {
            _ if self.kept.contains(&all) => None,
            None => {
                self.kept.insert(all);
                Some(0..size)
            }
            Some(cell) => {
                let new = cell < size && self.kept.insert(Thing::Cell(kind, at, cell));
                new.then_some(cell..cell + 1)
            }
        }
    }
}

impl Engine {
    /// Keeps what something is now, unless the log has it. Of what is not there, and cannot be
    /// written to, nothing is kept.
    pub fn keep(&mut self, log: &mut UndoLog, touched: &Touched) {
        if let Some(state) = self.state_of(log, touched) {
            log.states.push(state);
        }
    }

    fn state_of(&mut self, log: &mut UndoLog, touched: &Touched) -> Option<State> {
        match touched {
            Touched::Entry {
                table,
                key,
                priority,
            } => {
                let at = *self.table_ids.get(table)?;
                let key = self.tables[at].key_of(key, *priority).ok()?;
                if !log.kept.insert(Thing::Entry(at, key.clone())) {
                    return None;
                }
                let saved = self.tables[at].save(&key);
                Some(State::Entry(at, key, Box::new(saved)))
            }
            Touched::DefaultEntry(table) => {
                let at = *self.table_ids.get(table)?;
                let new = log.kept.insert(Thing::DefaultEntry(at));
                new.then(|| State::DefaultEntry(at, Box::new(self.tables[at].save_default())))
            }
            Touched::ProfileOf(table) => {
                let at = *self.table_ids.get(table)?;
                self.begin(log, self.tables[at].profile()?)
            }
            Touched::Profile(id) => self.begin(log, *self.profile_ids.get(id)?),
            Touched::Counters(id, cell) => {
                let at = *self.counter_ids.get(id)?;
                let all = &self.state.counters[at].cells;
                let cells = log.cells(Kind::Counter, at, *cell, all.len())?;
                Some(State::Counters(at, cells.start, all[cells].to_vec()))
            }
            Touched::Meters(id, cell) => {
                let at = *self.meter_ids.get(id)?;
                let all = &self.state.meters[at].cells;
                let cells = log.cells(Kind::Meter, at, *cell, all.len())?;
                Some(State::Meters(at, cells.start, all[cells].to_vec()))
            }
            Touched::Registers(id, cell) => {
                let at = *self.register_ids.get(id)?;
                let register = &self.state.registers[at];
                let cells = log.cells(Kind::Register, at, *cell, register.size())?;
                Some(State::Registers(at, cells.start, register.save(cells)))
            }
            Touched::ValueSet(id) => {
                let at = *self.value_set_ids.get(id)?;
                let new = log.kept.insert(Thing::ValueSet(at));
                new.then(|| State::ValueSet(at, self.state.value_sets[at].members().to_vec()))
            }
            Touched::Group(id) => {
                let new = log.kept.insert(Thing::Group(*id));
                new.then(|| State::Group(*id, self.pre.group(*id).map(<[_]>::to_vec)))
            }
            Touched::Session(id) => {
                let new = log.kept.insert(Thing::Session(*id));
                new.then(|| State::Session(*id, self.pre.session(*id).cloned()))
            }
        }
    }

    fn begin(&mut self, log: &mut UndoLog, profile: usize) -> Option<State> {
        let new = log.kept.insert(Thing::Profile(profile));
        new.then(|| {
            self.profiles[profile].begin();
            State::Profile(profile)
        })
    }

    /// What was written stays.
    pub fn accept(&mut self, log: UndoLog) {
        for state in log.states {
            if let State::Profile(at) = state {
                self.profiles[at].accept();
            }
        }
    }

    /// Puts everything back.
    pub fn undo(&mut self, log: UndoLog) {
        // A cell may have been kept before all its array was.
        for state in log.states.into_iter().rev() {
            self.put_back(state);
        }
    }

    fn put_back(&mut self, state: State) {
        match state {
            State::Entry(at, key, saved) => self.tables[at].restore(&key, *saved),
            State::DefaultEntry(at, saved) => self.tables[at].restore_default(*saved),
            State::Profile(at) => self.profiles[at].undo(),
            State::Counters(at, from, cells) => {
                self.state.counters[at].cells[from..][..cells.len()].copy_from_slice(&cells);
            }
            State::Meters(at, from, cells) => {
                self.state.meters[at].cells[from..][..cells.len()].clone_from_slice(&cells);
            }
            State::Registers(at, from, cells) => self.state.registers[at].restore(from, &cells),
            State::ValueSet(at, members) => {
                // It had these members before, so it takes them.
                let _ = self.state.value_sets[at].set(&members);
            }
            State::Group(id, replicas) => self.pre.put_group(id, replicas),
            State::Session(id, session) => self.pre.put_session(id, session),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn repeated_writes_of_a_batch_are_saved_once() {
        let mut engine = testing::engine(16);
        let counter = engine.counters().next().expect("a counter");
        let (counter, size) = (counter.id(), counter.cells().len());
        let meter = engine.meters().next().expect("a meter").id();
        let mut log = UndoLog::default();
        for round in 0..1000 {
            for cell in [Some(round % 3), None, Some(0), Some(size)] {
                engine.keep(&mut log, &Touched::Counters(counter, cell));
                engine.keep(&mut log, &Touched::Meters(meter, cell));
            }
            engine.keep(&mut log, &Touched::Group(7));
            engine.keep(&mut log, &Touched::Group(round as u32 % 2));
        }
        let kept = |state: &State| match state {
            State::Counters(_, _, cells) => cells.len(),
            _ => 0,
        };
        assert_eq!(log.states.iter().map(kept).sum::<usize>(), size + 1);
        assert!(log.states.len() < 20, "{}", log.states.len());
    }
}
