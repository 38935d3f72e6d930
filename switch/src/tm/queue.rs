//! The queues in front of an egress port: one for each priority, first in, first out, drop-tail.
//!
//! Like simple_switch with `--priority-queues 8`: the highest priority goes first and may starve the others, and each queue
//! has the whole limit. With fewer queues, higher priorities are dropped, as in simple_switch.

use std::collections::VecDeque;

use ultima_link::{MIN_CHARGE, WireConfig};

use super::Nanos;
use crate::stats::Key;

/// Number of priorities of a port: the values of `standard_metadata.priority` (3 bits). 0 is the lowest.
pub const PRIORITIES: usize = 8;

/// A queued copy, with the facts that a program may read in egress.
#[derive(Debug)]
pub struct Queued<C> {
    /// The copy itself.
    pub copy: C,
    /// Its length in bytes before egress.
    pub len: u32,
    /// Statistics key of the frame that it is a copy of.
    pub key: Key,
    /// The time at which it was queued.
    pub enqueued_at: Nanos,
    /// Packets that were in its queue before it.
    pub depth_at_enqueue: u32,
    /// Their bytes, at most `u32::MAX`.
    pub bytes_at_enqueue: u32,
}

/// Packets and bytes in a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Packets.
    pub packets: u32,
    /// Their bytes, as ordered.
    pub bytes: u64,
}

/// Returns the bytes that a frame counts against a limit.
pub(super) fn charge(len: u64) -> u64 {
    len.max(MIN_CHARGE)
}

#[derive(Debug)]
struct Queue<C> {
    items: VecDeque<Queued<C>>,
    bytes: u64,
    charged: u64,
}

impl<C> Queue<C> {
    fn occupancy(&self) -> Occupancy {
        Occupancy {
            packets: u32::try_from(self.items.len()).unwrap_or(u32::MAX),
            bytes: self.bytes,
        }
    }
}

#[derive(Debug)]
pub(super) struct Queues<C> {
    by_priority: [Queue<C>; PRIORITIES],
    /// Bit p is set if the queue of priority p is not empty.
    waiting: u8,
    priorities: usize,
    max_bytes: u64,
    max_packets: usize,
}

impl<C> Queues<C> {
    /// Returns empty queues for the lowest `priorities` priorities, with the limits of `config`.
    pub(super) fn new(config: &WireConfig, priorities: u8) -> Self {
        let mut queues = Queues {
            by_priority: std::array::from_fn(|_| Queue {
                items: VecDeque::new(),
                bytes: 0,
                charged: 0,
            }),
            waiting: 0,
            priorities: usize::from(priorities),
            max_bytes: 0,
            max_packets: 0,
        };
        queues.limit(config);
        queues
    }

    /// Sets the limits. Queued copies stay.
    pub(super) fn limit(&mut self, config: &WireConfig) {
        self.max_bytes = config.queue_bytes;
        self.max_packets = config.queue_packets.map_or(usize::MAX, |n| n as usize);
    }

    /// Appends a copy to the queue of its priority, or returns it if it does not fit or has no queue. A priority above 7
    /// counts as 7.
    pub(super) fn push(
        &mut self,
        copy: C,
        priority: u8,
        len: u32,
        key: Key,
        now: Nanos,
    ) -> Result<(), C> {
        let priority = usize::from(priority).min(PRIORITIES - 1);
        if priority >= self.priorities {
            return Err(copy);
        }
        let queue = &mut self.by_priority[priority];
        let charge = charge(u64::from(len));
        if queue.charged + charge > self.max_bytes || queue.items.len() >= self.max_packets {
            return Err(copy);
        }
        let found = queue.occupancy();
        queue.items.push_back(Queued {
            copy,
            len,
            key,
            enqueued_at: now,
            depth_at_enqueue: found.packets,
            bytes_at_enqueue: u32::try_from(found.bytes).unwrap_or(u32::MAX),
        });
        queue.charged += charge;
        queue.bytes += u64::from(len);
        self.waiting |= 1 << priority;
        Ok(())
    }

    /// Takes the oldest copy of the highest priority that was queued by `at`, with the number of packets left in its queue.
    pub(super) fn pop(&mut self, at: Nanos) -> Option<(Queued<C>, u32)> {
        let mut left = self.waiting;
        while left != 0 {
            let priority = left.ilog2();
            let queue = &mut self.by_priority[priority as usize];
            let due = queue
                .items
                .front()
                .is_some_and(|item| item.enqueued_at <= at);
            if due && let Some(item) = queue.items.pop_front() {
                queue.bytes -= u64::from(item.len);
                queue.charged -= charge(u64::from(item.len));
                if queue.items.is_empty() {
                    self.waiting &= !(1 << priority);
                }
                return Some((item, queue.occupancy().packets));
            }
            left &= !(1 << priority);
        }
        None
    }

