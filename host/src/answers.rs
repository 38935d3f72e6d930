//! What ends the wait for a packet, beside the packet.

use serde::{Deserialize, Serialize};

/// What counts as an answer to a packet that is awaited; without one, only t_C or a bound ends the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// The packet alone, as OptiReduce has it (NSDI 2025, §3.2.1).
    Arrivals,
    /// Its header, which a switch sent on without the payload (TRIMMED, LATE), as well.
    Cuts,
    /// And what its source sent after it: a later slot, a notice, a packet of a later step.
    #[default]
    Order,
}

impl Answers {
    /// All of them.
    pub const ALL: [Answers; 3] = [Answers::Arrivals, Answers::Cuts, Answers::Order];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Answers::Arrivals => "timeout-only",
            Answers::Cuts => "trimmed",
            Answers::Order => "in-order",
        }
    }

    /// Whether a header without its payload is one.
    pub(crate) fn cuts(self) -> bool {
        self != Answers::Arrivals
    }

    /// Whether what was sent later is one.
    pub(crate) fn order(self) -> bool {
        self == Answers::Order
    }
}
