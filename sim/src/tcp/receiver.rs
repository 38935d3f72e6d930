//! The receiving end of a connection: selective and delayed acknowledgements.

use std::ops::Range;

use crate::clock::Ps;

/// Number of SACK blocks that fit next to the timestamp option (RFC 2018, 3).
const BLOCKS: usize = 3;

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ack {
    /// The receiver's first missing segment.
    pub(super) missing: u32,
    /// Transmission of the first segment that it acknowledges (RFC 7323, 4).
    pub(super) echoed: Ps,
    /// Later segments that the receiver has, from a first one to before a last one, the most recent first. Empty ones
    /// are not sent.
    pub(super) blocks: [(u32, u32); BLOCKS],
    /// The segment was a duplicate (D-SACK, RFC 2883).
    pub(super) duplicate: bool,
}

impl Ack {
    /// Bytes of its SACK option.
    pub(super) fn option(&self) -> u32 {
        let blocks = self.blocks.iter().filter(|(first, end)| first < end);
        match blocks.count() as u32 + u32::from(self.duplicate) {
            0 => 0,
            blocks => 4 + 8 * blocks,
        }
    }
}

/// The receiver's state.
#[derive(Default)]
pub(super) struct Receiver {
    /// The first missing segment.
    pub(super) missing: u32,
    /// Blocks after it, the most recently changed first (RFC 2018, 4).
    blocks: Vec<Range<u32>>,
    /// Transmission of the segment that waits for an acknowledgement.
    delayed: Option<Ps>,
}

impl Receiver {
    /// Handles segment `number`, sent at `sent_at`. Acknowledges every second segment (RFC 5681, 4.2), and at once a
    /// segment out of order, a segment that fills a hole, and one with `push`.
    pub(super) fn receive(&mut self, number: u32, sent_at: Ps, push: bool) -> Option<Ack> {
        let in_order = number == self.missing && self.blocks.is_empty();
        let duplicate = number < self.missing || self.blocks.iter().any(|b| b.contains(&number));
        if !duplicate {
            self.add(number);
        }
        if in_order && !push && self.delayed.is_none() {
            self.delayed = Some(sent_at);
            return None;
        }
        let mut blocks = [(0, 0); BLOCKS];
        // A duplicate takes the first block (RFC 2883, 4).
        let room = BLOCKS - usize::from(duplicate);
        for (block, range) in blocks[..room].iter_mut().zip(&self.blocks) {
            *block = (range.start, range.end);
        }
        Some(Ack {
            missing: self.missing,
            echoed: self.delayed.take().unwrap_or(sent_at),
            blocks,
            duplicate,
        })
    }

    fn add(&mut self, number: u32) {
        let mut block = number..number + 1;
        self.blocks.retain(|other| {
            let touches = other.end == block.start || other.start == block.end;
            if touches {
                block = block.start.min(other.start)..block.end.max(other.end);
            }
            !touches
        });
        match block.start == self.missing {
            true => self.missing = block.end,
            false => self.blocks.insert(0, block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(receiver: &mut Receiver, number: u32) -> Option<Ack> {
        receiver.receive(number, Ps(number.into()), false)
    }

    #[test]
    fn every_second_segment_is_acknowledged() {
        let mut receiver = Receiver::default();
        assert_eq!(receive(&mut receiver, 0), None);
        let ack = receive(&mut receiver, 1).expect("the second one");
        assert_eq!((ack.missing, ack.echoed, ack.option()), (2, Ps(0), 0));
        let ack = receiver.receive(2, Ps(2), true).expect("it is pushed");
        assert_eq!((ack.missing, ack.echoed), (3, Ps(2)));
    }

    #[test]
    fn blocks_are_reported_most_recent_first() {
        let mut receiver = Receiver::default();
        receive(&mut receiver, 0);
        for number in [2, 4, 6, 8] {
            assert!(receive(&mut receiver, number).is_some());
        }
        let ack = receive(&mut receiver, 5).expect("out of order");
        assert_eq!((ack.missing, ack.duplicate), (1, false));
        assert_eq!(ack.blocks, [(4, 7), (8, 9), (2, 3)]);
        assert_eq!(ack.option(), 28);
        let again = receive(&mut receiver, 5).expect("a duplicate");
        assert!(again.duplicate);
        assert_eq!(again.blocks, [(4, 7), (8, 9), (0, 0)]);
        let ack = receive(&mut receiver, 1).expect("it fills a hole");
        assert_eq!(ack.missing, 3);
        assert_eq!(ack.blocks, [(4, 7), (8, 9), (0, 0)]);
        receive(&mut receiver, 7);
        let ack = receive(&mut receiver, 3).expect("it fills the last hole");
        assert_eq!((ack.missing, ack.option()), (9, 0));
    }
}
