//! Interpreter of v1model programs: packets in, packets out. No I/O, no clock, no threads, no protobuf.
//!
//! [`Engine::load`] translates p4c's BMv2 JSON once into indexed structures. [`Engine::ingress`] processes a frame and returns
//! copies for egress ports. The caller queues them and gives each to [`Engine::egress`] when it leaves its queue. The caller
//! passes the time. Semantics are those of BMv2's simple_switch.
//!
//! The control plane accesses objects by the ids of a [`P4Info`], with values as big-endian bytes: tables ([`TableMut`]), action
//! profiles ([`Profile`]), counters, meters, registers, value sets, multicast groups and clone sessions ([`Pre`]).
//! `ultima-switch` translates P4Runtime's messages to these types.
//!
//! # Example
//!
//! Loads a program, adds an entry, and sends a packet. `forward.p4` is among the crate's tests: a table with the destination
//! address as its key, the actions `send(port)` and `drop`, and a direct counter.
//!
//! ```
//! use std::collections::HashMap;
//! use ultima_engine::*;
//!
//! // p4c-bm2-ss --arch v1model -o forward.json forward.p4
//! let json = std::fs::read("tests/programs/forward.json")?;
//!
//! // The program's objects, with ids of our choice.
//! let [table, send, drop] = [1, 2, 3];
//! let dst = FieldInfo {
//!     id: 1,
//!     name: "hdr.ethernet.dst".into(),
//!     kind: MatchKind::Exact,
//!     width: 48,
//!     is_translated: false,
//! };
//! let forward = TableInfo {
//!     id: table,
//!     fields: vec![dst],
//!     actions: vec![(send, ActionScope::Everywhere), (drop, ActionScope::Everywhere)],
//!     size: 1024,
//!     default_is_const: true,
//!     ..TableInfo::default()
//! };
//! let port = MetadataInfo { id: 1, name: "port".into(), width: 9, is_translated: false };
//! let action = |name: &str, params| ActionInfo { name: name.into(), params };
//! let p4info = P4Info {
//!     tables: HashMap::from([("IngressPipe.forward".into(), forward)]),
//!     actions: HashMap::from([
//!         (send, action("IngressPipe.send", vec![port])),
//!         (drop, action("IngressPipe.drop", vec![])),
//!     ]),
//!     direct: HashMap::from([("IngressPipe.frames".into(), table)]),
//!     ..P4Info::default()
//! };
//! let mut engine = Engine::load(&json, &p4info, Limits::default())?;
//!
//! // Frames to 02:00:00:00:00:07 leave through port 9.
//! let dst = [2, 0, 0, 0, 0, 7];
//! let call = ActionCall { action: send, params: vec![(1, vec![9])] };
//! engine.table_mut(table)?.insert(TableEntry {
//!     key: vec![FieldMatch { field: 1, matches: Match::Exact(dst.to_vec()) }],
//!     action: Some(call.into()),
//!     ..TableEntry::default()
//! })?;
//!
//! // A frame enters at port 1, at time 0.
//! let frame = [&dst[..], &[2, 0, 0, 0, 0, 1, 8, 0], b"payload"].concat();
//! let mut copies = Vec::new();
//! assert_eq!(engine.ingress(1, &frame, 0, &mut copies), IngressOutcome::Forwarded);
//!
//! // One copy, for port 9. It leaves its queue at once.
//! let copy = copies.remove(0);
//! assert_eq!(copy.port, 9);
//! let (mut out, mut clones) = (Vec::new(), Vec::new());
//! let outcome = engine.egress(copy, QueueInfo::default(), 0, &mut out, &mut clones);
//! assert_eq!((outcome, out), (EgressOutcome::Sent, frame));
//!
//! let entry = engine.table(table)?.entries().next().expect("an entry");
//! assert_eq!(entry.counter.expect("a direct counter").packets, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(
    not(all(
        target_arch = "x86_64",
        target_pointer_width = "64",
        target_os = "linux"
    )),
    allow(dead_code, reason = "only machine code uses some items")
)]

