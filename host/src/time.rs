//! The core's time.

use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of the driver's monotonic clock, in nanoseconds since whatever the driver chose.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(u64);

impl Time {
    /// The clock's beginning.
    pub const ZERO: Time = Time(0);

    /// `ns` nanoseconds after the clock's beginning.
    pub const fn from_nanos(ns: u64) -> Self {
        Time(ns)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that passed since `earlier`; zero if it is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Ends at the clock's last nanosecond, 584 years in.
    fn add(self, span: Duration) -> Time {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(ns))
    }
}
