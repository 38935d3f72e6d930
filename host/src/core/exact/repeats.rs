//! The slots that one rank requested and that have not been sent again.

use std::time::Duration;

use ultima_wire::{RepairRequest, bitmap};

use crate::bits::Bits;
use crate::time::Time;

/// Slots to send again to one rank in one phase.
///
/// Each slot is sent at most once in a *round*, which lasts until all queued slots are sent and half the
/// requester's shortest wait has passed. A rank that requests without end therefore gets one shard at a time.
/// Memory: two bitmaps.
#[derive(Default)]
pub(super) struct Repeats {
    queued: Bits,
    /// Number of slots in `queued`.
    left: u32,
    /// Slots queued or sent in this round.
    taken: Bits,
    /// No slot before this one is queued.
    next: u32,
    round_ends: Time,
}

impl Repeats {
    /// Queues requested slots of a shard with `slots`, for a round that lasts at least `round`. Slots that are not
    /// `available` are skipped.
    pub(super) fn ask(
        &mut self,
        now: Time,
        round: Duration,
        slots: u32,
        request: &RepairRequest<'_>,
        available: impl Fn(u32) -> bool,
    ) {
        if self.left == 0 && now >= self.round_ends {
            self.round_ends = now + round;
            self.queued.reset(slots as usize);
            self.taken.reset(slots as usize);
            self.next = slots;
        }
        let first = request.first as usize;
        let asked = bitmap::numbers(request.wanted).map(|number| first + number);
        for slot in asked.take_while(|&slot| slot < slots as usize) {
            if available(slot as u32) && self.taken.insert(slot) {
                self.queued.insert(slot);
                self.left += 1;
                self.next = self.next.min(slot as u32);
            }
        }
    }

    /// True if [`Repeats::next`] returns a slot.
    pub(super) fn is_asked(&self) -> bool {
        self.left > 0
    }

    /// The next slot to send again.
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        // A slot is queued, and none before `next`.
        while !self.queued.remove(self.next as usize) {
            self.next += 1;
        }
        let slot = self.next;
        self.left -= 1;
        self.next += 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use ultima_wire::Requested;

    use super::*;

    const ROUND: Duration = Duration::from_millis(1);

    fn request(first: u32, wanted: &[u8]) -> RepairRequest<'_> {
        RepairRequest {
            of: Requested::Aggregates,
            first,
            wanted,
        }
    }

    fn sent(repeats: &mut Repeats) -> Vec<u32> {
        std::iter::from_fn(|| repeats.next()).collect()
    }

    #[test]
    fn a_slot_is_sent_once_in_a_round() {
        let mut repeats = Repeats::default();
        let at = Time::from_nanos;
        let ask = |repeats: &mut Repeats, now, first, wanted: &[u8]| {
            repeats.ask(at(now), ROUND, 20, &request(first, wanted), |slot| {
                slot != 7
            });
        };
        ask(&mut repeats, 0, 6, &[0b111]);
        ask(&mut repeats, 0, 5, &[0b1010]);
        ask(&mut repeats, 0, 19, &[0xff, 0xff]);
        assert_eq!(sent(&mut repeats), [6, 8, 19]);
        ask(&mut repeats, 10, 3, &[0b1001]);
        ask(&mut repeats, 10, 11, &[0b1]);
        assert_eq!(sent(&mut repeats), [3, 11]);
        ask(&mut repeats, 1_000_000, 3, &[0b1001]);
        assert_eq!(sent(&mut repeats), [3, 6]);
        ask(&mut repeats, 9_000_000, u32::MAX, &[1]);
        assert!(!repeats.is_asked());
    }

    #[test]
    fn a_flood_of_requests_is_answered_once() {
        let mut repeats = Repeats::default();
        let mut count = 0;
        for now in 0..10_000 {
            let now = Time::from_nanos(now * 1000);
            repeats.ask(now, ROUND, 16, &request(0, &[0xff; 9]), |_| true);
            count += sent(&mut repeats).len();
        }
        // Ten milliseconds are ten rounds.
        assert_eq!(count, 10 * 16);
    }
}
