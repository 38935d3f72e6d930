//! Work that a Linux sender leaves to a network card, and that a software switch must finish
//! instead.
//!
//! A veth hands over what its peer's stack sent: TCP and UDP checksums that hold the
//! pseudo-header's sum only, and (GSO) one frame of up to 64 KiB for many segments. With
//! `PACKET_VNET_HDR` the kernel says which of that applies, in the header of `linux/virtio_net.h`.

use ultima_engine::{csum16, sum16};

/// Bytes of `struct virtio_net_hdr`.
pub(super) const VNET_HEADER: usize = 10;
/// Segments that one frame may stand for; the kernel makes at most this many of 64 KiB by default.
const MAX_SEGMENTS: usize = 128;

pub(super) const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
pub(super) const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
pub(super) const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// TCP's flags for the end of data.
pub(super) const FIN_PSH: u8 = 0x09;

/// The kernel's offload header of a frame. Offsets count from the start of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    gso_size: usize,
    checksum_start: usize,
    checksum_offset: usize,
}

/// Why a frame is refused: the header and the frame contradict each other, or it is of a kind that
/// is not segmented here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

impl VnetHeader {
    pub(super) fn parse(bytes: &[u8; VNET_HEADER]) -> Self {
        // Native byte order, unless a socket option says otherwise.
        let word = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// The same for the frame with `bytes` inserted before its transport header.
    pub(super) fn shifted(mut self, bytes: usize) -> Self {
        self.checksum_start += bytes;
        self
    }

    /// Finishes a frame in place, or says how to cut it up.
    pub(super) fn finish(self, frame: &mut [u8]) -> Result<Option<Gso>, Refused> {
        if self.gso_type & !GSO_ECN != GSO_NONE {
            return Gso::new(self, frame).map(Some);
        }
        if self.flags & NEEDS_CHECKSUM != 0 {
            let segment = frame.get_mut(self.checksum_start..).ok_or(Refused)?;
            let at = self.checksum_offset;
            if at + 2 > segment.len() {
                return Err(Refused);
            }
            // The field holds the pseudo-header's sum, so the sum over all of it is the full one.
            // Zero means "no checksum" in UDP; its equal in ones' complement is harmless in TCP.
            let checksum = match csum16(sum16(segment)) {
                0 => 0xffff,
                sum => sum,
            };
            segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        Ok(None)
    }
}

/// A transport protocol, by its number in IP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp = 6,
    Udp = 17,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    V4,
    V6,
}

/// The division of a frame into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gso {
    pub(super) transport: Transport,
    pub(super) network: Network,
    pub(super) network_at: usize,
    pub(super) transport_at: usize,
    pub(super) payload_at: usize,
    pub(super) size: usize,
}

