//! Jobs, and the packets of their members.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use pnet::util::MacAddr;
use ultima_wire::{Dtype, Header, Kind, Report, Ticks, frame};

use crate::fabric::HostId;
use crate::generator::{Datagram, UdpChecksum, ultima};

/// The destination MAC address of hosts, which switches ignore.
pub const GATEWAY: MacAddr = MacAddr(2, 0, 0, 0, 0, 0xfe);

/// A rank's host and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its host.
    pub host: HostId,
    /// The index of its losses on that host's switch.
    pub source: u32,
    /// The host's MAC address.
    pub mac: MacAddr,
    /// The host's IPv4 address, and the rank's UDP port there.
    pub address: SocketAddrV4,
}

/// A job that the controller has installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number in packets.
    pub id: u16,
    /// Its membership epoch in packets.
    pub epoch: u16,
    /// Its index in every counter array.
    pub counter: u32,
    /// Its multicast group on every switch; 0 if it gathers by unicast.
    pub group: u32,
    /// The destination address of its multicast.
    pub group_address: Ipv4Addr,
    /// Its members in rank order.
    pub members: Vec<Member>,
    /// The index of its share of each port, by switch and port.
    pub shares: BTreeMap<(usize, u16), u32>,
}

impl Job {
    /// A header of this job. Fields that switches ignore are not zero.
    pub fn header(&self, kind: Kind, source: u16, owner: u16) -> Header {
        Header {
            // No packet is late.
            budget: Ticks::MAX,
            packet_number: 0x0102_0304,
            step: 0x0506_0708,
            bucket: 0x090a,
            dtype: Dtype::F32,
            incast: 5,
            slot: 17,
            slots: 286,
            ..Header::new(kind, self.id, self.epoch, source, owner)
        }
    }

    /// A contribution of one rank to a slot of another's shard.
    pub fn scatter(&self, source: u16, owner: u16, data: &[u8]) -> Datagram {
        let header = self.header(Kind::Scatter, source, owner);
        let to = &self.members[usize::from(owner)];
        self.datagram(source, to.address, GATEWAY, ultima(&header, data))
    }

    /// An aggregate that a rank multicasts.
    pub fn gather(&self, source: u16, data: &[u8]) -> Datagram {
        self.multicast(Kind::Gather, source, data)
    }

    /// A packet of any kind to the job's group.
    pub fn multicast(&self, kind: Kind, source: u16, data: &[u8]) -> Datagram {
        let header = self.header(kind, source, source);
        let to = SocketAddrV4::new(self.group_address, ultima_wire::UDP_PORT);
        let mac = frame::group_mac(self.group_address).into();
        self.datagram(source, to, mac, ultima(&header, data))
    }

    /// The copy for rank `to` that a switch makes of a multicast.
    pub fn copy_for(&self, sent: &Datagram, to: u16) -> Datagram {
        let member = &self.members[usize::from(to)];
        sent.delivered(member.mac, member.address)
    }

    /// A probe of `source` about the operation of [`Job::header`], with room for the answer and `more` bytes. Its destination is
    /// the next rank, whose addresses the switch's answer has as source.
    pub fn probe(&self, source: u16, more: usize) -> Datagram {
        let header = self.header(Kind::Probe, source, source);
        let next = (usize::from(source) + 1) % self.members.len();
        let room = vec![0x5a; Report::LEN + more];
        self.datagram(
            source,
            self.members[next].address,
            GATEWAY,
            ultima(&header, &room),
        )
    }

    /// All ranks.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = u16> + Clone + use<> {
        0..u16::try_from(self.members.len()).expect("ranks have 16 bits")
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: u16) -> HostId {
        self.members[usize::from(rank)].host
    }

    fn datagram(
        &self,
        from: u16,
        to: SocketAddrV4,
        dst_mac: MacAddr,
        payload: Vec<u8>,
    ) -> Datagram {
        let from = &self.members[usize::from(from)];
        Datagram {
            src_mac: from.mac,
            dst_mac,
            src: from.address,
            dst: to,
            ttl: frame::TTL,
            checksum: UdpChecksum::Right,
            length_error: 0,
            payload,
        }
    }
}
