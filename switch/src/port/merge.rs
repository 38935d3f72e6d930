//! TCP segments and UDP datagrams that leave one after the other, merged as the kernel hands large frames to a veth (GSO).
//!
//! One call and one pass through the receiver's stack then carry up to a batch of frames. Only frames are merged that come out
//! byte by byte when [`Gso`] splits the merged one.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, sendmsg};

use super::offload::{
    FIN_PSH, GSO_TCPV4, GSO_UDP_L4, Gso, NEEDS_CHECKSUM, Network, Transport, put,
};
use super::xdp::CHUNK;
use crate::tm::BATCH;
use ultima_engine::csum16;

/// Offsets of headers, without options of IP.
const IP: usize = 14;
const TRANSPORT: usize = 34;
/// TCP's flags. All merged segments have ACK, and some ECE.
const FLAGS: usize = TRANSPORT + 13;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
/// Bytes of the longest headers.
const MOST_HEADERS: usize = TRANSPORT + 60;

/// The fewest frames to merge. The kernel counts whole pages for a merged frame, so a receive buffer has less room for fewer.
const LEAST: usize = 4;
/// The most frames to merge. They fit a frame of 64 KiB.
const MOST: usize = BATCH - 1;
const _: () = assert!(MOST * CHUNK <= u16::MAX as usize);

/// Returns the number of frames up to the first one of a flow with [`LEAST`] more behind it, and that frame.
pub(super) fn before_run(frames: &[&[u8]]) -> usize {
    let starts = |frames: &[&[u8]]| {
        let mut behind = (1..).zip(&frames[1..]);
        Flow::of(frames[0]).is_some_and(|flow| behind.all(|(at, one)| flow.has(one, at, false)))
    };
    let start = frames.windows(LEAST + 1).position(starts);
    start.map_or(frames.len(), |at| at + 1)
}

/// Sends frames at the start as one, through a packet socket whose messages start with a `struct virtio_net_hdr`. Returns
/// their number, and 0 if they are too few or the kernel has no room.
pub(super) fn send(frames: &[&[u8]], socket: BorrowedFd<'_>) -> usize {
    let Some(flow) = Flow::of(frames[0]) else {
        return 0;
    };
    let run = flow.run(frames);
    match run.len() >= LEAST && flow.send(run, socket).is_ok() {
        true => run.len(),
        false => 0,
    }
}

/// The frames that splitting gives, if the merged one starts with `first`.
struct Flow<'a> {
    first: &'a [u8],
    gso: Gso,
}

impl<'a> Flow<'a> {
    fn of(first: &'a [u8]) -> Option<Self> {
        // IPv4 without options, and no fragment.
        if first.len() <= MOST_HEADERS
            || first[12..15] != [0x08, 0x00, 0x45]
            || first[IP + 6] & 0x3f != 0
            || first[IP + 7] != 0
        {
            return None;
        }
        let (transport, bytes) = match first[IP + 9] {
            6 if first[FLAGS] & !(FIN_PSH | ECE) == ACK && first[TRANSPORT + 12] >= 0x50 => {
                (Transport::Tcp, usize::from(first[TRANSPORT + 12] >> 4) * 4)
            }
            17 => (Transport::Udp, 8),
            _ => return None,
        };
        let payload_at = TRANSPORT + bytes;
        let gso = Gso {
            transport,
            network: Network::V4,
            network_at: IP,
            transport_at: TRANSPORT,
            payload_at,
            size: first.len() - payload_at,
        };
        Some(Flow { first, gso })
    }

