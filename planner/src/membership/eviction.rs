//! The eviction policy of a job.

use std::fmt;
use std::time::Duration;

/// The eviction policy for suspected members.
///
/// The default is never: with another number of ranks, training averages over other data, so the
/// user must opt in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Suspected members keep their ranks; operations go on without their data.
    #[default]
    Never,
    /// Members are evicted after being suspected for this many seconds.
    After(u32),
}

impl Eviction {
    /// The longest timeout in seconds: a day.
    pub const MOST: u32 = 86_400;

    /// The timeout; none for never.
    pub fn bound(self) -> Option<Duration> {
        match self {
            Eviction::Never => None,
            Eviction::After(seconds) => Some(Duration::from_secs(seconds.into())),
        }
    }

    /// The timeout in seconds, 0 for never.
    pub fn seconds(self) -> u32 {
        match self {
            Eviction::Never => 0,
            Eviction::After(seconds) => seconds,
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Eviction::Never => f.write_str("never"),
            Eviction::After(seconds) => write!(f, "after {seconds} s"),
        }
    }
}
