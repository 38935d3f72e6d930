//! Errors of a collective.

use crate::config::ConfigError;
use crate::core::StartError;
use crate::driver::LinkError;
use crate::exact::Incomplete;
use crate::hierarchical::grid::GridError;
use crate::operation::OperationId;
use crate::safeguards::StopError;

/// Errors of a collective.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The number of addresses differs from the number of ranks.
    #[error(
        "{peers} peer addresses for a job of {ranks} ranks: expected one per rank, including this one"
    )]
    Peers {
        /// Addresses given.
        peers: usize,
        /// Ranks of the job.
        ranks: u16,
    },
    /// The bucket's length changed under the same id, so carried or started values no longer match.
    #[error(
        "bucket {bucket} had {was} values and now has {is}: expected the same length until it is waited for, \
         and with recycling in every step"
    )]
    Length {
        /// The bucket.
        bucket: u16,
        /// Its length in earlier steps.
        was: usize,
        /// Its length now.
        is: usize,
    },
    /// The bucket's operation of an earlier step was not waited for. Its residual belongs in this one.
    #[error("{id} cannot start: wait for {under_way} of the same bucket first")]
    UnderWay {
        /// The rejected id.
        id: OperationId,
        /// The earlier operation.
        under_way: OperationId,
    },
    /// There is no operation to wait for, or another function waits for its kind.
    #[error("{0} was not started, or was already waited for")]
    NotStarted(OperationId),
    /// The core rejected the operation.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The grid does not support the operation.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The ranks agreed to stop.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// An exact operation missed packets at its limit, or when a rank left.
    #[error(transparent)]
    Incomplete(Box<Incomplete>),
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl From<Incomplete> for Error {
    fn from(incomplete: Incomplete) -> Self {
        Error::Incomplete(Box::new(incomplete))
    }
}
