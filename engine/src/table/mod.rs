//! Match-action tables: entries, lookups, direct resources.

mod direct;
mod encode;
pub(super) mod entry;
mod entry_key;
mod explain;
mod idle;
pub(super) mod key;
pub(super) mod matcher;
pub(super) mod signature;
mod ternary;
mod words;
mod write;

pub use direct::EntryRef;
pub use encode::EncodedEntry;
pub use entry::{
    ActionCall, EntryAction, EntryView, FieldMatch, Match, OneShot, TableEntry, WeightedCall,
};
pub(super) use key::{Key, KeyField, Owner, Part};
pub(super) use signature::{Signature, TableParam};
use words::SHORT;
pub use write::TableMut;

use std::ops::Deref;
use std::sync::Arc;

use super::action::Machine;
use super::bits::Slot;
use super::checksum::Calculation;
use super::counter::CounterCell;
use super::error::{ControlError, ErrorKind};
use super::meter::{Color, MeterCell, MeterUnit};
use super::profile::{Choice, Profile};
pub use entry_key::EntryKey;
use idle::{Age, Alarms};
pub(super) use matcher::Matcher;

/// The next node of a pipeline; `None` is its end.
pub(super) type Next = Option<usize>;

#[derive(Debug, Clone)]
pub(super) struct TableAction {
    pub signature: Signature,
    /// Its position among the program's actions.
    pub action: usize,
    pub on_hit: Next,
    pub on_miss: Next,
}

#[derive(Debug, Clone)]
enum Target {
    /// An action in the entry itself.
    Own {
        /// Position among the table's actions.
        action: usize,
        args: Box<[u8]>,
    },
    /// A member or group of the table's action profile.
    Shared { choice: Choice, asked: EntryAction },
    /// Nothing, on a miss in a table with an action profile.
    Nothing,
}

/// The action of a match, with its arguments and metadata.
#[derive(Debug, Clone)]
struct Entry {
    target: Target,
    counter: CounterCell,
    meter: MeterCell,
    key: Option<EntryKey>,
    written: Vec<FieldMatch>,
    controller_metadata: u64,
    metadata: Vec<u8>,
    is_const: bool,
    /// Only used in tables with idle timeouts.
    age: Age,
}

