//! Explicit congestion notification (RFC 3168): marks frames that met a long queue.

use ultima_link::EcnThreshold;

use super::Nanos;

/// True if a copy must be marked that found this many packets and bytes in its queue and stayed there for this time.
pub(super) fn exceeded(threshold: EcnThreshold, packets: u32, bytes: u32, stay: Nanos) -> bool {
    match threshold {
        EcnThreshold::Packets(threshold) => packets > threshold,
        EcnThreshold::Bytes(threshold) => u64::from(bytes) > threshold,
        EcnThreshold::Time(threshold) => u128::from(stay) > threshold.as_nanos(),
    }
}

const ETHERNET: usize = 14;
/// 802.1Q and 802.1ad tags.
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Congestion Experienced, in IPv4's second byte. 0 there means a transport without ECN.
const CE: u8 = 0b11;

/// Sets Congestion Experienced in an IPv4 or IPv6 frame of an ECN-capable transport, with any number of VLAN tags. Returns
/// false, and changes nothing, for any other frame and for a marked one.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    let mut at = ETHERNET;
    loop {
        let Some(Ok(kind)) = frame.get(at - 2..at).map(<[u8; 2]>::try_from) else {
            return false;
        };
        match kind {
            tag if TAGS.contains(&tag) => at += 4,
            IPV4 => return frame.get_mut(at..).is_some_and(mark_ipv4),
            IPV6 => return frame.get_mut(at..).is_some_and(mark_ipv6),
            _ => return false,
        }
    }
}

fn mark_ipv4(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<20>() else {
        return false;
    };
    let before = header[1];
    if header[0] >> 4 != 4 || matches!(before & CE, 0 | CE) {
        return false;
    }
    header[1] |= CE;
    // RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). Of the word only its low byte changes.
    let word = |low| u32::from(u16::from_be_bytes([header[0], low]));
    let old = u32::from(u16::from_be_bytes([header[10], header[11]]));
    let mut sum = (!old & 0xffff) + (!word(before) & 0xffff) + word(before | CE);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let [high, low] = (!(sum as u16)).to_be_bytes();
    (header[10], header[11]) = (high, low);
    true
}

fn mark_ipv6(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<40>() else {
        return false;
    };
    // The traffic class lies across the first two bytes, its last two bits in the middle of the
    // second.
    let mark = CE << 4;
    if header[0] >> 4 != 6 || matches!(header[1] & mark, 0 | 0x30) {
        return false;
    }
    header[1] |= mark;
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header with the given second byte and a right checksum.
    fn ipv4(tos: u8) -> Vec<u8> {
        let mut header = vec![
            0x45, tos, 0, 40, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let sum = !sum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header.resize(40, 0xab);
        header
    }

    fn ipv6(class: u8) -> Vec<u8> {
        let mut header = vec![0x60 | class >> 4, class << 4 | 0x05];
        header.resize(60, 0xcd);
        header
    }

    fn sum(bytes: &[u8]) -> u16 {
        let words = bytes
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn frame(tags: &[[u8; 2]], kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend_from_slice(tag);
            frame.extend_from_slice(&[0, 7]);
        }
        frame.extend_from_slice(&kind);
        frame.extend_from_slice(packet);
        frame
    }

    #[test]
    fn ecn_capable_frames_are_marked_with_a_correct_checksum() {
        for tags in [&[][..], &[[0x81, 0x00]], &[[0x88, 0xa8], [0x81, 0x00]]] {
            for (ect, dscp) in [(1, 0x00), (2, 0xb8)] {
                let mut marked = frame(tags, IPV4, &ipv4(dscp | ect));
                assert!(mark(&mut marked));
                assert_eq!(marked, frame(tags, IPV4, &ipv4(dscp | 3)));
                assert_eq!(sum(&marked[14 + 4 * tags.len()..][..20]), 0xffff);
                let mut marked = frame(tags, IPV6, &ipv6(dscp | ect));
                assert!(mark(&mut marked));
                assert_eq!(marked, frame(tags, IPV6, &ipv6(dscp | 3)));
            }
        }
    }

    #[test]
    fn the_rest_is_left_alone() {
        let mut arp = frame(&[], [0x08, 0x06], &ipv4(2));
        arp.truncate(42);
        for untouched in [
            frame(&[], IPV4, &ipv4(0xb8)),
            frame(&[], IPV4, &ipv4(0xbb)),
            frame(&[], IPV6, &ipv6(0)),
            frame(&[], IPV6, &ipv6(3)),
            frame(&[], IPV4, &ipv6(2)),
            frame(&[], IPV6, &ipv4(2)),
            frame(&[], IPV4, &ipv4(2)[..19]),
            frame(&[], IPV6, &ipv6(2)[..39]),
            frame(&[[0x81, 0x00]; 3], [0x88, 0xb5], &ipv4(2)),
            frame(&[[0x81, 0x00]; 3], [0x81, 0x00], &[]),
            arp,
            vec![0; 13],
            Vec::new(),
        ] {
            let mut frame = untouched.clone();
            assert!(!mark(&mut frame), "{untouched:02x?}");
            assert_eq!(frame, untouched);
        }
    }

    proptest! {
        /// Marking keeps a correct header checksum correct.
        #[test]
        fn any_header_stays_right(mut header in prop::collection::vec(any::<u8>(), 20)) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let right = !sum(&header);
            header[10..12].copy_from_slice(&right.to_be_bytes());
            let before = header.clone();
            if mark_ipv4(&mut header) {
                prop_assert_eq!(sum(&header), 0xffff);
                prop_assert_eq!(header[1], before[1] | 3);
            } else {
                prop_assert_eq!(header, before);
            }
        }

        #[test]
        fn no_frame_is_too_strange(mut frame in prop::collection::vec(any::<u8>(), 0..80)) {
            mark(&mut frame);
        }
    }
}
