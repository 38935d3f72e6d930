//! What can go wrong between controller and switch.

use std::time::Duration;

use tonic::{Code, Status};
use ultima_p4runtime::transport::one_line;
use ultima_p4runtime::v1;

use super::term::Term;

/// Why a switch is not ours.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or who does speaks no gRPC.
    #[error("switch {switch} at {grpc} doesn't answer within {} s: {reason}; start it, or correct its `grpc` or `tls` in the fabric", timeout.as_secs_f32())]
    NoAnswer {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// How long was waited.
        timeout: Duration,
        /// What the last attempt gave.
        reason: String,
    },
    /// Who listens there ends the connection.
    #[error("switch {switch} at {grpc} breaks the connection: {reason}; {hint}")]
    Broken {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// What was seen of it.
        reason: String,
        /// What may help.
        hint: &'static str,
    },
    /// The server has no such device.
    #[error(
        "{grpc} has no device {device_id}: {message}; correct `device_id` of switch {switch} in the fabric"
    )]
    NoDevice {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// The device id that was asked for.
        device_id: u64,
        /// What the server said.
        message: String,
    },
    /// Another client is primary.
    #[error(
        "switch {switch} at {grpc} has another primary: {message}; stop the other controller first"
    )]
    NotPrimary {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// What the server said.
        message: String,
    },
    /// Controllers that stand by for each other have led it since.
    #[error(
        "switch {switch} at {grpc} has had a later primary, in term {term}, and what that one promised is not known here; start that controller, or name it with --peers"
    )]
    Superseded {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// The later term.
        term: Term,
    },
    /// The server ended the stream instead of answering.
    #[error("switch {switch} at {grpc} refused arbitration: {message}")]
    Refused {
        /// The switch's name.
        switch: String,
        /// Its address.
        grpc: String,
        /// What the server said.
        message: String,
    },
}

impl ConnectError {
    /// Whether the switch only doesn't answer, as far as can be told: one that dies while it is connected to breaks the connection.
    pub fn is_silence(&self) -> bool {
        use ConnectError::{Broken, NoAnswer};
        matches!(self, NoAnswer { .. } | Broken { .. })
    }

    /// Whether the switch was there and broke off what began: it may just be starting, or ending.
    pub fn is_break(&self) -> bool {
        use ConnectError::{Broken, Refused};
        matches!(self, Broken { .. } | Refused { .. })
    }

    /// Whether the next attempt may succeed. Another primary may be our own connection before, of which the switch does not know yet that it
    /// has ended.
    pub fn may_pass(&self) -> bool {
        self.is_silence() || self.is_break() || matches!(self, ConnectError::NotPrimary { .. })
    }
}

/// A call that failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The server answered with an error.
    #[error("{}: {}", code_name(.0.code()), one_line(.0.message()))]
    Status(Status),
    /// The server didn't answer.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The connection was lost before it did.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Others that waited for the answer could not wait any longer.
    #[error("no answer yet when trees had to move")]
    GivenUp,
}

impl RpcError {
    /// Whether the answer was not waited for, as others waited.
    pub fn is_given_up(&self) -> bool {
        matches!(self, RpcError::GivenUp)
    }

    /// Whether the server may have done some of what it was asked to: it didn't say that it
    /// refused.
    pub fn is_uncertain(&self) -> bool {
        match self {
            RpcError::Timeout(_) | RpcError::Lost(_) | RpcError::GivenUp => true,
            RpcError::Status(status) => may_pass(status.code()),
        }
    }
}

/// Whether this says neither that what was asked for is wrong nor that who asks may not have it.
pub fn may_pass(code: Code) -> bool {
    !matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::Unauthenticated
    )
}

/// A batch of which not everything was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Some updates were refused. One outcome for each, in the batch's order; those with code OK
    /// are written.
    #[error("{} of {} updates refused", .0.iter().filter(|outcome| failed(outcome)).count(), .0.len())]
    Updates(Vec<v1::Error>),
    /// The call failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

/// Whether an update was refused.
pub fn failed(outcome: &v1::Error) -> bool {
    outcome.canonical_code != Code::Ok as i32
}

/// A refused update in words: its code's name and the server's text.
pub fn describe(outcome: &v1::Error) -> String {
    let code = code_name(Code::from_i32(outcome.canonical_code));
    match outcome.message.as_str() {
        "" => code.to_owned(),
        message => format!("{code}: {}", one_line(message)),
    }
}

/// gRPC's name of a code, as its specification writes it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
