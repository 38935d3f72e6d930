//! The id of an operation, and its parts.

use std::fmt;

/// Id of one AllReduce in a job: the same on every rank, never used twice.
///
/// Ranks may start the buckets of a step in any order. A step starts when the operations of the step before
/// have ended, so a packet of a later step shows that its source has sent all of the earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    /// The training step; never decreases.
    pub step: u32,
    /// The gradient bucket within the step.
    pub bucket: u16,
}

/// The half of an AllReduce that an operation runs: hierarchical ones ([`crate::Hierarchical`]) run another
/// AllReduce between the two. All ranks start an id as the same part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// Both.
    #[default]
    Whole,
    /// Contributions go to their owners. It ends when this rank's shard has closed, at t_S at the latest, and
    /// its own contributions are sent. The result is that shard, and zero elsewhere.
    Scatter,
    /// This rank's given shard goes to all ranks; the rest of the given values is ignored. It ends like a
    /// whole operation. A received slot counts as complete unless its owner reported missing contributions:
    /// [`Piece`].
    Gather,
}

/// The part of an AllReduce that an operation runs, and its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The part.
    pub part: Part,
    /// The number of the bucket's entries before coding. Packets carry a check of it, so that ranks refuse those of a bucket with
    /// another length and the same padding. None states no length: then no rank of the operation states one.
    pub entries: Option<usize>,
    /// True if the input lacks contributions. This rank's aggregates then report one missing contribution,
    /// whatever they count, so that every receiver knows.
    pub lacks: bool,
}

impl Piece {
    /// A whole AllReduce of a bucket of `entries`.
    pub fn whole(entries: usize) -> Self {
        Self {
            entries: Some(entries),
            ..Self::default()
        }
    }
}

impl From<Part> for Piece {
    fn from(part: Part) -> Self {
        Self {
            part,
            ..Self::default()
        }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} bucket {}", self.step, self.bucket)
    }
}
