//! The set of slots that were sent again within the last round trip.

use std::time::Duration;

use ultima_wire::bitmap;

use crate::time::Time;

/// Slots of one shard that were sent again to one rank within the last one or two round trips. A request for
/// them was sent before they could arrive.
#[derive(Default)]
pub(super) struct SentAgain {
    newer: Vec<u8>,
    older: Vec<u8>,
    /// The start of `newer`.
    since: Time,
    round_trip: Duration,
}

impl SentAgain {
    /// Sets the measured round trip.
    pub(super) fn measured(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Notes that `slot` of a shard with `slots` is sent now.
    pub(super) fn insert(&mut self, now: Time, slot: usize, slots: usize) {
        self.forget(now);
        self.newer.resize(bitmap::len(slots), 0);
        bitmap::insert(&mut self.newer, slot);
    }

    /// True if `slot` was sent recently.
    pub(super) fn contains(&mut self, now: Time, slot: usize) -> bool {
        self.forget(now);
        let has = |slots: &[u8]| slot / 8 < slots.len() && bitmap::contains(slots, slot);
        has(&self.newer) || has(&self.older)
    }

    fn forget(&mut self, now: Time) {
        let age = now.since(self.since);
        if age < self.round_trip {
            return;
        }
        std::mem::swap(&mut self.newer, &mut self.older);
        self.newer.clear();
        if age >= 2 * self.round_trip {
            self.older.clear();
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_known_for_one_to_two_round_trips() {
        let at = |us: u64| Time::ZERO + Duration::from_micros(us);
        let mut sent = SentAgain::default();
        sent.measured(Duration::from_micros(100));
        sent.insert(at(1000), 9, 20);
        sent.insert(at(1090), 3, 20);
        assert!(sent.contains(at(1099), 9) && !sent.contains(at(1099), 4));
        assert!(!sent.contains(at(1099), 4_000_000));
        assert!(sent.contains(at(1110), 9) && sent.contains(at(1199), 3));
        assert!(!sent.contains(at(1210), 3));
        sent.insert(at(1220), 3, 20);
        assert!(!sent.contains(at(5000), 3));
    }
}