mod action;
mod bits;
mod checksum;
mod clone;
mod code;
mod compile;
mod controller_header;
mod counter;
mod deparser;
mod digest;
mod error;
mod expression;
mod family;
mod hash;
mod json;
mod key;
mod layout;
mod limits;
mod live;
mod load;
mod meter;
mod octets;
mod outcome;
mod p4info;
mod parser;
mod pass;
mod phv;
mod pipeline;
mod pre;
mod primitive;
mod profile;
mod register;
mod standard;
mod table;
pub mod trace;
mod value;
mod value_set;
mod word;

pub use controller_header::{ControllerHeader, ControllerHeaders, Metadata};
pub use counter::{Counter, CounterCell};
pub use digest::{Digest, DigestMessage, DigestValue};
pub use error::{ControlError, ErrorKind, LoadError};
pub use hash::{csum16, sum16};
pub use limits::Limits;
pub use meter::{Color, Meter, MeterCell, MeterConfig, MeterUnit};
pub use outcome::{DropCause, EgressOutcome, IngressOutcome};
pub use p4info::{
    ActionInfo, ActionScope, ArrayInfo, DigestInfo, DigestType, FieldInfo, MatchKind, MetadataInfo,
    P4Info, ProfileInfo, TableInfo, ValueSetInfo,
};
pub use pre::{CloneSession, Pre, Replica};
pub use profile::{GroupMember, GroupView, PortState, Profile};
pub use register::Register;
pub use table::{
    ActionCall, EncodedEntry, EntryAction, EntryKey, EntryRef, EntryView, FieldMatch, Match,
    OneShot, Table, TableDeclaration, TableEntry, TableMut, WeightedCall,
};
pub use value_set::ValueSet;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use action::{Action, State, Verdict};
use bits::Slot;
use checksum::{Calculation, Checksum};
use code::Code;
use deparser::Deparser;
use digest::LearnList;
use family::Family;
use layout::Layout;
use parser::Parser;
use phv::Phv;
use standard::Standard;
use trace::{Mark, Symbols};

/// A copy of a packet for an egress port.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Egress port.
    pub port: u16,
    /// Replication id. For a copy that is not a replica: the value that the program wrote, or 0.
    pub rid: u16,
    /// The queue at the port, from 0 to 7: the highest goes first. Reported as `qid`.
    pub priority: u8,
    /// Length in bytes, as the queue counts it: on arrival, plus headers added, minus removed.
    pub len: u32,
    /// Set while its packet is traced.
    pub mark: Option<Mark>,
    packet: Arc<Packet>,
}

/// The state with which all copies of a packet start egress.
#[derive(Debug, Clone, Default)]
struct Packet {
    /// Headers and metadata after ingress.
    content: Vec<u8>,
    verdict: Verdict,
    /// A frame, and how many of its first bytes are headers that `content` has.
    frame: Vec<u8>,
    parsed: usize,
    /// The other descendants of the same received packet.
    family: Family,
}

/// A copy's stay in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueInfo {
    /// The time at which the copy entered the queue, in microseconds since the switch started.
    pub enq_timestamp_us: u64,
    /// Packets in the queue when it entered.
    pub enq_qdepth: u32,
    /// Microseconds it spent in the queue.
    pub deq_timedelta_us: u32,
    /// Packets in the queue when it left.
    pub deq_qdepth: u32,
}

/// The immutable part of a loaded program.
struct Program {
    layout: Layout,
    standard: Standard,
    calculations: Vec<Calculation>,
    checksums: Vec<Checksum>,
    field_lists: Vec<Vec<Slot>>,
    learn_lists: Vec<LearnList>,
    digests: Arc<[Digest]>,
    parser: Parser,
    deparser: Deparser,
    code: Code,
    actions: Vec<Action>,
    symbols: Arc<Symbols>,
    controller_headers: Arc<ControllerHeaders>,
}

/// The declarations of a program's tables, with which other threads encode entries.
#[derive(Debug)]
pub struct Schema {
    tables: Vec<Arc<TableDeclaration>>,
    /// Positions by P4Info id.
    table_ids: BTreeMap<u32, usize>,
}

