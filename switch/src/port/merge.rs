//! Segments of a TCP or UDP flow that leave one after the other, merged as the kernel hands large frames to a veth (GSO).
//!
//! One call and one pass through the receiver's stack then carry up to a batch of segments. Only segments are merged that come
//! out of the merged frame byte by byte when it is cut again, as [`Gso`](super::offload::Gso) does: IPv4 without options, IP
//! identifications and TCP sequence numbers in order, right checksums.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, sendmsg};

use super::offload::{GSO_TCPV4, GSO_UDP_L4, NEEDS_CHECKSUM, VNET_HEADER, VnetHeader, put};
use crate::engine::{csum16, sum16};
use crate::tm::BATCH;

/// Where the headers of IPv4 and of its payload start.
const IP: usize = 14;
const TRANSPORT: usize = 34;
/// Longest headers: a TCP header has up to 60 bytes.
const HEADERS: usize = TRANSPORT + 60;
/// Longest merged frame.
const MOST: usize = IP + 0xffff;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;

/// Segments that follow each other.
pub(super) struct Run<'a> {
    pub(super) segments: &'a [&'a [u8]],
    /// Bytes of each one's headers.
    headers: usize,
    /// Bytes of payload of each segment but the last, which may have fewer.
    size: usize,
}

impl<'a> Run<'a> {
    /// The segments at the start of `frames`, if there are at least two.
    pub(super) fn at_start(frames: &'a [&'a [u8]]) -> Option<Run<'a>> {
        let (first, second) = (frames.first()?, frames.get(1)?);
        if !follows(first, second) || !is_right(first) {
            return None;
        }
        let headers = headers(first)?;
        let size = first.len() - headers;
        let mut bytes = first.len();
        let more = frames.windows(2).take(BATCH - 1).take_while(|pair| {
            bytes += pair[1].len().saturating_sub(headers);
            // Only the last segment is shorter.
            pair[0].len() == first.len()
                && bytes <= MOST
                && follows(pair[0], pair[1])
                && is_right(pair[1])
        });
        let count = 1 + more.count();
        (count > 1).then(|| Run {
            segments: &frames[..count],
            headers,
            size,
        })
    }

    /// Returns the number of frames before the next one that may start a run, at least `least`.
    pub(super) fn ahead(frames: &[&[u8]], least: usize) -> usize {
        let mut starts = (least..frames.len().saturating_sub(1))
            .filter(|at| follows(frames[*at], frames[*at + 1]));
        starts.next().unwrap_or(frames.len())
    }

    /// Sends the merged frame through a packet socket whose messages start with offload headers.
    pub(super) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let start = self.start();
        let mut parts = [IoSlice::new(&[]); BATCH + 1];
        parts[0] = IoSlice::new(&start[..VNET_HEADER + self.headers]);
        for (part, segment) in parts[1..].iter_mut().zip(self.segments) {
            *part = IoSlice::new(&segment[self.headers..]);
        }
        let parts = &parts[..=self.segments.len()];
        sendmsg::<()>(socket.as_raw_fd(), parts, &[], MsgFlags::MSG_DONTWAIT, None)?;
        Ok(())
    }

    /// The offload header and the headers of the merged frame.
    fn start(&self) -> [u8; VNET_HEADER + HEADERS] {
        let before = self.segments.len() - 1;
        let (first, last) = (self.segments[0], self.segments[before]);
        let bytes = self.size * before + last.len();
        let mut start = [0; VNET_HEADER + HEADERS];
        let (vnet, frame) = start.split_at_mut(VNET_HEADER);
        frame[..self.headers].copy_from_slice(&first[..self.headers]);
        put(frame, IP + 2, bytes - IP);
        put(frame, IP + 10, 0);
        let checksum = csum16(sum16(&frame[IP..TRANSPORT]));
        put(frame, IP + 10, checksum.into());
        let is_tcp = frame[IP + 9] == TCP;
        let checksum_at = if is_tcp {
            frame[TRANSPORT + 13] |= last[TRANSPORT + 13];
            16
        } else {
            put(frame, TRANSPORT + 4, bytes - TRANSPORT);
            6
        };
        // The kernel adds the rest if it cuts the frame, and a receiver of the whole frame trusts it.
        let pseudo_header = !csum16(pseudo_header(frame, bytes));
        put(frame, TRANSPORT + checksum_at, pseudo_header.into());
        let header = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: if is_tcp { GSO_TCPV4 } else { GSO_UDP_L4 },
            gso_size: self.size,
            checksum_start: TRANSPORT,
            checksum_offset: checksum_at,
        };
        vnet.copy_from_slice(&header.bytes(self.headers));
        start
    }
}

