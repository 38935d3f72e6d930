//! The ends of the other ranks' waits for an operation, from their FEEDBACK.

use std::time::Duration;

use crate::time::Time;

use super::Destination;

/// The end of each rank's wait. The budget of a packet is the longest wait among its receivers. For a
/// receiver without a report it is the sender's own wait.
pub(super) struct Waits {
    /// This rank's own start and end of the operation.
    started: Time,
    deadline: Time,
    /// By rank: since the start, in units of 2^`unit` ns, or [`UNKNOWN`].
    until: Vec<u32>,
    unit: u32,
    /// Number of other ranks without a report.
    unknown: u16,
    longest: Time,
}

const UNKNOWN: u32 = u32::MAX;
/// Upper bound of another rank's wait, as a multiple of this rank's. Our choice: ranks learn their bounds
/// separately, so a straggler's may be some times this one's; a forged one is bounded.
const LONGEST: u32 = 4;

impl Waits {
    /// For an operation that lasts at most `t_b` from `started`.
    pub(super) fn new(ranks: u16, started: Time, t_b: Duration) -> Self {
        let longest = (started + t_b.saturating_mul(LONGEST)).since(started);
        // Nanoseconds if t_B is a second or less.
        let unit = (longest.as_nanos() as u64 / u64::from(UNKNOWN)).checked_ilog2();
        Self {
            started,
            deadline: started + t_b,
            until: vec![UNKNOWN; usize::from(ranks)],
            unit: unit.map_or(0, |log| log + 1),
            unknown: ranks - 1,
            longest: Time::ZERO,
        }
    }

    /// Notes that another `rank` waits until `until` by this rank's clock. The time of the packet's transit
    /// makes that a little too long.
    pub(super) fn advertised(&mut self, rank: u16, until: Time) {
        let known = &mut self.until[usize::from(rank)];
        // Repeats would add the difference of their transit times.
        if *known == UNKNOWN {
            let units = (until.since(self.started).as_nanos() as u64) >> self.unit;
            *known = u32::try_from(units).unwrap_or(UNKNOWN).min(UNKNOWN - 1);
            self.unknown -= 1;
            self.longest = self.longest.max(until);
        }
    }

    /// The end of the longest wait at `to`.
    pub(super) fn until(&self, to: Destination) -> Time {
        match to {
            Destination::Rank(rank) => match self.until[usize::from(rank)] {
                UNKNOWN => self.deadline,
                units => self.started + Duration::from_nanos(u64::from(units) << self.unit),
            },
            Destination::Group if self.unknown > 0 => self.longest.max(self.deadline),
            Destination::Group => self.longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_counts() {
        let at = Time::from_nanos;
        let mut waits = Waits::new(3, at(10), Duration::from_nanos(90));
        assert_eq!(waits.until(Destination::Rank(2)), at(100));
        waits.advertised(2, at(50));
        assert_eq!(waits.until(Destination::Rank(2)), at(50));
        assert_eq!(waits.until(Destination::Rank(1)), at(100));
        // Rank 1 has not reported: it may wait as long as this rank.
        assert_eq!(waits.until(Destination::Group), at(100));
        waits.advertised(1, at(70));
        waits.advertised(1, at(71));
        assert_eq!(waits.until(Destination::Group), at(70));
    }

    #[test]
    fn waits_of_any_length_are_known() {
        let to = Destination::Rank(1);
        for t_b in [1, 1 << 30, 5_000_000_000, 1 << 45, u64::MAX] {
            let (start, t_b) = (Time::from_nanos(7), Duration::from_nanos(t_b));
            for advertised in [t_b / 3, t_b, t_b.saturating_mul(3)] {
                let mut waits = Waits::new(2, start, t_b);
                waits.advertised(1, start + advertised);
                let (until, advertised) = (waits.until(to), start + advertised);
                let coarse = advertised.since(until);
                assert!(
                    until <= advertised && coarse <= t_b / (1 << 29),
                    "{t_b:?} {advertised:?} {coarse:?}"
                );
            }
        }
        // Longer than any wait.
        let mut waits = Waits::new(2, Time::ZERO, Duration::from_secs(1));
        waits.advertised(1, Time::from_nanos(u64::MAX));
        assert!(waits.until(to) >= Time::from_nanos(4_000_000_000));
    }
}
