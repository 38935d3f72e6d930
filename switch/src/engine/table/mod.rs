//! Match-action tables: entries, lookups, direct resources.

mod entry;
mod explain;
mod key;
mod matcher;

pub use entry::{ActionCall, EntryView, FieldMatch, Match, TableEntry};
pub(super) use key::{Key, KeyField, MatchKind, Owner};

use super::bits::{SLACK, Slot};
use super::counter::CounterCell;
use super::error::ControlError;
use super::meter::{Color, MeterCell, MeterConfig, MeterUnit};
use super::phv::Phv;
use super::pipeline::Node;
use super::value::check_bytes;
use matcher::EntryKey;
pub(super) use matcher::Matcher;

/// The next node of a pipeline; `None` is its end.
pub(super) type Next = Option<usize>;

/// An action as a table uses it.
#[derive(Debug, Clone)]
pub(super) struct TableAction {
    /// Its P4Info id.
    pub id: u32,
    /// Its position among the program's actions.
    pub action: usize,
    pub params: Vec<TableParam>,
    /// Bytes of its arguments.
    pub args_bytes: usize,
    pub scope: Scope,
    pub on_hit: Next,
    pub on_miss: Next,
}

/// A parameter of an action.
#[derive(Debug, Clone)]
pub(super) struct TableParam {
    /// Its P4Info id.
    pub id: u32,
    pub name: String,
    /// Where it stands among the arguments.
    pub slot: Slot,
}

/// Where an action may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Everywhere,
    EntriesOnly,
    DefaultOnly,
}

/// What happens on a match, and who asked for it.
#[derive(Debug, Clone)]
struct Entry {
    /// Position among the table's actions.
    action: usize,
    args: Box<[u8]>,
    counter: CounterCell,
    meter: MeterCell,
    key: Option<EntryKey>,
    written: Vec<FieldMatch>,
    controller_metadata: u64,
    metadata: Vec<u8>,
    is_const: bool,
    /// Entries are read in the order in which they were inserted.
    order: u64,
}

impl Entry {
    fn new(action: usize, args: Box<[u8]>) -> Entry {
        Entry {
            action,
            args,
            counter: CounterCell::default(),
            meter: MeterCell::default(),
            key: None,
            written: Vec::new(),
            controller_metadata: 0,
            metadata: Vec::new(),
            is_const: false,
            order: 0,
        }
    }
}

/// The direct meter of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectMeter {
    pub unit: MeterUnit,
    /// The field that takes the colour.
    pub color: Slot,
}

/// What the program says of a table.
#[derive(Debug)]
pub(super) struct Declaration {
    /// Its P4Info id; 0 for a table that the compiler made and P4Info does not have.
    pub id: u32,
    pub name: String,
    pub key: Key,
    pub actions: Vec<TableAction>,
    /// Position of the default action among `actions`, and its arguments.
    pub default: (usize, Vec<Vec<u8>>),
    pub default_is_const: bool,
    pub is_const: bool,
    /// Entries it has room for.
    pub size: usize,
    pub has_counter: bool,
    pub meter: Option<DirectMeter>,
}

/// A match-action table.
#[derive(Debug)]
pub struct Table {
    declared: Declaration,
    matcher: Matcher,
    /// Slots keep their position while their entry lives: the matcher refers to it.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    default: Entry,
    inserted: u64,
}

/// What a packet found.
pub(super) struct Found<'a> {
    pub hit: bool,
    pub action: &'a TableAction,
    pub args: &'a [u8],
    /// What the direct meter says, and where to write it.
    pub color: Option<(Slot, Color)>,
}

impl Table {
    pub(super) fn new(declared: Declaration) -> Result<Table, ControlError> {
        let matcher = declared.key.matcher();
        let (action, args) = (declared.default.0, &declared.default.1);
        let args = declared.actions[action].positional(&declared.name, args)?;
        let default = Entry::new(action, args);
        let (entries, free) = (Vec::new(), Vec::new());
        Ok(Table {
            declared,
            matcher,
            entries,
            free,
            default,
            inserted: 0,
        })
    }

    /// Its P4Info id; 0 for a table that the compiler made and P4Info does not have.
    pub fn id(&self) -> u32 {
        self.declared.id
    }

