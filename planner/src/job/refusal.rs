//! Reasons why a job is rejected.

use ultima_p4runtime::names::NameError;

/// Reason why a job is rejected: by its file, its request, or the room in the fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of reason.
    pub kind: RefusalKind,
    /// The invalid field of the file or request, such as `members[2]`; none if the reason is the job
    /// as a whole.
    pub field: Option<String>,
    /// The name of the switch whose limit is exceeded.
    pub switch: Option<String>,
    /// The reason, and what would be right.
    message: String,
}

/// A kind of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request is invalid on any fabric, or exceeds a host's room for ranks.
    Invalid,
    /// The fabric has no such host.
    UnknownHost,
    /// A resource is used up: UDP ports, job ids, or a limit of a switch.
    NoRoom,
    /// A down or drained element separates the members.
    Unreachable,
}

impl Refusal {
    /// A reason in a field of the request.
    pub fn of_field(kind: RefusalKind, field: impl Into<String>, message: String) -> Self {
        Refusal {
            kind,
            field: Some(field.into()),
            switch: None,
            message,
        }
    }

    /// An invalid field.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Refusal::of_field(RefusalKind::Invalid, field, message.into())
    }

    /// An exhausted resource of the fabric, or of one switch.
    pub(crate) fn no_room(switch: Option<&str>, message: String) -> Self {
        Refusal {
            kind: RefusalKind::NoRoom,
            field: None,
            switch: switch.map(str::to_owned),
            message,
        }
    }
}

/// The program lacks a table, counter or meter.
impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        let message =
            format!("{error}; use Ultima's program and P4Info, or a program derived from it");
        Refusal::no_room(None, message)
    }
}
