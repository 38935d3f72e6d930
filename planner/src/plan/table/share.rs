//! Table `shares.share`: the index of a job's counters at an egress port.

use ultima_p4::names::share;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::job::{JobId, ShareIndex};
use crate::target::PortNumber;

/// Packets of `job` at `egress` are counted and metered at `index`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Key: the job in the packet.
    pub job: JobId,
    /// Key: the egress port.
    pub egress: PortNumber,
    /// The index.
    pub index: ShareIndex,
}

impl Row for Share {
    const TABLE: &'static str = share::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry
            .exact(share::JOB, self.job.0)?
            .exact(share::EGRESS_PORT, self.egress.0)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.action(share::SET_SHARE, &[(share::INDEX, self.index.0.into())])
    }
}