impl Entry {
    fn new(target: Target) -> Entry {
        Entry {
            target,
            counter: CounterCell::default(),
            meter: MeterCell::default(),
            key: None,
            written: Vec::new(),
            controller_metadata: 0,
            metadata: Vec::new(),
            is_const: false,
            age: Age::default(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct DirectMeter {
    pub unit: MeterUnit,
    /// The field that takes the colour.
    pub color: Slot,
}

/// A table's declaration in the program. It never changes, so other threads can encode entries with it.
#[derive(Debug)]
pub struct TableDeclaration {
    /// The table's P4Info id; 0 for a table that the compiler added.
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) key: Key,
    pub(crate) actions: Vec<TableAction>,
    /// The action profile, if entries refer to one.
    pub(crate) indirect: Option<Indirect>,
    /// Position of the default action among `actions`, and its arguments; `None` with `indirect`.
    pub(crate) default: Option<(usize, Vec<Vec<u8>>)>,
    pub(crate) default_is_const: bool,
    pub(crate) is_const: bool,
    pub(crate) size: usize,
    pub(crate) has_counter: bool,
    pub(crate) meter: Option<DirectMeter>,
    /// True if entries may have an idle timeout.
    pub(crate) idle_timeouts: bool,
}

#[derive(Debug)]
pub(super) struct Indirect {
    /// Its position.
    pub profile: usize,
    /// Positions of its actions among the table's.
    pub actions: Vec<usize>,
    /// The next node after a hit without a live member.
    pub on_hit: Next,
    /// The next node after a miss, on which BMv2 executes no action.
    pub on_miss: Next,
}

/// A match-action table.
#[derive(Debug)]
pub struct Table {
    declared: Arc<TableDeclaration>,
    matcher: Matcher,
    /// Entries by position. The matcher refers to positions, so an entry keeps its own.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    default: Entry,
    alarms: Alarms,
}

pub(super) struct Found<'a> {
    /// `None` in a table with an action profile on a miss, and for a group without a live member.
    pub action: Option<&'a TableAction>,
    pub args: &'a [u8],
    /// The next node.
    pub next: Next,
    /// The direct meter's colour, which is in its field.
    pub color: Option<Color>,
}

impl Table {
    pub(super) fn new(declared: TableDeclaration) -> Result<Table, ControlError> {
        let matcher = declared.key.matcher();
        let default = declared.default_entry()?;
        let (entries, free) = (Vec::new(), Vec::new());
        Ok(Table {
            declared: Arc::new(declared),
            matcher,
            entries,
            free,
            default,
            alarms: Alarms::default(),
        })
    }

    /// Returns the table's declaration, to share it with other threads.
    pub(super) fn declaration(&self) -> Arc<TableDeclaration> {
        self.declared.clone()
    }

    /// Returns the number of entries, without the default entry.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if the table has no entry but the default.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks up a packet, and updates direct counters, meters and their field.
    #[inline(always)]
    pub(super) fn apply<'a>(
        &'a mut self,
        profiles: &'a [Profile],
        machine: &mut Machine,
    ) -> Found<'a> {
        let (key, state) = (&self.declared.key, &mut *machine.state);
        let word = |at: usize| machine.phv.word((at * size_of::<u64>()) as u16);
        let hit = match &self.matcher {
            Matcher::Exact(exact) if key.is_short() => exact.get_short(word).copied(),
            matcher if key.is_short() => {
                let words: [u64; SHORT] = std::array::from_fn(word);
                matcher.lookup(&words[..key.parts.len()], &mut state.masked)
            }
            matcher => {
                key.build(machine.phv, &mut state.key);
                matcher.lookup(&state.key, &mut state.masked)
            }
        };
        let length = machine.verdict.ingress_length;
        let entry = match hit {
            Some(at) => self.entries[at as usize]
                .as_mut()
                .expect("the matcher knows live entries"),
            None => &mut self.default,
        };
        if self.declared.has_counter {
            entry.counter.count(length);
        }
        if self.declared.idle_timeouts {
            entry.age.last_hit_us = machine.now_us;
        }
        let color = match self.declared.meter {
            Some(meter) if hit.is_some() || entry.meter.config().is_some() => {
                let color = entry.meter.execute(meter.unit, length, machine.now_us);
                meter.color.store_word(&mut machine.phv.bytes, color as u64);
                Some(color)
            }
            _ => None,
        };
        let hit = hit.is_some();
        let (action, args) = match &entry.target {
            Target::Own { action, args } => (Some(*action), &args[..]),
            target => self.declared.shared(target, profiles, machine),
        };
        let action = action.map(|action| &self.declared.actions[action]);
        let next = match (action, &self.declared.indirect) {
            (Some(action), _) if hit => action.on_hit,
            (Some(action), _) => action.on_miss,
            (None, Some(indirect)) if hit => indirect.on_hit,
            (None, indirect) => indirect.as_ref().and_then(|indirect| indirect.on_miss),
        };
        Found {
            action,
            args,
            next,
            color,
        }
    }

    /// Returns the sources of the key's words, if code computes them before a lookup.
    pub(super) fn key_parts(&self) -> &[Part] {
        let key = &self.declared.key;
        if key.is_short() { &key.parts } else { &[] }
    }

    /// Returns the table's only action with its arguments and the next node, if it has one: p4c adds a table without a key, which
    /// P4Info does not have, for each statement of a control block.
    pub(super) fn only_action(&self) -> Option<(usize, Box<[u8]>, Next)> {
        let declared = &self.declared;
        let is_fixed = declared.id == 0 && declared.key.fields.is_empty();
        if !is_fixed || declared.has_counter || declared.meter.is_some() {
            return None;
        }
        let Target::Own { action, args } = &self.default.target else {
            return None;
        };
        let action = &declared.actions[*action];
        Some((action.action, args.clone(), action.on_miss))
    }

    /// Returns the nodes that may follow the table.
    pub(super) fn branches(&self) -> Vec<Next> {
        let actions = self.declared.actions.iter();
        let indirect = self.declared.indirect.iter();
        actions
            .flat_map(|action| [action.on_hit, action.on_miss])
            .chain(indirect.flat_map(|indirect| [indirect.on_hit, indirect.on_miss]))
            .collect()
    }

