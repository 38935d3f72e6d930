//! What switches tell of jobs' losses.

use ultima_p4::names::loss;
use ultima_p4runtime::bytestring::{self, BytestringError};
use ultima_p4runtime::names::{Digest, ReadError};
use ultima_p4runtime::v1::P4Data;

use crate::job::{Epoch, JobId, Rank};
use crate::target::PortNumber;

/// An operation that lost as much at one place as its job's threshold says, told once. The counts are those of that
/// moment; a PROBE asks for what they are later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationLoss {
    /// The job.
    pub job: JobId,
    /// The membership epoch of its packets.
    pub epoch: Epoch,
    /// The training step.
    pub step: u32,
    /// The gradient bucket within the step.
    pub bucket: u16,
    /// Whose packet made it as much.
    pub source: Rank,
    /// The egress port that lost; of losses before the switch the port that the source's packets come in by.
    pub port: PortNumber,
    /// Data packets of the operation that the port could not carry.
    pub trimmed: u32,
    /// Data packets of it whose time was over at the port.
    pub late: u32,
    /// Packets that the source sent, the next of which was the operation's, and that did not reach the switch.
    pub upstream_lost: u32,
}

/// Why a message of the digest says nothing: the program is not ours, or the switch not true to it.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// A member is missing.
    #[error(transparent)]
    Member(#[from] ReadError),
    /// A member is wider than it is in packets.
    #[error("digest {}: \"{member}\": {error}", loss::DIGEST)]
    Width {
        /// The member.
        member: &'static str,
        /// What is wrong.
        error: BytestringError,
    },
}

impl OperationLoss {
    /// Reads one message of the digest.
    ///
    /// # Errors
    /// See [`LossError`].
    pub fn read(digest: &Digest, message: &P4Data) -> Result<Self, LossError> {
        let data = (digest, message);
        Ok(OperationLoss {
            job: JobId(member(data, loss::JOB)?),
            epoch: Epoch(member(data, loss::EPOCH)?),
            step: member(data, loss::STEP)?,
            bucket: member(data, loss::BUCKET)?,
            source: Rank(member(data, loss::SOURCE_RANK)?),
            port: PortNumber(member(data, loss::PORT)?),
            trimmed: member(data, loss::TRIMMED)?,
            late: member(data, loss::LATE)?,
            upstream_lost: member(data, loss::UPSTREAM_LOST)?,
        })
    }
}

fn member<T: TryFrom<u128>>(
    (digest, message): (&Digest, &P4Data),
    member: &'static str,
) -> Result<T, LossError> {
    let value = digest.read(message, member)?;
    bytestring::decode(value.as_bytes()).map_err(|error| LossError::Width { member, error })
}
