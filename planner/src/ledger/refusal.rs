//! Reasons why a job is rejected.

use crate::job::PlacementError;
use crate::plan::LimitError;

/// Reason why a job is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The members cannot be placed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A down or drained element separates the members.
    #[error(
        "no path leads from switch {switch} to host {host} while elements are down or drained; repair or undrain them, or leave the host out"
    )]
    Unreachable {
        /// The unreachable host.
        host: String,
        /// The switch of the first member's host.
        switch: String,
    },
    /// All job ids are taken.
    #[error("the fabric has {jobs} jobs and no free job id; delete a job")]
    TooManyJobs {
        /// The number of jobs.
        jobs: usize,
    },
    /// A limit of a switch is exceeded.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Refusal {
    /// The invalid field of the request; none if the reason is the job as a whole.
    pub fn field(&self) -> Option<String> {
        match self {
            Refusal::Placement(error) => Some(error.field()),
            Refusal::Unreachable { .. } => Some("members".to_owned()),
            Refusal::TooManyJobs { .. } | Refusal::Limit(_) => None,
        }
    }
}
