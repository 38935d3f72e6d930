//! `queue.queue_time`: how long packets may be queued at a port.

use std::fmt;

use ultima_p4::names::queue;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::plan::VirtualQueue;
use crate::target::PortNumber;

/// At `egress`, what was queued for longer than its virtual queue's bounds take is marked and trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueTime {
    /// Key: the port that the packet leaves by.
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

impl fmt::Display for QueueTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[port {}]", queue::TABLE, self.egress)
    }
}
