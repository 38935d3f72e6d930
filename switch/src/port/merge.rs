//! TCP segments that leave one after the other, merged as the kernel hands large frames to a veth (GSO).
//!
//! One call and one pass through the receiver's stack then carry up to a batch of segments. Only segments are merged that come
//! out byte by byte when [`Gso`](super::offload::Gso) splits the frame.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, sendmsg};

use super::offload::{GSO_TCPV4, NEEDS_CHECKSUM, put};
use crate::engine::{csum16, sum16};
use crate::tm::BATCH;

/// Where the headers start, without options of IP.
const IP: usize = 14;
const TCP: usize = 34;
const FLAGS: usize = TCP + 13;
const FIN_PSH: u8 = 0x09;

/// Returns the number of frames up to the first of three segments in a row, and that segment.
pub(super) fn before_run(frames: &[&[u8]]) -> usize {
    let starts = |three: &[&[u8]]| follows(three[0], three[1]) && follows(three[1], three[2]);
    let start = frames.windows(3).position(starts);
    start.map_or(frames.len(), |at| at + 1)
}

/// Returns the number of frames at the start that one frame can carry.
pub(super) fn run(frames: &[&[u8]]) -> usize {
    // Only the last segment is shorter.
    let more = frames.windows(2).take(BATCH - 1).take_while(|pair| {
        pair[0].len() == frames[0].len() && follows(pair[0], pair[1]) && is_right(pair[1])
    });
    1 + if is_right(frames[0]) { more.count() } else { 0 }
}

/// Sends a [`run`] through a packet socket whose messages start with a `struct virtio_net_hdr`.
pub(super) fn send(segments: &[&[u8]], socket: BorrowedFd<'_>) -> io::Result<()> {
    let (first, last) = (segments[0], segments[segments.len() - 1]);
    let headers = headers(first).ok_or(io::ErrorKind::InvalidInput)?;
    let size = first.len() - headers;
    let bytes = size * (segments.len() - 1) + last.len();
    let mut frame = first[..headers].to_vec();
    frame[FLAGS] = last[FLAGS];
    put(&mut frame, IP + 2, bytes - IP);
    put(&mut frame, IP + 10, 0);
    let checksum = csum16(sum16(&frame[IP..TCP]));
    put(&mut frame, IP + 10, checksum.into());
    // The kernel adds the rest if it splits the frame, and a receiver of the whole frame trusts it.
    let partial = !csum16(pseudo_header(&frame, bytes));
    put(&mut frame, TCP + 16, partial.into());
    let kind = IoSlice::new(&[NEEDS_CHECKSUM, GSO_TCPV4]);
    let words = [headers, size, TCP, 16].map(|word| (word as u16).to_ne_bytes());
    let mut parts = vec![
        kind,
        IoSlice::new(words.as_flattened()),
        IoSlice::new(&frame),
    ];
    parts.extend(segments.iter().map(|one| IoSlice::new(&one[headers..])));
    sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        &[],
        MsgFlags::MSG_DONTWAIT,
        None,
    )?;
    Ok(())
}

/// Bytes of the headers of a segment that may be merged.
fn headers(frame: &[u8]) -> Option<usize> {
    let headers = TCP + usize::from(frame.get(TCP + 12)? >> 4) * 4;
    let is_plain = (TCP + 20..frame.len()).contains(&headers)
        && frame[12..15] == [0x08, 0x00, 0x45]
        && get(frame, IP + 2) == frame.len() - IP
        // No fragment.
        && get(frame, IP + 6) & 0x3fff == 0
        && frame[IP + 9] == 6
        // ACK, and no other flags than FIN, PSH and ECE.
        && frame[FLAGS] & !0x49 == 0x10;
    is_plain.then_some(headers)
}

/// True if the second frame is the segment behind the first one.
fn follows(first: &[u8], second: &[u8]) -> bool {
    let Some(at) = headers(first) else {
        return false;
    };
    let sequence = |frame: &[u8]| (get(frame, TCP + 4) << 16) + get(frame, TCP + 6);
    // All fields but lengths, identifications, checksums, sequence numbers and flags.
    let same = [0..16, 20..24, 26..38, 42..47, 48..50, 52..at];
    headers(second) == Some(at)
        && second.len() <= first.len()
        && get(second, IP + 4) == (get(first, IP + 4) + 1) & 0xffff
        && sequence(second) == sequence(first).wrapping_add(first.len() - at) & 0xffff_ffff
        // Only the last segment has FIN or PSH.
        && first[FLAGS] == second[FLAGS] & !FIN_PSH
        && same.into_iter().all(|range| first[range.clone()] == second[range])
}

/// True if the checksums of a segment are right.
fn is_right(frame: &[u8]) -> bool {
    headers(frame).is_some()
        && csum16(sum16(&frame[IP..TCP])) == 0
        && csum16(pseudo_header(frame, frame.len()) + sum16(&frame[TCP..])) == 0
}

/// The sum over the pseudo-header of a frame of so many bytes.
fn pseudo_header(frame: &[u8], bytes: usize) -> u64 {
    sum16(&frame[IP + 12..TCP]) + 6 + (bytes - TCP) as u64
}

