//! The queue in front of an egress port: first in, first out, limited in bytes, drop-tail.

use std::collections::VecDeque;

use super::Nanos;
use crate::stats::Key;

/// A copy in the queue, with what the program may ask about its stay there.
#[derive(Debug)]
pub struct Queued<C> {
    /// The copy itself.
    pub copy: C,
    /// Its length in bytes when it was ordered, before the egress program.
    pub len: u32,
    /// Statistics key of the frame that it is a copy of.
    pub key: Key,
    /// When it was queued.
    pub enqueued_at: Nanos,
    /// Packets that were in the queue before it.
    pub depth_at_enqueue: u32,
}

/// What a frame counts for against a limit in bytes: Ethernet pads it to 60, and memory is not
/// filled by frames that have no length.
pub(super) fn charge(len: u64) -> u64 {
    len.max(MIN_CHARGE)
}

/// Least charge for a frame, in bytes.
pub(super) const MIN_CHARGE: u64 = 60;

/// First in, first out, at most `limit` bytes.
#[derive(Debug)]
pub struct Queue<C> {
    items: VecDeque<Queued<C>>,
    bytes: u64,
    charged: u64,
    limit: u64,
}

impl<C> Queue<C> {
    /// An empty queue that holds `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Queue {
            items: VecDeque::new(),
            bytes: 0,
            charged: 0,
            limit,
        }
    }

    /// Appends a copy, or hands it back when it does not fit.
    pub fn push(&mut self, copy: C, len: u32, key: Key, now: Nanos) -> Result<(), C> {
        let charge = charge(u64::from(len));
        if self.charged + charge > self.limit {
            return Err(copy);
        }
        self.charged += charge;
        self.bytes += u64::from(len);
        let depth_at_enqueue = self.packets();
        self.items.push_back(Queued {
            copy,
            len,
            key,
            enqueued_at: now,
            depth_at_enqueue,
        });
        Ok(())
    }

    /// Takes the oldest copy.
    pub fn pop(&mut self) -> Option<Queued<C>> {
        let item = self.items.pop_front()?;
        self.bytes -= u64::from(item.len);
        self.charged -= charge(u64::from(item.len));
        Some(item)
    }

    /// When the oldest copy was queued.
    pub fn oldest(&self) -> Option<Nanos> {
        self.items.front().map(|item| item.enqueued_at)
    }

    /// Packets in the queue.
    pub fn packets(&self) -> u32 {
        u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }

    /// Bytes in the queue.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_tail_and_keeps_the_order() {
        let mut queue = Queue::new(260);
        assert!(queue.push('a', 100, Key::NONE, 1).is_ok());
        assert!(queue.push('b', 100, Key::NONE, 2).is_ok());
        assert_eq!(queue.push('c', 100, Key::NONE, 3), Err('c'));
        assert!(
            queue.push('d', 60, Key::NONE, 4).is_ok(),
            "a smaller one still fits exactly"
        );
        assert_eq!((queue.packets(), queue.bytes()), (3, 260));
        let first = queue.pop().expect("three are queued");
        assert_eq!(
            (first.copy, first.enqueued_at, first.depth_at_enqueue),
            ('a', 1, 0)
        );
        assert_eq!(queue.oldest(), Some(2));
        assert_eq!(
            queue.pop().map(|q| (q.copy, q.depth_at_enqueue)),
            Some(('b', 1))
        );
        assert_eq!(
            queue.pop().map(|q| (q.copy, q.depth_at_enqueue)),
            Some(('d', 2))
        );
        assert_eq!((queue.pop().is_none(), queue.bytes()), (true, 0));
    }

    #[test]
    fn frames_without_length_fill_it_too() {
        let mut queue = Queue::new(600);
        let taken = (0..100)
            .filter(|n| queue.push(*n, 0, Key::NONE, 0).is_ok())
            .count();
        assert_eq!((taken, queue.bytes()), (10, 0));
        while queue.pop().is_some() {}
        assert!(
            queue.push(1, 600, Key::NONE, 0).is_ok(),
            "and empty it again"
        );
    }
}
