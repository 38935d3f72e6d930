//! The stored state of a lab.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;
use crate::switch_kind::SwitchKind;

/// A lab, as stored in its folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The fabric's file, as given.
    pub file: PathBuf,
    /// The kind of its switches.
    pub switch: SwitchKind,
    /// When the lab was created, in seconds since 1970.
    pub since: u64,
    /// True if the lab was created completely.
    pub complete: bool,
    /// Its started processes.
    pub processes: Vec<Started>,
}

/// A process of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// Its role: `switch s1`, `controller`.
    pub role: String,
    /// Its identity.
    pub process: ProcessId,
    /// Its log.
    pub log: PathBuf,
}
