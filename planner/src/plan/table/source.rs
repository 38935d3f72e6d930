//! Table `admission.source`: the admitted senders of a job, and their ingress ports.

use std::net::Ipv4Addr;

use ultima_p4::names::source;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::job::{Epoch, JobId, Rank, SourceIndex};
use crate::target::PortNumber;

/// `rank` may send for `job` from `ip`, by ingress port `ingress`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Key: the host's port on its own switch; on others, the trunk toward it.
    pub ingress: PortNumber,
    /// Key: the job in the packet.
    pub job: JobId,
    /// Key: the membership epoch in the packet.
    pub epoch: Epoch,
    /// Key: the source rank in the packet.
    pub rank: Rank,
    /// Key: the packet's IPv4 source.
    pub ip: Ipv4Addr,
    /// The index of the source's loss counters, if its host is linked to this switch.
    pub index: Option<SourceIndex>,
}

impl Row for Source {
    const TABLE: &'static str = source::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry
            .exact(source::INGRESS_PORT, self.ingress.0)?
            .exact(source::JOB, self.job.0)?
            .exact(source::EPOCH, self.epoch.0)?
            .exact(source::SOURCE_RANK, self.rank.0)?
            .exact(source::SRC_ADDR, self.ip)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        match self.index {
            Some(SourceIndex(index)) => entry.action(
                source::ADMIT_FROM_HOST,
                &[(source::SOURCE_INDEX, index.into())],
            ),
            None => entry.action(source::ADMIT, &[]),
        }
    }
}
