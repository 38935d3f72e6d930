//! The gRPC status of a refused request: its code, its text and the field at fault.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use ultima_api::client::{EPOCH_OVER, LEADER};
use ultima_api::v1::FieldProblem;
use ultima_planner::fabric::Fabric;
use ultima_planner::job::RefusalKind;

use super::error::JobRequestError;
use super::jobs::JobsRefused;
use super::plan::PlanError;
use crate::store::StoreError;
use crate::store::etcd::EtcdError;

fn code_of(error: &StoreError) -> Code {
    match error {
        StoreError::NotLeader
        | StoreError::Unknown
        | StoreError::Etcd(EtcdError::NoAnswer { .. }) => Code::Unavailable,
        _ => Code::Internal,
    }
}

impl JobRequestError {
    /// True if the controller does not lead any more, or is stopping: the next leader may serve the request.
    fn is_deposed(&self) -> bool {
        use StoreError::{NotLeader, Unknown};
        match self {
            JobRequestError::NotLeader | JobRequestError::Stopping => true,
            JobRequestError::Store { error, .. } | JobRequestError::DrainNotStored(error) => {
                matches!(error, NotLeader | Unknown)
            }
            _ => false,
        }
    }

    /// The gRPC code of this error.
    pub(super) fn code(&self) -> Code {
        match self {
            JobRequestError::Exists { .. } | JobRequestError::OtherRequest { .. } => {
                Code::AlreadyExists
            }
            JobRequestError::NoJob { .. }
            | JobRequestError::NoHost { .. }
            | JobRequestError::NoRank { .. }
            | JobRequestError::NotAMember { .. }
            | JobRequestError::UnknownElement(_) => Code::NotFound,
            JobRequestError::NotThatMember { .. } | JobRequestError::KeyInPlainText { .. } => {
                Code::PermissionDenied
            }
            JobRequestError::SameMembers { .. } => Code::AlreadyExists,
            JobRequestError::SeveralRanks { .. } => Code::InvalidArgument,
            JobRequestError::Grid { .. }
            | JobRequestError::LastEpoch { .. }
            | JobRequestError::Unfit { .. }
            | JobRequestError::Changing { .. }
            | JobRequestError::OtherEpoch { .. }
            | JobRequestError::NotChanging { .. }
            | JobRequestError::NobodyStays { .. } => Code::FailedPrecondition,
            JobRequestError::OverEpoch { .. } => Code::OutOfRange,
            JobRequestError::TooManyToCheck { .. }
            | JobRequestError::TooManyWait { .. }
            | JobRequestError::NoRoom { .. }
            | JobRequestError::Quota { .. } => Code::ResourceExhausted,
            JobRequestError::Refused { refusal, .. } => match refusal.kind {
                RefusalKind::NoRoom => Code::ResourceExhausted,
                RefusalKind::UnknownHost => Code::NotFound,
                RefusalKind::Invalid => Code::InvalidArgument,
                RefusalKind::Unreachable => Code::FailedPrecondition,
            },
            JobRequestError::NotReady { .. }
            | JobRequestError::Paused { .. }
            | JobRequestError::Taken {
                next_epoch: true, ..
            }
            | JobRequestError::CancelPending { .. }
            | JobRequestError::ClientGone
            | JobRequestError::NotLeader
            | JobRequestError::Stopping => Code::Unavailable,
            JobRequestError::Unsupported(_)
            | JobRequestError::Taken { .. }
            | JobRequestError::NotJoined { .. }
            | JobRequestError::Program(_) => Code::FailedPrecondition,
            JobRequestError::Missing { .. } => Code::DeadlineExceeded,
            JobRequestError::Settings { .. } => Code::InvalidArgument,
            JobRequestError::Store { error, .. } | JobRequestError::DrainNotStored(error) => {
                code_of(error)
            }
            JobRequestError::Deleted { .. } => Code::Aborted,
        }
    }

    /// The field of the request that is at fault; none if it is the job as a whole, or something
    /// else.
    pub(super) fn field(&self) -> Option<FieldProblem> {
        let field = match self {
            JobRequestError::Exists { .. } => "name".to_owned(),
            JobRequestError::SameMembers { .. } | JobRequestError::NobodyStays { .. } => {
                "members".to_owned()
            }
            JobRequestError::Refused { refusal, .. } => {
                let (field, problem) = (refusal.field.clone()?, refusal.to_string());
                let named = format!("{field}: ");
                let problem = problem.strip_prefix(&named).unwrap_or(&problem).to_owned();
                return Some(FieldProblem { field, problem });
            }
            _ => return None,
        };
        let problem = self.to_string();
        Some(FieldProblem { field, problem })
    }
}

impl From<JobRequestError> for Status {
    fn from(error: JobRequestError) -> Self {
        status(&error, error.field())
    }
}

/// The field is `jobs[2]`, or a field of it.
impl From<JobsRefused> for Status {
    fn from(JobsRefused { at, error }: JobsRefused) -> Self {
        let field = at.map(|at| match error.field() {
            Some(FieldProblem { field, problem }) => FieldProblem {
                field: format!("jobs[{at}].{field}"),
                problem,
            },
            None => FieldProblem {
                field: format!("jobs[{at}]"),
                problem: error.to_string(),
            },
        });
        status(&error, field)
    }
}

