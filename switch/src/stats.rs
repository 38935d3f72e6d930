//! Port statistics. Every frame and every copy is counted at one place:
//!
//! ```text
//! entered = forwarded + ingress_program + no_program + too_long
//! ordered = left + queue + egress_program + recirculated + wire + no_peer + oversize
//!           + reconfigured + removed + still queued + in flight
//! ```
//!
//! in packets, for each port and for each statistics key. (In bytes the second line does not hold:
//! the egress program may change a frame's length.)

use std::ops::AddAssign;

use ultima_engine::trace::Mark;

/// The place at which a frame or copy is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Place {
    /// Frames received at the port.
    Entered,
    /// Frames that ingress sent to at least one port, not counting clones.
    Forwarded,
    /// Frames that ingress, the parser or the engine dropped.
    IngressProgram,
    /// Frames that arrived before a program was loaded.
    NoProgram,
    /// Frames longer than the switch accepts, or with offloads that it cannot complete.
    TooLong,
    /// Frames that the kernel dropped before the switch could read them; not part of `Entered`.
    Overrun,
    /// Copies sent to the port.
    Ordered,
    /// Frames handed to the medium.
    Left,
    /// Copies that did not fit into the queue.
    Queue,
    /// Copies that the egress program dropped.
    EgressProgram,
    /// Copies that were recirculated. Their new copies are counted at their own ports.
    Recirculated,
    /// Frames lost on the wire.
    Wire,
    /// Frames for a port without a peer.
    NoPeer,
    /// Frames longer than the medium's MTU.
    Oversize,
    /// Copies queued when another program was committed.
    Reconfigured,
    /// Copies in the queue or on the wire when the port was removed.
    Removed,
    /// Frames marked with ECN's Congestion Experienced. They also count at another place, so they are in no sum.
    Marked,
}

const PLACES: usize = Place::Marked as usize + 1;

/// The byte of a frame by which statistics are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatsKey {
    /// Bytes from the start of the frame as it entered.
    pub offset: usize,
    /// Mask of that byte.
    pub mask: u8,
}

impl StatsKey {
    /// Returns a frame's key: [`Key::NONE`] if the frame ends before the byte.
    pub fn of(self, frame: &[u8]) -> Key {
        Key {
            byte: frame.get(self.offset).map(|byte| byte & self.mask),
            mark: None,
        }
    }
}

/// The key under which a copy is counted: the statistics key of its frame on arrival, and its trace, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    byte: Option<u8>,
    mark: Option<Mark>,
}

impl Key {
    /// The key of a frame without the byte, or without a configured key.
    pub const NONE: Key = Key {
        byte: None,
        mark: None,
    };

    /// Returns the key of a copy that may be traced, so that its place is recorded.
    pub(crate) fn marked(self, mark: Option<Mark>) -> Key {
        Key { mark, ..self }
    }
}

/// Packets and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes, from Ethernet header to payload, without preamble and checksum.
    pub bytes: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// All counts of one port.
#[derive(Debug, Clone)]
pub struct PortStats {
    total: [Count; PLACES],
    by_key: Option<Box<[[Count; PLACES]; 256]>>,
    /// Places of traced copies.
    noted: Vec<(Mark, Place)>,
}

impl PortStats {
    /// Returns zero counts, with counts by statistics key if `keyed`.
    pub fn new(keyed: bool) -> Self {
        let zeros = [Count::default(); PLACES];
        PortStats {
            total: zeros,
            by_key: keyed.then(|| Box::new([zeros; 256])),
            noted: Vec::new(),
        }
    }

    /// Counts one packet.
    #[inline]
    pub fn count(&mut self, place: Place, key: Key, bytes: u64) {
        self.add(place, key, Count { packets: 1, bytes });
    }

    /// Counts several packets.
    pub fn add(&mut self, place: Place, key: Key, count: Count) {
        self.total[place as usize] += count;
        if let (Some(by_key), Some(key)) = (&mut self.by_key, key.byte) {
            by_key[usize::from(key)][place as usize] += count;
        }
        if let Some(mark) = key.mark {
            self.noted.push((mark, place));
        }
    }

    /// Takes the places of traced copies since the last call, in order.
    pub(crate) fn take_noted(&mut self) -> Vec<(Mark, Place)> {
        std::mem::take(&mut self.noted)
    }

    /// Returns the count at a place.
    pub fn at(&self, place: Place) -> Count {
        self.total[place as usize]
    }

    /// Iterates over the non-zero counts at a place by key.
    pub fn by_key(&self, place: Place) -> impl Iterator<Item = (u8, Count)> {
        self.by_key.iter().flat_map(move |by_key| {
            (0..=u8::MAX)
                .map(move |key| (key, by_key[usize::from(key)][place as usize]))
                .filter(|(_, count)| *count != Count::default())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_down_by_key_and_leaves_out_short_frames() {
        let key = StatsKey {
            offset: 2,
            mask: 0x0f,
        };
        let mut stats = PortStats::new(true);
        for frame in [&[0, 0, 0x31][..], &[0, 0, 0x21, 7], &[0, 0, 0x12], &[0, 0]] {
            stats.count(Place::Entered, key.of(frame), frame.len() as u64);
        }
        assert_eq!(
            stats.at(Place::Entered),
            Count {
                packets: 4,
                bytes: 12
            }
        );
        assert_eq!(
            stats.by_key(Place::Entered).collect::<Vec<_>>(),
            [
                (
                    1,
                    Count {
                        packets: 2,
                        bytes: 7
                    }
                ),
                (
                    2,
                    Count {
                        packets: 1,
                        bytes: 3
                    }
                )
            ]
        );
        assert_eq!(stats.by_key(Place::Left).count(), 0);
        let mut plain = PortStats::new(false);
        plain.count(Place::Left, key.of(&[0, 0, 1]), 3);
        assert_eq!(
            (
                plain.at(Place::Left).packets,
                plain.by_key(Place::Left).count()
            ),
            (1, 0)
        );
    }
}
