//! The status of a batch in which updates failed (P4Runtime §12.3).
//!
//! Its code is `UNKNOWN`, and its details are a [`rpc::Status`] with one [`v1::Error`] for each
//! update of the request, in the request's order, those that succeeded included. gRPC carries the
//! details in the trailer `grpc-status-details-bin`, so that a client loses them unless it accepts
//! trailers of their size: [`header_list_size`].

use crate::{rpc, v1};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

/// Returns the bytes of HTTP/2 headers and trailers that a client must accept to receive the outcome of each update of a
/// failed batch. Set it with tonic's `Endpoint::http2_max_header_list_size`; the default of 16 KiB holds about a hundred
/// outcomes.
///
/// The specification's rule of thumb (appendix, "gRPC Metadata Maximum Size") is 8 KiB and 100
/// bytes per update. An outcome with a sentence in it takes more: its type's name, the text, and a
/// third on top for base64.
pub fn header_list_size(updates: usize) -> u32 {
    const PER_UPDATE: usize = 512;
    u32::try_from(updates.saturating_mul(PER_UPDATE))
        .unwrap_or(u32::MAX)
        .saturating_add(8 << 10)
}

/// Returns the outcome of an update that succeeded.
pub fn success() -> v1::Error {
    v1::Error {
        canonical_code: Code::Ok as i32,
        ..Default::default()
    }
}

/// Returns the outcome of an update that failed: a canonical code and a text for people.
pub fn failure(code: Code, message: impl Into<String>) -> v1::Error {
    v1::Error {
        canonical_code: code as i32,
        message: message.into(),
        ..Default::default()
    }
}

/// Returns the status of a batch in which updates failed, with the outcomes in order.
pub fn status(outcomes: &[v1::Error]) -> Status {
    let failed = outcomes
        .iter()
        .filter(|error| error.canonical_code != Code::Ok as i32)
        .count();
    let message = format!("{failed} of {} updates failed", outcomes.len());
    let details = outcomes
        .iter()
        .map(|error| Any::from_msg(error).expect("a Vec has room for every message"));
    let details = rpc::Status {
        code: Code::Unknown as i32,
        message: message.clone(),
        details: details.collect(),
    };
    Status::with_details(Code::Unknown, message, details.encode_to_vec().into())
}

/// Returns the outcomes in a failed batch's status, in the order of its updates. `None` if the whole request failed or the
/// server sent no details.
pub fn outcomes(status: &Status) -> Option<Vec<v1::Error>> {
    if status.code() != Code::Unknown {
        return None;
    }
    let details = rpc::Status::decode(status.details()).ok()?.details;
    let outcomes: Vec<v1::Error> = details
        .iter()
        .map(|any| any.to_msg().ok())
        .collect::<Option<_>>()?;
    (!outcomes.is_empty()).then_some(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back_in_order() {
        let sent = [
            success(),
            failure(Code::NotFound, "no such entry"),
            success(),
        ];
        let status = status(&sent);
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unknown, "1 of 3 updates failed")
        );
        assert_eq!(outcomes(&status).as_deref(), Some(&sent[..]));
    }

    #[test]
    fn other_failures_have_no_outcomes() {
        assert_eq!(outcomes(&Status::unavailable("not ready")), None);
        assert_eq!(outcomes(&Status::unknown("no details")), None);
        let garbage = Status::with_details(Code::Unknown, "", vec![0xff; 9].into());
        assert_eq!(outcomes(&garbage), None);
        let other = rpc::Status {
            details: vec![Any::from_msg(&v1::WriteResponse {}).unwrap()],
            ..Default::default()
        };
        let other = Status::with_details(Code::Unknown, "", other.encode_to_vec().into());
        assert_eq!(outcomes(&other), None);
    }
}
