//! Time in the core, which has no clock of its own.

use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time on the driver's monotonic clock, in nanoseconds since its arbitrary zero.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(u64);

impl Time {
    /// The zero of the clock.
    pub const ZERO: Time = Time(0);

    /// The time `ns` nanoseconds after zero.
    pub const fn from_nanos(ns: u64) -> Self {
        Time(ns)
    }

    /// Nanoseconds since zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Duration since `earlier`; zero if that is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates at the last nanosecond, after 584 years.
    fn add(self, span: Duration) -> Time {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(ns))
    }
}