    /// The frames at the start that one frame can carry.
    fn run<'b, 'c>(&self, frames: &'b [&'c [u8]]) -> &'b [&'c [u8]] {
        let is_next = |at: usize| {
            (at == 0 || !self.ends_with(frames[at - 1])) && self.has(frames[at], at, true)
        };
        let most = frames.len().min(MOST);
        &frames[..(0..most).take_while(|at| is_next(*at)).count()]
    }

    /// True if splitting gives this frame at this place. The transport's checksum is compared only if `all` is.
    fn has(&self, frame: &[u8], place: usize, all: bool) -> bool {
        let Self { first, gso } = self;
        if !(gso.payload_at + 1..=first.len()).contains(&frame.len()) {
            return false;
        }
        let (headers, payload) = frame.split_at(gso.payload_at);
        let expected = &mut [0; MOST_HEADERS][..gso.payload_at];
        expected.copy_from_slice(&first[..gso.payload_at]);
        if gso.transport == Transport::Tcp {
            expected[FLAGS] |= headers[FLAGS] & FIN_PSH;
        }
        gso.set_fields(expected, payload.len(), place, true);
        if all {
            gso.set_checksum(expected, payload);
        } else {
            let at = gso.checksum_at();
            expected[at..at + 2].copy_from_slice(&headers[at..at + 2]);
        }
        expected == headers
    }

    /// True if a frame can only be the last.
    fn ends_with(&self, frame: &[u8]) -> bool {
        let has_end = self.gso.transport == Transport::Tcp && frame[FLAGS] & FIN_PSH != 0;
        has_end || frame.len() < self.first.len()
    }

    fn send(&self, run: &[&[u8]], socket: BorrowedFd<'_>) -> nix::Result<()> {
        let Self { first, gso } = self;
        let last = run[run.len() - 1];
        let payload = gso.size * (run.len() - 1) + last.len() - gso.payload_at;
        let mut headers = first[..gso.payload_at].to_vec();
        let kind = match gso.transport {
            Transport::Tcp => {
                headers[FLAGS] = last[FLAGS];
                GSO_TCPV4
            }
            Transport::Udp => GSO_UDP_L4,
        };
        gso.set_fields(&mut headers, payload, 0, true);
        // The kernel adds the rest if it splits the frame, and a receiver of the whole frame trusts it.
        let partial = !csum16(gso.pseudo_header(&headers, gso.payload_at - TRANSPORT + payload));
        let at = gso.checksum_at();
        put(&mut headers, at, partial.into());
        let kind = [NEEDS_CHECKSUM, kind];
        let words = [gso.payload_at, gso.size, TRANSPORT, at - TRANSPORT];
        let words = words.map(|word| (word as u16).to_ne_bytes());
        let mut parts = [kind.as_slice(), words.as_flattened(), &headers]
            .map(IoSlice::new)
            .to_vec();
        let payloads = run
            .iter()
            .map(|frame| IoSlice::new(&frame[gso.payload_at..]));
        parts.extend(payloads);
        let (socket, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        sendmsg::<()>(socket, &parts, &[], flags, None).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use proptest::prelude::*;

    use super::super::offload::VnetHeader;
    use super::*;

    const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

    /// A frame that stands for several. TCP's has time stamps.
    fn large(transport: Transport, payload: usize, id: u16) -> Vec<u8> {
        let headers = match transport {
            Transport::Tcp => 32,
            Transport::Udp => 8,
        };
        let mut frame = vec![0; TRANSPORT + headers];
        frame.extend((0..payload).map(|n| (n * 7) as u8));
        let bytes = frame.len();
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        put(&mut frame, IP + 2, bytes - IP);
        put(&mut frame, IP + 4, id.into());
        put(&mut frame, IP + 6, 0x4000);
        frame[IP + 8..IP + 10].copy_from_slice(&[64, transport as u8]);
        frame[IP + 12..TRANSPORT].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        match transport {
            Transport::Tcp => {
                frame[TRANSPORT + 4..TRANSPORT + 8].copy_from_slice(&[0xff, 0xff, 0xf0, 0]);
                frame[TRANSPORT + 12..=FLAGS].copy_from_slice(&[8 << 4, ACK | FIN_PSH]);
            }
            Transport::Udp => put(&mut frame, TRANSPORT + 4, 8 + payload),
        }
        frame
    }

    fn split(vnet: VnetHeader, frame: &mut [u8]) -> Vec<Vec<u8>> {
        let gso = vnet.finish(frame).expect("sound").expect("segments");
        let mut segments = Vec::new();
        gso.for_each_segment(frame, &mut Vec::new(), |one| segments.push(one.to_vec()));
        segments
    }

    fn segments(transport: Transport, payload: usize, size: usize, id: u16) -> Vec<Vec<u8>> {
        let (kind, checksum_at) = match transport {
            Transport::Tcp => (GSO_TCPV4, 16),
            Transport::Udp => (GSO_UDP_L4, 6),
        };
        let mut bytes = [NEEDS_CHECKSUM, kind, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [size, TRANSPORT, checksum_at].map(|word| (word as u16).to_ne_bytes());
        bytes[4..].copy_from_slice(words.as_flattened());
        split(
            VnetHeader::parse(&bytes),
            &mut large(transport, payload, id),
        )
    }

    /// The frames of a merged one, as the kernel splits it: none if too few can be merged.
    fn merged_and_split(known: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (sender, receiver) = UnixDatagram::pair().expect("sockets");
        let frames: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
        let count = send(&frames, sender.as_fd());
        if count == 0 {
            return Vec::new();
        }
        let mut message = vec![0; 70_000];
        let len = receiver.recv(&mut message).expect("a message");
        let (vnet, frame) = message[..len].split_first_chunk_mut().expect("a header");
        let frames = split(VnetHeader::parse(vnet), frame);
        assert_eq!(frames.len(), count);
        frames
    }

    proptest! {
        #[test]
        fn merged_frames_come_out_as_they_were(
            transport in prop::sample::select(&BOTH),
            (size, count) in (60usize..1500, LEAST..=MOST),
            short in 0usize..1500,
            id: u16,
        ) {
            let known = segments(transport, size * count - short % size, size, id);
            prop_assert_eq!(merged_and_split(&known), known);
        }

        #[test]
        fn changed_frames_stay_apart(
            transport in prop::sample::select(&BOTH),
            which in 0usize..8,
            at in 0usize..1000,
            bit in 0u8..8,
        ) {
            let mut known = segments(transport, 800, 100, 5);
            let bytes = known[which].len();
            known[which][at % bytes] ^= 1 << bit;
            let merged = merged_and_split(&known);
            prop_assert!(merged.len() <= which && merged == known[..merged.len()]);
        }

        #[test]
        fn runs_of_any_frames_come_out_as_they_were(
            picks in prop::collection::vec((0usize..6, 0usize..8), 1..20),
        ) {
            let flow = |transport| {
                [(700, 100, 1), (450, 100, 9), (500, 70, 2)]
                    .map(|(payload, size, id)| segments(transport, payload, size, id))
            };
            let flows = BOTH.map(flow);
            // Half of the picks go on where the one before them was.
            let mut last = (0, 0);
            let picked = picks.iter().map(|(flow, at)| {
                last = if *at < 4 { (last.0, last.1 + 1) } else { (*flow, *at - 4) };
                let flow = &flows.as_flattened()[last.0];
                flow[last.1 % flow.len()].clone()
            });
            let known: Vec<Vec<u8>> = picked.collect();
            let merged = merged_and_split(&known);
            prop_assert_eq!(&merged, &known[..merged.len()]);
        }
    }

    #[test]
    fn a_run_ends_with_its_first_short_frame() {
        for (transport, sizes) in BOTH.into_iter().flat_map(|transport| {
            [
                [100, 100, 100, 100, 60, 60],
                [100, 100, 100, 70, 70, 70],
                [100, 100, 60, 60, 60, 60],
                [90, 100, 100, 100, 100, 100],
            ]
            .map(|sizes| (transport, sizes))
        }) {
            let mut known = Vec::new();
            let mut sequence = 0xffff_ff80u32;
            for (id, size) in sizes.into_iter().enumerate() {
                let mut frame = large(transport, size, id as u16);
                let gso = Flow::of(&frame).expect("a flow").gso;
                if transport == Transport::Tcp {
                    frame[FLAGS] = ACK;
                    frame[TRANSPORT + 4..TRANSPORT + 8].copy_from_slice(&sequence.to_be_bytes());
                    sequence = sequence.wrapping_add(size as u32);
                }
                let (headers, payload) = frame.split_at_mut(gso.payload_at);
                gso.set_fields(headers, payload.len(), 0, true);
                gso.set_checksum(headers, payload);
                known.push(frame);
            }
            let expected = match sizes {
                [100, 100, 100, 100, ..] => 5,
                [100, 100, 100, ..] => 4,
                _ => 0,
            };
            let merged = merged_and_split(&known);
            assert_eq!(merged, known[..expected], "{transport:?} {sizes:?}");
        }
    }

    #[test]
    fn datagrams_without_a_checksum_stay_apart() {
        let mut known = segments(Transport::Udp, 800, 100, 5);
        assert_eq!(merged_and_split(&known), known);
        known
            .iter_mut()
            .for_each(|frame| put(frame, TRANSPORT + 6, 0));
        assert!(merged_and_split(&known).is_empty());
    }

    #[test]
    fn a_run_starts_behind_a_frame_that_leaves_alone() {
        let (a, b) = BOTH
            .map(|transport| segments(transport, 600, 100, 1))
            .into();
        let ack = large(Transport::Tcp, 0, 7);
        let mut frames = vec![ack.as_slice()];
        // Too few for a run and one ahead of it.
        frames.extend(b[..LEAST].iter().chain(&a).map(Vec::as_slice));
        assert_eq!(before_run(&frames), LEAST + 2);
        assert_eq!(before_run(&frames[LEAST + 2..]), 1);
        assert_eq!(before_run(&frames[..1]), 1);
    }
}
