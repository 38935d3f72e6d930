//! Interpreter of p4c's BMv2 JSON for v1model: no I/O, no clock, no threads.
//!
//! [`Engine::load`] translates a program once into indexed structures. Frames go in with
//! [`Engine::ingress`], which orders copies to egress ports; the caller keeps them in its queues
//! and hands each to [`Engine::egress`] when it leaves. What the control plane reads and writes is
//! reached by P4Info id. Semantics are those of BMv2's simple_switch.

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
mod inspect;
mod json;
mod key;
mod layout;
mod load;
mod meter;
mod parser;
mod pass;
mod phv;
mod pipeline;
mod pre;
mod primitive;
mod profile;
mod register;
mod schema;
mod standard;
mod table;
mod take_over;
pub mod trace;
mod undo;
mod value;
mod value_set;
mod word;

pub use controller_header::{ControllerHeader, ControllerHeaders, Metadata, MetadataError};
pub use counter::{Counter, CounterCell};
pub use digest::{Digest, DigestMessage};
pub use error::{ControlError, ErrorKind, LoadError};
pub use inspect::{Parsed, ParsedHeader};
pub use meter::{Color, ColorCounts, Meter, MeterCell, MeterConfig, MeterUnit, MeterView};
pub use pre::{CloneSession, Pre, Replica};
pub use profile::{GroupMember, GroupView, PortState, Profile, Watch};
pub use register::Register;
pub use table::{
    ActionCall, EntryAction, EntryRef, EntryView, FieldMatch, Match, OneShot, SizeUnit, Table,
    TableEntry, TableMut, WeightedCall,
};
pub use take_over::Twin;
pub use undo::{Touched, UndoLog};
pub use value_set::ValueSet;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use action::{Action, State, Verdict};
use bits::Slot;
use checksum::{Calculation, Checksum};
use code::{Code, REGISTERS, Registers};
use deparser::Deparser;
use digest::LearnList;
use family::Family;
use layout::Layout;
use parser::Parser;
use phv::Phv;
use pipeline::Flow;
use standard::Standard;
use trace::{Mark, Symbols};

/// What a program and its packets may use at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Entries of one table, members of one value set; a program that declares more is refused.
    pub table_entries: usize,
    /// Cells of all counter, meter and register arrays together; a register wider than 64 bits
    /// counts for each 64 of them, and so does a meter's state.
    pub array_cells: usize,
    /// Parser states that one packet may visit.
    pub parser_states: u32,
    /// Jumps that one packet may take in the actions of one pass.
    pub action_jumps: u32,
    /// Times that one packet may be resubmitted, recirculated or cloned from egress: what it is cloned
    /// to goes on counting from there.
    pub passes: u32,
    /// Copies, resubmits and recirculations of one received packet and of all that comes of it, in
    /// all.
    pub descendants: u32,
    /// Multicast groups.
    pub groups: usize,
    /// Clone sessions.
    pub sessions: usize,
    /// Replicas of one group or session.
    pub replicas: usize,
    /// Groups of one action profile, with the sets that entries have to themselves.
    pub profile_groups: usize,
    /// Weights of the members in all groups of one action profile, added up.
    pub profile_weight: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            table_entries: 1 << 20,
            array_cells: 1 << 22,
            parser_states: 256,
            action_jumps: 1 << 16,
            passes: 16,
            descendants: 1 << 12,
            groups: 1 << 12,
            sessions: 1 << 10,
            replicas: 1 << 10,
            profile_groups: 1 << 16,
            profile_weight: 1 << 20,
        }
    }
}

/// A packet ordered to an egress port.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Egress port.
    pub port: u16,
    /// Replication id; what is not a replica has what the program wrote, or 0.
    pub rid: u16,
    /// Reported as `qid`; the port's one queue is first in, first out.
    pub priority: u8,
    /// Length in bytes, as the queue counts it: on arrival, plus headers added, minus removed.
    pub len: u32,
    /// Set while its packet is traced.
    pub mark: Option<Mark>,
    packet: Arc<Packet>,
}

/// What all copies of a packet start egress with.
#[derive(Debug, Clone, Default)]
struct Packet {
    /// Headers and metadata after ingress.
    phv: Phv,
    verdict: Verdict,
    /// What the parser left of the frame.
    payload: Vec<u8>,
    /// Whatever else came of the same received packet.
    family: Family,
}

/// What the queue that a copy leaves knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueInfo {
    /// When the copy entered the queue, microseconds since the switch started.
    pub enq_timestamp_us: u64,
    /// Packets in the queue when it entered.
    pub enq_qdepth: u32,
    /// Microseconds it spent in the queue.
    pub deq_timedelta_us: u32,
    /// Packets in the queue when it left.
    pub deq_qdepth: u32,
}