    /// Iterates over entries without the default entry.
    pub fn entries(&self) -> impl Iterator<Item = EntryView> + '_ {
        self.entries_from(0).map(|(_, entry)| entry)
    }

    /// Iterates over entries and their positions, starting at `place`, without the default entry. Supports reads in several steps,
    /// between which entries may change.
    pub fn entries_from(&self, place: usize) -> impl Iterator<Item = (usize, EntryView)> + '_ {
        let places = self.entries.iter().enumerate().skip(place);
        places.filter_map(|(at, entry)| Some((at, self.view(entry.as_ref()?))))
    }

    /// Returns the entry with this key and priority.
    ///
    /// # Errors
    /// There is no such entry, or the key or priority is invalid for the table.
    pub fn get(&self, key: &[FieldMatch], priority: i32) -> Result<EntryView, ControlError> {
        let key = self.encode_key(key, priority)?;
        Ok(self.view(self.live(self.find(&key)?)))
    }

    /// Checks that there is an entry with this key.
    ///
    /// # Errors
    /// There is none.
    pub fn check(&self, key: &EntryKey) -> Result<(), ControlError> {
        self.find(key).map(drop)
    }

    /// Returns the default entry, with an empty key.
    pub fn default_entry(&self) -> EntryView {
        self.view(&self.default)
    }

    fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        })
    }

    fn find(&self, key: &EntryKey) -> Result<u32, ControlError> {
        self.matcher.find(key).ok_or_else(|| {
            let text = format!("table {} has no such entry", self.declared.name);
            ControlError::new(ErrorKind::NotFound, text)
        })
    }

    fn live(&self, at: u32) -> &Entry {
        self.entries[at as usize]
            .as_ref()
            .expect("the matcher knows live entries")
    }

    fn live_mut(&mut self, at: u32) -> &mut Entry {
        self.entries[at as usize]
            .as_mut()
            .expect("the matcher knows live entries")
    }

    fn program_default(&self) -> Entry {
        let default = self.declared.default_entry();
        default.expect("it was checked when the program was loaded")
    }

    fn view(&self, entry: &Entry) -> EntryView {
        let action = match &entry.target {
            Target::Own { action, args } => {
                let signature = &self.declared.actions[*action].signature;
                Some(signature.call(args).into())
            }
            Target::Shared { asked, .. } => Some(asked.clone()),
            Target::Nothing => None,
        };
        EntryView {
            entry: TableEntry {
                key: entry.written.clone(),
                priority: entry.key.as_ref().map_or(0, |key| key.priority),
                action,
                controller_metadata: entry.controller_metadata,
                metadata: entry.metadata.clone(),
                idle_timeout_ns: entry.age.timeout_ns,
            },
            idle_us: self
                .declared
                .idle_timeouts
                .then(|| self.alarms.now_us.saturating_sub(entry.age.last_hit_us)),
            is_const: entry.is_const,
            counter: self.declared.has_counter.then_some(entry.counter),
            meter: self.declared.meter.map(|_| entry.meter.config()),
        }
    }

    fn constant(&self, what: &'static str) -> ControlError {
        let text = format!(
            "table {}: {what} is constant in the program",
            self.declared.name
        );
        ControlError::new(ErrorKind::PermissionDenied, text)
    }
}

impl Deref for Table {
    type Target = TableDeclaration;

    fn deref(&self) -> &TableDeclaration {
        &self.declared
    }
}

impl TableDeclaration {
    fn default_entry(&self) -> Result<Entry, ControlError> {
        let target = match &self.default {
            Some((action, args)) => {
                let signature = &self.actions[*action].signature;
                let args = signature.positional(Owner("table", &self.name), args)?;
                let action = *action;
                Target::Own { action, args }
            }
            None => Target::Nothing,
        };
        Ok(Entry::new(target))
    }

    /// Returns the action of an entry's member or group, as a position among the table's actions.
    fn shared<'a>(
        &self,
        target: &Target,
        profiles: &'a [Profile],
        machine: &mut Machine,
    ) -> (Option<usize>, &'a [u8]) {
        let (Target::Shared { choice, .. }, Some(indirect)) = (target, &self.indirect) else {
            return (None, &[]);
        };
        let scratch = &mut machine.state.scratch;
        let hash = |hash: &Calculation| {
            hash.compute(machine.phv, machine.layout, machine.payload, scratch)
        };
        match profiles[indirect.profile].choose(*choice, hash) {
            Some((action, args)) => (Some(indirect.actions[action]), args),
            None => (None, &[]),
        }
    }
}
