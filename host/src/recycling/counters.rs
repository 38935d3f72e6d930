//! Counters of recycling at one rank.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Counters of recycling over a run. Every unresolved slot also counts as repaired or lapsed later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecyclingCounters {
    /// Slots that did not count this rank's contribution (rule 1).
    pub uncounted: u64,
    /// Slots without an aggregate when their operation ended.
    pub unresolved: u64,
    /// Unresolved slots whose aggregate arrived later (rule 2).
    pub repaired: u64,
    /// Unresolved slots that count as not aggregated, because their time is over.
    pub lapsed: u64,
    /// Requests for repair sent.
    pub requests_sent: u64,
    /// Requests for repair received.
    pub requests_received: u64,
    /// REPAIR packets sent.
    pub repairs_sent: u64,
    /// REPAIR packets received, including duplicates and those without payload.
    pub repairs_received: u64,
}

impl AddAssign for RecyclingCounters {
    fn add_assign(&mut self, other: Self) {
        self.uncounted += other.uncounted;
        self.unresolved += other.unresolved;
        self.repaired += other.repaired;
        self.lapsed += other.lapsed;
        self.requests_sent += other.requests_sent;
        self.requests_received += other.requests_received;
        self.repairs_sent += other.repairs_sent;
        self.repairs_received += other.repairs_received;
    }
}
