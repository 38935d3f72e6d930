//! Simulated time.

use std::ops::{Add, AddAssign};
use std::time::Duration;

use ultima_host::Time;

/// A point or a span of simulated time in picoseconds. At 400 Gb/s a byte takes 20, and 2^64 are 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ps(pub u64);

impl Ps {
    /// The start, and the empty span.
    pub const ZERO: Ps = Ps(0);
    /// Later than all events.
    pub const NEVER: Ps = Ps(u64::MAX);

    /// Converts non-negative `seconds` to the nearest picosecond.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Ps((seconds * 1e12).round() as u64)
    }

    /// Duration of `bytes` at `rate` bits per second, rounded down.
    pub fn to_send(bytes: u64, rate: u64) -> Self {
        let ps = u128::from(bytes) * 8_000_000_000_000 / u128::from(rate);
        Ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// Span since `earlier`; zero if that is later.
    pub fn since(self, earlier: Ps) -> Ps {
        Ps(self.0.saturating_sub(earlier.0))
    }

    /// Whole nanoseconds, rounded down.
    pub fn as_ns(self) -> u64 {
        self.0 / 1000
    }

    /// In milliseconds.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// In seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// As the time of a protocol core's clock.
    pub fn to_core(self) -> Time {
        Time::from_nanos(self.as_ns())
    }

    /// From the time of a protocol core's clock.
    pub fn from_core(time: Time) -> Self {
        Ps(time.as_nanos().saturating_mul(1000))
    }
}

impl Add for Ps {
    type Output = Ps;

    fn add(self, span: Ps) -> Ps {
        Ps(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, span: Ps) {
        *self = *self + span;
    }
}

impl From<Duration> for Ps {
    fn from(span: Duration) -> Self {
        Ps(u64::try_from(span.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_a_rate() {
        assert_eq!(Ps::to_send(1, 400_000_000_000), Ps(20));
        assert_eq!(Ps::to_send(1 << 40, 1), Ps::NEVER);
        assert_eq!(Ps::from(Duration::from_micros(3)), Ps(3_000_000));
        assert_eq!(Ps::from_core(Ps(7_999).to_core()), Ps(7_000));
    }
}
