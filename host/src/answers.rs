//! Loss detection: the events that end the wait for a packet before a bound does.

use serde::{Deserialize, Serialize};

/// Events that end the wait for a packet. Without such an event, only t_C or a bound ends the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// Only the packet itself, as in OptiReduce (NSDI 2025, §3.2.1).
    Arrivals,
    /// Also its header, if a switch removed the payload (TRIMMED, LATE).
    Trimmed,
    /// Also any packet that the source sent later: a later slot, a notice, a packet of a later step.
    #[default]
    Order,
}

impl Answers {
    /// All variants.
    pub const ALL: [Answers; 3] = [Answers::Arrivals, Answers::Trimmed, Answers::Order];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Answers::Arrivals => "timeout-only",
            Answers::Trimmed => "trimmed",
            Answers::Order => "in-order",
        }
    }

    /// True if a header without its payload ends the wait.
    pub(crate) fn trimmed(self) -> bool {
        self != Answers::Arrivals
    }

    /// True if a packet that was sent later ends the wait.
    pub(crate) fn order(self) -> bool {
        self == Answers::Order
    }
}
