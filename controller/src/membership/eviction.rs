//! When a member that is suspected loses its place.

use std::fmt;
use std::time::Duration;

/// A job's policy for members that are suspected.
///
/// Never, unless the job says otherwise: another number of ranks averages over other data, and whoever trains is to know that it may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// They keep their places; operations go on without what they owe.
    #[default]
    Never,
    /// They are evicted when they have been suspected for that many seconds.
    After(u32),
}

impl Eviction {
    /// The longest wait, in seconds: a day.
    pub const MOST: u32 = 86_400;

    /// How long a member may be suspected; none for ever.
    pub fn bound(self) -> Option<Duration> {
        match self {
            Eviction::Never => None,
            Eviction::After(seconds) => Some(Duration::from_secs(seconds.into())),
        }
    }

    /// As a number of seconds, 0 for never.
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
