//! Errors as exceptions of `ultima._errors`.

use pyo3::prelude::*;
use pyo3::types::PyType;
use ultima_agent::job::{JobError, Refusal};

/// An exception of the class `class` of `ultima._errors`.
pub fn new(py: Python<'_>, class: &str, message: impl Into<String>) -> PyErr {
    let found = py
        .import("ultima._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, (message.into(),)),
        Err(missing) => missing,
    }
}

/// The exception for `error`.
pub fn of(py: Python<'_>, error: &JobError) -> PyErr {
    use ultima_host::Error as Collective;
    let class = match error {
        JobError::Variable { .. }
        | JobError::NoRendezvous
        | JobError::NoGroup
        | JobError::Rank { .. }
        | JobError::Members { .. }
        | JobError::Ipv6 { .. }
        | JobError::Interface { .. }
        | JobError::Bucket(_)
        | JobError::Length { .. } => "SettingError",
        JobError::Refused(Refusal::Mismatch { .. }) => "MismatchError",
        JobError::Refused(_)
        | JobError::Resolve { .. }
        | JobError::Socket { .. }
        | JobError::Store { .. }
        | JobError::Unreachable { .. }
        | JobError::Late { .. } => "RendezvousError",
        JobError::Session(_) | JobError::NoController { .. } => "ControllerError",
        JobError::Ended(_) => "ClosedError",
        JobError::Collective(error) => match &**error {
            Collective::Config(_) | Collective::Length { .. } => "SettingError",
            Collective::Incomplete(_) => "IncompleteError",
            _ => "Error",
        },
        JobError::Taken | JobError::Io { .. } => "Error",
    };
    new(py, class, error.to_string())
}
