//! What was sent again a moment ago.

use std::time::Duration;

use ultima_wire::bitmap;

use crate::time::Time;

/// Slots of one shard that were sent again to one rank within the last round trip, or up to twice that: whoever asks for
/// them meanwhile asked before they can have come.
#[derive(Default)]
pub(super) struct Sent {
    newer: Vec<u8>,
    older: Vec<u8>,
    /// When `newer` began.
    since: Time,
    round_trip: Duration,
}

impl Sent {
    /// The way to the rank and back takes so long by now.
    pub(super) fn measured(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// `slot` of a shard with `slots` is sent now.
    pub(super) fn insert(&mut self, now: Time, slot: usize, slots: usize) {
        self.forget(now);
        self.newer.resize(bitmap::len(slots), 0);
        bitmap::insert(&mut self.newer, slot);
    }

    /// Whether `slot` was sent just now.
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
        let mut sent = Sent::default();
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