    /// Returns the time at which the oldest copy was queued.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        let mut left = self.waiting;
        let mut oldest = None;
        while left != 0 {
            let priority = left.ilog2() as usize;
            let head = self.by_priority[priority].items.front();
            let queued = head.map(|item| item.enqueued_at);
            oldest = oldest.min(queued).or(queued);
            left &= !(1 << priority);
        }
        oldest
    }

    /// Returns the occupancy of each queue, by priority.
    pub(super) fn occupancy(&self) -> [Occupancy; PRIORITIES] {
        std::array::from_fn(|priority| self.by_priority[priority].occupancy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(bytes: u64, packets: Option<u32>) -> Queues<char> {
        let config = WireConfig {
            queue_bytes: bytes,
            queue_packets: packets,
            ..WireConfig::default()
        };
        Queues::new(&config, PRIORITIES as u8)
    }

    fn copies(queues: &mut Queues<char>, at: Nanos) -> String {
        std::iter::from_fn(|| queues.pop(at).map(|(item, _)| item.copy)).collect()
    }

    #[test]
    fn drops_the_tail_and_keeps_the_order() {
        let mut queues = queues(260, None);
        assert!(queues.push('a', 0, 100, Key::NONE, 1).is_ok());
        assert!(queues.push('b', 0, 100, Key::NONE, 2).is_ok());
        assert_eq!(queues.push('c', 0, 100, Key::NONE, 3), Err('c'));
        assert!(
            queues.push('d', 0, 60, Key::NONE, 4).is_ok(),
            "a smaller one still fits exactly"
        );
        let full = Occupancy {
            packets: 3,
            bytes: 260,
        };
        assert_eq!(queues.occupancy()[0], full);
        let (first, left) = queues.pop(9).expect("three are queued");
        assert_eq!((first.copy, left), ('a', 2));
        assert_eq!((first.enqueued_at, first.depth_at_enqueue), (1, 0));
        assert_eq!(queues.oldest(), Some(2));
        let (second, left) = queues.pop(9).expect("two are queued");
        assert_eq!((second.copy, left), ('b', 1));
        assert_eq!((second.depth_at_enqueue, second.bytes_at_enqueue), (1, 100));
        let (third, _) = queues.pop(9).expect("one is queued");
        assert_eq!((third.copy, third.depth_at_enqueue), ('d', 2));
        assert!(queues.pop(9).is_none());
        assert_eq!(queues.occupancy(), [Occupancy::default(); PRIORITIES]);
        assert_eq!(queues.oldest(), None);
    }

    #[test]
    fn frames_without_length_fill_it_too() {
        let mut queues = queues(600, None);
        let taken = (0..100)
            .filter(|_| queues.push('x', 0, 0, Key::NONE, 0).is_ok())
            .count();
        assert_eq!((taken, queues.occupancy()[0].bytes), (10, 0));
        while queues.pop(0).is_some() {}
        assert!(
            queues.push('y', 0, 600, Key::NONE, 0).is_ok(),
            "and empty it again"
        );
    }

    #[test]
    fn the_highest_priority_goes_first_and_each_has_its_own_limits() {
        let mut queues = queues(1000, Some(2));
        for (copy, priority) in [('a', 0), ('b', 7), ('c', 3), ('d', 7), ('e', 7), ('f', 200)] {
            let fits = queues.push(copy, priority, 100, Key::NONE, 0).is_ok();
            assert_eq!(fits, !"ef".contains(copy), "two in each, 200 counts as 7");
        }
        assert_eq!(queues.occupancy()[7].packets, 2);
        assert_eq!(copies(&mut queues, 0), "bdca");
    }

    #[test]
    fn later_copies_do_not_overtake() {
        let mut queues = queues(1000, None);
        assert!(queues.push('a', 1, 100, Key::NONE, 10).is_ok());
        assert!(queues.push('b', 6, 100, Key::NONE, 20).is_ok());
        assert_eq!(queues.oldest(), Some(10));
        assert!(queues.pop(9).is_none());
        assert_eq!(copies(&mut queues, 15), "a");
        assert_eq!(copies(&mut queues, 20), "b");
    }

    #[test]
    fn lower_limits_keep_what_is_queued() {
        let mut queues = queues(1000, None);
        for copy in "abc".chars() {
            assert!(queues.push(copy, 0, 100, Key::NONE, 0).is_ok());
        }
        queues.limit(&WireConfig {
            queue_packets: Some(3),
            ..WireConfig::default()
        });
        assert_eq!(queues.push('d', 0, 100, Key::NONE, 0), Err('d'));
        assert_eq!(copies(&mut queues, 0), "abc");
    }
}
