//! The traffic manager in virtual time.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::stats::Place;

/// A program that passes every copy (a frame), truncates it to `keep` bytes and drops frames that begin
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

/// A medium with room for `room` frames of at most `mtu` bytes, if it has a `peer`.
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
            port: EgressPort::new(config, seed, PRIORITIES as u8),
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
        self.order_at(0, frame, now);
    }

    fn order_at(&mut self, priority: u8, frame: Vec<u8>, now: Nanos) {
        let len = frame.len() as u32;
        self.port
            .order(frame, priority, len, Key::NONE, now, &mut self.stats);
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

    /// Serves the port at the times that it requests. Returns each frame with its time of arrival.
    fn run(&mut self, mut now: Nanos) -> Vec<(Nanos, Vec<u8>)> {
        let mut arrivals = Vec::new();
        loop {
            let wait = self.serve(now);
            arrivals.extend(self.cable.got.drain(..).map(|frame| (now, frame)));
            match wait {
                Wait::Turn => {}
                Wait::Until(at) => {
                    assert!(at > now, "the port requests service at {at}, at {now}");
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
            + held.queued_packets()
            + held.in_flight_packets
    }
}

fn times(arrivals: &[(Nanos, Vec<u8>)]) -> Vec<Nanos> {
    arrivals.iter().map(|(at, _)| *at).collect()
}

/// Frames of 1,000 bytes at 8 Mbit/s take 1 ms alone, and 9 ms during a flow.
#[test]
fn background_flows_share_the_rate() {
    let config = WireConfig {
        rate: Some(8_000_000),
        background: Some("0.2:50k:fixed".parse().expect("valid")),
        queue_bytes: 1 << 30,
        ..WireConfig::default()
    };
    // About eighty flows.
    let frames = 20_000;
    let mut bench = Bench::new(config.clone(), 7);
    for _ in 0..frames {
        bench.order(vec![0; 1000], 0);
    }
    let arrivals = bench.run(0);
    assert_eq!(arrivals.len(), frames);
    let times: Vec<Nanos> = arrivals.iter().map(|(at, _)| *at).collect();
    let gaps: Vec<Nanos> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let ms = 1_000_000;
    let alone = gaps.iter().filter(|gap| **gap == ms).count();
    let shared = gaps.iter().filter(|gap| **gap == 9 * ms).count();
    assert!(alone > frames / 2 && shared > 200, "{alone} {shared}");
    // On average, the frames get the rate that the flows leave.
    let rate = frames as f64 * ms as f64 / times[frames - 1] as f64;
    assert!((rate - 0.8).abs() < 0.1, "{rate}");
    // Without the flows, later frames have the whole rate again.
    let now = times[frames - 1];
    bench.port.configure(
        WireConfig {
            background: None,
            ..config
        },
        now,
    );
    bench.order(vec![0; 1000], now);
    assert_eq!(bench.run(now)[0].0, now + ms);
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
    // The program runs when the copy leaves the queue for a free wire, and sees the queue's depth at that time.
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
    // The port is served late, at 4.5 ms. Four frames have arrived by then, the fifth arrives at 5 ms.
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
fn copies_stay_in_the_queue_while_the_medium_is_full() {
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
    // Three frames left, 64 KiB are on the wire, and the rest stays in the queue. Nothing is lost.
    assert_eq!((bench.cable.got.len(), bench.packets(Place::Left)), (3, 3));
    let held = bench.port.held();
    assert_eq!((held.in_flight_packets, held.queued_packets()), (66, 31));
    assert_eq!(bench.accounted(), 200);
    // The wire continues when the medium has room again. It does not compensate for the time before.
    bench.cable.room = usize::MAX;
    bench.cable.got.clear();
    now = 1_000_000_000;
    let arrivals = bench.run(now);
    assert_eq!(arrivals.len(), 97);
    assert_eq!(
        arrivals[65].0, now,
        "frames that have crossed the wire leave at once"
    );
    assert_eq!(
        arrivals[66].0,
        now + 1000,
        "other frames take their time on the wire"
    );
    assert_eq!(arrivals[96].0, now + 31_000);
    assert!(
        arrivals
            .windows(2)
            .all(|w| w[0].1[0].wrapping_add(1) == w[1].1[0]),
        "order is kept"
    );
}

#[test]
fn frames_without_peer_and_too_long_frames_are_counted() {
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

/// The first byte of each frame, in the order of arrival.
fn firsts(arrivals: &[(Nanos, Vec<u8>)]) -> Vec<u8> {
    arrivals.iter().map(|(_, frame)| frame[0]).collect()
}

#[test]
fn a_higher_priority_overtakes_in_the_queue_but_not_on_the_wire() {
    let slow = WireConfig {
        rate: Some(8_000_000),
        ..WireConfig::default()
    };
    let mut bench = Bench::new(slow.clone(), 0);
    for (first, priority) in [(1, 0), (2, 0), (3, 5), (4, 7), (5, 5)] {
        bench.order_at(priority, vec![first; 1000], 0);
    }
    assert_eq!(firsts(&bench.run(0)), [4, 3, 5, 1, 2]);
    // The program sees the depth of the copy's own queue.
    let depths: Vec<_> = bench
        .program
        .seen
        .iter()
        .map(|seen| (seen.2, seen.3))
        .collect();
    assert_eq!(depths, [(0, 0), (0, 1), (1, 0), (0, 1), (1, 0)]);

    // A copy waits for the frame on the wire, even if the port is served late.
    let mut bench = Bench::new(slow, 0);
    bench.order(vec![1; 1000], 0);
    bench.order(vec![2; 1000], 0);
    bench.order(vec![3; 1000], 0);
    bench.order_at(7, vec![9; 1000], 1_500_000);
    assert_eq!(firsts(&bench.run(2_900_000)), [1, 2, 9, 3]);
}

#[test]
fn a_queue_is_limited_in_packets_too() {
    let mut bench = Bench::new(
        WireConfig {
            rate: Some(8_000_000),
            queue_packets: Some(3),
            ..WireConfig::default()
        },
        0,
    );
    for first in 0..5 {
        bench.order(vec![first; 100], 0);
    }
    bench.order_at(1, vec![9; 100], 0);
    assert_eq!(firsts(&bench.run(0)), [9, 0, 1, 2]);
    assert_eq!((bench.packets(Place::Queue), bench.accounted()), (2, 6));
}

#[test]
fn a_packet_rate_spaces_frames_of_any_length() {
    let config = |packet_rate| WireConfig {
        packet_rate,
        delay: Duration::from_millis(5),
        ..WireConfig::default()
    };
    let mut bench = Bench::new(config(Some(100)), 0);
    for len in [1000, 60, 1500, 60, 60] {
        bench.order(vec![0; len], 0);
    }
    // Frames leave 10 ms apart.
    assert!(matches!(bench.serve(0), Wait::Until(_)));
    assert!(matches!(bench.serve(10_000_000), Wait::Until(_)));
    assert_eq!(bench.program.seen, [(0, 0, 0, 4), (0, 10_000_000, 1, 3)]);
    // A higher rate applies to the next frame.
    bench.port.configure(config(Some(1000)), 12_000_000);
    let arrivals = bench.run(12_000_000);
    assert_eq!(
        times(&arrivals)[1..],
        [15_000_000, 18_000_000, 19_000_000, 20_000_000]
    );
    bench.port.configure(config(None), 30_000_000);
    bench.order(vec![0; 60], 30_000_000);
    bench.order(vec![0; 60], 30_000_000);
    assert_eq!(times(&bench.run(30_000_000)), [35_000_000; 2]);
}

#[test]
fn a_port_with_fewer_queues_drops_higher_priorities() {
    let mut port = EgressPort::new(WireConfig::default(), 0, 2);
    let mut stats = PortStats::new(false);
    for priority in [0, 1, 2, 7] {
        port.order(vec![0; 60], priority, 60, Key::NONE, 0, &mut stats);
    }
    let queued = port.held().queues.map(|queue| queue.packets);
    assert_eq!(queued, [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(stats.at(Place::Queue).packets, 2);
}

/// An IPv4 frame of 1000 bytes with this ECN field and this number.
fn ipv4(ecn: u8, number: u8) -> Vec<u8> {
    let mut frame = vec![number; 1000];
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, ecn]);
    frame
}

/// Numbers of the frames that arrived with Congestion Experienced.
fn marked(arrivals: &[(Nanos, Vec<u8>)]) -> Vec<u8> {
    let marked = arrivals.iter().filter(|(_, frame)| frame[15] & 3 == 3);
    marked.map(|(_, frame)| frame[0]).collect()
}

#[test]
fn long_queues_mark_frames_with_an_ecn_capable_transport() {
    for (threshold, expected) in [
        ("packets:2", vec![3, 4]),
        ("bytes:2000", vec![3, 4]),
        ("bytes:1999", vec![2, 3, 4]),
        ("time:3ms", vec![4]),
    ] {
        let mut bench = Bench::new(
            WireConfig {
                rate: Some(8_000_000),
                ecn: Some(threshold.parse().expect("valid")),
                ..WireConfig::default()
            },
            0,
        );
        for number in 0..5 {
            bench.order(ipv4(2, number), 0);
        }
        assert_eq!(marked(&bench.run(0)), expected, "{threshold}");
        let count = bench.stats.at(Place::Marked);
        assert_eq!(count.packets, expected.len() as u64);
        assert_eq!(count.bytes, 1000 * count.packets);
        assert_eq!(bench.accounted(), 5, "a marked frame also counts as left");
        for number in 0..5 {
            bench.order(ipv4(0, number), 1_000_000_000);
        }
        let marks = marked(&bench.run(1_000_000_000));
        assert!(marks.is_empty(), "not capable");
    }
}

/// Sends 1000 frames, one every 10 µs. Returns each frame's number and its time from order to arrival.
fn crossings(config: WireConfig, seed: u64) -> Vec<(u32, Nanos)> {
    let mut bench = Bench::new(config, seed);
    for number in 0..1000u32 {
        bench.order(number.to_be_bytes().to_vec(), Nanos::from(number) * 10_000);
    }
    let arrivals = bench.run(0);
    assert!(times(&arrivals).is_sorted());
    let number = |frame: &[u8]| u32::from_be_bytes(frame.try_into().expect("four bytes"));
    arrivals
        .iter()
        .map(|(at, frame)| (number(frame), at - Nanos::from(number(frame)) * 10_000))
        .collect()
}

#[test]
fn jitter_delays_each_frame_and_reorders_only_on_request() {
    let config = WireConfig {
        delay: Duration::from_micros(200),
        jitter: Some("normal:100us".parse().expect("valid")),
        reorder: true,
        ..WireConfig::default()
    };
    let reordered = crossings(config.clone(), 1);
    assert_eq!(reordered.len(), 1000);
    assert!(!reordered.is_sorted_by_key(|(number, _)| *number));
    assert_eq!(reordered, crossings(config.clone(), 1), "repeatable");
    assert_ne!(reordered, crossings(config.clone(), 2));
    // 1000 draws: the mean's standard deviation is 3.2 µs; 2.3 % of the draws are below 0 and count as 0.
    let mean = reordered.iter().map(|(_, took)| took).sum::<Nanos>() / 1000;
    assert!((187_000..215_000).contains(&mean), "{mean}");
    assert!(reordered.iter().any(|(_, took)| *took == 0));

    let in_order = crossings(
        WireConfig {
            reorder: false,
            ..config
        },
        1,
    );
    assert!(in_order.is_sorted_by_key(|(number, _)| *number));
    // No frame arrives before its drawn delay. A frame that would overtake arrives together with the frame before it.
    let mut drawn = reordered;
    drawn.sort_unstable();
    let mut last = 0;
    for (&(number, took), (_, drawn)) in in_order.iter().zip(drawn) {
        let set_out = Nanos::from(number) * 10_000;
        assert_eq!(set_out + took, (set_out + drawn).max(last));
        last = set_out + took;
    }
}

#[test]
fn a_jitter_does_not_change_which_frames_are_lost() {
    let lost = |jitter: Option<Jitter>| -> Vec<u32> {
        let config = WireConfig {
            jitter,
            reorder: false,
            loss: vec!["0.2:3".parse().expect("valid")],
            ..WireConfig::default()
        };
        crossings(config, 3)
            .iter()
            .map(|(number, _)| *number)
            .collect()
    };
    assert_eq!(lost(None), lost("pareto:1ms:2".parse().ok()));
}

#[test]
fn a_change_applies_to_later_frames() {
    let before = WireConfig {
        rate: Some(8_000_000),
        delay: Duration::from_millis(5),
        ..WireConfig::default()
    };
    let mut bench = Bench::new(before.clone(), 0);
    for first in 0..4 {
        bench.order(vec![first; 1000], 0);
    }
    assert_eq!(bench.serve(1_500_000), Wait::Until(2_000_000));
    // 0 arrives at 6 ms as before. Half of 1 is on the wire: the second half takes twice the rate, until
    // 1.75 ms, and keeps the old delay. 2 and 3 take half a millisecond each and have no delay, but do not
    // overtake.
    let after = WireConfig {
        rate: Some(16_000_000),
        delay: Duration::ZERO,
        queue_packets: Some(2),
        ..before.clone()
    };
    bench.port.configure(after.clone(), 1_500_000);
    assert_eq!(bench.port.config(), &after);
    bench.order(vec![4; 1000], 1_500_000);
    assert_eq!(
        bench.packets(Place::Queue),
        1,
        "the new limit applies at once"
    );
    let arrivals = bench.run(1_500_000);
    assert_eq!(firsts(&arrivals), [0, 1, 2, 3]);
    assert_eq!(
        times(&arrivals),
        [6_000_000, 6_750_000, 6_750_000, 6_750_000]
    );
    bench.order(vec![5; 1000], 10_000_000);
    assert_eq!(times(&bench.run(10_000_000)), [10_500_000]);

    // A frame that would take hours does not block the wire after a change of the rate.
    let crawl = WireConfig {
        rate: Some(1),
        ..before
    };
    bench.port.configure(crawl, 20_000_000);
    bench.order(vec![6; 1000], 20_000_000);
    bench.order(vec![7; 1000], 20_000_000);
    assert!(matches!(bench.serve(20_000_000), Wait::Until(_)));
    bench.port.configure(WireConfig::default(), 30_000_000);
    let arrivals = bench.run(30_000_000);
    assert_eq!(firsts(&arrivals), [6, 7]);
    assert_eq!(times(&arrivals), [35_000_000, 35_000_000]);
}

#[test]
fn an_unchanged_loss_model_keeps_its_state() {
    let lossy = |rate| WireConfig {
        rate,
        loss: vec!["0.3:4".parse().expect("valid")],
        ..WireConfig::default()
    };
    let lost = |changed: bool| {
        let mut bench = Bench::new(lossy(None), 9);
        let mut arrived = Vec::new();
        for number in 0..200u8 {
            if changed && number % 10 == 0 {
                let config = lossy((number % 20 == 0).then_some(1_000_000));
                bench.port.configure(config, 0);
            }
            bench.order(vec![number], 0);
            arrived.extend(firsts(&bench.run(0)));
        }
        arrived
    };
    assert_eq!(lost(false), lost(true));
    assert!(lost(false).len() < 200);
}

/// Any jitter.
fn jitters() -> impl Strategy<Value = Option<Jitter>> {
    prop::option::of(prop::sample::select(vec![
        "normal:300us",
        "uniform:1ms",
        "pareto:100us:1.5",
        "lognormal:200us:1.5",
    ]))
    .prop_map(|text| text.map(|text| text.parse().expect("valid")))
}

proptest! {
    /// With any wires, changes and times of service, every copy is in exactly one place, and wires without `reorder`
    /// keep the order.
    #[test]
    fn every_copy_is_accounted_for(
        wires in prop::collection::vec(
            (
                prop::option::of(1_000u64..10_000_000_000),
                0u64..5000,
                jitters(),
                any::<bool>(),
                0.0f64..0.5,
                60u64..50_000,
                prop::option::of(1u32..100),
            ),
            1..4,
        ),
        seed: u64,
        steps in prop::collection::vec(
            (0usize..6, 0usize..3000, 0u64..2_000_000, 0usize..20, any::<bool>(), any::<u8>(), 0u8..8),
            1..60,
        ),
    ) {
        let configs: Vec<WireConfig> = wires
            .into_iter()
            .map(|(rate, delay, jitter, reorder, probability, queue_bytes, queue_packets)| WireConfig {
                rate,
                packet_rate: queue_packets.map(|packets| u64::from(packets) * 1000),
                background: rate.map(|_| "0.3:10k".parse().expect("valid")),
                delay: Duration::from_micros(delay),
                jitter,
                reorder,
                loss: vec![Loss::Independent { probability }],
                queue_bytes,
                queue_packets,
                ecn: Some(EcnThreshold::Packets(1)),
            })
            .collect();
        let mut bench = Bench::new(configs[0].clone(), seed);
        bench.cable.mtu = 2500;
        let (mut now, mut ordered) = (0, 0u64);
        for (step, (copies, len, pause, room, peer, first, priority)) in steps.into_iter().enumerate() {
            if step % 20 == 19 {
                let next = configs[step / 20 % configs.len()].clone();
                bench.port.configure(next, now);
            }
            for _ in 0..copies {
                bench.order_at(priority, vec![first; len], now);
                ordered += 1;
            }
            bench.cable.room = room;
            bench.cable.peer = peer;
            while bench.serve(now) == Wait::Turn {}
            prop_assert_eq!(bench.packets(Place::Ordered), ordered);
            prop_assert_eq!(bench.accounted(), ordered);
            prop_assert_eq!(bench.packets(Place::Left), bench.cable.got.len() as u64);
            now += pause;
        }
        bench.cable.room = usize::MAX;
        bench.cable.peer = true;
        bench.run(now);
        prop_assert_eq!(bench.port.held(), Held::default());
        prop_assert_eq!(bench.accounted(), ordered);
    }

    /// The queue of each priority keeps its limits, and a wire without `reorder` its order.
    #[test]
    fn limits_and_order_are_kept(
        jitter in jitters(),
        queue_bytes in 60u64..5000,
        queue_packets in 1u32..10,
        pauses in prop::collection::vec(0u64..1_000_000, 1..100),
    ) {
        let mut bench = Bench::new(
            WireConfig {
                rate: Some(10_000_000),
                delay: Duration::from_millis(1),
                jitter,
                queue_bytes,
                queue_packets: Some(queue_packets),
                ..WireConfig::default()
            },
            0,
        );
        let mut now = 0;
        for (number, pause) in (0u8..).zip(pauses) {
            bench.order_at(number % 3, vec![number; 500], now);
            bench.order_at(number % 3, vec![number; 500], now);
            bench.serve(now);
            for queue in bench.port.held().queues {
                prop_assert!(queue.bytes <= queue_bytes && queue.packets <= queue_packets);
            }
            now += pause;
        }
        let arrived = firsts(&bench.run(now));
        prop_assert_eq!(arrived.len(), bench.program.seen.len());
        for priority in 0..3 {
            let same: Vec<u8> = arrived.iter().copied().filter(|n| n % 3 == priority).collect();
            prop_assert!(same.is_sorted());
        }
    }
}
