//! Slots that a rank multicasts, and copies that arrive whole, marked or trimmed.

use std::collections::BTreeMap;

use ultima_tests::counters::{Cell, Counts};
use ultima_tests::job::Job;
use ultima_tests::stage::Stage;
use ultima_tests::stamps::header;
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{HEADER_LEN, Header, Kind};

/// Bytes of a trimmed frame.
pub const FRAME_CUT: usize = FRAME_OVERHEAD + HEADER_LEN;
/// Bytes of a slot's values.
pub const VALUES: usize = 1000;

/// The GATHER frames of a rank in an operation.
pub fn gathers(job: &Job, source: u16, (step, bucket): (u32, u16), slots: u32) -> Vec<Vec<u8>> {
    let datagram = |slot| {
        let header = Header {
            step,
            bucket,
            slot,
            packet_number: slot,
            ..job.header(Kind::Gather, source, source)
        };
        job.gather(source, &[slot as u8; VALUES])
            .with_header(&header)
    };
    (0..slots).map(|slot| datagram(slot).emit()).collect()
}

/// For each rank, the number of copies that arrived whole, marked and trimmed.
pub type Seen = BTreeMap<u16, [u64; 3]>;

/// Sends frames of a rank, and checks that each copy is whole or trimmed correctly.
pub fn send(stage: &mut Stage, job: &Job, source: u16, frames: &[Vec<u8>]) -> Seen {
    let mut seen = Seen::new();
    let arrivals = stage.testbed.exchange(job.host_of(source), frames);
    for frame in arrivals.values().flatten() {
        let (endpoints, _) =
            ultima_wire::frame::parse(frame).expect("lengths and checksums are right");
        let is_addressed = |rank: &u16| job.members[usize::from(*rank)].address == endpoints.dst;
        let rank = job
            .ranks()
            .find(is_addressed)
            .expect("the destination is a member");
        let flags = header(frame).switch_flags;
        let seen = seen.entry(rank).or_default();
        let length = if flags.trimmed {
            FRAME_CUT
        } else {
            FRAME_CUT + VALUES
        };
        assert_eq!(frame.len(), length, "{flags:?}");
        seen[0] += u64::from(!flags.trimmed);
        seen[1] += u64::from(flags.congestion);
        seen[2] += u64::from(flags.trimmed);
    }
    seen
}

/// The packets in a counter's cell of the first switch.
pub fn at(counts: &Counts, array: &'static str, index: u32) -> u64 {
    let cell = Cell {
        switch: 0,
        array,
        index,
    };
    counts.0.get(&cell).map_or(0, |count| count.packets)
}
