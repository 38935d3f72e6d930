//! Whole frames: Ethernet II, IPv4 and UDP around a datagram.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::{
    EtherType, Ethernet2Header, Ethernet2HeaderSlice, IpNumber, Ipv4Header, Ipv4HeaderSlice,
    Ipv4Slice, UdpHeader, UdpSlice,
};

/// Bytes before a datagram: Ethernet 14, IPv4 without options 20, UDP 8.
pub const FRAME_OVERHEAD: usize = 14 + 20 + 8;

/// The TTL of hosts' packets.
pub const TTL: u8 = 64;

/// A MAC address.
pub type Mac = [u8; 6];

/// The MAC address of the IPv4 multicast group `group` (RFC 1112 §6.4).
pub fn group_mac(group: Ipv4Addr) -> Mac {
    let [_, b, c, d] = group.octets();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Source MAC.
    pub src_mac: Mac,
    /// Destination MAC.
    pub dst_mac: Mac,
    /// Source address and UDP port.
    pub src: SocketAddrV4,
    /// Destination address and UDP port.
    pub dst: SocketAddrV4,
}

/// The reason that a frame is not a whole UDP datagram over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not Ethernet II with IPv4 and UDP, a fragment, or truncated.
    #[error("expected a whole UDP datagram over IPv4")]
    NotUdp,
    /// The IPv4 header or the datagram was corrupted.
    #[error("the {0} checksum does not match")]
    Checksum(&'static str),
}

impl Endpoints {
    /// Writes the frame's headers, including checksums, before a datagram at `frame[FRAME_OVERHEAD..]`.
    ///
    /// # Panics
    /// If the datagram is longer than UDP can carry (65,507 bytes) or `frame` has no room for the headers.
    pub fn emit(&self, frame: &mut [u8]) {
        let (headers, datagram) = frame.split_at_mut(FRAME_OVERHEAD);
        let ethernet = Ethernet2Header {
            source: self.src_mac,
            destination: self.dst_mac,
            ether_type: EtherType::IPV4,
        };
        let length = u16::try_from(8 + datagram.len()).expect("a datagram fits UDP");
        let mut ip = Ipv4Header::new(
            length,
            TTL,
            IpNumber::UDP,
            self.src.ip().octets(),
            self.dst.ip().octets(),
        )
        .expect("a datagram fits IPv4");
        ip.dont_fragment = true;
        ip.header_checksum = ip.calc_header_checksum();
        let udp = UdpHeader::with_ipv4_checksum(self.src.port(), self.dst.port(), &ip, datagram)
            .expect("a datagram fits UDP");
        headers[..14].copy_from_slice(&ethernet.to_bytes());
        headers[14..34].copy_from_slice(&ip.to_bytes());
        headers[34..].copy_from_slice(&udp.to_bytes());
    }
}

/// The datagram in a frame, and its endpoints. Verifies checksums; a UDP checksum of 0 means none.
///
/// # Errors
/// [`FrameError`]: not UDP over IPv4, or corrupted.
pub fn parse(frame: &[u8]) -> Result<(Endpoints, &[u8]), FrameError> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).map_err(|_| FrameError::NotUdp)?;
    if ethernet.ether_type() != EtherType::IPV4 {
        return Err(FrameError::NotUdp);
    }
    let packet = Ipv4Slice::from_slice(&frame[14..]).map_err(|_| FrameError::NotUdp)?;
    let ip: Ipv4HeaderSlice = packet.header();
    if packet.is_payload_fragmented() || ip.protocol() != IpNumber::UDP {
        return Err(FrameError::NotUdp);
    }
    if ip.header_checksum() != ip.to_header().calc_header_checksum() {
        return Err(FrameError::Checksum("IPv4"));
    }
    let udp = UdpSlice::from_slice(packet.payload().payload).map_err(|_| FrameError::NotUdp)?;
    if udp.checksum() != 0 {
        let expected = udp
            .to_header()
            .calc_checksum_ipv4_raw(ip.source(), ip.destination(), udp.payload())
            .map_err(|_| FrameError::NotUdp)?;
        if udp.checksum() != expected {
            return Err(FrameError::Checksum("UDP"));
        }
    }
    let endpoints = Endpoints {
        src_mac: ethernet.source(),
        dst_mac: ethernet.destination(),
        src: SocketAddrV4::new(ip.source_addr(), udp.source_port()),
        dst: SocketAddrV4::new(ip.destination_addr(), udp.destination_port()),
    };
    Ok((endpoints, udp.payload()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> Endpoints {
        Endpoints {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            src: "10.0.0.1:1000".parse().unwrap(),
            dst: "10.0.0.2:2000".parse().unwrap(),
        }
    }

    fn frame(datagram: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; FRAME_OVERHEAD];
        frame.extend_from_slice(datagram);
        endpoints().emit(&mut frame);
        frame
    }

    #[test]
    fn emitted_packets_parse() {
        let frame = frame(b"hello");
        assert_eq!(parse(&frame), Ok((endpoints(), &b"hello"[..])));
        // Ethernet pads short frames: the datagram's own length counts.
        let padded = [&frame[..], &[0; 20]].concat();
        assert_eq!(parse(&padded), Ok((endpoints(), &b"hello"[..])));
    }

    #[test]
    fn corruption_shows() {
        let good = frame(b"hello");
        for at in 14..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(parse(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn cut_frames_are_refused() {
        let good = frame(b"hello");
        for len in 0..good.len() {
            assert!(parse(&good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn group_macs() {
        assert_eq!(
            group_mac(Ipv4Addr::new(239, 213, 2, 1)),
            [1, 0, 0x5e, 85, 2, 1]
        );
    }
}
