//! Table `queue.queue_time`: bounds of the queueing time at a port.

use ultima_p4::names::queue;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::plan::VirtualQueue;
use crate::target::PortNumber;

/// Packets at `egress` that were queued longer than the virtual queue's bounds are marked or
/// trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueTime {
    /// Key: the egress port.
    pub egress: PortNumber,
    /// The port's virtual queue.
    pub queue: VirtualQueue,
}

impl Row for QueueTime {
    const TABLE: &'static str = queue::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.exact(queue::EGRESS_PORT, self.egress.0)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        let values = [
            (queue::MARK, self.queue.mark_time().into()),
            (queue::TRIM, self.queue.trim_time().into()),
        ];
        entry.action(queue::LIMIT, &values)
    }
}