/// Bytes of headers of a segment that may be merged.
fn headers(frame: &[u8]) -> Option<usize> {
    let is_plain = frame.len() > TRANSPORT + 8
        && frame[12..15] == [0x08, 0x00, 0x45]
        && get(frame, IP + 2) == frame.len() - IP
        // No fragment.
        && get(frame, IP + 6) & 0x3fff == 0;
    if !is_plain {
        return None;
    }
    let headers = match frame[IP + 9] {
        TCP => {
            let flags = *frame.get(TRANSPORT + 13)?;
            let length = usize::from(frame[TRANSPORT + 12] >> 4) * 4;
            (flags & !(FIN | PSH | ECE) == ACK && length >= 20).then_some(TRANSPORT + length)?
        }
        UDP if get(frame, TRANSPORT + 4) == frame.len() - TRANSPORT => TRANSPORT + 8,
        _ => return None,
    };
    (headers < frame.len()).then_some(headers)
}

/// True if the second frame is the segment behind the first one.
fn follows(first: &[u8], second: &[u8]) -> bool {
    let Some(at) = headers(first) else {
        return false;
    };
    let size = first.len() - at;
    let same = |bytes: std::ops::Range<usize>| first[bytes.clone()] == second[bytes];
    headers(second) == Some(at)
        && second.len() <= first.len()
        // Addresses, protocol, time to live and ports.
        && same(0..IP + 2)
        && same(IP + 6..IP + 10)
        && same(IP + 12..TRANSPORT + 4)
        && get(second, IP + 4) == (get(first, IP + 4) + 1) & 0xffff
        && match first[IP + 9] {
            TCP => {
                let number = |frame: &[u8]| (get(frame, TRANSPORT + 4) << 16) + get(frame, TRANSPORT + 6);
                // Only the last segment has FIN or PSH.
                first[TRANSPORT + 13] | FIN | PSH == second[TRANSPORT + 13] | FIN | PSH
                    && first[TRANSPORT + 13] & (FIN | PSH) == 0
                    && number(second) == (number(first) + size) & 0xffff_ffff
                    // Acknowledgement, length of the header, window, urgent pointer, options.
                    && same(TRANSPORT + 8..TRANSPORT + 13)
                    && same(TRANSPORT + 14..TRANSPORT + 16)
                    && same(TRANSPORT + 18..at)
            }
            _ => true,
        }
}

/// True if the checksums of a segment are there and right.
fn is_right(frame: &[u8]) -> bool {
    let has_sum = frame[IP + 9] == TCP || get(frame, TRANSPORT + 6) != 0;
    let sum = pseudo_header(frame, frame.len()) + sum16(&frame[TRANSPORT..]);
    has_sum && csum16(sum16(&frame[IP..TRANSPORT])) == 0 && csum16(sum) == 0
}

/// The sum over the pseudo-header of a frame of so many bytes.
fn pseudo_header(frame: &[u8], bytes: usize) -> u64 {
    let addresses = sum16(&frame[IP + 12..TRANSPORT]);
    addresses + u64::from(frame[IP + 9]) + (bytes - TRANSPORT) as u64
}

