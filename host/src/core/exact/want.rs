//! The slots that one rank still has to deliver, and the times of requests for them.

use std::time::Duration;

use ultima_wire::bitmap;

use crate::bits::Bits;
use crate::time::Time;

/// Intervals between requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spacing {
    /// From the last arrival to the first request.
    pub(super) first: Duration,
    /// Each further interval is twice the one before, up to this.
    pub(super) longest: Duration,
}

impl Spacing {
    /// The first interval is t_B divided by this, as between notices.
    const FIRST: u32 = 16;
    /// Bounds on it, for a t_B that is far from the network's round trip.
    const SHORTEST: Duration = Duration::from_micros(500);
    const LONGEST_FIRST: Duration = Duration::from_millis(50);
    /// The longest interval, in first ones.
    const GROWTH: u32 = 16;

    pub(super) fn of(t_b: Duration) -> Self {
        let first = (t_b / Self::FIRST).clamp(Self::SHORTEST, Self::LONGEST_FIRST);
        Self {
            first,
            longest: first * Self::GROWTH,
        }
    }

    /// Delay of a request after a loss is known: more packets may be in flight.
    fn grace(self) -> Duration {
        self.first / 8
    }
}

/// The slots that one rank has to deliver in one phase.
pub(super) struct Want {
    here: Bits,
    slots: u32,
    missing: u32,
    spacing: Spacing,
    wait: Duration,
    due: Time,
    /// The first slot that this round of requests has not covered.
    cursor: u32,
}

impl Want {
    pub(super) fn new(slots: u32, spacing: Spacing, now: Time) -> Self {
        let mut here = Bits::default();
        here.reset(slots as usize);
        Self {
            here,
            slots,
            missing: slots,
            spacing,
            wait: spacing.first,
            due: now + spacing.first,
            cursor: 0,
        }
    }

    /// Number of missing slots.
    pub(super) fn missing(&self) -> u32 {
        self.missing
    }

    /// Notes an arrived slot. Returns false if it was here.
    pub(super) fn insert(&mut self, slot: u32, now: Time) -> bool {
        if !self.here.insert(slot as usize) {
            return false;
        }
        self.missing -= 1;
        self.wait = self.spacing.first;
        self.due = now + self.wait;
        self.cursor = 0;
        true
    }

    /// Notes that a missing slot is lost.
    pub(super) fn lost(&mut self, now: Time) {
        self.due = self.due.min(now + self.spacing.grace());
    }

    /// The time of the next request.
    pub(super) fn due(&self) -> Option<Time> {
        (self.missing > 0).then_some(self.due)
    }

    /// The next request, if one is due: its first slot. Writes the bitmap of missing slots from there on, at
    /// most `room` bytes, to `wanted`.
    pub(super) fn request(&mut self, now: Time, room: usize, wanted: &mut Vec<u8>) -> Option<u32> {
        if self.due()? > now {
            return None;
        }
        let missing = |slot: &u32| !self.here.contains(*slot as usize);
        let first = (self.cursor..self.slots).find(missing)?;
        let end = (first as usize + 8 * room).min(self.slots as usize) as u32;
        wanted.clear();
        for number in (first..end)
            .filter(missing)
            .map(|slot| (slot - first) as usize)
        {
            wanted.resize(bitmap::len(number + 1), 0);
            bitmap::insert(wanted, number);
        }
        self.cursor = end;
        if !(end..self.slots).any(|slot| missing(&slot)) {
            self.cursor = 0;
            self.due = now + self.wait;
            self.wait = (self.wait * 2).min(self.spacing.longest);
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_missing_slots_and_wait_longer_each_time() {
        let spacing = Spacing::of(Duration::from_millis(16));
        let mut want = Want::new(40, spacing, Time::ZERO);
        for slot in (0..40).filter(|slot| slot % 3 != 0) {
            assert!(want.insert(slot, Time::ZERO));
        }
        assert!(!want.insert(1, Time::ZERO));
        let (mut at, mut wanted) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let now = want.due().expect("something is missing");
            at.push(now.as_nanos() / 1_000_000);
            let mut slots = Vec::new();
            while let Some(first) = want.request(now, 2, &mut wanted) {
                assert!(wanted.len() <= 2);
                slots.extend(bitmap::numbers(&wanted).map(|number| first + number as u32));
            }
            assert!(slots.into_iter().eq((0..40).step_by(3)));
        }
        assert_eq!(at, [1, 2, 4, 8, 16, 32]);
        // The longest wait is sixteen times the first.
        assert_eq!(want.due(), Some(Time::from_nanos(48_000_000)));
        let now = Time::from_nanos(40_000_000);
        want.lost(now);
        assert!(want.due() < Some(now + spacing.first));
        assert!(want.insert(0, now));
        assert_eq!(want.due(), Some(now + spacing.first));
    }

    #[test]
    fn a_complete_rank_sends_no_requests() {
        let mut want = Want::new(1, Spacing::of(Duration::from_secs(1)), Time::ZERO);
        assert!(want.insert(0, Time::ZERO) && want.missing() == 0);
        assert_eq!(want.due(), None);
        assert_eq!(
            want.request(Time::from_nanos(u64::MAX), 9, &mut Vec::new()),
            None
        );
    }
}
