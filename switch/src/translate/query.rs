//! Reads in the engine's types. A read walks over a program's objects in steps, between which packets are forwarded.

use std::sync::Arc;

use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;

use crate::digests::DigestConfig;
use crate::pipeline::Pipeline;
use crate::target::Refusal;
use ultima_engine::{ActionCall, CounterCell, EntryView, FieldMatch, GroupView, MeterConfig};

/// Largest cost of one step: about 100 µs of the forwarding thread.
pub(crate) const STEP: usize = 1024;
/// Cost of a table entry. A cell of an array costs 1.
pub(crate) const ENTRY: usize = 4;
/// Number of list elements (replicas of a group, members of a set) that cost 1.
const ELEMENTS: usize = 8;

/// An object that a read has found.
pub(crate) enum Row {
    Entry(EntryRow),
    DirectCounter(EntryRow),
    DirectMeter(EntryRow),
    /// A cell: the ids of array and cell, and its value.
    Counter(u32, u64, CounterCell),
    Meter(u32, u64, Option<MeterConfig>),
    Register(u32, u64, Vec<u8>),
    /// A member or group: the ids of profile and object, and its content.
    Member(u32, u32, ActionCall),
    Group(u32, u32, GroupView),
    /// A multicast group or clone session, as it was written.
    Replication(Arc<PreType>),
    ValueSet(u32, Vec<Vec<FieldMatch>>),
    Digest(u32, DigestConfig),
}

/// A table entry that a read has found. It has the direct resources that the read wants.
pub(crate) struct EntryRow {
    pub(crate) table: u32,
    pub(crate) is_default: bool,
    pub(crate) view: EntryView,
}

/// A translated read request: appends what it finds until the walk pauses. After an error, what it has appended is invalid.
pub(crate) type Query =
    Box<dyn Fn(&Pipeline, &mut Scan, &mut Vec<Row>) -> Result<(), Refusal> + Send + Sync>;

/// The progress of a walk over objects (tables, arrays …) in order of ids, and over their contents in order of positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan {
    object: u32,
    place: u64,
    room: usize,
    paused: bool,
    /// True if the walk has found something.
    pub(super) found: bool,
}

impl Scan {
    /// Starts a walk with this much room before its first pause.
    pub(crate) fn new(room: usize) -> Scan {
        Scan {
            object: 0,
            place: 0,
            room,
            paused: false,
            found: false,
        }
    }

    pub(crate) fn resume(&mut self, room: usize) {
        (self.room, self.paused) = (room, false);
    }

    /// True if the walk has paused before the end.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the room before the next pause.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// True if the walk is past an object.
    pub(super) fn is_past(&self, object: u32) -> bool {
        object < self.object
    }

    /// Returns the position at which an object's walk begins.
    pub(super) fn first(&self, object: u32) -> u64 {
        match self.object == object {
            true => self.place,
            false => 0,
        }
    }

    /// True if the walk visits this position now; otherwise it pauses before it.
    pub(super) fn admits(&mut self, object: u32, place: u64, cost: usize) -> bool {
        if self.room == 0 {
            (self.object, self.place, self.paused) = (object, place, true);
            return false;
        }
        self.room = self.room.saturating_sub(cost);
        true
    }
}

/// Returns the cost of an object with this many elements.
pub(super) fn cost_of(elements: usize) -> usize {
    1 + elements / ELEMENTS
}