impl Gso {
    fn new(header: VnetHeader, frame: &[u8]) -> Result<Gso, Refused> {
        let transport = match header.gso_type & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 => Transport::Tcp,
            GSO_UDP_L4 => Transport::Udp,
            _ => return Err(Refused),
        };
        let word = |at: usize| {
            frame
                .get(at..at + 2)
                .map(|b| u16::from_be_bytes([b[0], b[1]]))
                .ok_or(Refused)
        };
        let mut ethertype_at = 12;
        while matches!(word(ethertype_at)?, 0x8100 | 0x88a8) {
            ethertype_at += 4;
        }
        let network_at = ethertype_at + 2;
        let (network, least) = match word(ethertype_at)? {
            0x0800 => (Network::V4, 20),
            0x86dd => (Network::V6, 40),
            _ => return Err(Refused),
        };
        let transport_at = header.checksum_start;
        let transport_header = match transport {
            Transport::Udp => 8,
            Transport::Tcp => usize::from(frame.get(transport_at + 12).ok_or(Refused)? >> 4) * 4,
        };
        let payload_at = transport_at + transport_header;
        let sound = transport_at >= network_at + least
            && (transport == Transport::Udp || transport_header >= 20)
            && payload_at < frame.len()
            && header.gso_size > 0
            && (frame.len() - payload_at).div_ceil(header.gso_size) <= MAX_SEGMENTS;
        if !sound {
            return Err(Refused);
        }
        Ok(Gso {
            transport,
            network,
            network_at,
            transport_at,
            payload_at,
            size: header.gso_size,
        })
    }

    /// Writes each segment to `buffer` in turn and hands it to `each`.
    pub(crate) fn for_each_segment(
        self,
        frame: &[u8],
        buffer: &mut Vec<u8>,
        mut each: impl FnMut(&[u8]),
    ) {
        let (headers, payload) = frame.split_at(self.payload_at);
        let last = payload.len().div_ceil(self.size) - 1;
        for (index, chunk) in payload.chunks(self.size).enumerate() {
            buffer.clear();
            buffer.extend_from_slice(headers);
            buffer.extend_from_slice(chunk);
            self.set_fields(buffer, chunk.len(), index, index == last);
            self.set_checksum(buffer, chunk);
            each(buffer);
        }
    }

    /// Sets the fields of the headers of a segment, but for the transport's checksum.
    pub(super) fn set_fields(self, headers: &mut [u8], payload: usize, index: usize, last: bool) {
        const CWR: u8 = 0x80;
        let (ip, at) = (self.network_at, self.transport_at);
        let end = self.payload_at + payload;
        match self.network {
            Network::V4 => {
                put(headers, ip + 2, end - ip);
                let id = u16::from_be_bytes([headers[ip + 4], headers[ip + 5]]);
                put(headers, ip + 4, usize::from(id.wrapping_add(index as u16)));
                put(headers, ip + 10, 0);
                let checksum = csum16(sum16(&headers[ip..at]));
                put(headers, ip + 10, usize::from(checksum));
            }
            Network::V6 => put(headers, ip + 4, end - ip - 40),
        }
        match self.transport {
            Transport::Tcp => {
                let seq = &headers[at + 4..at + 8];
                let seq = u32::from_be_bytes([seq[0], seq[1], seq[2], seq[3]]);
                let seq = seq.wrapping_add((index * self.size) as u32);
                headers[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
                // RFC 3168 §6.1.2: CWR goes once; FIN and PSH belong to the end of the data.
                if index > 0 {
                    headers[at + 13] &= !CWR;
                }
                if !last {
                    headers[at + 13] &= !FIN_PSH;
                }
            }
            Transport::Udp => put(headers, at + 4, end - at),
        }
    }

    /// Sets the transport's checksum in the headers of a segment.
    pub(super) fn set_checksum(self, headers: &mut [u8], payload: &[u8]) {
        put(headers, self.checksum_at(), 0);
        let bytes = self.payload_at - self.transport_at + payload.len();
        let sum = self.pseudo_header(headers, bytes) + sum16(payload);
        let checksum = match csum16(sum + sum16(&headers[self.transport_at..self.payload_at])) {
            0 => 0xffff,
            checksum => checksum,
        };
        put(headers, self.checksum_at(), usize::from(checksum));
    }

    /// The sum over the pseudo-header of a segment with so many bytes behind the network's headers.
    pub(super) fn pseudo_header(self, headers: &[u8], bytes: usize) -> u64 {
        let ip = self.network_at;
        let addresses = match self.network {
            Network::V4 => &headers[ip + 12..ip + 20],
            Network::V6 => &headers[ip + 8..ip + 40],
        };
        sum16(addresses) + self.transport as u64 + bytes as u64
    }

    pub(super) fn checksum_at(self) -> usize {
        let offset = match self.transport {
            Transport::Tcp => 16,
            Transport::Udp => 6,
        };
        self.transport_at + offset
    }
}