fn get(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame that stands for segments: IPv4, TCP with a time stamp or UDP.
    fn large(protocol: u8, payload: usize, id: u16, last_flags: u8) -> Vec<u8> {
        let headers = if protocol == TCP {
            TRANSPORT + 32
        } else {
            TRANSPORT + 8
        };
        let mut frame = vec![0; headers];
        frame.extend((0..payload).map(|n| (n * 7) as u8));
        let bytes = frame.len();
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        put(&mut frame, IP + 2, bytes - IP);
        put(&mut frame, IP + 4, id.into());
        put(&mut frame, IP + 6, 0x4000);
        frame[IP + 8..IP + 10].copy_from_slice(&[64, protocol]);
        frame[IP + 12..TRANSPORT].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        if protocol == TCP {
            frame[TRANSPORT + 4..TRANSPORT + 8].copy_from_slice(&[0xff, 0xff, 0xf0, 0]);
            frame[TRANSPORT + 12..TRANSPORT + 14].copy_from_slice(&[8 << 4, ACK | last_flags]);
        } else {
            put(&mut frame, TRANSPORT + 4, bytes - TRANSPORT);
        }
        frame
    }

    fn cut(vnet: VnetHeader, frame: &mut [u8]) -> Vec<Vec<u8>> {
        let gso = vnet.finish(frame).expect("sound").expect("segments");
        let mut segments = Vec::new();
        gso.for_each_segment(frame, &mut Vec::new(), |one| segments.push(one.to_vec()));
        segments
    }

    fn segments(protocol: u8, payload: usize, size: usize, id: u16) -> Vec<Vec<u8>> {
        let mut frame = large(protocol, payload, id, PSH);
        let sum = if protocol == TCP { 16 } else { 6 };
        let vnet = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: if protocol == TCP {
                GSO_TCPV4
            } else {
                GSO_UDP_L4
            },
            gso_size: size,
            checksum_start: TRANSPORT,
            checksum_offset: sum,
        };
        cut(vnet, &mut frame)
    }

    /// The merged frame, as the kernel gets it.
    fn merged(run: &Run) -> (VnetHeader, Vec<u8>) {
        let start = run.start();
        let (vnet, frame) = start
            .split_first_chunk::<VNET_HEADER>()
            .expect("it is longer");
        let mut frame = frame[..run.headers].to_vec();
        for segment in run.segments {
            frame.extend_from_slice(&segment[run.headers..]);
        }
        (VnetHeader::parse(vnet), frame)
    }

    proptest! {
        #[test]
        fn merged_segments_come_out_as_they_were(
            protocol in prop::sample::select(vec![TCP, UDP]),
            (size, count) in (1usize..1500, 2usize..=BATCH),
            short in 0usize..1500,
            id: u16,
        ) {
            let payload = size * count - short % size;
            let known = segments(protocol, payload, size, id);
            let frames: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
            let run = Run::at_start(&frames).expect("segments");
            prop_assert_eq!(run.segments.len(), count);
            let (vnet, mut frame) = merged(&run);
            prop_assert_eq!(frame.len(), run.headers + payload);
            prop_assert_eq!(cut(vnet, &mut frame), known);
        }

        #[test]
        fn changed_segments_stay_apart(
            protocol in prop::sample::select(vec![TCP, UDP]),
            which in 0usize..4,
            at in 0usize..1000,
            bit in 0u8..8,
        ) {
            let mut known = segments(protocol, 400, 100, 5);
            let bytes = known[which].len();
            known[which][at % bytes] ^= 1 << bit;
            let frames: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
            let count = Run::at_start(&frames).map_or(1, |run| run.segments.len());
            // Nothing reads the addresses of Ethernet, but they are the same in all.
            prop_assert!(count <= which.max(1), "{count}");
        }
    }

    #[test]
    fn a_run_ends_with_its_first_short_segment() {
        for sizes in [
            [100, 50, 50, 50],
            [140, 70, 30, 10],
            [100, 100, 60, 60],
            [9, 10, 10, 10],
        ] {
            // Datagrams of one socket: the kernel counts their identifications up.
            let known: Vec<Vec<u8>> = (sizes.iter().zip(7..))
                .map(|(size, id)| segments(UDP, 2 * size, *size, id).remove(0))
                .collect();
            let frames: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
            let Some(run) = Run::at_start(&frames) else {
                assert!(sizes[0] < sizes[1]);
                continue;
            };
            let (vnet, mut frame) = merged(&run);
            assert_eq!(cut(vnet, &mut frame), known[..run.segments.len()]);
            assert_eq!(run.segments.len(), if sizes[0] == sizes[1] { 3 } else { 2 });
        }
    }

    #[test]
    fn runs_end_where_segments_do() {
        let (a, b) = (segments(TCP, 300, 100, 1), segments(UDP, 250, 100, 9));
        let ack = large(TCP, 0, 7, 0);
        let mut frames: Vec<&[u8]> = vec![&ack];
        frames.extend(a.iter().chain(&b).map(Vec::as_slice));
        assert!(Run::at_start(&frames).is_none());
        assert_eq!(Run::ahead(&frames, 0), 1);
        assert_eq!(
            Run::at_start(&frames[1..]).map(|run| run.segments.len()),
            Some(3)
        );
        assert_eq!(
            Run::at_start(&frames[4..]).map(|run| run.segments.len()),
            Some(3)
        );
        assert_eq!(Run::ahead(&frames, 3), 4);
        assert_eq!(Run::ahead(&frames, 6), 7);
        // A short segment is the last one.
        let short = [b[2].as_slice(), b[0].as_slice()];
        assert!(Run::at_start(&short).is_none());
        // Without a UDP checksum, nothing says that the payload is right.
        let mut without = b.clone();
        for segment in &mut without {
            put(segment, TRANSPORT + 6, 0);
        }
        let without: Vec<&[u8]> = without.iter().map(Vec::as_slice).collect();
        assert!(Run::at_start(&without).is_none());
    }

    #[test]
    fn a_merged_frame_fits_its_length() {
        let known = segments(UDP, 65_000, 3_000, 1);
        let more = segments(UDP, 6_000, 3_000, 22);
        let all: Vec<&[u8]> = known[..21].iter().chain(&more).map(Vec::as_slice).collect();
        let run = Run::at_start(&all).expect("segments");
        assert_eq!(run.segments.len(), 21);
        assert!(merged(&run).1.len() <= MOST);
    }
}
