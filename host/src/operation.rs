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

/// Which half of an AllReduce an operation is: hierarchical ones ([`crate::Hierarchical`]) put another AllReduce between
/// the two. All ranks start an id as the same part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// Both.
    #[default]
    Whole,
    /// Contributions go to their owners. It ends when this rank's shard has closed, at t_S at the latest, and its own
    /// contributions are out; the result is that shard, and zero elsewhere.
    Scatter,
    /// This rank's shard is given and goes to all; of the rest of what is given nothing is read. It ends as a whole
    /// operation does. A slot that comes counts as complete unless its owner said that it lacks something: [`Piece`].
    Gather,
}

/// A part of an AllReduce that goes on with what another operation ended with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Which one.
    pub part: Part,
    /// Whether what it is started with lacks something already. This rank's aggregates then say that they lack a
    /// contribution, whatever they count, so that everybody knows who has one of them.
    pub lacks: bool,
}

impl From<Part> for Piece {
    fn from(part: Part) -> Self {
        Self { part, lacks: false }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} bucket {}", self.step, self.bucket)
    }
}
