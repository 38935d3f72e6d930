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
    /// Writes the next numbers into datagrams of `len` bytes, which follow each other in `run`.
    pub(super) fn stamp(&self, run: &mut [u8], len: usize) {
        let mut number = self.next;
        for datagram in run.chunks_mut(len.max(1)) {
            if let Some(field) = datagram.get_mut(PACKET_NUMBER_AT..PACKET_NUMBER_AT + 4) {
                field.copy_from_slice(&number.to_be_bytes());
            }
            number = number.wrapping_add(1);
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
        let mut run = vec![0; 2 * HEADER_LEN + 10];
        for datagram in run.chunks_mut(HEADER_LEN + 10) {
            Header::new(Kind::Scatter, 1, 1, 0, 1).emit(datagram);
        }
        let stamped = |numbers: &PacketNumbers, run: &mut [u8]| {
            numbers.stamp(run, HEADER_LEN + 10);
            let headers = run.chunks(HEADER_LEN + 10).map(Header::parse);
            headers
                .map(|header| header.unwrap().0.packet_number)
                .collect::<Vec<_>>()
        };
        assert_eq!(stamped(&numbers, &mut run), [u32::MAX, 0]);
        assert_eq!(stamped(&numbers, &mut run), [u32::MAX, 0]);
        numbers.left(2);
        assert_eq!(stamped(&numbers, &mut run), [1, 2]);
    }
}
