//! Packets in flight. Data that all copies share are stored once.

use std::ops::Range;

use ultima_wire::{SwitchFlags, Ticks};

use crate::clock::Ps;

/// A packet's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To one host.
    Host(u32),
    /// Every host of a group except the sender, which is a member. Switches copy it.
    Group(Group),
    /// The other end of its link: a switch handles it.
    Neighbour,
}

/// Hosts of a multicast: `count` of them, every `step`th from `first`.
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

    /// The first `hosts` hosts.
    pub(crate) fn all(hosts: u32) -> Self {
        Self::new(0, 1, hosts)
    }

    pub(crate) fn len(&self) -> u32 {
        self.count.into()
    }

    /// The members among `hosts`.
    pub(crate) fn among(&self, hosts: Range<u32>) -> impl ExactSizeIterator<Item = u32> + use<> {
        let [first, step, count] = [self.first, self.step, self.count].map(u32::from);
        let before = |host: u32| host.saturating_sub(first).div_ceil(step).min(count);
        let numbers = before(hosts.start)..before(hosts.end.max(hosts.start));
        numbers.map(move |number| first + number * step)
    }
}

/// A packet, whatever its number of copies in flight.
pub(crate) struct Packet<B> {
    pub(crate) source: u32,
    pub(crate) target: Target,
    /// Bytes of the frame, without preamble, check sequence and gap.
    pub(crate) frame: u32,
    /// Bytes of the frame without payload. None if there is no payload to remove.
    pub(crate) head: Option<u32>,
    /// True if each receiver needs it: without it a collective misses data.
    pub(crate) is_owed: bool,
    pub(crate) body: B,
}

/// One copy: the switches' stamps, and its position in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Its arrival at the end of its link.
    pub(crate) arrives: Ps,
    pub(crate) packet: PacketId,
    pub(crate) stamps: Stamps,
}

/// Fields that switches write to a copy's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) budget: Ticks,
    pub(crate) path_queue: Ticks,
    pub(crate) flags: SwitchFlags,
}

impl Stamps {
    /// The fields of a packet that a host sends with this `budget`.
    pub(crate) fn new(budget: Ticks) -> Self {
        Self {
            budget,
            path_queue: Ticks(0),
            flags: SwitchFlags::default(),
        }
    }

    /// True if a switch removed the payload.
    pub(crate) fn has_no_payload(&self) -> bool {
        self.flags.trimmed || self.flags.late
    }
}

/// An index into [`Packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketId(u32);

/// Packets with copies in flight. Indices are reused, so memory is that of the maximum in flight.
pub(crate) struct Packets<B> {
    entries: Vec<InFlight<B>>,
    free: Vec<PacketId>,
}

/// A packet, and the number of its copies in flight.
struct InFlight<B> {
    packet: Packet<B>,
    copies: u32,
}

impl<B> Packets<B> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds a packet with one copy in flight.
    pub(crate) fn insert(&mut self, packet: Packet<B>) -> PacketId {
        let entry = InFlight { packet, copies: 1 };
        match self.free.pop() {
            Some(id) => {
                self.entries[id.0 as usize] = entry;
                id
            }
            None => {
                let id = u32::try_from(self.entries.len()).expect("under 2^32 packets at once");
                self.entries.push(entry);
                PacketId(id)
            }
        }
    }

    pub(crate) fn get(&self, id: PacketId) -> &Packet<B> {
        &self.entries[id.0 as usize].packet
    }

    /// Adds `more` copies of a packet.
    pub(crate) fn copied(&mut self, id: PacketId, more: u32) {
        self.entries[id.0 as usize].copies += more;
    }

    /// Removes one copy of a packet.
    pub(crate) fn release(&mut self, id: PacketId) {
        let entry = &mut self.entries[id.0 as usize];
        entry.copies -= 1;
        if entry.copies == 0 {
            self.free.push(id);
        }
    }

    /// Number of packets in flight.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_its_members_in_a_range() {
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
