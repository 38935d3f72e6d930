//! Errors as exceptions of `ultima._errors`.

use pyo3::prelude::*;
use pyo3::types::PyType;
use ultima_agent::job::{JobError, Refusal};
use ultima_host::{ConfigError, Error as Collective, StartError};

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
    new(py, class(error), message(error))
}

fn class(error: &JobError) -> &'static str {
    match error {
        JobError::Variable { .. }
        | JobError::NoRendezvous
        | JobError::NoGroup
        | JobError::Rank { .. }
        | JobError::Members { .. }
        | JobError::Ipv6 { .. }
        | JobError::Port { .. }
        | JobError::Interface { .. }
        | JobError::Bucket(_)
        | JobError::Length { .. } => "SettingError",
        JobError::Refused(Refusal::Mismatch { .. } | Refusal::Seed { .. })
        | JobError::OtherOperation { .. } => "MismatchError",
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
            Collective::Start(StartError::Alone { .. } | StartError::Left { .. }) => "GoneError",
            _ => "Error",
        },
        JobError::Taken | JobError::Io { .. } => "Error",
    }
}

/// The text of `error`, with the names of Python's arguments, and with advice for users of Python.
fn message(error: &JobError) -> String {
    let advice = match error {
        JobError::Refused(Refusal::Mismatch {
            rank,
            field,
            has,
            expected,
        }) => return mismatch(*rank, field, has, expected),
        JobError::Session(error) if error.to_string().starts_with("unknown host") => {
            "; set ULTIMA_HOST to this host's name in the fabric"
        }
        JobError::Session(error) if error.to_string().starts_with("there is no job") => {
            "; correct ULTIMA_JOB, or create the job with `ultima job create`"
        }
        JobError::Collective(error) => match &**error {
            Collective::Config(ConfigError::Slot { bytes, most }) => {
                return format!(
                    "slot_bytes is {bytes}: expected a multiple of 4 from 64 to {most}"
                );
            }
            Collective::Incomplete(missing) if missing.differing.is_empty() => {
                "; check that all ranks run and make the same calls, or allow more time (exact_timeout)"
            }
            _ => "",
        },
        _ => "",
    };
    format!("{error}{advice}")
}

/// The text for a setting of `rank` that is not rank 0's.
fn mismatch(rank: u16, field: &str, has: &str, expected: &str) -> String {
    // The name in the text, and the name of what the user sets.
    let (setting, same) = match field {
        "protocol" => (field, "version of ultima"),
        "element" => ("wire", "wire"),
        "coding" => (field, "hadamard"),
        "slot size" => (field, "slot_bytes"),
        "timeouts" => (field, "learning"),
        "sealing" => (field, "ULTIMA_SEAL"),
        "number of ranks" => ("WORLD_SIZE", "WORLD_SIZE"),
        "deadline" | "recycling" | "seed" => (field, field),
        _ => (field, "settings"),
    };
    format!(
        "rank {rank} has {setting} {has}, rank 0 has {expected}: start all ranks with the same {same}"
    )
}