/// Limit of a status message in bytes. It travels in HTTP/2 headers, whose size clients limit;
/// names and lists of names from requests may be longer.
const MOST: usize = 2000;

/// Shortens a text for a status message.
fn brief(mut text: String) -> String {
    if text.len() > MOST {
        let mut ends = (0..=MOST).rev();
        let end = ends.find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push_str(" ...");
    }
    text
}

fn status(error: &JobRequestError, field: Option<FieldProblem>) -> Status {
    let code = error.code();
    let mut status = naming(code, brief(error.to_string()), field);
    if let JobRequestError::OverEpoch { now, .. } = error {
        let now = MetadataValue::from(*now);
        status.metadata_mut().insert(EPOCH_OVER, now);
    }
    if error.is_deposed() {
        let unknown = MetadataValue::from_static("");
        status.metadata_mut().insert(LEADER, unknown);
    }
    status
}

/// A status with the field at fault, if there is one.
fn naming(code: Code, says: String, field: Option<FieldProblem>) -> Status {
    match field {
        Some(FieldProblem { field, problem }) => {
            let details = ErrorDetails::with_bad_request_violation(field, brief(problem));
            Status::with_error_details(code, says, details)
        }
        None => Status::new(code, says),
    }
}

/// The status for a fabric file with which the controller would not start.
pub(super) fn of_fabric(fabric: &Fabric, error: &PlanError) -> Status {
    let says = error.to_string();
    let field = error.field(fabric).map(|field| FieldProblem {
        field,
        problem: says.clone(),
    });
    naming(error.code(), brief(says), field)
}

#[cfg(test)]
mod tests {
    use ultima_api::client::ClientError;
    use ultima_api::codes::CODES;
    use ultima_planner::job::Refusal;

    use super::*;

    #[test]
    fn errors_have_the_documented_codes() {
        let name = || "train".to_owned();
        let changing = JobRequestError::Changing {
            name: name(),
            epoch: 2,
        };
        let other = JobRequestError::OtherEpoch {
            name: name(),
            epoch: 2,
        };
        let many = JobRequestError::TooManyToCheck {
            name: name(),
            members: 4097,
            most: 4096,
        };
        let unknown = JobRequestError::Refused {
            name: name(),
            refusal: Box::new(Refusal::of_field(
                RefusalKind::UnknownHost,
                "members[0]",
                "members[0]: unknown host".into(),
            )),
        };
        for (error, code) in [
            (unknown, Code::NotFound),
            (changing, Code::FailedPrecondition),
            (other, Code::FailedPrecondition),
            (many, Code::ResourceExhausted),
            (
                JobRequestError::TooManyWait { most: 9 },
                Code::ResourceExhausted,
            ),
            (JobRequestError::Stopping, Code::Unavailable),
            (JobRequestError::Deleted { name: name() }, Code::Aborted),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{}", status.message());
            assert!(CODES.iter().any(|(known, ..)| *known == code));
        }
    }

    /// A client with several controllers repeats a request only if another one may serve it.
    #[test]
    fn only_a_change_of_leader_is_reported_as_one() {
        let error = |error| JobRequestError::Store {
            name: "train".to_owned(),
            error,
        };
        let refused = JobRequestError::NotReady {
            name: "train".to_owned(),
            missing: String::new(),
        };
        for (error, is_deposed) in [
            (JobRequestError::Stopping, true),
            (JobRequestError::NotLeader, true),
            (error(StoreError::Unknown), true),
            (JobRequestError::DrainNotStored(StoreError::Unknown), true),
            (refused, false),
        ] {
            let error = ClientError::of(error.into(), "here");
            let known = matches!(error, ClientError::Deposed { .. });
            assert_eq!(known, is_deposed, "{error:?}");
            assert!(error.is_for_now() && error.may_be_done());
        }
    }

    #[test]
    fn an_unimplemented_call_is_reported() {
        let error = ClientError::of(Status::unimplemented(""), "here:1");
        assert!(
            error
                .to_string()
                .starts_with("the server at here:1 does not know")
        );
    }

    #[test]
    fn long_messages_are_shortened() {
        for (text, len) in [
            ("a".repeat(MOST), MOST),
            ("a".repeat(MOST + 1), MOST + 4),
            // A character that would be split is left out.
            ("a".repeat(MOST - 1) + "éé", MOST - 1 + 4),
        ] {
            assert_eq!(brief(text).len(), len);
        }
    }

    #[test]
    fn only_a_controller_reports_that_an_epoch_is_over() {
        let over = Status::from(JobRequestError::OverEpoch {
            name: "train".into(),
            rank: 1,
            epoch: 1,
            now: 2,
            first: None,
            fate: None,
        });
        assert_eq!(over.code(), Code::OutOfRange);
        let error = ClientError::of(over, "here");
        assert!(error.is_over(), "{error:?}");
        let long = ClientError::of(Status::out_of_range("a message is too long"), "here");
        assert!(!long.is_over(), "{long:?}");
    }
}
