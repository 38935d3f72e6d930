//! What one rank has still to deliver, and when it is asked for.

use std::time::Duration;

use ultima_wire::bitmap;

use crate::bits::Bits;
use crate::time::Time;

/// How long requests wait for each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spacing {
    /// From the last packet that came to the first request.
    pub(super) first: Duration,
    /// Every further one waits twice as long as the one before, up to this.
    pub(super) longest: Duration,
}

impl Spacing {
    /// t_B divided by this is the first wait, as between notices.
    const FIRST: u32 = 16;
    /// Bounds on it, where t_B is far from a network's round trip.
    const SHORTEST: Duration = Duration::from_micros(500);
    const LONGEST_FIRST: Duration = Duration::from_millis(50);
    /// The longest wait, in first ones.
    const GROWTH: u32 = 16;

    pub(super) fn of(t_b: Duration) -> Self {
        let first = (t_b / Self::FIRST).clamp(Self::SHORTEST, Self::LONGEST_FIRST);
        Self {
            first,
            longest: first * Self::GROWTH,
        }
    }

    /// How long after the word that something is gone it is asked for: others may be on their way.
    fn grace(self) -> Duration {
        self.first / 8
    }
}

/// The slots that come from one rank in one phase.
pub(super) struct Want {
    here: Bits,
    slots: u32,
    missing: u32,
    spacing: Spacing,
    wait: Duration,
    due: Time,
    /// The first slot that this round of requests has not asked for.
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

    /// Slots that are not here.
    pub(super) fn missing(&self) -> u32 {
        self.missing
    }

    /// A slot came; false if it was here.
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

    /// Something of what is missing is known to be gone.
    pub(super) fn gone(&mut self, now: Time) {
        self.due = self.due.min(now + self.spacing.grace());
    }

    /// When the next request is due.
    pub(super) fn due(&self) -> Option<Time> {
        (self.missing > 0).then_some(self.due)
    }

    /// The next request if one is due: its first slot; the bitmap of those missing from there on, of `room` bytes at
    /// most, is in `wanted`.
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
    fn requests_name_what_is_missing_and_wait_longer_each_time() {
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
        want.gone(now);
        assert!(want.due() < Some(now + spacing.first));
        assert!(want.insert(0, now));
        assert_eq!(want.due(), Some(now + spacing.first));
    }

    #[test]
    fn who_has_all_does_not_ask() {
        let mut want = Want::new(1, Spacing::of(Duration::from_secs(1)), Time::ZERO);
        assert!(want.insert(0, Time::ZERO) && want.missing() == 0);
        assert_eq!(want.due(), None);
        assert_eq!(
            want.request(Time::from_nanos(u64::MAX), 9, &mut Vec::new()),
            None
        );
    }
}
