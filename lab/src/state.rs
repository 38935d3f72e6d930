//! What is written down of a lab.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;

/// Which switch runs in a lab.
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

/// A lab, as its folder describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The fabric's file, as it was named.
    pub file: PathBuf,
    /// Which switch runs.
    pub switch: SwitchKind,
    /// When the lab was made, in seconds since 1970.
    pub since: u64,
    /// Whether all of it was made.
    pub complete: bool,
    /// What was started.
    pub processes: Vec<Started>,
}

/// A process of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// What it does: `switch s1`, `controller`.
    pub role: String,
    /// Which one it is.
    pub process: ProcessId,
    /// What it says goes there.
    pub log: PathBuf,
}
