//! UDP over IPv4 over Ethernet, as Ultima packets are.

use std::net::SocketAddrV4;

use pnet::packet::ip::IpNextHeaderProtocols;
use pnet::packet::ipv4::Ipv4Flags;
use pnet::packet::udp::{self, MutableUdpPacket};
use pnet::util::MacAddr;
use ultima_wire::{Header, SwitchFlags};

use super::Ipv4;

const HEADER: usize = MutableUdpPacket::minimum_packet_size();

/// The value of a datagram's checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// The correct checksum.
    Right,
    /// 0, which means no checksum (RFC 768).
    None,
    /// Wrong by this much in ones' complement, as after corruption.
    OffBy(u16),
}

/// A UDP datagram in its frame.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The frame's source.
    pub src_mac: MacAddr,
    /// The frame's destination.
    pub dst_mac: MacAddr,
    /// Source address and port.
    pub src: SocketAddrV4,
    /// Destination address and port.
    pub dst: SocketAddrV4,
    /// The time to live, in hops.
    pub ttl: u8,
    /// The checksum field.
    pub checksum: UdpChecksum,
    /// The error of UDP's length field.
    pub length_error: i16,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Datagram {
    /// The datagram as the payload of an IPv4 packet.
    ///
    /// # Panics
    /// If it is too long for UDP.
    pub fn packet(&self) -> Ipv4 {
        let mut bytes = vec![0; HEADER + self.payload.len()];
        bytes[HEADER..].copy_from_slice(&self.payload);
        let length = u16::try_from(bytes.len()).expect("the datagram fits UDP");
        let mut udp = MutableUdpPacket::new(&mut bytes).expect("room is made above");
        udp.set_source(self.src.port());
        udp.set_destination(self.dst.port());
        udp.set_length(length.wrapping_add_signed(self.length_error));
        let right = udp::ipv4_checksum(&udp.to_immutable(), self.src.ip(), self.dst.ip());
        udp.set_checksum(match self.checksum {
            UdpChecksum::Right => never_none(right),
            UdpChecksum::None => 0,
            UdpChecksum::OffBy(error) => never_none(ones_complement_sum(right, error)),
        });
        Ipv4 {
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            src: *self.src.ip(),
            dst: *self.dst.ip(),
            tos: 0,
            ttl: self.ttl,
            identification: 0,
            flags: Ipv4Flags::DontFragment,
            fragment_offset: 0,
            options: vec![],
            protocol: IpNextHeaderProtocols::Udp,
            payload: bytes,
        }
    }

    /// The bytes of the frame.
    pub fn emit(&self) -> Vec<u8> {
        self.packet().emit()
    }

    /// The checksum field of the frame.
    pub fn checksum_field(&self) -> u16 {
        let bytes = self.packet().payload;
        u16::from_be_bytes([bytes[6], bytes[7]])
    }

    /// The datagram after a switch: a smaller TTL, one more hop in the Ultima header if it has one, and the destination `mac`.
    pub fn forwarded(&self, mac: MacAddr) -> Self {
        let mut payload = self.payload.clone();
        if let Ok((mut header, _)) = Header::parse(&payload) {
            header.switch_flags.hops = header.switch_flags.hops.saturating_add(1).min(31);
            header.emit(&mut payload);
        }
        Self {
            dst_mac: mac,
            ttl: self.ttl - 1,
            payload,
            ..self.clone()
        }
    }

    /// The datagram after a switch trims its payload: with flags from `flag`, and without a checksum.
    ///
    /// # Panics
    /// If the payload is not an Ultima packet.
    pub fn cut(&self, flag: impl FnOnce(&mut SwitchFlags)) -> Self {
        let (mut header, _) = Header::parse(&self.payload).expect("an Ultima packet");
        header.switch_flags.trimmed = true;
        flag(&mut header.switch_flags);
        Self {
            checksum: UdpChecksum::None,
            payload: ultima(&header, &[]),
            ..self.clone()
        }
    }

    /// The copy for a member of the group, with the member's address and port.
    pub fn delivered(&self, mac: MacAddr, to: SocketAddrV4) -> Self {
        Self {
            dst: to,
            ..self.forwarded(mac)
        }
    }

    /// The same datagram with another Ultima header.
    ///
    /// # Panics
    /// If the payload is not an Ultima packet without a tag.
    pub fn with_header(&self, header: &Header) -> Self {
        let (_, data) = Header::parse(&self.payload).expect("an Ultima packet");
        Self {
            payload: ultima(header, data),
            ..self.clone()
        }
    }
}

/// An Ultima packet: the UDP payload of a header and its data.
pub fn ultima(header: &Header, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(data);
    bytes
}

/// Replaces 0, which means no checksum, by 0xFFFF, which is equal in ones' complement (RFC 768).
fn never_none(checksum: u16) -> u16 {
    match checksum {
        0 => 0xffff,
        other => other,
    }
}

fn ones_complement_sum(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

#[cfg(test)]
mod tests {
    use ultima_wire::frame::{self, FrameError};

    use super::*;

    fn datagram(checksum: UdpChecksum, payload: &[u8]) -> Datagram {
        Datagram {
            src_mac: MacAddr::new(2, 0, 0, 0, 0, 1),
            dst_mac: MacAddr::new(2, 0, 0, 0, 0, 2),
            src: "10.0.0.1:1000".parse().unwrap(),
            dst: "10.0.0.2:2000".parse().unwrap(),
            ttl: 64,
            checksum,
            length_error: 0,
            payload: payload.to_vec(),
        }
    }

    /// libpnet accepts the checksums of the datagrams that tests expect.
    #[test]
    fn etherparse_agrees_with_libpnet() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1500).collect();
        for length in (0..100).chain([1471, 1472, 1500]) {
            let payload = &bytes[..length];
            for checksum in [UdpChecksum::Right, UdpChecksum::None] {
                let sent = datagram(checksum, payload);
                let frame = sent.emit();
                let (endpoints, read) = frame::parse(&frame).unwrap();
                assert_eq!(
                    (endpoints.src, endpoints.dst, read),
                    (sent.src, sent.dst, payload)
                );
            }
            let wrong = datagram(UdpChecksum::OffBy(0x0102), payload).emit();
            assert_eq!(frame::parse(&wrong), Err(FrameError::Checksum("UDP")));
        }
    }
}
