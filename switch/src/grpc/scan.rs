//! Walks over a program's objects in steps, between which packets are forwarded.

/// Largest cost of one step: about 100 µs of the forwarding thread.
pub(super) const STEP: usize = 1024;
/// Cost of a table entry. A cell of an array costs 1.
pub(super) const ENTRY: usize = 4;
/// Number of list elements (replicas of a group, members of a set) that cost 1.
const ELEMENTS: usize = 8;

/// The progress of a walk over objects (tables, arrays …) in order of ids, and over their contents in order of positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scan {
    object: u32,
    place: u64,
    room: usize,
    paused: bool,
    /// True if the walk has found something.
    pub(super) found: bool,
}

impl Scan {
    /// Starts a walk with this much room before its first pause.
    pub(super) fn new(room: usize) -> Scan {
        Scan {
            object: 0,
            place: 0,
            room,
            paused: false,
            found: false,
        }
    }

    /// Continues after a pause.
    pub(super) fn resume(&mut self, room: usize) {
        (self.room, self.paused) = (room, false);
    }

    /// True if the walk has paused before the end.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the room before the next pause.
    pub(super) fn room(&self) -> usize {
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
