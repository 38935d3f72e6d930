//! Table `admission.destination`: the destinations of a job's unicast packets.

use std::net::Ipv4Addr;

use ultima_p4::names::destination;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::job::JobId;

/// Packets of `job` may go to `ip` and `udp_port`, which belong to one of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Key: the job in the packet.
    pub job: JobId,
    /// Key: the packet's IPv4 destination.
    pub ip: Ipv4Addr,
    /// Key: the packet's UDP destination port.
    pub udp_port: u16,
}

impl Row for Destination {
    const TABLE: &'static str = destination::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry
            .exact(destination::JOB, self.job.0)?
            .exact(destination::DST_ADDR, self.ip)?
            .exact(destination::DST_PORT, self.udp_port)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.action(destination::ADMIT, &[])
    }
}
