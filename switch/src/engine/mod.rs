//! Interpreter of p4c's BMv2 JSON for v1model: no I/O, no clock, no threads.
//!
//! [`Engine::load`] translates a program once into indexed structures. Frames go in with
//! [`Engine::ingress`], which orders copies to egress ports; the caller keeps them in its queues
//! and hands each to [`Engine::egress`] when it leaves. What the control plane reads and writes is
//! reached by P4Info id. Semantics are those of BMv2's simple_switch.

mod bits;
mod counter;
mod error;
mod meter;
mod pre;
mod register;
mod table;
mod value;

pub use counter::{Counter, CounterCell};
pub use error::{ControlError, ErrorKind, LoadError};
pub use meter::{Color, Meter, MeterCell, MeterConfig, MeterUnit};
pub use pre::{CloneSession, Pre, Replica};
pub use register::Register;
pub use table::{ActionCall, EntryView, FieldMatch, Match, Table, TableEntry};

use ultima_p4runtime::config::v1::P4Info;

/// What a program and its packets may use at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Entries of one table; a program that declares more is refused.
    pub table_entries: usize,
    /// Cells of one counter, meter or register array.
    pub array_cells: usize,
    /// Parser states that one packet may visit.
    pub parser_states: u32,
    /// Jumps that one packet may take in the actions of one pass.
    pub action_jumps: u32,
    /// Times that one packet may be resubmitted, recirculated or cloned from egress, in all.
    pub passes: u32,
    /// Multicast groups.
    pub groups: usize,
    /// Clone sessions.
    pub sessions: usize,
    /// Replicas of one group or session.
    pub replicas: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            table_entries: 1 << 20,
            array_cells: 1 << 22,
            parser_states: 256,
            action_jumps: 1 << 16,
            passes: 16,
            groups: 1 << 12,
            sessions: 1 << 10,
            replicas: 1 << 10,
        }
    }
}

/// A packet ordered to an egress port: its headers and metadata after ingress, and its payload.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Egress port.
    pub port: u16,
    /// Replication id; 0 for what is not a replica.
    pub rid: u16,
    /// Priority in the port's queue; 0 is served last.
    pub priority: u8,
    /// Length in bytes, as the queue counts it: on arrival, plus headers added, minus removed.
    pub len: u32,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// A loaded program with all its run-time state.
pub struct Engine {
    pre: Pre,
}

impl Engine {
    /// Loads a program: `json` is p4c's BMv2 JSON, `p4info` its P4Info.
    ///
    /// # Errors
    /// Anything the format has and this interpreter does not implement is refused by name, and so
    /// is a program whose objects are not those of the P4Info.
    pub fn load(_json: &[u8], _p4info: &P4Info, _limits: Limits) -> Result<Engine, LoadError> {
        unimplemented!()
    }

    /// A frame enters at `port`, `now_us` microseconds after the switch started. Copies ordered
    /// are appended to `copies`.
    pub fn ingress(
        &mut self,
        _port: u16,
        _frame: &[u8],
        _now_us: u64,
        _copies: &mut Vec<Copy>,
    ) -> IngressOutcome {
        unimplemented!()
    }

    /// A copy leaves the queue of its port: egress pipeline, deparser. `out` is cleared first;
    /// copies ordered by clones and recirculation are appended to `clones`.
    pub fn egress(
        &mut self,
        _copy: Copy,
        _queue: QueueInfo,
        _now_us: u64,
        _out: &mut Vec<u8>,
        _clones: &mut Vec<Copy>,
    ) -> EgressOutcome {
        unimplemented!()
    }

    /// All tables of the P4Info, in order of ids.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        std::iter::empty()
    }

    /// A table by P4Info id.
    pub fn table(&self, _id: u32) -> Result<&Table, ControlError> {
        unimplemented!()
    }

    /// A table by P4Info id, to write to.
    pub fn table_mut(&mut self, _id: u32) -> Result<&mut Table, ControlError> {
        unimplemented!()
    }

    /// All indirect counters, in order of ids.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        std::iter::empty()
    }

    /// An indirect counter by P4Info id.
    pub fn counter(&self, _id: u32) -> Result<&Counter, ControlError> {
        unimplemented!()
    }

    /// An indirect counter by P4Info id, to write to.
    pub fn counter_mut(&mut self, _id: u32) -> Result<&mut Counter, ControlError> {
        unimplemented!()
    }

    /// All indirect meters, in order of ids.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        std::iter::empty()
    }

    /// An indirect meter by P4Info id.
    pub fn meter(&self, _id: u32) -> Result<&Meter, ControlError> {
        unimplemented!()
    }

    /// An indirect meter by P4Info id, to write to.
    pub fn meter_mut(&mut self, _id: u32) -> Result<&mut Meter, ControlError> {
        unimplemented!()
    }

    /// All registers, in order of ids.
    pub fn registers(&self) -> impl Iterator<Item = &Register> {
        std::iter::empty()
    }

    /// A register by P4Info id.
    pub fn register(&self, _id: u32) -> Result<&Register, ControlError> {
        unimplemented!()
    }

    /// A register by P4Info id, to write to.
    pub fn register_mut(&mut self, _id: u32) -> Result<&mut Register, ControlError> {
        unimplemented!()
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