/// Why the program, or a limit, ended a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCause {
    /// The program dropped it (`mark_to_drop`, or an egress port of 511).
    Program,
    /// Its multicast group has no replicas, or is not there.
    EmptyGroup,
    /// It visited more parser states than [`Limits::parser_states`].
    ParserLimit,
    /// It took more jumps than [`Limits::action_jumps`].
    JumpLimit,
    /// It was resubmitted or recirculated more often than [`Limits::passes`].
    PassLimit,
    /// More would have come of one received packet than [`Limits::descendants`].
    DescendantLimit,
    /// An `assert` or `assume` of the program did not hold (BMv2 would end itself).
    Assertion,
}

/// What became of a frame in ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressOutcome {
    /// At least one copy was ordered for the packet itself.
    Forwarded,
    /// None was; clones may have been.
    Dropped(DropCause),
}

/// What became of a copy in egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressOutcome {
    /// Its bytes are in `out`, for the copy's port.
    Sent,
    /// It went through ingress again; the copies ordered there are among `clones`.
    Recirculated(IngressOutcome),
    /// It is gone; clones may have been ordered.
    Dropped(DropCause),
}

/// What a program is, once loaded: nothing here changes.
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
    flow: Flow,
    code: Code,
    actions: Vec<Action>,
    errors: Vec<(String, u32)>,
    symbols: Arc<Symbols>,
    controller_headers: Arc<ControllerHeaders>,
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
    registers: Box<Registers>,
    packets: Vec<Arc<Packet>>,
    over_limit: u64,
    /// Positions by P4Info id.
    table_ids: BTreeMap<u32, usize>,
    profile_ids: BTreeMap<u32, usize>,
    counter_ids: BTreeMap<u32, usize>,
    meter_ids: BTreeMap<u32, usize>,
    register_ids: BTreeMap<u32, usize>,
    value_set_ids: BTreeMap<u32, usize>,
    /// Positions of tables with idle timeouts.
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
            table_ids: ids(tables.iter().map(Table::id)),
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
            registers: Box::new([0; REGISTERS]),
            packets: Vec::new(),
            over_limit: 0,
        }
    }

    /// What travels with packets between the program and a controller.
    pub fn controller_headers(&self) -> &Arc<ControllerHeaders> {
        &self.program.controller_headers
    }

    /// The digests that the program may send, in the order of their first calls.
    pub fn digests(&self) -> &Arc<[Digest]> {
        &self.program.digests
    }

    /// The digest messages that packets have left behind since this was last called. Those of a
    /// digest that P4Info does not have are not among them.
    pub fn take_learned(&mut self) -> impl Iterator<Item = DigestMessage> {
        self.state.learned.drain(..)
    }

    /// What is written from now on is written at this time, microseconds since the switch started;
    /// what is read is as old as it is then.
    pub fn set_now(&mut self, now_us: u64) {
        for at in &self.aging {
            self.tables[*at].set_now(now_us);
        }
    }

    /// Packets begin to run through the program: all entries count as hit now.
    pub fn start(&mut self, now_us: u64) {
        for at in &self.aging {
            self.tables[*at].start(now_us);
        }
    }

    /// When an entry may next become idle, microseconds since the switch started.
    pub fn next_idle_us(&self) -> Option<u64> {
        let aging = self.aging.iter().map(|at| &self.tables[*at]);
        aging.filter_map(Table::next_idle_us).min()
    }

    /// The next entry that has become idle by `now_us`, with its table. Its timeout starts anew.
    pub fn pop_idle(&mut self, now_us: u64) -> Option<(&Table, EntryView)> {
        let mut found = None;
        for at in &self.aging {
            if let Some(view) = self.tables[*at].pop_idle(now_us) {
                found = Some((*at, view));
                break;
            }
        }
        found.map(|(at, view)| (&self.tables[at], view))
    }

    /// Makes `random` repeat: engines with one seed and the same packets draw the same numbers.
    pub fn seed(&mut self, seed: u64) {
        self.state.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    }

    /// Copies that were not ordered, and passes through ingress that did not begin, because of
    /// [`Limits::passes`] and [`Limits::descendants`].
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// All tables of the P4Info, in order of ids.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.table_ids.values().map(|at| &self.tables[*at])
    }

    /// A table by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such table.
    pub fn table(&self, id: u32) -> Result<&Table, ControlError> {
        Ok(&self.tables[find("table", &self.table_ids, id)?])
    }

    /// A table by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such table.
    pub fn table_mut(&mut self, id: u32) -> Result<TableMut<'_>, ControlError> {
        let table = &mut self.tables[find("table", &self.table_ids, id)?];
        Ok(TableMut::new(table, &mut self.profiles))
    }

    /// Bits of an action's parameter, both by P4Info id, as the action has it; `None` if no table
    /// has the action.
    pub fn param_bits(&self, action: u32, param: u32) -> Option<u32> {
        self.tables()
            .find_map(|table| table.param_bits(action, param))
    }

    /// All action profiles, in order of ids.
    pub fn profiles(&self) -> impl Iterator<Item = &Profile> {
        self.profile_ids.values().map(|at| &self.profiles[*at])
    }

    /// An action profile by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such action profile.
    pub fn profile(&self, id: u32) -> Result<&Profile, ControlError> {
        Ok(&self.profiles[find("action profile", &self.profile_ids, id)?])
    }

    /// An action profile by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such action profile.
    pub fn profile_mut(&mut self, id: u32) -> Result<&mut Profile, ControlError> {
        Ok(&mut self.profiles[find("action profile", &self.profile_ids, id)?])
    }

    /// Says how ports are: members of action profiles that watch one are picked only while it is
    /// up. Ports count as up until this says otherwise.
    pub fn set_ports(&mut self, ports: &[(u16, PortState)]) {
        for profile in &mut self.profiles {
            profile.set_ports(ports);
        }
    }

    /// All indirect counters, in order of ids.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.counter_ids
            .values()
            .map(|at| &self.state.counters[*at])
    }

    /// An indirect counter by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such counter.
    pub fn counter(&self, id: u32) -> Result<&Counter, ControlError> {
        Ok(&self.state.counters[find("counter", &self.counter_ids, id)?])
    }

    /// An indirect counter by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such counter.
    pub fn counter_mut(&mut self, id: u32) -> Result<&mut Counter, ControlError> {
        Ok(&mut self.state.counters[find("counter", &self.counter_ids, id)?])
    }

    /// All indirect meters, in order of ids.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.meter_ids.values().map(|at| &self.state.meters[*at])
    }

    /// An indirect meter by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such meter.
    pub fn meter(&self, id: u32) -> Result<&Meter, ControlError> {
        Ok(&self.state.meters[find("meter", &self.meter_ids, id)?])
    }

    /// An indirect meter by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such meter.
    pub fn meter_mut(&mut self, id: u32) -> Result<&mut Meter, ControlError> {
        Ok(&mut self.state.meters[find("meter", &self.meter_ids, id)?])
    }

    /// All registers, in order of ids.
    pub fn registers(&self) -> impl Iterator<Item = &Register> {
        self.register_ids
            .values()
            .map(|at| &self.state.registers[*at])
    }

    /// A register by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such register.
    pub fn register(&self, id: u32) -> Result<&Register, ControlError> {
        Ok(&self.state.registers[find("register", &self.register_ids, id)?])
    }

    /// A register by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such register.
    pub fn register_mut(&mut self, id: u32) -> Result<&mut Register, ControlError> {
        Ok(&mut self.state.registers[find("register", &self.register_ids, id)?])
    }

    /// All parser value sets, in order of ids.
    pub fn value_sets(&self) -> impl Iterator<Item = &ValueSet> {
        self.value_set_ids
            .values()
            .map(|at| &self.state.value_sets[*at])
    }

    /// A parser value set by P4Info id.
    ///
    /// # Errors
    /// The P4Info has no such value set.
    pub fn value_set(&self, id: u32) -> Result<&ValueSet, ControlError> {
        Ok(&self.state.value_sets[find("value set", &self.value_set_ids, id)?])
    }

    /// A parser value set by P4Info id, to write to.
    ///
    /// # Errors
    /// The P4Info has no such value set.
    pub fn value_set_mut(&mut self, id: u32) -> Result<&mut ValueSet, ControlError> {
        Ok(&mut self.state.value_sets[find("value set", &self.value_set_ids, id)?])
    }

    /// The packet replication engine.
    pub fn pre(&self) -> &Pre {
        &self.pre
    }

    /// The packet replication engine, to write to.
    pub fn pre_mut(&mut self) -> &mut Pre {
        &mut self.pre
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables: Vec<_> = self.tables().map(Table::name).collect();
        f.debug_struct("Engine")
            .field("tables", &tables)
            .finish_non_exhaustive()
    }
}

/// Positions by P4Info id. Objects that P4Info does not have are left out.
fn ids(ids: impl Iterator<Item = u32>) -> BTreeMap<u32, usize> {
    ids.enumerate()
        .filter(|(_, id)| *id != 0)
        .map(|(at, id)| (id, at))
        .collect()
}

fn find(kind: &'static str, ids: &BTreeMap<u32, usize>, id: u32) -> Result<usize, ControlError> {
    ids.get(&id)
        .copied()
        .ok_or(ControlError::UnknownId { kind, id })
}
