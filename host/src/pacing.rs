//! Pacing: a token bucket for a rank's packets.

use std::time::Duration;

use crate::config::Pacing;
use crate::time::Time;

/// A token bucket, stored as the time at which all sent bytes will have left at the rate (the generic cell
/// rate algorithm, ITU-T I.371): one number, no refill.
pub(crate) struct Pacer {
    limit: Pacing,
    /// The used share of the limit, over 0 and at most 1.
    share: f64,
    burst: Duration,
    drained: Time,
}

impl Pacer {
    pub(crate) fn new(pacing: Pacing) -> Self {
        Self {
            limit: pacing,
            share: 1.0,
            burst: pacing.time(u64::from(pacing.burst)),
            drained: Time::ZERO,
        }
    }

    /// Sets the share of the limit, over 0 and at most 1, for packets from now on. A burst takes as long as
    /// at the limit.
    pub(crate) fn set_share(&mut self, share: f64) {
        debug_assert!(share > 0.0 && share <= 1.0, "{share}");
        self.share = share;
    }

    /// The used share of the limit.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// Duration of a burst after a pause.
    pub(crate) fn burst(&self) -> Duration {
        self.burst
    }

    /// Duration of `bytes` at the current rate.
    pub(crate) fn time(&self, bytes: u64) -> Duration {
        let at_limit = self.limit.time(bytes);
        if self.share == 1.0 {
            return at_limit;
        }
        Duration::from_nanos((at_limit.as_nanos() as f64 / self.share) as u64)
    }

    /// The earliest time of the next packet.
    pub(crate) fn ready_at(&self) -> Time {
        Time::from_nanos(self.drained.since(Time::ZERO + self.burst).as_nanos() as u64)
    }

    /// Notes a sent packet of `bytes`.
    pub(crate) fn spend(&mut self, now: Time, bytes: u64) {
        self.drained = self.drained.max(now) + self.time(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::RatePolicy;

    #[test]
    fn a_lower_share_takes_longer_from_now_on() {
        let mut pacer = Pacer::new(Pacing {
            bits_per_second: 8_000_000,
            burst: 0,
            policy: RatePolicy::Fixed,
        });
        pacer.spend(Time::ZERO, 1000);
        pacer.set_share(0.25);
        assert_eq!(pacer.ready_at(), Time::from_nanos(1_000_000));
        pacer.spend(pacer.ready_at(), 1000);
        assert_eq!(pacer.ready_at(), Time::from_nanos(5_000_000));
    }

    #[test]
    fn the_rate_holds_after_the_burst() {
        // 8 Mb/s are one byte per microsecond.
        let mut pacer = Pacer::new(Pacing {
            bits_per_second: 8_000_000,
            burst: 2999,
            policy: RatePolicy::Fixed,
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
        // A pause earns one burst.
        assert!(pacer.ready_at() < start + Duration::from_secs(1));
    }
}
