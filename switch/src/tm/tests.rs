//! The traffic manager in virtual time.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::stats::Place;

/// A program that passes every copy (a frame), keeps `keep` bytes at most and drops what begins
/// with 0xff.
struct Cut {
    keep: usize,
    seen: Vec<(Nanos, Nanos, u32, u32)>,
}

impl EgressProgram<Vec<u8>> for Cut {
    fn run(&mut self, copy: Queued<Vec<u8>>, depth: u32, now: Nanos, out: &mut Vec<u8>) -> Verdict {
        assert!(out.is_empty());
        self.seen
            .push((copy.enqueued_at, now, copy.depth_at_enqueue, depth));
        out.extend_from_slice(&copy.copy[..copy.copy.len().min(self.keep)]);
        match copy.copy.first() {
            Some(0xff) => Verdict::Gone(Place::EgressProgram),
            _ => Verdict::Send,
        }
    }
}

/// A medium that takes `room` more frames, none longer than `mtu`, if `peer` is there.
struct Cable {
    room: usize,
    mtu: usize,
    peer: bool,
    got: Vec<Vec<u8>>,
}

impl Medium for Cable {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        for frame in frames {
            if !self.peer {
                reports.push(Departure::NoPeer);
            } else if frame.len() > self.mtu {
                reports.push(Departure::Oversize);
            } else if self.room > 0 {
                self.room -= 1;
                self.got.push(frame.to_vec());
                reports.push(Departure::Left);
            } else {
                return;
            }
        }
    }
}

struct Bench {
    port: EgressPort<Vec<u8>>,
    program: Cut,
    cable: Cable,
    stats: PortStats,
    pool: Pool,
}

impl Bench {
    fn new(config: WireConfig, seed: u64) -> Self {
        Bench {
            port: EgressPort::new(&config, seed),
            program: Cut {
                keep: usize::MAX,
                seen: Vec::new(),
            },
            cable: Cable {
                room: usize::MAX,
                mtu: 9000,
                peer: true,
                got: Vec::new(),
            },
            stats: PortStats::new(false),
            pool: Pool::default(),
        }
    }

    fn order(&mut self, frame: Vec<u8>, now: Nanos) {
        let len = frame.len() as u32;
        self.port.order(frame, len, Key::NONE, now, &mut self.stats);
    }

    fn serve(&mut self, now: Nanos) -> Wait {
        self.port.serve(
            now,
            &mut self.program,
            &mut self.cable,
            &mut self.stats,
            &mut self.pool,
        )
    }

    /// Serves exactly when the port asks to be, and returns each frame's time of arrival.
    fn run(&mut self, mut now: Nanos) -> Vec<(Nanos, Vec<u8>)> {
        let mut arrivals = Vec::new();
        loop {
            let wait = self.serve(now);
            arrivals.extend(self.cable.got.drain(..).map(|frame| (now, frame)));
            match wait {
                Wait::Turn => {}
                Wait::Until(at) => {
                    assert!(at > now, "asked to be served at {at}, at {now}");
                    now = at;
                }
                Wait::Medium(_) | Wait::Copy => return arrivals,
            }
        }
    }

    fn packets(&self, place: Place) -> u64 {
        self.stats.at(place).packets
    }

    fn accounted(&self) -> u64 {
        let places = [
            Place::Left,
            Place::Queue,
            Place::EgressProgram,
            Place::Wire,
            Place::NoPeer,
            Place::Oversize,
            Place::Reconfigured,
        ];
        let held = self.port.held();
        places.iter().map(|&place| self.packets(place)).sum::<u64>()
            + held.queued_packets
            + held.in_flight_packets
    }
}

fn times(arrivals: &[(Nanos, Vec<u8>)]) -> Vec<Nanos> {
    arrivals.iter().map(|(at, _)| *at).collect()
}

#[test]
fn rate_and_delay_space_the_frames() {
    // 1000 bytes at 8 Mbit/s take 1 ms; then 5 ms of delay.
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000),
            delay: Duration::from_millis(5),
            ..WireConfig::default()
        },
        0,
    );
    for _ in 0..3 {
        bench.order(vec![0; 1000], 0);
    }
    bench.order(vec![0; 500], 0);
    let arrivals = bench.run(0);
    assert_eq!(
        times(&arrivals),
        [6_000_000, 7_000_000, 8_000_000, 8_500_000]
    );
    // The program saw each copy leave the queue when the wire was free for it, and the queue as it
    // was.
    assert_eq!(
        bench.program.seen,
        [
            (0, 0, 0, 3),
            (0, 1_000_000, 1, 2),
            (0, 2_000_000, 2, 1),
            (0, 3_000_000, 3, 0)
        ]
    );
    bench.order(vec![0; 1000], 20_000_000);
    assert_eq!(
        times(&bench.run(20_000_000)),
        [26_000_000],
        "an idle wire starts at once"
    );
}

#[test]
fn the_wire_is_busy_for_the_final_length() {
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000),
            ..WireConfig::default()
        },
        0,
    );
    bench.program.keep = 100;
    for _ in 0..3 {
        bench.order(vec![0; 1000], 0);
    }
    assert_eq!(times(&bench.run(0)), [100_000, 200_000, 300_000]);
    assert_eq!(bench.stats.at(Place::Ordered).bytes, 3000);
    assert_eq!(bench.stats.at(Place::Left).bytes, 300);
}

#[test]
fn a_late_wake_up_costs_no_capacity() {
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000),
            ..WireConfig::default()
        },
        0,
    );
    for _ in 0..10 {
        bench.order(vec![0; 1000], 0);
    }
    assert_eq!(bench.serve(0), Wait::Until(1_000_000));
    // Served again only at 4.5 ms: four frames have arrived by then, the fifth arrives at 5 ms.
    assert_eq!(bench.serve(4_500_000), Wait::Until(5_000_000));
    assert_eq!(bench.cable.got.len(), 4);
}

