//! A program under test, whose tables, actions and other objects are addressed by name.

use ultima_p4runtime::config::v1::{P4Info, Preamble, Table};
use ultima_p4runtime::text;
use ultima_switch::engine::{
    ActionCall, ControlError, Copy, EgressOutcome, Engine, FieldMatch, IngressOutcome, Limits,
    Match, QueueInfo, TableEntry,
};

/// A loaded program and the names that its P4Info gives to ids.
pub struct Testbed {
    /// The engine.
    pub engine: Engine,
    p4info: P4Info,
}

/// A number in the fewest big-endian bytes.
pub fn bytes(value: u128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(15);
    bytes[zeros..].to_vec()
}

/// An exact match.
pub fn exact(value: u128) -> Match {
    Match::Exact(bytes(value))
}

/// A prefix.
pub fn lpm(value: u128, prefix_len: u32) -> Match {
    Match::Lpm {
        value: bytes(value),
        prefix_len,
    }
}

fn id_of(preambles: &[&Option<Preamble>], name: &str) -> u32 {
    let mut preambles = preambles.iter().filter_map(|preamble| preamble.as_ref());
    preambles
        .find(|p| p.name == name)
        .unwrap_or_else(|| panic!("{name} is not in the P4Info"))
        .id
}

impl Testbed {
    /// Loads a program from its JSON and the text of its P4Info.
    pub fn new(json: &[u8], p4info: &str) -> Testbed {
        Testbed::with_limits(json, p4info, Limits::default())
    }

    /// As `new`, with other limits.
    pub fn with_limits(json: &[u8], p4info: &str, limits: Limits) -> Testbed {
        let p4info: P4Info = text::parse(p4info).expect("the P4Info is text format");
        let engine = ultima_switch::p4info::load(json, &p4info, limits).expect("the program loads");
        Testbed { engine, p4info }
    }

    fn listed(&self, name: &str) -> &Table {
        let named = |table: &&Table| table.preamble.as_ref().is_some_and(|p| p.name == name);
        let found = self.p4info.tables.iter().find(named);
        found.unwrap_or_else(|| panic!("{name} is not in the P4Info"))
    }

    /// The id of a table.
    pub fn table(&self, name: &str) -> u32 {
        id_of(&[&self.listed(name).preamble], name)
    }

    /// The id of a counter.
    pub fn counter(&self, name: &str) -> u32 {
        id_of(
            &self
                .p4info
                .counters
                .iter()
                .map(|c| &c.preamble)
                .collect::<Vec<_>>(),
            name,
        )
    }

    /// The id of a meter.
    pub fn meter(&self, name: &str) -> u32 {
        id_of(
            &self
                .p4info
                .meters
                .iter()
                .map(|m| &m.preamble)
                .collect::<Vec<_>>(),
            name,
        )
    }

    /// The id of a register.
    pub fn register(&self, name: &str) -> u32 {
        id_of(
            &self
                .p4info
                .registers
                .iter()
                .map(|r| &r.preamble)
                .collect::<Vec<_>>(),
            name,
        )
    }

    /// The id of an action profile.
    pub fn profile(&self, name: &str) -> u32 {
        let profiles = self.p4info.action_profiles.iter();
        let preambles: Vec<_> = profiles.map(|p| &p.preamble).collect();
        id_of(&preambles, name)
    }

    /// The id of a value set.
    pub fn value_set(&self, name: &str) -> u32 {
        let preambles: Vec<_> = self.p4info.value_sets.iter().map(|s| &s.preamble).collect();
        id_of(&preambles, name)
    }

    /// An action with arguments in the order of its parameters.
    pub fn call(&self, action: &str, args: &[u128]) -> ActionCall {
        let named = |a: &&ultima_p4runtime::config::v1::Action| {
            a.preamble.as_ref().is_some_and(|p| p.name == action)
        };
        let found = self.p4info.actions.iter().find(named);
        let found = found.unwrap_or_else(|| panic!("{action} is not in the P4Info"));
        assert_eq!(found.params.len(), args.len(), "arguments of {action}");
        let params = found
            .params
            .iter()
            .zip(args)
            .map(|(p, arg)| (p.id, bytes(*arg)))
            .collect();
        ActionCall {
            action: id_of(&[&found.preamble], action),
            params,
        }
    }

    /// A key from match fields in the order of the table's.
    pub fn key(&self, table: &str, matches: &[Option<Match>]) -> Vec<FieldMatch> {
        let fields = &self.listed(table).match_fields;
        assert_eq!(fields.len(), matches.len(), "match fields of {table}");
        let given = fields.iter().zip(matches.iter().cloned());
        given
            .filter_map(|(field, matches)| {
                Some(FieldMatch {
                    field: field.id,
                    matches: matches?,
                })
            })
            .collect()
    }

    /// Inserts an entry that sets all match fields.
    pub fn insert(&mut self, table: &str, matches: &[Match], action: &str, args: &[u128]) {
        let matches: Vec<_> = matches.iter().cloned().map(Some).collect();
        self.try_insert(table, &matches, 0, action, args)
            .expect("a valid entry");
    }

    /// Inserts an entry; `None` omits a match field (don't care).
    pub fn try_insert(
        &mut self,
        table: &str,
        matches: &[Option<Match>],
        priority: i32,
        action: &str,
        args: &[u128],
    ) -> Result<(), ControlError> {
        let entry = TableEntry {
            key: self.key(table, matches),
            priority,
            action: Some(self.call(action, args).into()),
            ..TableEntry::default()
        };
        let id = self.table(table);
        self.engine.table_mut(id)?.insert(entry)
    }

    /// Deletes all entries of a table.
    pub fn clear(&mut self, table: &str) {
        let id = self.table(table);
        let mut table = self.engine.table_mut(id).expect("the table exists");
        let entries: Vec<_> = table.entries().map(|entry| entry.entry).collect();
        for entry in entries {
            table.delete(&entry.key, entry.priority).expect("deleted");
        }
    }

    /// Sends a frame through ingress, and its copies and their clones through egress. Returns the frames
    /// that leave, each with its port.
    pub fn send(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.send_at(port, frame, 0)
    }

    /// As `send`, at a time in microseconds.
    pub fn send_at(&mut self, port: u16, frame: &[u8], now_us: u64) -> Vec<(u16, Vec<u8>)> {
        let (_, mut copies) = self.ingress(port, frame, now_us);
        let (mut sent, mut out) = (Vec::new(), Vec::new());
        while !copies.is_empty() {
            let mut clones = Vec::new();
            for copy in copies {
                let to = copy.port;
                let queue = QueueInfo::default();
                let outcome = self
                    .engine
                    .egress(copy, queue, now_us, &mut out, &mut clones);
                if outcome == EgressOutcome::Sent {
                    sent.push((to, out.clone()));
                }
            }
            copies = clones;
        }
        sent
    }

    /// Sends a frame through ingress only.
    pub fn ingress(&mut self, port: u16, frame: &[u8], now_us: u64) -> (IngressOutcome, Vec<Copy>) {
        let mut copies = Vec::new();
        (
            self.engine.ingress(port, frame, now_us, &mut copies),
            copies,
        )
    }
}
