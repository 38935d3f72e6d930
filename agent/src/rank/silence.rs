//! Ranks whose packets do not arrive.

use std::fmt;

/// A rank that does not receive packets of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing from certain ranks, before the first operation.
    Ranks {
        /// The job, or a row or column of a grid.
        job: String,
        /// The receiver.
        rank: u16,
        /// The senders.
        from: Vec<u16>,
    },
    /// No packet at all in the first operation.
    Operation {
        /// The job, or a row or column of a grid.
        job: String,
        /// The receiver.
        rank: u16,
    },
}

impl Silence {
    /// The job to check.
    pub fn job(&self) -> &str {
        match self {
            Silence::Ranks { job, .. } | Silence::Operation { job, .. } => job,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Ranks { rank, from, .. } => {
                let from: Vec<String> = from.iter().map(u16::to_string).collect();
                write!(
                    f,
                    "rank {rank} and rank {} do not receive each other's packets",
                    from.join(", ")
                )
            }
            Silence::Operation { job, rank } => {
                write!(
                    f,
                    "rank {rank} received nothing in its first operation in job {job}"
                )
            }
        }
    }
}
