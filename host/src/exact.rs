//! Exact operations: their kinds, outcomes and counters. The protocol is in `core/exact`.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operation::OperationId;

/// Kind of an exact operation. All ranks start the same kind with the same id and number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exact {
    /// Every rank's values, added in the order of the ranks.
    Sum,
    /// The same, divided by the number of ranks.
    Mean,
    /// The root's values. The other ranks' values only set the length.
    Broadcast {
        /// The rank whose values are sent.
        root: u16,
    },
    /// Every rank's part, concatenated in the order of ranks. Each rank starts it with its own part.
    AllGather,
}

impl Exact {
    /// True if `source` contributes to `owner`'s shard.
    pub(crate) fn contributes(self, source: u16, owner: u16) -> bool {
        match self {
            Exact::Sum | Exact::Mean => true,
            Exact::Broadcast { root } => source == root,
            Exact::AllGather => source == owner,
        }
    }

    /// Number of contributions to a complete slot.
    pub(crate) fn contributions(self, ranks: u16) -> u16 {
        match self {
            Exact::Sum | Exact::Mean => ranks,
            Exact::Broadcast { .. } | Exact::AllGather => 1,
        }
    }
}

/// The outcome of a complete exact operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactOutcome {
    /// The operation.
    pub id: OperationId,
    /// From its start to its end.
    pub duration: Duration,
    /// Requests for missing slots that this rank sent.
    pub requests: u64,
}

/// An exact operation that was incomplete at its limit, or when a rank left. It has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Incomplete {
    /// The operation.
    pub id: OperationId,
    /// The time that this rank waited.
    pub waited: Duration,
    /// Ranks whose contributions to this rank's shard are missing.
    pub contributions: Vec<u16>,
    /// Ranks whose aggregates are missing. They may wait for others.
    pub aggregates: Vec<u16>,
    /// The ranks of both lists without a single packet.
    pub silent: Vec<u16>,
    /// Ranks that have left the job before they had the result.
    pub left: Vec<u16>,
    /// Ranks that run another operation under the same id.
    pub differing: Vec<u16>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = Duration::from_millis(self.waited.as_millis() as u64);
        write!(f, "{} is incomplete after {waited:?}", self.id)?;
        let parts = [
            (": the job was left by ", &self.left),
            (": no packet from ", &self.silent),
            (": missing contributions of ", &self.contributions),
            (": missing aggregates of ", &self.aggregates),
        ];
        // The first non-empty list is the cause of the later ones.
        if let Some((what, ranks)) = parts.iter().find(|(_, ranks)| !ranks.is_empty()) {
            write!(f, "{what}{}", Ranks(ranks))?;
        }
        if !self.differing.is_empty() {
            write!(
                f,
                "; packets of {} belong to another operation: all ranks must make the same calls in the same order, \
                 with the same number of values",
                Ranks(&self.differing)
            )?;
        }
        Ok(())
    }
}

/// Ranks as errors list them: the first few.
struct Ranks<'a>(&'a [u16]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 8;
        let (first, more) = self.0.split_at(self.0.len().min(NAMED));
        let names: Vec<String> = first.iter().map(u16::to_string).collect();
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "rank{plural} {}", names.join(", "))?;
        match more.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Counters of exact operations over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactCounters {
    /// Complete operations.
    pub complete: u64,
    /// Operations that were incomplete at their limit.
    pub incomplete: u64,
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests received.
    pub requests_received: u64,
    /// SCATTER packets sent again. They also count as owed and sent in their phase.
    pub contributions_resent: u64,
    /// REPAIR packets sent.
    pub repairs_sent: u64,
    /// REPAIR packets received, including duplicates and those without payload.
    pub repairs_received: u64,
}

impl AddAssign for ExactCounters {
    fn add_assign(&mut self, other: Self) {
        self.complete += other.complete;
        self.incomplete += other.incomplete;
        self.requests_sent += other.requests_sent;
        self.requests_received += other.requests_received;
        self.contributions_resent += other.contributions_resent;
        self.repairs_sent += other.repairs_sent;
        self.repairs_received += other.repairs_received;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_cause_first() {
        let mut error = Incomplete {
            id: OperationId { step: 3, bucket: 9 },
            waited: Duration::from_micros(2_000_123),
            contributions: vec![2],
            aggregates: vec![0, 2],
            silent: vec![2],
            left: vec![],
            differing: vec![],
        };
        assert_eq!(
            error.to_string(),
            "step 3 bucket 9 is incomplete after 2s: no packet from rank 2"
        );
        error.silent.clear();
        error.contributions.clear();
        error.aggregates = (0..10).collect();
        error.differing = vec![1];
        let text = error.to_string();
        assert!(
            text.contains("missing aggregates of ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"),
            "{text}"
        );
        assert!(
            text.contains("packets of rank 1 belong to another operation"),
            "{text}"
        );
    }
}
