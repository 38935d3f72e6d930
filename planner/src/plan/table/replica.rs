//! Table `delivery.replica`: the addresses of a replica.

use std::net::Ipv4Addr;

use ultima_api::MacAddr;
use ultima_p4::names::replica;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::job::{JobId, Rank};

/// The replica of `job`'s packet for `rank` gets these addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Key: the job in the packet.
    pub job: JobId,
    /// Key: the replica's RID.
    pub rank: Rank,
    /// The MAC address of the rank's host.
    pub mac: MacAddr,
    /// The IPv4 address of the rank's host.
    pub ip: Ipv4Addr,
    /// The rank's UDP port.
    pub udp_port: u16,
}

impl Row for Replica {
    const TABLE: &'static str = replica::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry
            .exact(replica::JOB, self.job.0)?
            .exact(replica::RID, self.rank.0)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        let values = [
            (replica::DST_MAC, self.mac.0.into()),
            (replica::DST_ADDR, self.ip.into()),
            (replica::DST_PORT, self.udp_port.into()),
        ];
        entry.action(replica::READDRESS, &values)
    }
}
