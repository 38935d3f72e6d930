//! The name of one AllReduce.

use std::fmt;

/// Names one AllReduce of a job: the same on every rank, never used twice in a job.
///
/// Ranks may start the buckets of a step in any order. A step starts when the operations of the
/// step before have ended, so that a packet of a later step shows that its source has sent all of
/// the earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    /// The training step, rising.
    pub step: u32,
    /// The gradient bucket within the step.
    pub bucket: u16,
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} bucket {}", self.step, self.bucket)
    }
}
