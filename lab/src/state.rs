//! The stored state of a lab.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;

/// The kind of a lab's switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchKind {
    /// `ultima switch`.
    Embedded,
    /// BMv2's `simple_switch_grpc`.
    Bmv2,
}

impl FromStr for SwitchKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "embedded" => Ok(SwitchKind::Embedded),
            "bmv2" => Ok(SwitchKind::Bmv2),
            _ => Err("expected embedded or bmv2".to_owned()),
        }
    }
}

impl fmt::Display for SwitchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwitchKind::Embedded => "embedded",
            SwitchKind::Bmv2 => "bmv2",
        })
    }
}

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
