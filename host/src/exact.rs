//! Exact operations: what the caller chooses and is told.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operation::OperationId;

/// What an exact operation computes. All ranks start the same one with the same id and as many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exact {
    /// Every rank's values, added in the order of the ranks.
    Sum,
    /// The same, divided by the number of ranks.
    Mean,
    /// The root's values. What the others start it with only says how many they are.
    Broadcast {
        /// Whose values.
        root: u16,
    },
    /// Every rank's part, one behind the other by rank; it is started with this rank's.
    AllGather,
}

impl Exact {
    /// Whether `source` has something to say about `owner`'s shard.
    pub(crate) fn contributes(self, source: u16, owner: u16) -> bool {
        match self {
            Exact::Sum | Exact::Mean => true,
            Exact::Broadcast { root } => source == root,
            Exact::AllGather => source == owner,
        }
    }

    /// Contributions of a whole slot.
    pub(crate) fn contributions(self, ranks: u16) -> u16 {
        match self {
            Exact::Sum | Exact::Mean => ranks,
            Exact::Broadcast { .. } | Exact::AllGather => 1,
        }
    }
}

/// An exact operation that has everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactOutcome {
    /// Which one.
    pub id: OperationId,
    /// From its start to its end.
    pub duration: Duration,
    /// Requests for what was lost or not there yet that this rank sent until then.
    pub requests: u64,
}

/// An exact operation that does not have everything at its limit. It has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Incomplete {
    /// Which one.
    pub id: OperationId,
    /// How long this rank waited.
    pub waited: Duration,
    /// Ranks whose contributions to this rank's shard are missing.
    pub contributions: Vec<u16>,
    /// Ranks whose aggregates are missing: they may wait for others.
    pub aggregates: Vec<u16>,
    /// Of both, ranks of which nothing at all came.
    pub silent: Vec<u16>,
    /// Ranks whose packets say that they run it as something else.
    pub differing: Vec<u16>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not complete after {:?}", self.id, self.waited)?;
        let parts = [
            (": nothing came from ", &self.silent),
            (": contributions are missing of ", &self.contributions),
            (": aggregates are missing of ", &self.aggregates),
        ];
        // The first that is not empty is the cause of the later ones.
        if let Some((what, ranks)) = parts.iter().find(|(_, ranks)| !ranks.is_empty()) {
            write!(f, "{what}{}", Ranks(ranks))?;
        }
        if !self.differing.is_empty() {
            write!(
                f,
                "; what comes from {} is of another operation: all ranks must run the same one under an id, \
                 with as many values",
                Ranks(&self.differing)
            )?;
        }
        Ok(())
    }
}

/// Ranks as an error names them: the first few.
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

/// What exact operations did, over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactCounters {
    /// Operations that ended with everything.
    pub complete: u64,
    /// Operations that ended at their limit.
    pub incomplete: u64,
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests received.
    pub requests_received: u64,
    /// SCATTER packets sent again; they count as owed and sent in their phase, too.
    pub contributions_resent: u64,
    /// REPAIR packets sent.
    pub repairs_sent: u64,
    /// REPAIR packets received, cut and repeated ones too.
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
            waited: Duration::from_secs(2),
            contributions: vec![2],
            aggregates: vec![0, 2],
            silent: vec![2],
            differing: vec![],
        };
        assert_eq!(
            error.to_string(),
            "step 3 bucket 9 is not complete after 2s: nothing came from rank 2"
        );
        error.silent.clear();
        error.contributions.clear();
        error.aggregates = (0..10).collect();
        error.differing = vec![1];
        let text = error.to_string();
        assert!(
            text.contains("aggregates are missing of ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"),
            "{text}"
        );
        assert!(
            text.contains("what comes from rank 1 is of another operation"),
            "{text}"
        );
    }
}