    /// Its P4Info name.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Number of entries, without the default entry.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether it has no entry but the default.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether entries of this table have a priority.
    pub fn has_priority(&self) -> bool {
        self.declared.key.has_priority()
    }

    /// Looks a packet up, counts and meters it. `key` and `scratch` are working memory.
    #[inline]
    pub(super) fn apply(
        &mut self,
        phv: &Phv,
        length: u32,
        now_us: u64,
        key: &mut Vec<u64>,
        scratch: &mut Vec<u64>,
    ) -> Found<'_> {
        let hit = match &self.matcher {
            Matcher::Keyless => None,
            matcher => {
                self.declared.key.build(phv, key);
                matcher.lookup(key, scratch)
            }
        };
        let entry = match hit {
            Some(at) => self.entries[at as usize]
                .as_mut()
                .expect("the matcher knows live entries"),
            None => &mut self.default,
        };
        if self.declared.has_counter {
            entry.counter.count(length);
        }
        let color = match self.declared.meter {
            Some(meter) if hit.is_some() => {
                Some((meter.color, entry.meter.execute(meter.unit, length, now_us)))
            }
            _ => None,
        };
        let action = &self.declared.actions[entry.action];
        Found {
            hit: hit.is_some(),
            action,
            args: &entry.args,
            color,
        }
    }

    /// What the table comes to if it can do but one thing: p4c makes a table without a key for
    /// every statement of a control block, and P4Info has none of these.
    pub(super) fn only_action(&self) -> Option<Node> {
        let declared = &self.declared;
        let is_fixed = declared.id == 0 && declared.key.fields.is_empty();
        if !is_fixed || declared.has_counter || declared.meter.is_some() {
            return None;
        }
        let action = &declared.actions[self.default.action];
        Some(Node::Action {
            action: action.action,
            args: self.default.args.clone(),
            next: action.on_miss,
        })
    }

    /// The nodes that may follow it.
    pub(super) fn branches(&self) -> Vec<Next> {
        self.declared
            .actions
            .iter()
            .flat_map(|action| [action.on_hit, action.on_miss])
            .collect()
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// The key, priority or action is not one of the table's, the entry exists, the table is full
    /// or constant.
    pub fn insert(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        if self.declared.is_const {
            return Err(self.constant("its list of entries"));
        }
        self.add(entry, false)
    }

    /// Adds an entry of the program's own.
    pub(super) fn insert_initial(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        let is_const = self.declared.is_const;
        self.add(entry, is_const)
    }

    fn add(&mut self, entry: TableEntry, is_const: bool) -> Result<(), ControlError> {
        let table = self.declared.name.clone();
        if self.declared.key.fields.is_empty() {
            return Err(ControlError::Keyless { table });
        }
        let owner = Owner::Table(&table);
        let (key, written) = self
            .declared
            .key
            .encode(owner, &entry.key, entry.priority)?;
        let (action, args) = match &entry.action {
            Some(call) => self.action(call, Scope::DefaultOnly)?,
            None => {
                let what = "an entry needs an action".into();
                return Err(ControlError::Action {
                    table,
                    action: 0,
                    what,
                });
            }
        };
        if self.matcher.find(&key).is_some() {
            return Err(ControlError::EntryExists { table });
        }
        if self.len() >= self.declared.size {
            return Err(ControlError::TableFull {
                table,
                size: self.declared.size,
            });
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.matcher.insert(&key, at);
        self.entries[at as usize] = Some(Entry {
            key: Some(key),
            written,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata,
            is_const,
            order: self.inserted,
            ..Entry::new(action, args)
        });
        self.inserted += 1;
        Ok(())
    }

    /// Replaces action, arguments and metadata of the entry with this key and priority; its
    /// counter and meter stay. Without an action, nothing is replaced.
    ///
    /// # Errors
    /// There is no such entry, it is constant, or the action is not one of the table's.
    pub fn modify(&mut self, entry: TableEntry) -> Result<(), ControlError> {
        let at = self.find(&entry.key, entry.priority)?;
        let Some(call) = &entry.action else {
            return Ok(());
        };
        if self.live(at).is_const {
            return Err(self.constant("the action of this entry"));
        }
        let (action, args) = self.action(call, Scope::DefaultOnly)?;
        let live = self.live_mut(at);
        (live.action, live.args) = (action, args);
        live.controller_metadata = entry.controller_metadata;
        live.metadata = entry.metadata;
        Ok(())
    }

    /// Removes the entry with this key and priority.
    ///
    /// # Errors
    /// There is no such entry, or it is constant.
    pub fn delete(&mut self, key: &[FieldMatch], priority: i32) -> Result<(), ControlError> {
        let at = self.find(key, priority)?;
        if self.live(at).is_const {
            return Err(self.constant("this entry"));
        }
        if let Some(Entry { key: Some(key), .. }) = self.entries[at as usize].take() {
            self.matcher.remove(&key);
        }
        self.free.push(at);
        Ok(())
    }

    /// Removes all entries that are not the program's own and restores the program's default.
    pub fn clear(&mut self) {
        for (at, slot) in self.entries.iter_mut().enumerate() {
            if let Some(Entry {
                key: Some(key),
                is_const: false,
                ..
            }) = slot
            {
                self.matcher.remove(key);
                *slot = None;
                self.free.push(at as u32);
            }
        }
        self.default = self.program_default();
    }

    /// All entries but the default, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = EntryView> + '_ {
        let mut live: Vec<_> = self.entries.iter().flatten().collect();
        live.sort_by_key(|entry| entry.order);
        live.into_iter().map(|entry| self.view(entry))
    }

    /// The entry with this key and priority.
    ///
    /// # Errors
    /// There is no such entry, or the key or priority is not one of the table's.
    pub fn get(&self, key: &[FieldMatch], priority: i32) -> Result<EntryView, ControlError> {
        Ok(self.view(self.live(self.find(key, priority)?)))
    }

    /// The default entry; its key is empty.
    pub fn default_entry(&self) -> EntryView {
        self.view(&self.default)
    }

    /// Sets the default entry; `None`, or an entry without an action, restores the program's.
    /// Key and priority of the entry are not looked at.
    ///
    /// # Errors
    /// The program declares it constant, or the action is not one of the table's.
    pub fn set_default(&mut self, entry: Option<TableEntry>) -> Result<(), ControlError> {
        if self.declared.default_is_const {
            return Err(self.constant("the default action"));
        }
        let Some(TableEntry {
            action: Some(call),
            controller_metadata,
            metadata,
            ..
        }) = entry
        else {
            self.default = self.program_default();
            return Ok(());
        };
        let (action, args) = self.action(&call, Scope::EntriesOnly)?;
        let default = &mut self.default;
        (default.action, default.args) = (action, args);
        (default.controller_metadata, default.metadata) = (controller_metadata, metadata);
        Ok(())
    }

    /// Sets the direct counter of an entry.
    ///
    /// # Errors
    /// The table has no direct counter, or there is no such entry.
    pub fn set_counter(
        &mut self,
        key: &[FieldMatch],
        priority: i32,
        value: CounterCell,
    ) -> Result<(), ControlError> {
        self.check_counter()?;
        let at = self.find(key, priority)?;
        self.live_mut(at).counter = value;
        Ok(())
    }

    /// Sets the direct counter of the default entry, which counts what nothing else matched.
    ///
    /// # Errors
    /// The table has no direct counter.
    pub fn set_default_counter(&mut self, value: CounterCell) -> Result<(), ControlError> {
        self.check_counter()?;
        self.default.counter = value;
        Ok(())
    }

    /// Configures the direct meter of an entry; `None` removes the configuration.
    ///
    /// # Errors
    /// The table has no direct meter, there is no such entry, or the rates contradict each other.
    pub fn set_meter(
        &mut self,
        key: &[FieldMatch],
        priority: i32,
        config: Option<MeterConfig>,
    ) -> Result<(), ControlError> {
        if self.declared.meter.is_none() {
            let table = self.declared.name.clone();
            return Err(ControlError::NoDirect {
                table,
                kind: "meter",
            });
        }
        let at = self.find(key, priority)?;
        let name = self.declared.name.clone();
        self.live_mut(at).meter.configure(&name, config)
    }

    fn check_counter(&self) -> Result<(), ControlError> {
        if self.declared.has_counter {
            return Ok(());
        }
        let table = self.declared.name.clone();
        Err(ControlError::NoDirect {
            table,
            kind: "counter",
        })
    }

    fn find(&self, key: &[FieldMatch], priority: i32) -> Result<u32, ControlError> {
        let (key, _) =
            self.declared
                .key
                .encode(Owner::Table(&self.declared.name), key, priority)?;
        let missing = || ControlError::NoSuchEntry {
            table: self.declared.name.clone(),
        };
        self.matcher.find(&key).ok_or_else(missing)
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
        let (action, args) = &self.declared.default;
        let args = self.declared.actions[*action].positional(&self.declared.name, args);
        Entry::new(
            *action,
            args.expect("it was checked when the program was loaded"),
        )
    }

    /// The position of an action, and its arguments as the action reads them.
    fn action(
        &self,
        call: &ActionCall,
        forbidden: Scope,
    ) -> Result<(usize, Box<[u8]>), ControlError> {
        let (table, action) = (self.declared.name.clone(), call.action);
        let found = self
            .declared
            .actions
            .iter()
            .position(|known| known.id == call.action);
        let Some(at) = found else {
            let what = "it is not an action of this table".into();
            return Err(ControlError::Action {
                table,
                action,
                what,
            });
        };
        let known = &self.declared.actions[at];
        if known.scope == forbidden {
            let what = match forbidden {
                Scope::DefaultOnly => "it can only be the default action",
                _ => "it cannot be the default action",
            };
            return Err(ControlError::ActionScope {
                table,
                action,
                what,
            });
        }
        Ok((at, known.arguments(&table, call)?))
    }

    fn view(&self, entry: &Entry) -> EntryView {
        let action = &self.declared.actions[entry.action];
        let params = action
            .params
            .iter()
            .map(|param| (param.id, param.slot.canonical(&entry.args)));
        let call = ActionCall {
            action: action.id,
            params: params.collect(),
        };
        EntryView {
            entry: TableEntry {
                key: entry.written.clone(),
                priority: entry.key.as_ref().map_or(0, |key| key.priority),
                action: Some(call),
                controller_metadata: entry.controller_metadata,
                metadata: entry.metadata.clone(),
            },
            is_const: entry.is_const,
            counter: self.declared.has_counter.then_some(entry.counter),
            meter: self.declared.meter.map(|_| entry.meter.config()),
        }
    }

    fn constant(&self, what: &'static str) -> ControlError {
        ControlError::Constant {
            table: self.declared.name.clone(),
            what,
        }
    }
}

