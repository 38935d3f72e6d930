//! The end of a timeout.

use std::time::{Duration, Instant};

/// `timeout` from now.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    // A timeout beyond the clock's range means no deadline in practice.
    now.checked_add(timeout)
        .unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}
