//! Errors between controller and switch.

use std::time::Duration;

use tonic::{Code, Status};
use ultima_grpc::transport::one_line;
use ultima_p4runtime::{batch, v1};

use super::device::Device;

/// Error while connecting to a switch.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ConnectError {
    /// The switch does not answer, or not with gRPC.
    #[error("switch {switch} at {grpc} does not answer within {} s: {reason}; start it, or correct its `grpc` or `tls` in the fabric file", timeout.as_secs_f32())]
    NoAnswer {
        switch: String,
        grpc: String,
        timeout: Duration,
        /// The last attempt's error.
        reason: String,
    },
    /// The server breaks the connection.
    #[error("switch {switch} at {grpc} broke the connection: {reason}; {hint}")]
    Broken {
        switch: String,
        grpc: String,
        reason: String,
        /// A hint about the fix.
        hint: &'static str,
    },
    /// The server has no such device.
    #[error(
        "{grpc} has no device {device_id}: {message}; correct the `device_id` of switch {switch} in the fabric file"
    )]
    NoDevice {
        switch: String,
        grpc: String,
        device_id: u64,
        message: String,
    },
    /// Another client is the primary.
    #[error(
        "switch {switch} at {grpc} has another primary: {message}; stop the other controller first"
    )]
    NotPrimary {
        switch: String,
        grpc: String,
        message: String,
    },
    /// A controller that etcd elected later controls or controlled the switch.
    #[error(
        "switch {switch} at {grpc} had a later primary, elected in etcd's revision {revision}, whose jobs are unknown here; start the controller with that --state etcd://..., or restart the switch"
    )]
    Superseded {
        switch: String,
        grpc: String,
        /// The revision of etcd in which it was elected.
        revision: u64,
    },
    /// The switch has jobs of another controller's store.
    #[error(
        "switch {switch} at {grpc} has jobs of another controller's store ({jobs}), and is left alone; start the controller with the --state that has them, or remove them with --take-over"
    )]
    Foreign {
        switch: String,
        grpc: String,
        /// The number of these jobs.
        jobs: usize,
    },
    /// The switch runs a program that is not Ultima's.
    #[error(
        "switch {switch} runs another P4 program ({program}), which is left alone; start the controller with --replace-pipeline to replace it"
    )]
    ForeignProgram {
        switch: String,
        /// A description of the program.
        program: String,
    },
    /// The server rejected arbitration.
    #[error("switch {switch} at {grpc} refused arbitration: {message}")]
    Refused {
        switch: String,
        grpc: String,
        message: String,
    },
}

impl ConnectError {
    /// The error for a switch with so many jobs of another store.
    pub(crate) fn foreign(device: &Device, jobs: usize) -> Self {
        ConnectError::Foreign {
            switch: device.name.clone(),
            grpc: device.grpc.clone(),
            jobs,
        }
    }

    /// The error for a switch with a program that is not Ultima's.
    pub(crate) fn foreign_program(device: &Device, program: String) -> Self {
        ConnectError::ForeignProgram {
            switch: device.name.clone(),
            program,
        }
    }

    /// True if the switch did not answer. A switch that crashes while connecting breaks the
    /// connection instead.
    pub fn is_silence(&self) -> bool {
        use ConnectError::{Broken, NoAnswer};
        matches!(self, NoAnswer { .. } | Broken { .. })
    }

    /// True if the switch broke the connection, so it may just be starting or stopping.
    pub fn is_break(&self) -> bool {
        use ConnectError::{Broken, Refused};
        matches!(self, Broken { .. } | Refused { .. })
    }

    /// True if a retry may succeed. Another primary may be our own previous connection, whose end
    /// the switch has not noticed yet.
    pub fn may_pass(&self) -> bool {
        self.is_silence() || self.is_break() || matches!(self, ConnectError::NotPrimary { .. })
    }
}

/// Error of a whole call.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum RpcError {
    /// The server answered with an error.
    #[error("{}: {}", code_name(.0.code()), one_line(.0.message()))]
    Status(Status),
    /// The server did not answer.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The connection broke before the answer.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The call was abandoned because others waited.
    #[error("no answer before a reroute interrupted the call")]
    Abandoned,
}

impl RpcError {
    /// Replaces the status of a batch of requests by the first request's failure (P4Runtime §12.3).
    pub(super) fn of_read(self) -> Self {
        let RpcError::Status(status) = &self else {
            return self;
        };
        match batch::outcomes(status).and_then(|all| all.into_iter().find(failed)) {
            Some(first) => {
                RpcError::Status(Status::new(first.canonical_code.into(), first.message))
            }
            None => self,
        }
    }

    /// True if the call was abandoned because others waited.
    pub fn is_abandoned(&self) -> bool {
        matches!(self, RpcError::Abandoned)
    }

    /// True if the server may have executed the call, wholly or in part: it did not reject it.
    pub fn is_uncertain(&self) -> bool {
        match self {
            RpcError::Timeout(_) | RpcError::Lost(_) | RpcError::Abandoned => true,
            RpcError::Status(status) => may_pass(status.code()),
        }
    }
}

/// True if the code neither means an invalid request nor missing permission.
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

/// Error of a batch that was not fully written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum WriteError {
    /// Some updates were rejected. One result per update, in the batch's order; those with code OK
    /// are written.
    #[error("{} of {} updates were rejected", .0.iter().filter(|outcome| failed(outcome)).count(), .0.len())]
    Updates(Vec<v1::Error>),
    /// The call failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

/// True if an update was rejected.
pub fn failed(outcome: &v1::Error) -> bool {
    outcome.canonical_code != Code::Ok as i32
}

/// Describes a rejected update: the code's name and the server's message.
pub fn describe(outcome: &v1::Error) -> String {
    let code = code_name(Code::from_i32(outcome.canonical_code));
    match outcome.message.as_str() {
        "" => code.to_owned(),
        message => format!("{code}: {}", one_line(message)),
    }
}

/// The name of a gRPC code, as in gRPC's specification.
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

/// True if a removal leaves nothing behind.
pub(crate) fn is_gone(outcome: &v1::Error) -> bool {
    matches!(
        Code::from_i32(outcome.canonical_code),
        Code::Ok | Code::NotFound
    )
}