fn get(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use proptest::prelude::*;

    use super::super::offload::VnetHeader;
    use super::*;

    /// A frame that stands for segments, with time stamps.
    fn large(payload: usize, id: u16) -> Vec<u8> {
        let mut frame = vec![0; TCP + 32];
        frame.extend((0..payload).map(|n| (n * 7) as u8));
        let bytes = frame.len();
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        put(&mut frame, IP + 2, bytes - IP);
        put(&mut frame, IP + 4, id.into());
        put(&mut frame, IP + 6, 0x4000);
        frame[IP + 8..IP + 10].copy_from_slice(&[64, 6]);
        frame[IP + 12..TCP].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[TCP + 4..TCP + 8].copy_from_slice(&[0xff, 0xff, 0xf0, 0]);
        frame[TCP + 12..=FLAGS].copy_from_slice(&[8 << 4, 0x10 | FIN_PSH]);
        frame
    }

    fn split(vnet: VnetHeader, frame: &mut [u8]) -> Vec<Vec<u8>> {
        let gso = vnet.finish(frame).expect("sound").expect("segments");
        let mut segments = Vec::new();
        gso.for_each_segment(frame, &mut Vec::new(), |one| segments.push(one.to_vec()));
        segments
    }

    fn segments(payload: usize, size: usize, id: u16) -> Vec<Vec<u8>> {
        let mut bytes = [NEEDS_CHECKSUM, GSO_TCPV4, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [size, TCP, 16].map(|word| (word as u16).to_ne_bytes());
        bytes[4..].copy_from_slice(words.as_flattened());
        split(VnetHeader::parse(&bytes), &mut large(payload, id))
    }

    fn views(segments: &[Vec<u8>]) -> Vec<&[u8]> {
        segments.iter().map(Vec::as_slice).collect()
    }

    /// The segments of the merged frame, as the kernel splits it.
    fn merged_and_split(segments: &[&[u8]]) -> Vec<Vec<u8>> {
        let (sender, receiver) = UnixDatagram::pair().expect("sockets");
        send(segments, sender.as_fd()).expect("sends");
        let mut message = vec![0; 70_000];
        let len = receiver.recv(&mut message).expect("a message");
        let (vnet, frame) = message[..len].split_first_chunk_mut().expect("a header");
        split(VnetHeader::parse(vnet), frame)
    }

    proptest! {
        #[test]
        fn merged_segments_come_out_as_they_were(
            (size, count) in (1usize..1500, 2usize..=BATCH),
            short in 0usize..1500,
            id: u16,
        ) {
            let known = segments(size * count - short % size, size, id);
            let frames = views(&known);
            prop_assert_eq!(run(&frames), count);
            prop_assert_eq!(merged_and_split(&frames), known);
        }

        #[test]
        fn changed_segments_stay_apart(which in 0usize..4, at in 0usize..1000, bit in 0u8..8) {
            let mut known = segments(400, 100, 5);
            let bytes = known[which].len();
            known[which][at % bytes] ^= 1 << bit;
            let count = run(&views(&known));
            prop_assert!(count <= which.max(1), "{count}");
        }

        #[test]
        fn runs_of_any_segments_come_out_as_they_were(
            picks in prop::collection::vec((0usize..3, 0usize..6), 1..20),
        ) {
            let flows = [segments(500, 100, 1), segments(250, 100, 9), segments(90, 30, 2)];
            let known: Vec<Vec<u8>> = picks
                .iter()
                .map(|(flow, at)| flows[*flow][at % flows[*flow].len()].clone())
                .collect();
            let frames = views(&known);
            let count = run(&frames);
            if count > 1 {
                prop_assert_eq!(&merged_and_split(&frames[..count]), &known[..count]);
            }
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
            let mut sequence = 0xffff_ff80u32;
            let mut known = Vec::new();
            for (id, size) in sizes.into_iter().enumerate() {
                let mut segment = large(size, id as u16);
                segment[FLAGS] = 0x10;
                segment[TCP + 4..TCP + 8].copy_from_slice(&sequence.to_be_bytes());
                sequence = sequence.wrapping_add(size as u32);
                put(&mut segment, TCP + 16, 0);
                let sum = pseudo_header(&segment, segment.len()) + sum16(&segment[TCP..]);
                put(&mut segment, TCP + 16, csum16(sum).into());
                let sum = csum16(sum16(&segment[IP..TCP]));
                put(&mut segment, IP + 10, sum.into());
                known.push(segment);
            }
            let frames = views(&known);
            let expected = match sizes {
                [100, 100, ..] => 3,
                [9, ..] => 1,
                _ => 2,
            };
            assert_eq!(run(&frames), expected, "{sizes:?}");
            if expected > 1 {
                assert_eq!(merged_and_split(&frames[..expected]), known[..expected]);
            }
        }
    }

    #[test]
    fn a_run_starts_behind_a_segment_that_leaves_alone() {
        let (a, b) = (segments(300, 100, 1), segments(200, 100, 9));
        let ack = large(0, 7);
        let mut frames = vec![ack.as_slice()];
        frames.extend(b.iter().chain(&a).map(Vec::as_slice));
        // Two segments are no run and one ahead of it.
        assert_eq!(before_run(&frames), 4);
        assert_eq!(run(&frames[4..]), 2);
        assert_eq!(before_run(&frames[4..]), 2);
        assert_eq!(before_run(&frames[..1]), 1);
    }
}
