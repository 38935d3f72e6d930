//! Ranks that run another operation than this one under the same number.

use std::sync::atomic::{AtomicU64, Ordering};

use ultima_host::{Observer, Rejection};

/// The data thread has to answer each look. So looks at operations that lack little are rare, after the first ones.
const FIRST: u64 = 4;
const EVERY: u64 = 16;
/// A share of a rank's missing packets that is worth a look.
const SHARE: f64 = 0.125;

/// The packets of other ranks that did not fit this rank's operations.
pub struct Misfits {
    observer: Observer,
    /// Those that were reported.
    seen: AtomicU64,
    operations: AtomicU64,
}

impl Misfits {
    /// Counts a job's misfits.
    pub fn new(observer: Observer) -> Self {
        Self {
            observer,
            seen: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        }
    }

    /// True if packets that do not fit came since the last look. `share` is the largest share of a rank's packets that the
    /// operation lacks.
    pub fn are_new(&self, share: f64) -> bool {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        if number >= FIRST && !number.is_multiple_of(EVERY) && share < SHARE {
            return false;
        }
        // A job that has ended has its own error.
        let Ok(report) = self.observer.report() else {
            return false;
        };
        let rejected = report.totals.rejected;
        let reasons = [Rejection::Slot, Rejection::Length, Rejection::Exact];
        let count = reasons.map(|reason| rejected.of(reason)).iter().sum();
        self.seen.fetch_max(count, Ordering::Relaxed) < count
    }
}
