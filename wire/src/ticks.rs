//! The unit of time in packets.

use std::time::Duration;

/// A time or a span in packets, in units of 2^10 ns (1.024 µs). 32 bits are 73 minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u32);

impl Ticks {
    /// One tick is `2^SHIFT` ns.
    pub const SHIFT: u32 = 10;

    /// The longest span, which also means "no known limit".
    pub const MAX: Ticks = Ticks(u32::MAX);

    /// `ns` nanoseconds as a span, rounded down, at most [`Ticks::MAX`].
    pub fn from_span_ns(ns: u64) -> Self {
        Ticks(u32::try_from(ns >> Self::SHIFT).unwrap_or(u32::MAX))
    }

    /// `ns` nanoseconds of a running clock, wrapping every 73 minutes.
    pub fn from_clock_ns(ns: u64) -> Self {
        Ticks((ns >> Self::SHIFT) as u32)
    }

    /// This span in nanoseconds.
    pub fn as_ns(self) -> u64 {
        u64::from(self.0) << Self::SHIFT
    }
}

impl From<Duration> for Ticks {
    fn from(span: Duration) -> Self {
        Self::from_span_ns(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Ticks> for Duration {
    fn from(ticks: Ticks) -> Self {
        Duration::from_nanos(ticks.as_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_saturate_and_clocks_wrap() {
        assert_eq!(Ticks::from_span_ns(2048), Ticks(2));
        assert_eq!(Ticks::from_span_ns(u64::MAX), Ticks::MAX);
        assert_eq!(Ticks::from_clock_ns((1 << 42) + 3 * 1024), Ticks(3));
        assert_eq!(Ticks::from(Duration::from_millis(1)), Ticks(976));
        assert_eq!(Duration::from(Ticks(1)), Duration::from_nanos(1024));
    }
}