/// Writes a 16-bit field; lengths fit because a frame does.
pub(super) fn put(frame: &mut [u8], at: usize, value: usize) {
    frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vnet(flags: u8, gso_type: u8, size: u16, start: u16, offset: u16) -> VnetHeader {
        let mut bytes = [0; VNET_HEADER];
        bytes[0] = flags;
        bytes[1] = gso_type;
        bytes[4..6].copy_from_slice(&size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&offset.to_ne_bytes());
        VnetHeader::parse(&bytes)
    }

    /// Ethernet, IPv4 10.0.0.1 → 10.0.0.2, TCP (20 bytes, FIN PSH ACK CWR) or UDP, payload of `len`
    /// bytes.
    fn ipv4(protocol: u8, len: usize) -> Vec<u8> {
        let header = if protocol == 6 { 20 } else { 8 };
        let mut frame = vec![0; 14 + 20 + header];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        put(&mut frame, 16, 20 + header + len);
        put(&mut frame, 18, 0xffff);
        frame[22] = 64;
        frame[23] = protocol;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        if protocol == 6 {
            frame[38..42].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
            frame[46] = 5 << 4;
            frame[47] = 0x99;
        } else {
            put(&mut frame, 38, 8 + len);
        }
        frame.extend((0..len).map(|n| n as u8));
        frame
    }

    fn transport_sum_is_right(frame: &[u8]) -> bool {
        let len = frame.len() as u64 - 34;
        let pseudo = sum16(&frame[26..34]) + u64::from(frame[23]) + len;
        csum16(pseudo + sum16(&frame[34..])) == 0
    }

    #[test]
    fn a_partial_checksum_is_finished() {
        let mut frame = ipv4(17, 101);
        let pseudo = sum16(&frame[26..34]) + 17 + 109;
        put(&mut frame, 40, usize::from(!csum16(pseudo)));
        assert!(!transport_sum_is_right(&frame));
        assert_eq!(
            vnet(NEEDS_CHECKSUM, GSO_NONE, 0, 34, 6).finish(&mut frame),
            Ok(None)
        );
        assert!(transport_sum_is_right(&frame));
        let before = frame.clone();
        assert_eq!(vnet(0, GSO_NONE, 0, 34, 6).finish(&mut frame), Ok(None));
        assert_eq!(frame, before);
    }

    #[test]
    fn a_header_beyond_the_frame_is_refused() {
        for (start, offset) in [(200, 6), (140, 6), (34, 108)] {
            let mut frame = ipv4(17, 101);
            frame.truncate(142);
            assert_eq!(
                vnet(NEEDS_CHECKSUM, GSO_NONE, 0, start, offset).finish(&mut frame),
                Err(Refused)
            );
        }
        for (kind, size, start) in [
            (GSO_TCPV4, 100, 500),
            (GSO_TCPV4, 0, 34),
            (GSO_TCPV4, 1, 34),
            (GSO_TCPV4, 100, 20),
            (3, 100, 34),
        ] {
            let mut frame = ipv4(6, 400);
            assert_eq!(
                vnet(1, kind, size, start, 16).finish(&mut frame),
                Err(Refused),
                "{kind} {size}"
            );
        }
    }

    #[test]
    fn tcp_is_segmented() {
        let mut frame = ipv4(6, 250);
        let gso = vnet(1, GSO_TCPV4, 100, 34, 16)
            .finish(&mut frame)
            .expect("sound")
            .expect("GSO");
        let mut segments = Vec::new();
        gso.for_each_segment(&frame, &mut Vec::new(), |segment| {
            segments.push(segment.to_vec())
        });
        assert_eq!(
            segments.iter().map(Vec::len).collect::<Vec<_>>(),
            [154, 154, 104]
        );
        let payload: Vec<u8> = segments
            .iter()
            .flat_map(|s| s[54..].iter().copied())
            .collect();
        assert_eq!(payload, frame[54..]);
        for (n, segment) in segments.iter().enumerate() {
            assert!(transport_sum_is_right(segment));
            assert_eq!(csum16(sum16(&segment[14..34])), 0);
            assert_eq!(segment[16..18], ((segment.len() - 14) as u16).to_be_bytes());
            assert_eq!(
                segment[18..20],
                0xffffu16.wrapping_add(n as u16).to_be_bytes()
            );
            assert_eq!(
                segment[38..42],
                0xffff_fff0u32.wrapping_add(100 * n as u32).to_be_bytes()
            );
        }
        assert_eq!(
            segments.iter().map(|s| s[47]).collect::<Vec<_>>(),
            [0x90, 0x10, 0x19]
        );
    }

    #[test]
    fn udp_is_segmented() {
        let mut frame = ipv4(17, 250);
        let gso = vnet(1, GSO_UDP_L4, 125, 34, 6)
            .finish(&mut frame)
            .expect("sound")
            .expect("GSO");
        let mut count = 0;
        gso.for_each_segment(&frame, &mut Vec::new(), |segment| {
            assert!(transport_sum_is_right(segment));
            assert_eq!(segment[38..40], 133u16.to_be_bytes());
            count += 1;
        });
        assert_eq!(count, 2);
    }
}
