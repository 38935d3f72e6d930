//! Packets on their way: what all copies share is stored once.

use std::ops::Range;

use ultima_wire::{SwitchFlags, Ticks};

use crate::clock::Ps;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To one host.
    Host(u32),
    /// To every host of a group but the sender, which is one of them; switches copy it.
    Group(Group),
    /// To the other end of the link that it is on: a switch takes it in.
    Neighbour,
}

/// Hosts that a multicast reaches: `count` of them, every `step`th from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    first: u16,
    step: u16,
    count: u16,
}

impl Group {
    /// # Panics
    /// If there are more hosts than an experiment can have, or the group is empty.
    pub(crate) fn new(first: u32, step: u32, count: u32) -> Self {
        assert!(step > 0 && count > 0, "{count} hosts, every {step}th");
        let [first, step, count] =
            [first, step, count].map(|n| u16::try_from(n).expect("under 2^16 hosts"));
        Self { first, step, count }
    }

    /// The first hosts.
    pub(crate) fn all(hosts: u32) -> Self {
        Self::new(0, 1, hosts)
    }

    pub(crate) fn len(&self) -> u32 {
        self.count.into()
    }

    /// Those that are among `hosts`.
    pub(crate) fn among(&self, hosts: Range<u32>) -> impl ExactSizeIterator<Item = u32> + use<> {
        let [first, step, count] = [self.first, self.step, self.count].map(u32::from);
        let before = |host: u32| host.saturating_sub(first).div_ceil(step).min(count);
        let numbers = before(hosts.start)..before(hosts.end.max(hosts.start));
        numbers.map(move |number| first + number * step)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_cut_by_ranges() {
        for (first, step, count) in [(0, 1, 9), (3, 1, 4), (2, 5, 6), (0, 4, 1)] {
            let group = Group::new(first, step, count);
            let all: Vec<u32> = (0..count).map(|number| first + number * step).collect();
            for range in (0..40).flat_map(|from| (from..40).map(move |to| from..to)) {
                let within = all.iter().copied().filter(|host| range.contains(host));
                assert!(within.eq(group.among(range.clone())), "{group:?} {range:?}");
            }
        }
    }
}
