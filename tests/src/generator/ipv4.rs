//! IPv4 over Ethernet.

use std::net::Ipv4Addr;

use pnet::packet::ethernet::{EtherTypes, MutableEthernetPacket};
use pnet::packet::ip::IpNextHeaderProtocol;
use pnet::packet::ipv4::{self, MutableIpv4Packet};
use pnet::util::MacAddr;

const ETHERNET: usize = MutableEthernetPacket::minimum_packet_size();
const HEADER: usize = MutableIpv4Packet::minimum_packet_size();

/// An IPv4 packet in its frame.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// The frame's source.
    pub src_mac: MacAddr,
    /// The frame's destination.
    pub dst_mac: MacAddr,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// DSCP, and ECN in the lowest two bits.
    pub tos: u8,
    /// The time to live, in hops.
    pub ttl: u8,
    /// The identification, which the fragments of a packet share.
    pub identification: u16,
    /// `Ipv4Flags::DontFragment`, `Ipv4Flags::MoreFragments`, or 0.
    pub flags: u8,
    /// The offset of the fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Raw options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// The protocol of the payload.
    pub protocol: IpNextHeaderProtocol,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Ipv4 {
    /// The bytes of the frame, with the correct header checksum.
    ///
    /// # Panics
    /// If the packet or its options are too long for IPv4.
    pub fn emit(&self) -> Vec<u8> {
        let header = HEADER + self.options.len();
        let total = header + self.payload.len();
        let mut frame = vec![0; ETHERNET + total];
        let mut ethernet = MutableEthernetPacket::new(&mut frame).expect("room is made above");
        ethernet.set_source(self.src_mac);
        ethernet.set_destination(self.dst_mac);
        ethernet.set_ethertype(EtherTypes::Ipv4);

        let packet = &mut frame[ETHERNET..];
        packet[HEADER..header].copy_from_slice(&self.options);
        packet[header..].copy_from_slice(&self.payload);
        let mut ip = MutableIpv4Packet::new(packet).expect("room is made above");
        ip.set_version(4);
        ip.set_header_length(u8::try_from(header / 4).expect("options fit"));
        ip.set_dscp(self.tos >> 2);
        ip.set_ecn(self.tos & 3);
        ip.set_total_length(u16::try_from(total).expect("the packet fits IPv4"));
        ip.set_identification(self.identification);
        ip.set_flags(self.flags);
        ip.set_fragment_offset(self.fragment_offset);
        ip.set_ttl(self.ttl);
        ip.set_next_level_protocol(self.protocol);
        ip.set_source(self.src);
        ip.set_destination(self.dst);
        let checksum = ipv4::checksum(&ip.to_immutable());
        ip.set_checksum(checksum);
        frame
    }

    /// The packet after a router: a smaller TTL, and the destination `mac`.
    pub fn forwarded(&self, mac: MacAddr) -> Self {
        Self {
            dst_mac: mac,
            ttl: self.ttl - 1,
            ..self.clone()
        }
    }
}
