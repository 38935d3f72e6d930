//! Packets on their way: what all copies share is stored once.

use ultima_wire::{SwitchFlags, Ticks};

use crate::clock::Ps;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To one host.
    Host(u32),
    /// To every host but the sender; switches copy it.
    Group,
    /// To the other end of the link that it is on: a switch takes it in.
    Neighbour,
}

/// A packet, however many copies of it are on their way.
pub(crate) struct Packet<B> {
    pub(crate) source: u32,
    pub(crate) target: Target,
    /// Bytes of the frame, without preamble, check sequence and gap.
    pub(crate) frame: u32,
    /// What is left of the frame when a switch cuts the payload; none where there is nothing to cut.
    pub(crate) head: Option<u32>,
    /// Each of its receivers is owed it: without it a collective lacks something.
    pub(crate) is_owed: bool,
    pub(crate) body: B,
}

/// One copy: what switches write, and where it stands in line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// When it comes out of the link that it is on.
    pub(crate) arrives: Ps,
    pub(crate) packet: PacketId,
    pub(crate) stamps: Stamps,
}

/// What switches write to a copy's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) budget: Ticks,
    pub(crate) path_queue: Ticks,
    pub(crate) flags: SwitchFlags,
}

impl Stamps {
    /// As a host sends a packet whose receivers will wait for `budget`.
    pub(crate) fn new(budget: Ticks) -> Self {
        Self {
            budget,
            path_queue: Ticks(0),
            flags: SwitchFlags::default(),
        }
    }

    /// Whether a switch cut the payload.
    pub(crate) fn cut(&self) -> bool {
        self.flags.trimmed || self.flags.late
    }
}

/// A place among [`Packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketId(u32);

/// Packets of which copies are on their way. Places are used again: memory is that of the most
/// packets that were on their way at once.
pub(crate) struct Packets<B> {
    places: Vec<Place<B>>,
    free: Vec<PacketId>,
}

struct Place<B> {
    packet: Packet<B>,
    copies: u32,
}

impl<B> Packets<B> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Keeps a packet of which one copy is on its way.
    pub(crate) fn insert(&mut self, packet: Packet<B>) -> PacketId {
        let place = Place { packet, copies: 1 };
        match self.free.pop() {
            Some(id) => {
                self.places[id.0 as usize] = place;
                id
            }
            None => {
                let id = u32::try_from(self.places.len()).expect("under 2^32 packets at once");
                self.places.push(place);
                PacketId(id)
            }
        }
    }

    pub(crate) fn get(&self, id: PacketId) -> &Packet<B> {
        &self.places[id.0 as usize].packet
    }

    /// A switch made `more` copies of one.
    pub(crate) fn copied(&mut self, id: PacketId, more: u32) {
        self.places[id.0 as usize].copies += more;
    }

    /// One copy is not on its way any more.
    pub(crate) fn release(&mut self, id: PacketId) {
        let place = &mut self.places[id.0 as usize];
        place.copies -= 1;
        if place.copies == 0 {
            self.free.push(id);
        }
    }

    /// Packets on their way.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
