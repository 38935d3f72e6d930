//! The rate at which a rank sends.

use std::time::Duration;

use crate::config::Pacing;
use crate::time::Time;

/// A token bucket, kept as the time at which all that was sent will have left at the rate (the
/// generic cell rate algorithm, ITU-T I.371): one number, nothing to refill.
pub(crate) struct Pacer {
    bits_per_second: u64,
    burst: Duration,
    drained: Time,
}

impl Pacer {
    pub(crate) fn new(pacing: Pacing) -> Self {
        let mut pacer = Self {
            bits_per_second: pacing.bits_per_second,
            burst: Duration::ZERO,
            drained: Time::ZERO,
        };
        pacer.burst = pacer.time(u64::from(pacing.burst));
        pacer
    }

    fn time(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// From when on the next packet may leave.
    pub(crate) fn ready_at(&self) -> Time {
        Time::from_nanos(self.drained.since(Time::ZERO + self.burst).as_nanos() as u64)
    }

    /// A packet of `bytes` left.
    pub(crate) fn spend(&mut self, now: Time, bytes: u64) {
        self.drained = self.drained.max(now) + self.time(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_after_the_burst() {
        // 8 Mb/s are one byte in a microsecond.
        let mut pacer = Pacer::new(Pacing {
            bits_per_second: 8_000_000,
            burst: 2999,
        });
        let start = Time::from_nanos(5_000_000);
        let mut sent_at = Vec::new();
        let mut now = start;
        for _ in 0..10 {
            now = now.max(pacer.ready_at());
            pacer.spend(now, 1000);
            sent_at.push(now.since(start).as_micros());
        }
        assert_eq!(sent_at, [0, 0, 0, 1, 1001, 2001, 3001, 4001, 5001, 6001]);
        // A pause earns a burst, not more.
        assert!(pacer.ready_at() < start + Duration::from_secs(1));
    }
}
