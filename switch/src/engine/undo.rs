//! Taking writes back: what an object was is kept before it is written to, and put back afterwards.
//!
//! No packet comes in between, so putting things back in the opposite order restores the engine
//! exactly: the tokens in meters, the order of entries, and the handles of action profiles.

use std::ops::Range;

use super::counter::CounterCell;
use super::error::ControlError;
use super::meter::MeterCell;
use super::pre::{CloneSession, Replica};
use super::profile::ProfileState;
use super::table::{FieldMatch, SavedEntry};
use super::{Engine, find};

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
    /// An action profile, all of it.
    Profile(u32),
    /// Cells of a counter array.
    Counters(u32, Range<usize>),
    /// Cells of a meter array.
    Meters(u32, Range<usize>),
    /// Cells of a register array.
    Registers(u32, Range<usize>),
    /// A value set.
    ValueSet(u32),
    /// A multicast group, whether it is there or not.
    Group(u32),
    /// A clone session, whether it is there or not.
    Session(u32),
}

/// What something was before it was written to.
#[derive(Debug)]
pub struct Before(State);

#[derive(Debug)]
enum State {
    Nothing,
    Entry(usize, Box<SavedEntry>),
    DefaultEntry(usize, Box<SavedEntry>),
    Profile(usize, Box<ProfileState>),
    Counters(usize, usize, Vec<CounterCell>),
    Meters(usize, usize, Vec<MeterCell>),
    Registers(usize, usize, Vec<u8>),
    ValueSet(usize, Vec<Vec<FieldMatch>>),
    Group(u32, Option<Vec<Replica>>),
    Session(u32, Option<CloneSession>),
}

impl Engine {
    /// Keeps what something is now.
    ///
    /// # Errors
    /// There is no such thing, so nothing can be written to it.
    pub fn before(&self, touched: &Touched) -> Result<Before, ControlError> {
        Ok(Before(self.state_of(touched)?))
    }

    fn state_of(&self, touched: &Touched) -> Result<State, ControlError> {
        Ok(match touched {
            Touched::Entry {
                table,
                key,
                priority,
            } => {
                let at = find("table", &self.table_ids, *table)?;
                let saved = self.tables[at].save(key, *priority)?;
                State::Entry(at, Box::new(saved))
            }
            Touched::DefaultEntry(table) => {
                let at = find("table", &self.table_ids, *table)?;
                State::DefaultEntry(at, Box::new(self.tables[at].save_default()))
            }
            Touched::ProfileOf(table) => {
                let at = find("table", &self.table_ids, *table)?;
                match self.tables[at].profile() {
                    Some(at) => State::Profile(at, Box::new(self.profiles[at].save())),
                    None => State::Nothing,
                }
            }
            Touched::Profile(id) => {
                let at = find("action profile", &self.profile_ids, *id)?;
                State::Profile(at, Box::new(self.profiles[at].save()))
            }
            Touched::Counters(id, range) => {
                let at = find("counter", &self.counter_ids, *id)?;
                let cells = self.state.counters[at].cells.get(range.clone());
                State::Counters(at, range.start, cells.unwrap_or_default().to_vec())
            }
            Touched::Meters(id, range) => {
                let at = find("meter", &self.meter_ids, *id)?;
                let cells = self.state.meters[at].cells.get(range.clone());
                State::Meters(at, range.start, cells.unwrap_or_default().to_vec())
            }
            Touched::Registers(id, range) => {
                let at = find("register", &self.register_ids, *id)?;
                let cells = self.state.registers[at].save(range.clone());
                State::Registers(at, range.start, cells)
            }
            Touched::ValueSet(id) => {
                let at = find("value set", &self.value_set_ids, *id)?;
                State::ValueSet(at, self.state.value_sets[at].members().to_vec())
            }
            Touched::Group(id) => State::Group(*id, self.pre.group(*id).map(<[_]>::to_vec)),
            Touched::Session(id) => State::Session(*id, self.pre.session(*id).cloned()),
        })
    }

    /// Puts back what was before. What was kept later must have been put back before.
    pub fn put_back(&mut self, before: Before) {
        match before.0 {
            State::Nothing => {}
            State::Entry(at, saved) => self.tables[at].restore(*saved),
            State::DefaultEntry(at, saved) => self.tables[at].restore_default(*saved),
            State::Profile(at, saved) => self.profiles[at].restore(*saved),
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
