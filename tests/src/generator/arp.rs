//! ARP for IPv4 over Ethernet.

use std::net::Ipv4Addr;

use pnet::packet::arp::{ArpHardwareTypes, ArpOperation, ArpOperations, MutableArpPacket};
use pnet::packet::ethernet::{EtherTypes, MutableEthernetPacket};
use pnet::util::MacAddr;

const ETHERNET: usize = MutableEthernetPacket::minimum_packet_size();

/// An ARP frame.
#[derive(Clone, Debug)]
pub struct Arp {
    /// The frame's source: the sender's MAC address.
    pub sender_mac: MacAddr,
    /// The frame's destination.
    pub dst_mac: MacAddr,
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's MAC address; zero in requests.
    pub target_mac: MacAddr,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// A request for the MAC address of `target`.
    pub fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        Self {
            sender_mac,
            dst_mac: MacAddr::broadcast(),
            operation: ArpOperations::Request,
            sender_ip,
            target_mac: MacAddr::zero(),
            target_ip,
        }
    }

    /// The reply with `mac` to this request.
    pub fn reply(&self, mac: MacAddr) -> Self {
        Self {
            sender_mac: mac,
            dst_mac: self.sender_mac,
            operation: ArpOperations::Reply,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// The bytes of the frame.
    pub fn emit(&self) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + MutableArpPacket::minimum_packet_size()];
        let mut ethernet = MutableEthernetPacket::new(&mut frame).expect("room is made above");
        ethernet.set_source(self.sender_mac);
        ethernet.set_destination(self.dst_mac);
        ethernet.set_ethertype(EtherTypes::Arp);

        let mut arp = MutableArpPacket::new(&mut frame[ETHERNET..]).expect("room is made above");
        arp.set_hardware_type(ArpHardwareTypes::Ethernet);
        arp.set_protocol_type(EtherTypes::Ipv4);
        arp.set_hw_addr_len(6);
        arp.set_proto_addr_len(4);
        arp.set_operation(self.operation);
        arp.set_sender_hw_addr(self.sender_mac);
        arp.set_sender_proto_addr(self.sender_ip);
        arp.set_target_hw_addr(self.target_mac);
        arp.set_target_proto_addr(self.target_ip);
        frame
    }
}
