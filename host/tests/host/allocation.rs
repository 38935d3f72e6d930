//! Packets need no allocations: an operation of ten thousand packets allocates as often as one of a dozen.

use crate::common::config;
use ultima_host::{
    Coding, Config, Core, Destination, Event, OperationId, Pacing, RatePolicy, Time, Values,
};
use ultima_testing::heap;

/// Not zero, which means "no time" in packets.
const NOW: Time = Time::from_nanos(1 << 20);

/// The allocations of one operation, after two to warm up. Rank 0 starts last, so that packets are stored for
/// it.
fn allocations(len: usize) -> u64 {
    let config = Config {
        coding: Coding::Identity,
        slot_bytes: 256,
        // Packets are answered as well.
        pacing: Some(Pacing {
            bits_per_second: u64::MAX,
            burst: u32::MAX,
            policy: RatePolicy::Timely,
        }),
        ..config(3)
    };
    let mut cores: Vec<Core> = (0..3)
        .map(|rank| {
            Core::new(Config {
                rank,
                ..config.clone()
            })
            .expect("a good configuration")
        })
        .collect();
    let mut buckets = [(); 3].map(|()| Values::from(vec![1.0; len]));
    let mut buf = vec![0; cores[0].max_datagram()];
    let mut counted = 0;
    for step in 0..3 {
        let before = heap::allocations();
        for rank in [1, 2, 0] {
            let id = OperationId { step, bucket: 0 };
            let bucket = std::mem::take(&mut buckets[rank]);
            cores[rank].start(NOW, id, bucket).expect("starts");
            deliver(&mut cores, &mut buf);
        }
        for (core, bucket) in cores.iter_mut().zip(&mut buckets) {
            let Some(Event::Done { result, .. }) = core.poll_event() else {
                panic!("an operation without loss ends");
            };
            *bucket = result;
        }
        counted = heap::allocations() - before;
    }
    counted
}

fn deliver(cores: &mut [Core], buf: &mut [u8]) {
    let mut idle = false;
    while !std::mem::replace(&mut idle, true) {
        for from in 0..cores.len() {
            while let Some(transmit) = cores[from].next_datagram(NOW, buf) {
                idle = false;
                for (to, core) in cores.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                    if [Destination::Group, Destination::Rank(to as u16)].contains(&transmit.to) {
                        core.handle_datagram(NOW, &buf[..transmit.len]);
                    }
                }
            }
        }
    }
}

#[test]
fn packets_cost_no_allocations() {
    let (few, many) = (allocations(3 * 64 * 2), allocations(3 * 64 * 1000));
    assert_eq!(few, many);
    println!("{few} allocations for one operation at three ranks");
}
