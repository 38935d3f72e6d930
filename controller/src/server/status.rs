//! The control API: why a request was not granted, as gRPC's codes.

use tonic::{Code, Status};

use super::error::JobRequestError;
use super::journal::KeepError;
use crate::install::InstallError;
use crate::job::PlacementError;
use crate::ledger::Refusal;

pub(super) fn code_of(error: &KeepError) -> Code {
    match error {
        KeepError::Store(_) => Code::Internal,
        KeepError::Copies { .. } | KeepError::NotPrimary | KeepError::Unknown => Code::Unavailable,
    }
}

impl From<JobRequestError> for Status {
    fn from(error: JobRequestError) -> Self {
        let code = match &error {
            JobRequestError::Exists { .. } => Code::AlreadyExists,
            JobRequestError::NoJob { .. }
            | JobRequestError::NoHost { .. }
            | JobRequestError::NoRank { .. }
            | JobRequestError::NotAMember { .. } => Code::NotFound,
            JobRequestError::Changing { .. } => Code::Aborted,
            JobRequestError::SameMembers { .. } => Code::AlreadyExists,
            JobRequestError::SeveralRanks { .. } => Code::InvalidArgument,
            JobRequestError::Grid { .. }
            | JobRequestError::LastEpoch { .. }
            | JobRequestError::NobodyStays { .. } => Code::FailedPrecondition,
            JobRequestError::OverEpoch { .. } => Code::OutOfRange,
            JobRequestError::Refused { refusal, .. } => match **refusal {
                Refusal::Placement(PlacementError::NoPort { .. })
                | Refusal::TooManyJobs { .. }
                | Refusal::Limit(_) => Code::ResourceExhausted,
                Refusal::Placement(_) => Code::InvalidArgument,
                Refusal::Unreachable { .. } => Code::Unavailable,
            },
            JobRequestError::NotConnected { .. }
            | JobRequestError::InDoubt { .. }
            | JobRequestError::NotPrimary
            | JobRequestError::Stopping => Code::Unavailable,
            JobRequestError::Install { error, .. } => match **error {
                InstallError::Stopped { .. } => Code::Aborted,
                InstallError::Untranslatable(_) => Code::FailedPrecondition,
            },
            JobRequestError::Taken { .. }
            | JobRequestError::NotJoined { .. }
            | JobRequestError::Program(_) => Code::FailedPrecondition,
            JobRequestError::Missing { .. } => Code::DeadlineExceeded,
            JobRequestError::Store { error, .. } => code_of(error),
            JobRequestError::Divide { .. } | JobRequestError::Deleted { .. } => Code::Aborted,
        };
        Status::new(code, error.to_string())
    }
}
