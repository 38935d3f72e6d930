//! The error of a request to the controllers.

use std::error::Error;
use std::{io, iter};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use ultima_grpc::transport::root_cause;

use crate::v1::FieldProblem;

/// Metadata key in the answers of a controller that does not lead: the leader's address, empty if unknown.
pub const LEADER: &str = "ultima-leader";

/// Metadata key of a rejection: the member's epoch is over. The code alone is not enough, because
/// gRPC itself answers `OUT_OF_RANGE` to messages that are too long.
pub const EPOCH_OVER: &str = "ultima-epoch-over";

/// Error of a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// No server listens at the address, or the connection broke.
    #[error(
        "the controller at {address} does not answer: {reason}; {}",
        advice(address, *.is_handshake)
    )]
    NoAnswer {
        /// The controller's address.
        address: String,
        /// The reason.
        reason: String,
        /// True if the other side does not speak the same protocol: only one side uses TLS, one does not accept the other's
        /// certificate, or it is another server.
        is_handshake: bool,
    },
    /// None of several controllers answers.
    #[error(
        "no controller at {addresses} answers: {reason}; {}",
        match is_handshake {
            true => CERTIFICATES,
            false => "start them with `ultima controller serve`, or correct the addresses",
        }
    )]
    NoneAnswers {
        /// Their addresses.
        addresses: String,
        /// The reason, of one of them.
        reason: String,
        /// As of [`NoAnswer`](ClientError::NoAnswer).
        is_handshake: bool,
    },
    /// The connection to the leader of several controllers broke.
    #[error(
        "the leader of the controllers at {addresses} does not answer any more: {reason}; find the new one with `ultima controller status`"
    )]
    LostLeader {
        /// Their addresses.
        addresses: String,
        /// The reason.
        reason: String,
    },
    /// The controller's socket belongs to another user.
    #[error(
        "no permission to connect to the controller at {address}; run this command as the controller's user: for a lab, as root"
    )]
    NotOurs {
        /// The controller's address.
        address: String,
    },
    /// Controllers answer, but none of them leads.
    #[error("no controller at {addresses} leads{}", why(problem))]
    NoLeader {
        /// Their addresses.
        addresses: String,
        /// The problem that one of them reports; empty if none does.
        problem: String,
    },
    /// The controller does not lead any more, or is stopping. The next leader may serve the request.
    #[error("{message}")]
    Deposed {
        /// The controller's message.
        message: String,
    },
    /// The member's epoch is over, so a retry is pointless.
    #[error("{message}")]
    EpochOver {
        /// The end of the epoch, as the controller describes it.
        message: String,
    },
    /// A request or an answer is too long.
    #[error(
        "the request to the controller at {address}, or its answer, is too long: {reason}; ask for less at once, such as one job"
    )]
    TooLong {
        /// The controller's address.
        address: String,
        /// The length and the limit.
        reason: String,
    },
    /// The controller rejects the request.
    #[error("{message}")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// The controller's message.
        message: String,
        /// The invalid field of the request, if there is one.
        field: Option<Box<FieldProblem>>,
    },
}

impl ClientError {
    /// True if the request may have been executed: there was no answer, or an ambiguous one.
    pub fn may_be_done(&self) -> bool {
        match self {
            ClientError::Refused { code, .. } => matches!(
                code,
                Code::Unavailable
                    | Code::Internal
                    | Code::Unknown
                    | Code::Cancelled
                    | Code::DeadlineExceeded
            ),
            ClientError::EpochOver { .. } => false,
            // The request was never sent.
            ClientError::NotOurs { .. } | ClientError::NoLeader { .. } => false,
            ClientError::NoAnswer { .. }
            | ClientError::NoneAnswers { .. }
            | ClientError::LostLeader { .. }
            | ClientError::Deposed { .. }
            | ClientError::TooLong { .. } => true,
        }
    }

    /// True if there was no answer, so that the outcome is unknown.
    pub fn is_unanswered(&self) -> bool {
        use ClientError::{Refused, TooLong};
        self.may_be_done() && !matches!(self, Refused { .. } | TooLong { .. })
    }

    /// True if the member's epoch is over, so that a retry is pointless.
    pub fn is_over(&self) -> bool {
        matches!(self, ClientError::EpochOver { .. })
    }

