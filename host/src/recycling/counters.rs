//! What recycling did at one rank.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Slots and packets of recycling, over a run. Every slot in doubt is counted once more when it is no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecyclingCounters {
    /// Slots of which this rank knows that its contribution was not counted: rule 1's.
    pub uncounted: u64,
    /// Slots that it was in doubt of when their operation ended.
    pub doubtful: u64,
    /// Of these, slots whose aggregate came later: rule 2's.
    pub repaired: u64,
    /// Of these, slots taken never to have been aggregated.
    pub lapsed: u64,
    /// Requests for repair sent.
    pub requests_sent: u64,
    /// Requests for repair received.
    pub requests_received: u64,
    /// REPAIR packets sent.
    pub repairs_sent: u64,
    /// REPAIR packets received, cut and repeated ones too.
    pub repairs_received: u64,
}

impl AddAssign for RecyclingCounters {
    fn add_assign(&mut self, other: Self) {
        self.uncounted += other.uncounted;
        self.doubtful += other.doubtful;
        self.repaired += other.repaired;
        self.lapsed += other.lapsed;
        self.requests_sent += other.requests_sent;
        self.requests_received += other.requests_received;
        self.repairs_sent += other.repairs_sent;
        self.repairs_received += other.repairs_received;
    }
}
