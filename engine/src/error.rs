//! Errors of programs and of control-plane requests.

use std::fmt;

/// Why a program does not load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file is not BMv2 JSON as p4c prints it.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// Line of the fault, from 1.
        line: usize,
        /// Column of the fault, from 1.
        column: usize,
        /// The found and the expected content.
        message: String,
    },
    /// The program uses a construct that this interpreter does not implement.
    #[error("{at}: {what} is not supported by this switch")]
    Unsupported {
        /// The construct, by its name in the format.
        what: String,
        /// The object that uses it.
        at: String,
    },
    /// The file is inconsistent, such as an unknown reference or a wrong width.
    #[error("{at}: {what}")]
    Malformed {
        /// The reason.
        what: String,
        /// The object.
        at: String,
    },
    /// The program and its P4Info describe different things.
    #[error("program and P4Info disagree: {what}")]
    P4Info {
        /// The object that is missing or differs.
        what: String,
    },
    /// The program exceeds a limit.
    #[error("{at}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The object.
        at: String,
        /// The program's value.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

impl LoadError {
    /// Returns the error of a construct, by its name in the format, and the object that uses it.
    pub fn unsupported(what: impl fmt::Display, at: impl fmt::Display) -> LoadError {
        LoadError::Unsupported {
            what: what.to_string(),
            at: at.to_string(),
        }
    }

    pub(super) fn malformed(what: impl fmt::Display, at: impl fmt::Display) -> LoadError {
        LoadError::Malformed {
            what: what.to_string(),
            at: at.to_string(),
        }
    }

    /// Returns the object that a reference names, or an error if there is none.
    pub(super) fn found<T>(
        found: Option<T>,
        kind: &str,
        name: impl fmt::Display,
        at: impl fmt::Display,
    ) -> Result<T, LoadError> {
        found.ok_or_else(|| LoadError::malformed(format!("there is no {kind} {name}"), at))
    }

    /// Checks a value against a limit.
    pub(super) fn check(
        what: &'static str,
        found: u64,
        limit: u64,
        at: impl fmt::Display,
    ) -> Result<(), LoadError> {
        if found <= limit {
            return Ok(());
        }
        let at = at.to_string();
        Err(LoadError::Limit {
            what,
            at,
            found,
            limit,
        })
    }

    /// Returns the error of a P4Info that does not describe the program.
    pub fn p4info(what: impl fmt::Display) -> LoadError {
        LoadError::P4Info {
            what: what.to_string(),
        }
    }
}

/// The gRPC status code of a [`ControlError`], by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is invalid for this program.
    InvalidArgument = 3,
    /// An index is outside its array, or a value does not fit its type (P4Runtime §8.3).
    OutOfRange = 11,
    /// The object does not exist.
    NotFound = 5,
    /// The object exists.
    AlreadyExists = 6,
    /// The table, group or session table is full.
    ResourceExhausted = 8,
    /// The program declares the object constant.
    PermissionDenied = 7,
    /// Another object refers to the object.
    FailedPrecondition = 9,
    /// This switch does not implement the request.
    Unimplemented = 12,
}

/// Why a control-plane request is rejected. It then changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ControlError {
    kind: ErrorKind,
    text: String,
}

impl ControlError {
    pub(super) fn new(kind: ErrorKind, text: impl Into<String>) -> ControlError {
        let text = text.into();
        ControlError { kind, text }
    }

    /// Returns the error of a request that is invalid for this program.
    pub(super) fn invalid(text: impl Into<String>) -> ControlError {
        ControlError::new(ErrorKind::InvalidArgument, text)
    }

    /// Checks a number of objects against a limit.
    pub(super) fn check_room(
        what: impl fmt::Display,
        found: usize,
        limit: usize,
    ) -> Result<(), ControlError> {
        if found <= limit {
            return Ok(());
        }
        let text = format!("{what} would be {found}, the limit is {limit}");
        Err(ControlError::new(ErrorKind::ResourceExhausted, text))
    }

    /// Returns the error of a value that is empty or does not fit its width.
    pub(super) fn value(what: &str, bits: u32, fault: &str) -> ControlError {
        let text = format!("{what} is {bits} bits wide: {fault}");
        ControlError::new(ErrorKind::OutOfRange, text)
    }

    pub(super) fn index(array: &str, index: u64, size: usize) -> ControlError {
        let text = format!("{array}: index {index} is outside 0..{size}");
        ControlError::new(ErrorKind::OutOfRange, text)
    }

    /// Returns the gRPC status code that the P4Runtime specification assigns to this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
