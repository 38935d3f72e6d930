//! Errors of single updates and requests in a batch, and how they are reported (P4Runtime §10,
//! §12.3).

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use ultima_p4runtime::{rpc, v1};

use crate::engine::{ControlError, ErrorKind};

/// How an `Any` names `p4.v1.Error`.
const ERROR_TYPE: &str = "type.googleapis.com/p4.v1.Error";

/// What is wrong with one entity of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct EntityError {
    pub(super) code: Code,
    pub(super) message: String,
}

impl EntityError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        EntityError {
            code,
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        EntityError::new(Code::InvalidArgument, message)
    }

    pub(super) fn unimplemented(message: impl Into<String>) -> Self {
        EntityError::new(Code::Unimplemented, message)
    }
}

impl From<ControlError> for EntityError {
    fn from(error: ControlError) -> Self {
        let code = match (&error, error.kind()) {
            // §9.3, §9.4, §9.7: an index beyond the array, unlike a negative one.
            (ControlError::Index { .. }, _) => Code::OutOfRange,
            (_, ErrorKind::InvalidArgument) => Code::InvalidArgument,
            (_, ErrorKind::NotFound) => Code::NotFound,
            (_, ErrorKind::AlreadyExists) => Code::AlreadyExists,
            (_, ErrorKind::ResourceExhausted) => Code::ResourceExhausted,
            (_, ErrorKind::PermissionDenied) => Code::PermissionDenied,
        };
        EntityError::new(code, error.to_string())
    }
}

/// The status of a batch: OK when all of it succeeded; otherwise UNKNOWN, with one `p4.v1.Error`
/// for each entity in its order.
pub(super) fn batch_status(results: &[Result<(), EntityError>]) -> Result<(), Status> {
    let Some(first) = results.iter().find_map(|result| result.as_ref().err()) else {
        return Ok(());
    };
    let failed = results.iter().filter(|result| result.is_err()).count();
    let message = format!("{failed} of {} failed, first: {first}", results.len());
    let details = results.iter().map(|result| {
        let error = match result {
            Ok(()) => v1::Error::default(),
            Err(error) => v1::Error {
                canonical_code: error.code as i32,
                message: error.message.clone(),
                ..v1::Error::default()
            },
        };
        Any {
            type_url: ERROR_TYPE.to_owned(),
            value: error.encode_to_vec(),
        }
    });
    let status = rpc::Status {
        code: Code::Unknown as i32,
        message: message.clone(),
        details: details.collect(),
    };
    Err(Status::with_details(
        Code::Unknown,
        message,
        status.encode_to_vec().into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entity_has_its_error() {
        assert!(batch_status(&[Ok(()), Ok(())]).is_ok());
        let results = [
            Ok(()),
            Err(EntityError::new(Code::NotFound, "no such entry")),
            Ok(()),
        ];
        let status = batch_status(&results).expect_err("one failed");
        assert_eq!(status.code(), Code::Unknown);
        let details = rpc::Status::decode(status.details()).expect("google.rpc.Status");
        assert_eq!(
            (details.code, details.message.as_str()),
            (2, status.message())
        );
        let errors: Vec<_> = details
            .details
            .iter()
            .map(|any| {
                assert_eq!(any.type_url, "type.googleapis.com/p4.v1.Error");
                let error = v1::Error::decode(any.value.as_slice()).expect("p4.v1.Error");
                (error.canonical_code, error.message)
            })
            .collect();
        assert_eq!(
            errors,
            [
                (0, String::new()),
                (5, "no such entry".into()),
                (0, String::new())
            ]
        );
    }
}
