//! Table `routing.route`: IPv4 routes to hosts.

use std::net::Ipv4Addr;

use ultima_api::MacAddr;
use ultima_p4::names::route;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::target::PortNumber;

/// Packets to the host `to` leave by `port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Key: the packet's IPv4 destination, all 32 bits.
    pub to: Ipv4Addr,
    /// The egress port.
    pub port: PortNumber,
    /// The host's MAC address, also behind a trunk: switches have no MAC addresses.
    pub mac: MacAddr,
}

impl Row for Route {
    const TABLE: &'static str = route::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.lpm(route::DST_ADDR, self.to, u32::BITS)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        let values = [
            (route::PORT, self.port.0.into()),
            (route::DST_MAC, self.mac.0.into()),
        ];
        entry.action(route::FORWARD, &values)
    }
}