impl Schema {
    /// Returns a table's declaration by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such table.
    pub fn table(&self, id: u32) -> Result<&TableDeclaration, ControlError> {
        Ok(&self.tables[find("table", &self.table_ids, id)?])
    }
}

/// A loaded program with all its run-time state.
pub struct Engine {
    program: Program,
    tables: Vec<Table>,
    profiles: Vec<Profile>,
    state: State,
    pre: Pre,
    limits: Limits,
    pool: Vec<Phv>,
    packets: Vec<Arc<Packet>>,
    over_limit: u64,
    schema: Arc<Schema>,
    /// Positions by P4Info id.
    profile_ids: BTreeMap<u32, usize>,
    counter_ids: BTreeMap<u32, usize>,
    meter_ids: BTreeMap<u32, usize>,
    register_ids: BTreeMap<u32, usize>,
    value_set_ids: BTreeMap<u32, usize>,
    /// Positions of tables that support idle timeouts.
    aging: Vec<usize>,
}

impl Engine {
    fn assemble(
        program: Program,
        tables: Vec<Table>,
        profiles: Vec<Profile>,
        state: State,
        pre: Pre,
        limits: Limits,
    ) -> Engine {
        Engine {
            program,
            schema: Arc::new(Schema {
                tables: tables.iter().map(Table::declaration).collect(),
                table_ids: ids(tables.iter().map(|table| table.id())),
            }),
            profile_ids: ids(profiles.iter().map(Profile::id)),
            counter_ids: ids(state.counters.iter().map(Counter::id)),
            meter_ids: ids(state.meters.iter().map(Meter::id)),
            register_ids: ids(state.registers.iter().map(Register::id)),
            value_set_ids: ids(state.value_sets.iter().map(ValueSet::id)),
            aging: (0..tables.len())
                .filter(|at| tables[*at].has_idle_timeouts())
                .collect(),
            tables,
            profiles,
            state,
            pre,
            limits,
            pool: Vec::new(),
            packets: Vec::new(),
            over_limit: 0,
        }
    }

    /// Returns the program's controller headers.
    pub fn controller_headers(&self) -> &Arc<ControllerHeaders> {
        &self.program.controller_headers
    }

    /// Returns the digests that the program may send, in the order of their first calls.
    pub fn digests(&self) -> &Arc<[Digest]> {
        &self.program.digests
    }

    /// Takes the digest messages since the last call, except those of digests that P4Info does not have.
    pub fn take_learned(&mut self) -> impl Iterator<Item = DigestMessage> {
        self.state.learned.drain(..)
    }

    /// Sets the time of reads and writes of the control plane, in microseconds since the switch started.
    pub fn set_now(&mut self, now_us: u64) {
        for at in &self.aging {
            self.tables[*at].set_now(now_us);
        }
    }

    /// Starts processing packets: all entries count as hit now.
    pub fn start(&mut self, now_us: u64) {
        for at in &self.aging {
            self.tables[*at].start(now_us);
        }
    }

    /// Returns the next time at which an entry may become idle, in microseconds since the switch started.
    pub fn next_idle_us(&self) -> Option<u64> {
        let aging = self.aging.iter().map(|at| &self.tables[*at]);
        aging.filter_map(Table::next_idle_us).min()
    }

    /// Returns the next entry that is idle at `now_us`, with its table, and restarts its timeout.
    pub fn pop_idle(&mut self, now_us: u64) -> Option<(&Table, EntryView)> {
        let mut aging = self.aging.iter();
        let idle = |at: &usize| Some((*at, self.tables[*at].pop_idle(now_us)?));
        let (at, view) = aging.find_map(idle)?;
        Some((&self.tables[at], view))
    }

    /// Seeds `random`. Engines with equal seeds and packets draw the same numbers.
    pub fn seed(&mut self, seed: u64) {
        self.state.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    }