    /// True if the request is wrong, so that a repetition is refused too: such as a member whose settings differ
    /// from the others', or a caller without the right role or token.
    pub fn is_invalid(&self) -> bool {
        matches!(
            self,
            ClientError::Refused {
                code: Code::InvalidArgument | Code::PermissionDenied,
                ..
            }
        )
    }

    /// True if the controller has nothing of that name.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            ClientError::Refused {
                code: Code::NotFound,
                ..
            }
        )
    }

    /// True if the request is refused only for now: a job is not ready, or no controller leads.
    pub fn is_for_now(&self) -> bool {
        matches!(
            self,
            ClientError::NoLeader { .. }
                | ClientError::Deposed { .. }
                | ClientError::Refused {
                    code: Code::Unavailable,
                    ..
                }
        )
    }

    /// True if the answer was lost, so that the request may have been executed.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(
            self,
            ClientError::NoAnswer { .. } | ClientError::LostLeader { .. }
        )
    }

    /// The error for a connection to the controller at `address` that failed or broke.
    pub(crate) fn no_answer(error: &(dyn Error + 'static), address: &str) -> ClientError {
        let reason = root_cause(error);
        let is_tls = |error: &(dyn Error + 'static)| {
            // As tokio-rustls reports what its peer sends.
            let error = error.downcast_ref::<io::Error>();
            error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
        };
        ClientError::NoAnswer {
            address: address.to_owned(),
            // HTTP/2 reads the alert of a server that expects TLS as a frame.
            is_handshake: sources(error).any(is_tls) || reason.contains("frame with invalid size"),
            reason,
        }
    }

    /// Converts the status of a call to the controller at `address`.
    pub fn of(status: Status, address: &str) -> ClientError {
        // No leader was found.
        let known = |error: &(dyn Error + 'static)| error.downcast_ref::<ClientError>().cloned();
        if let Some(error) = status.source().and_then(|it| sources(it).find_map(known)) {
            return error;
        }
        match status.source() {
            // The status has a source, so the transport made it, not the controller.
            Some(source) => ClientError::no_answer(source, address),
            None => {
                let is_over = status.metadata().contains_key(EPOCH_OVER);
                let (code, message) = (status.code(), status.message().to_owned());
                match code {
                    Code::Unavailable if status.metadata().contains_key(LEADER) => {
                        ClientError::Deposed { message }
                    }
                    Code::OutOfRange if is_over => ClientError::EpochOver { message },
                    Code::OutOfRange => ClientError::TooLong {
                        address: address.to_owned(),
                        reason: message,
                    },
                    // An empty message comes from tonic, not from a controller: the method is
                    // unknown.
                    Code::Unimplemented if message.is_empty() => ClientError::Refused {
                        code,
                        message: format!(
                            "the server at {address} does not know this request; check that the address is a controller's"
                        ),
                        field: None,
                    },
                    _ => ClientError::Refused {
                        code,
                        message,
                        field: field_of(&status).map(Box::new),
                    },
                }
            }
        }
    }
}

/// An error and its causes.
pub(crate) fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| (*error).source())
}

/// The end of an error with the problem that a controller reports, if there is one.
fn why(problem: &str) -> String {
    match problem {
        "" => "; find out why with `ultima controller status`".to_owned(),
        problem => format!(": {problem}"),
    }
}

/// The advice if a handshake fails.
const CERTIFICATES: &str = "pass --tls-ca, --tls-cert and --tls-key with certificates of its authority, or none of them if it serves without TLS";

/// The advice if no controller answers. A loopback address is the default, and wrong on every machine but the
/// controller's.
fn advice(address: &str, is_handshake: bool) -> String {
    if is_handshake {
        return CERTIFICATES.to_owned();
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    match host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        true => "start it with `ultima controller serve`, or correct the address; if it runs on another machine, start it there \
                 with --listen ADDRESS:9555, an address that this machine reaches, and use --controller ADDRESS:9555 here"
            .to_owned(),
        false => format!(
            "start it with `ultima controller serve --listen {address}`, or correct --controller; without --listen a controller serves \
             only its own machine"
        ),
    }
}

/// The field that a status is about. The controller reports one problem at a time.
fn field_of(status: &Status) -> Option<FieldProblem> {
    let violation = status
        .get_details_bad_request()?
        .field_violations
        .into_iter()
        .next()?;
    Some(FieldProblem {
        field: violation.field,
        problem: violation.description,
    })
}
