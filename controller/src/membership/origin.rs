//! How an epoch came to be.

use std::sync::Arc;
use std::time::Instant;

use super::{Change, Succession, Terms};
use crate::job::JobId;

/// How an epoch came to be: what is kept of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The job's number in the epoch before.
    pub of: JobId,
    /// What became of the members.
    pub succession: Arc<Succession>,
    /// How the change is made.
    pub terms: Terms,
    /// Whether operations had begun when it was asked for.
    pub has_begun: bool,
    /// The epoch's first operation, where that is decided.
    pub first: Option<u32>,
}

impl Origin {
    /// The change, as it stands when somebody takes it up.
    pub fn change(&self, now: Instant) -> Change {
        let succession = Arc::clone(&self.succession);
        match self.first {
            None => Change::new(succession, self.terms, self.has_begun, now),
            Some(first) => Change::resumed(succession, self.terms, first, now),
        }
    }
}