    /// Returns the number of copies and passes that [`Limits::passes`] and [`Limits::descendants`] prevented.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// Iterates over all tables of the P4Info, in order of ids.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.schema.table_ids.values().map(|at| &self.tables[*at])
    }

    /// Returns the declarations of the tables. Another program has others, also if they are equal.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns a table by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such table.
    pub fn table(&self, id: u32) -> Result<&Table, ControlError> {
        Ok(&self.tables[find("table", &self.schema.table_ids, id)?])
    }

    /// Returns a table by P4Info id for writing.
    ///
    /// # Errors
    /// The P4Info has no such table.
    pub fn table_mut(&mut self, id: u32) -> Result<TableMut<'_>, ControlError> {
        let table = &mut self.tables[find("table", &self.schema.table_ids, id)?];
        Ok(TableMut::new(table, &mut self.profiles))
    }

    /// Sets port states. A selector picks a member with a watch port only while that port is up. Ports are up until set
    /// otherwise.
    pub fn set_ports(&mut self, ports: &[(u16, PortState)]) {
        for profile in &mut self.profiles {
            profile.set_ports(ports);
        }
    }

    /// Returns the packet replication engine for writing.
    pub fn pre_mut(&mut self) -> &mut Pre {
        &mut self.pre
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables: Vec<_> = self.tables().map(|table| table.name()).collect();
        f.debug_struct("Engine")
            .field("tables", &tables)
            .finish_non_exhaustive()
    }
}

/// Id and name of objects of the P4Info.
macro_rules! named {
    ($($type:ty),+) => {
        $(impl $type {
            /// Returns its P4Info id.
            pub fn id(&self) -> u32 {
                self.id
            }

            /// Returns its P4Info name.
            pub fn name(&self) -> &str {
                &self.name
            }
        })+
    };
}

named!(Counter, Digest, Meter, Register, TableDeclaration, ValueSet);

/// Access to the objects of one kind by P4Info id.
macro_rules! objects {
    ($kind:literal: $type:ty, $all:ident, $one:ident, $one_mut:ident, $ids:ident, $($list:ident).+) => {
        impl Engine {
            #[doc = concat!("Returns the ", $kind, " with this P4Info id, or with id 0 all of them in order of ids.\n\n# Errors\nThe program has no such object.")]
            pub fn $all(&self, id: u32) -> Result<Vec<&$type>, ControlError> {
                match id {
                    0 => Ok(self.$ids.values().map(|at| &self.$($list).+[*at]).collect()),
                    id => Ok(vec![self.$one(id)?]),
                }
            }

            #[doc = concat!("Returns the ", $kind, " with this P4Info id.\n\n# Errors\nThe program has no such object.")]
            pub fn $one(&self, id: u32) -> Result<&$type, ControlError> {
                Ok(&self.$($list).+[find($kind, &self.$ids, id)?])
            }

            #[doc = concat!("Returns the ", $kind, " with this P4Info id for writing.\n\n# Errors\nThe program has no such object.")]
            pub fn $one_mut(&mut self, id: u32) -> Result<&mut $type, ControlError> {
                Ok(&mut self.$($list).+[find($kind, &self.$ids, id)?])
            }
        }
    };
}

objects!("action profile": Profile, profiles_of, profile, profile_mut, profile_ids, profiles);
objects!("counter": Counter, counters_of, counter, counter_mut, counter_ids, state.counters);
objects!("meter": Meter, meters_of, meter, meter_mut, meter_ids, state.meters);
objects!("register": Register, registers_of, register, register_mut, register_ids, state.registers);
objects!("value set": ValueSet, value_sets_of, value_set, value_set_mut, value_set_ids, state.value_sets);

/// Returns positions by P4Info id, without objects that P4Info does not have.
fn ids(ids: impl Iterator<Item = u32>) -> BTreeMap<u32, usize> {
    ids.enumerate()
        .filter(|(_, id)| *id != 0)
        .map(|(at, id)| (id, at))
        .collect()
}

fn find(kind: &'static str, ids: &BTreeMap<u32, usize>, id: u32) -> Result<usize, ControlError> {
    ids.get(&id).copied().ok_or_else(|| {
        let text = format!("the program has no {kind} {id:#010x} that the P4Info describes");
        ControlError::new(ErrorKind::NotFound, text)
    })
}
