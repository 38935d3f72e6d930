//! Loss detection: the events that end the wait for a packet before a bound does.

use serde::{Deserialize, Serialize};

/// Events that end the wait for a packet. Without such an event, only t_C or a bound ends the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossDetection {
    /// Only the packet itself, as in OptiReduce (NSDI 2025, §3.2.1).
    TimeoutOnly,
    /// Also its header, if a switch removed the payload (TRIMMED, LATE).
    Trimmed,
    /// Also any packet that the source sent later: a later slot, a notice, a packet of a later step.
    #[default]
    InOrder,
}

impl LossDetection {
    /// All variants.
    pub const ALL: [LossDetection; 3] = [
        LossDetection::TimeoutOnly,
        LossDetection::Trimmed,
        LossDetection::InOrder,
    ];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            LossDetection::TimeoutOnly => "timeout-only",
            LossDetection::Trimmed => "trimmed",
            LossDetection::InOrder => "in-order",
        }
    }

    /// True if a header without its payload ends the wait.
    pub(crate) fn trimmed(self) -> bool {
        self != LossDetection::TimeoutOnly
    }

    /// True if a packet that was sent later ends the wait.
    pub(crate) fn order(self) -> bool {
        self == LossDetection::InOrder
    }
}