#[test]
fn a_full_queue_drops_its_tail() {
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000),
            queue_bytes: 2500,
            ..WireConfig::default()
        },
        0,
    );
    for byte in 0..5 {
        bench.order(vec![byte; 1000], 0);
    }
    let arrivals = bench.run(0);
    assert_eq!(
        arrivals.iter().map(|(_, f)| f[0]).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!((bench.packets(Place::Queue), bench.accounted()), (3, 5));
}

#[test]
fn a_full_medium_backs_up_into_the_queue() {
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000_000),
            queue_bytes: 100_000,
            ..WireConfig::default()
        },
        0,
    );
    bench.cable.room = 3;
    for n in 0..200u32 {
        bench.order(vec![n as u8; 1000], 0);
    }
    assert_eq!(bench.packets(Place::Queue), 100);
    let mut now = 0;
    while let Wait::Until(at) | Wait::Medium(Some(at)) = bench.serve(now) {
        now = at;
    }
    // Three left, the line took its 64 KiB, the rest stays in the queue and nothing is lost.
    assert_eq!((bench.cable.got.len(), bench.packets(Place::Left)), (3, 3));
    let held = bench.port.held();
    assert_eq!((held.in_flight_packets, held.queued_packets), (66, 31));
    assert_eq!(bench.accounted(), 200);
    // Room again, much later: the wire starts anew then, it does not make up for lost time.
    bench.cable.room = usize::MAX;
    bench.cable.got.clear();
    now = 1_000_000_000;
    let arrivals = bench.run(now);
    assert_eq!(arrivals.len(), 97);
    assert_eq!(
        arrivals[65].0, now,
        "what had crossed the wire goes at once"
    );
    assert_eq!(arrivals[66].0, now + 1000, "what had not needs its time");
    assert_eq!(arrivals[96].0, now + 31_000);
    assert!(
        arrivals
            .windows(2)
            .all(|w| w[0].1[0].wrapping_add(1) == w[1].1[0]),
        "order is kept"
    );
}

#[test]
fn nobody_attached_and_frames_too_long_are_counted() {
    let mut bench = Bench::new(WireConfig::default(), 0);
    bench.order(vec![0; 9001], 0);
    bench.order(vec![0xff; 60], 0);
    bench.serve(0);
    bench.cable.peer = false;
    bench.order(vec![0; 60], 0);
    assert_eq!(bench.serve(0), Wait::Copy);
    assert_eq!(bench.packets(Place::Oversize), 1);
    assert_eq!(bench.packets(Place::EgressProgram), 1);
    assert_eq!(bench.packets(Place::NoPeer), 1);
    bench.order(vec![0; 60], 0);
    bench.port.discard_queue(&mut bench.stats);
    assert_eq!(
        (bench.packets(Place::Reconfigured), bench.accounted()),
        (1, 4)
    );
}

#[test]
fn a_turn_ends() {
    let mut bench = Bench::new(WireConfig::default(), 0);
    for _ in 0..TURN + 1 {
        bench.order(vec![0; 60], 0);
    }
    assert_eq!(bench.serve(0), Wait::Turn);
    assert_eq!(bench.cable.got.len(), TURN);
    assert_eq!(bench.serve(0), Wait::Copy);
    assert_eq!(bench.cable.got.len(), TURN + 1);
}

#[test]
fn the_same_seed_loses_the_same_frames() {
    let run = |seed| {
        let loss = vec![
            "0.1:3".parse().expect("valid"),
            "0.05".parse().expect("valid"),
        ];
        let mut bench = Bench::new(
            WireConfig {
                loss,
                ..WireConfig::default()
            },
            seed,
        );
        for n in 0..500u32 {
            bench.order(n.to_be_bytes().to_vec(), 0);
        }
        bench
            .run(0)
            .into_iter()
            .map(|(_, frame)| frame)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

proptest! {
    /// Whatever the wire and whenever it is served, every copy is in exactly one place.
    #[test]
    fn every_copy_is_accounted_for(
        rate in prop::option::of(1_000u64..10_000_000_000),
        delay_us in 0u64..5000,
        probability in 0.0f64..0.5,
        queue_bytes in 1u64..50_000,
        seed: u64,
        steps in prop::collection::vec(
            (0usize..6, 0usize..3000, 0u64..2_000_000, 0usize..20, any::<bool>(), any::<u8>()),
            1..60,
        ),
    ) {
        let mut bench = Bench::new(
            WireConfig {
                rate,
                delay: Duration::from_micros(delay_us),
                loss: vec![Loss::Independent { probability }],
                queue_bytes,
            },
            seed,
        );
        bench.cable.mtu = 2500;
        let (mut now, mut ordered) = (0, 0);
        for (copies, len, pause, room, peer, first) in steps {
            for _ in 0..copies {
                bench.order(vec![first; len], now);
                ordered += 1;
            }
            bench.cable.room = room;
            bench.cable.peer = peer;
            while bench.serve(now) == Wait::Turn {}
            prop_assert_eq!(bench.packets(Place::Ordered), ordered);
            prop_assert_eq!(bench.accounted(), ordered);
            prop_assert_eq!(bench.packets(Place::Left), bench.cable.got.len() as u64);
            prop_assert!(bench.port.held().queued_bytes <= queue_bytes);
            now += pause;
        }
        bench.cable.room = usize::MAX;
        bench.cable.peer = true;
        bench.run(now);
        prop_assert_eq!(bench.port.held(), Held::default());
        prop_assert_eq!(bench.accounted(), ordered);
    }
}
