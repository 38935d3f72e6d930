//! The kind of a lab's switches.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
