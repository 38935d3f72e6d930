//! Table `arp.neighbor`: hosts for which the switch answers ARP.

use std::net::Ipv4Addr;

use ultima_api::MacAddr;
use ultima_p4::names::neighbor;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;

/// ARP requests for `ip` are answered with `mac`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Neighbor {
    /// Key: the requested address.
    pub ip: Ipv4Addr,
    /// The host's MAC address.
    pub mac: MacAddr,
}

impl Row for Neighbor {
    const TABLE: &'static str = neighbor::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.exact(neighbor::TARGET_IP, self.ip)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.action(neighbor::ANSWER, &[(neighbor::MAC, self.mac.0.into())])
    }
}
