//! The origin of an epoch.

use std::sync::Arc;
use std::time::Instant;

use super::{Change, Succession, Terms, Timers};
use crate::job::JobId;

/// The committed part of a change: the origin of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The job's id in the previous epoch.
    pub of: JobId,
    /// The succession of members.
    pub succession: Arc<Succession>,
    /// The terms of the change.
    pub terms: Terms,
    /// True if operations had begun when the change was requested.
    pub has_begun: bool,
    /// The epoch's first operation, once it is decided.
    pub first: Option<u32>,
}

impl Origin {
    /// Starts or resumes the change.
    pub fn change(&self, timers: Timers, now: Instant) -> Change {
        let succession = Arc::clone(&self.succession);
        let change = match self.first {
            None => Change::new(succession, self.terms, self.has_begun, now),
            Some(first) => Change::resumed(succession, self.terms, first, now),
        };
        change.with_timers(timers)
    }
}
