//! A collective's counters and history, for other threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::thread::{Prober, Report, Stopped};
use crate::history::History;
use crate::stats::Outcome;

/// Durations and losses of a collective's operations so far.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    pub(super) fn add(&self, outcome: &Outcome) {
        self.lock().add(outcome);
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle that reads a collective's counters from any thread, also during an operation.
#[derive(Clone)]
pub struct Observer {
    prober: Prober,
    history: SharedHistory,
}

impl Observer {
    pub(super) fn new(prober: Prober, history: SharedHistory) -> Self {
        Self { prober, history }
    }

    /// Returns the counters so far, as soon as the data thread has answered.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn report(&self) -> Result<Report, Stopped> {
        // No check uses round 0.
        self.prober.heard(0).map(|(_, report)| report)
    }

    /// Durations and losses of finished operations. Also valid after the collective has ended.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }
}
