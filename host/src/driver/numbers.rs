//! Packet numbers, in which a rank's switch counts gaps.
//!
//! The link assigns them, not the core: a batch may be sent in another order than the core's, datagrams that
//! the kernel rejects are never sent, and packets to a rank on the same host pass no switch.

use ultima_wire::PACKET_NUMBER_AT;

/// Numbers of packets from a rank to its switch, from 0 on, wrapping.
#[derive(Debug, Default)]
pub(super) struct PacketNumbers {
    next: u32,
}

impl PacketNumbers {
    /// Writes the number of the datagram that leaves after `before` others.
    pub(super) fn stamp(&self, before: usize, datagram: &mut [u8]) {
        if let Some(field) = datagram.get_mut(PACKET_NUMBER_AT..PACKET_NUMBER_AT + 4) {
            let number = self.next.wrapping_add(before as u32);
            field.copy_from_slice(&number.to_be_bytes());
        }
    }

    /// Notes that `count` datagrams were sent.
    pub(super) fn left(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_wire::{HEADER_LEN, Header, Kind};

    #[test]
    fn only_sent_packets_take_a_number() {
        let mut numbers = PacketNumbers { next: u32::MAX };
        let mut datagram = vec![0; HEADER_LEN];
        Header::new(Kind::Scatter, 1, 1, 0, 1).emit(&mut datagram);
        let mut stamped = |numbers: &PacketNumbers, before| {
            numbers.stamp(before, &mut datagram);
            Header::parse(&datagram).unwrap().0.packet_number
        };
        assert_eq!(
            [0, 1].map(|before| stamped(&numbers, before)),
            [u32::MAX, 0]
        );
        assert_eq!(stamped(&numbers, 0), u32::MAX);
        numbers.left(2);
        assert_eq!([0, 1].map(|before| stamped(&numbers, before)), [1, 2]);
    }
}
