//! Walks through what a program has, in steps between which packets have their turn.

/// Cost of all that is looked at in one step: some 100 µs of the forwarding thread.
pub(super) const STEP: usize = 1024;
/// Cost of an entry of a table, where a cell of an array costs 1.
pub(super) const ENTRY: usize = 4;
/// Elements of a list (replicas of a group, members of a set) that cost 1.
const ELEMENTS: usize = 8;

/// How far a walk has come. Objects (tables, arrays …) are walked in order of their ids, and what
/// is in them in order of places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scan {
    object: u32,
    place: u64,
    room: usize,
    paused: bool,
    /// Something has been found.
    pub(super) found: bool,
}

impl Scan {
    /// A walk that begins with so much room before its first pause.
    pub(super) fn new(room: usize) -> Scan {
        Scan {
            object: 0,
            place: 0,
            room,
            paused: false,
            found: false,
        }
    }

    /// Goes on after a pause.
    pub(super) fn resume(&mut self, room: usize) {
        (self.room, self.paused) = (room, false);
    }

    /// Whether it has paused before the end.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// What is left before the next pause.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Whether an object has been walked to its end.
    pub(super) fn is_past(&self, object: u32) -> bool {
        object < self.object
    }

    /// Where an object's walk begins.
    pub(super) fn first(&self, object: u32) -> u64 {
        match self.object == object {
            true => self.place,
            false => 0,
        }
    }

    /// Whether what is at this place has its turn now; otherwise the walk pauses before it.
    pub(super) fn admits(&mut self, object: u32, place: u64, cost: usize) -> bool {
        if self.room == 0 {
            (self.object, self.place, self.paused) = (object, place, true);
            return false;
        }
        self.room = self.room.saturating_sub(cost);
        true
    }
}

/// Cost of something with so many elements.
pub(super) fn cost_of(elements: usize) -> usize {
    1 + elements / ELEMENTS
}
