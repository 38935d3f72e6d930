//! Ranks that run another operation than this one under the same number.

use std::sync::atomic::{AtomicU64, Ordering};

use ultima_host::{Observer, Rejection};

use crate::outcome::Outcome;

/// The packets of other ranks that did not fit this rank's operations.
pub struct Misfits {
    observer: Observer,
    /// Those that were reported.
    seen: AtomicU64,
}

impl Misfits {
    /// Counts a job's misfits.
    pub fn new(observer: Observer) -> Self {
        Self {
            observer,
            seen: AtomicU64::new(0),
        }
    }

    /// The ranks without a fitting packet in an operation, if packets that do not fit came since the last call.
    pub fn of(&self, outcome: &Outcome) -> Vec<u16> {
        let missing = outcome.without_packets();
        if missing.is_empty() {
            return missing;
        }
        // A job that has ended has its own error.
        let Ok(report) = self.observer.report() else {
            return Vec::new();
        };
        let rejected = report.totals.rejected;
        let reasons = [Rejection::Slot, Rejection::Length, Rejection::Exact];
        let count = reasons.map(|reason| rejected.of(reason)).iter().sum();
        match self.seen.fetch_max(count, Ordering::Relaxed) < count {
            true => missing,
            false => Vec::new(),
        }
    }
}