impl TableAction {
    /// Arguments by parameter id.
    fn arguments(&self, table: &str, call: &ActionCall) -> Result<Box<[u8]>, ControlError> {
        let wrong = |what: String| ControlError::Action {
            table: table.into(),
            action: call.action,
            what,
        };
        for (index, (id, _)) in call.params.iter().enumerate() {
            if !self.params.iter().any(|param| param.id == *id) {
                return Err(wrong(format!("it has no parameter {id}")));
            }
            if call.params[..index].iter().any(|(other, _)| other == id) {
                return Err(wrong(format!("parameter {id} is given twice")));
            }
        }
        let mut values = Vec::new();
        for param in &self.params {
            match call.params.iter().find(|(id, _)| *id == param.id) {
                Some((_, value)) => values.push(value.clone()),
                None => {
                    let what = format!("parameter {} ({}) is missing", param.id, param.name);
                    return Err(wrong(what));
                }
            }
        }
        self.positional(table, &values)
    }

    /// Arguments in the order of the parameters, of which there must be as many.
    fn positional(&self, table: &str, values: &[Vec<u8>]) -> Result<Box<[u8]>, ControlError> {
        let mut args = vec![0; self.args_bytes.max(SLACK)];
        for (param, value) in self.params.iter().zip(values) {
            let what = || format!("table {table}: parameter {} of its action", param.name);
            check_bytes(value, param.slot.width, what)?;
            param.slot.store_bytes(&mut args, value);
        }
        Ok(args.into())
    }
}
