//! The time that a packet spends in switches, which they write into its header.

use std::time::Instant;

use ultima_tests::stage::Target;
use ultima_tests::stamps::header;
use ultima_wire::{Header, Kind, Ticks, frame};

/// About a quarter of an hour.
const BUDGET: u32 = 1 << 30;
/// The number of packets sent.
const PACKETS: u32 = 200;

/// The budget shrinks by at most the elapsed time. The header keeps the longest time in a queue, and counts each switch as
/// one hop. The checksum is correct.
fn stamps_match_the_time_in_switches(target: &Target) {
    target.pair(|mut stage| {
        let job = stage.jobs[0].clone();
        let source = 2;
        let from = job.host_of(source);
        let frames: Vec<Vec<u8>> = (0..PACKETS)
            .map(|slot| {
                let header = Header {
                    budget: Ticks(BUDGET),
                    // Half of the packets were in a long queue before.
                    path_queue: Ticks(slot % 2 * BUDGET),
                    slot,
                    ..job.header(Kind::Gather, source, source)
                };
                job.gather(source, b"data").with_header(&header).emit()
            })
            .collect();
        let start = Instant::now();
        let arrivals = stage.testbed.exchange_stamped(from, &frames);
        // Switches count whole microseconds, and each has its own clock.
        let elapsed = start.elapsed().as_micros() as u32 + 2;

        let (mut queued, mut resident, mut beyond_queue) = (0, 0, 0);
        for (host, frames) in &arrivals {
            let hops = stage.testbed.fabric.hops(from, *host);
            for frame in frames {
                frame::parse(frame).unwrap_or_else(|error| panic!("{error}: {frame:02x?}"));
                let Header {
                    budget,
                    path_queue,
                    slot,
                    switch_flags,
                    ..
                } = header(frame);
                let residence = BUDGET - budget.0;
                assert!(residence <= elapsed, "{residence} of {elapsed} us");
                resident += u32::from(residence > 0);
                assert_eq!(switch_flags.hops, hops);
                if slot % 2 == 0 {
                    assert!(path_queue.0 <= elapsed, "{path_queue:?} of {elapsed} us");
                    queued += u32::from(path_queue.0 > 0);
                    // A packet spends time outside of queues, too.
                    beyond_queue += u32::from(hops == 1 && residence > path_queue.0);
                } else {
                    assert_eq!(path_queue.0, BUDGET);
                }
            }
        }
        let copies: usize = arrivals.values().map(Vec::len).sum();
        assert_eq!(copies, PACKETS as usize * (job.members.len() - 1));
        assert!(
            queued > 0 && resident > 0 && beyond_queue > 0,
            "no packet spent a microsecond in a switch"
        );
    });
}

on_both! {
    stamps_match_the_time_in_switches;
}
