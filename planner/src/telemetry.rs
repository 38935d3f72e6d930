//! Loss reports of switches.

use ultima_p4::names::loss;
use ultima_p4runtime::bytestring;
use ultima_p4runtime::names::Digest;
use ultima_p4runtime::v1::P4Data;

use crate::job::{Epoch, JobId, Rank};
use crate::target::PortNumber;

/// An operation whose losses at one port reached its job's threshold, reported once. The counts are
/// those at that moment; a PROBE reads later ones.
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
    /// The source of the packet that reached the threshold.
    pub source: Rank,
    /// The egress port that lost packets; for losses before the switch, the ingress port of the
    /// source's packets.
    pub port: PortNumber,
    /// Data packets of the operation that were trimmed at the port.
    pub trimmed: u32,
    /// Data packets of the operation that arrived at the port after its deadline.
    pub late: u32,
    /// Packets that the source sent and that did not reach the switch. The source's next packet
    /// belonged to the operation.
    pub upstream_lost: u32,
}

/// Error in a digest message: the program is not Ultima's, or the switch does not follow it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LossError(String);

impl OperationLoss {
    /// Reads one message of the digest.
    ///
    /// # Errors
    /// See [`LossError`].
    pub fn read(digest: &Digest, message: &P4Data) -> Result<Self, LossError> {
        Ok(OperationLoss {
            job: JobId(member(digest, message, loss::JOB)?),
            epoch: Epoch(member(digest, message, loss::EPOCH)?),
            step: member(digest, message, loss::STEP)?,
            bucket: member(digest, message, loss::BUCKET)?,
            source: Rank(member(digest, message, loss::SOURCE_RANK)?),
            port: PortNumber(member(digest, message, loss::PORT)?),
            trimmed: member(digest, message, loss::TRIMMED)?,
            late: member(digest, message, loss::LATE)?,
            upstream_lost: member(digest, message, loss::UPSTREAM_LOST)?,
        })
    }
}

fn member<T: TryFrom<u128>>(
    digest: &Digest,
    message: &P4Data,
    member: &'static str,
) -> Result<T, LossError> {
    let value = digest.read(message, member);
    let value = value.map_err(|error| LossError(error.to_string()))?;
    bytestring::decode(value.as_bytes())
        .map_err(|error| LossError(format!("digest {}: \"{member}\": {error}", loss::DIGEST)))
}
