//! Outcomes of ingress and egress.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the program or a limit dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCause {
    /// The program dropped it (`mark_to_drop`, or an egress port of 511).
    Program,
    /// Its multicast group has no replicas or does not exist.
    EmptyGroup,
    /// It visited more parser states than [`Limits::parser_states`].
    ParserLimit,
    /// It took more jumps than [`Limits::action_jumps`].
    JumpLimit,
    /// It was resubmitted or recirculated more often than [`Limits::passes`].
    PassLimit,
    /// Its received packet has [`Limits::descendants`] descendants.
    DescendantLimit,
    /// An `assert` or `assume` of the program failed (BMv2 would exit).
    Assertion,
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DropCause::Program => "the program wants it",
            DropCause::EmptyGroup => "the multicast group has no replicas",
            DropCause::ParserLimit => "limit of parser states reached",
            DropCause::JumpLimit => "limit of jumps in actions reached",
            DropCause::PassLimit => "limit of passes (resubmit, recirculate, egress clone) reached",
            DropCause::DescendantLimit => "limit of what may come of one packet reached",
            DropCause::Assertion => "an assertion does not hold",
        })
    }
}

/// The outcome of ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressOutcome {
    /// The packet itself has at least one copy.
    Forwarded,
    /// The packet itself has no copy. Clones may exist.
    Dropped(DropCause),
}

/// The outcome of egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressOutcome {
    /// The frame is in `out`, for the copy's port.
    Sent,
    /// The copy went through ingress again. Its new copies are among `clones`.
    Recirculated(IngressOutcome),
    /// The copy is dropped. Clones may exist.
    Dropped(DropCause),
}
