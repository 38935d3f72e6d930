//! Why there is no place for a job.

use crate::job::PlacementError;
use crate::plan::LimitError;

/// Why a job is not accepted beside those that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its members have no place.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A part of the fabric that is down is between its members.
    #[error(
        "no way leads from switch {switch} to host {host} while parts of the fabric are down or drained; mend or undrain them, or leave the host out"
    )]
    Unreachable {
        /// The host.
        host: String,
        /// The switch of the first member's host.
        switch: String,
    },
    /// All numbers are taken.
    #[error("there are {jobs} jobs, and no number is left for another; delete one")]
    TooManyJobs {
        /// How many there are.
        jobs: usize,
    },
    /// It is over a limit of a switch.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Refusal {
    /// The field of the request that it is about; none where it is about the job as a whole.
    pub fn field(&self) -> Option<String> {
        match self {
            Refusal::Placement(error) => Some(error.field()),
            Refusal::Unreachable { .. } => Some("members".to_owned()),
            Refusal::TooManyJobs { .. } | Refusal::Limit(_) => None,
        }
    }
}
