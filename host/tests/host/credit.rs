//! Flow control: no receiver gets more packets than it has room for. Over kernel UDP: `tests/receive_buffers.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use ultima_host::{
    ClosedBy, Config, Core, Destination, Event, Exact, Gather, IncastPolicy, OperationId,
    ReceiveBuffer, Recycling, Time,
};
use ultima_wire::{Credit, Header, Key, Kind, Ticks};

use ultima_testing::per_run;

use crate::common::{GATHERS, Network, Random, at_once, lossy, powers};

/// A job whose ranks have room for `packets` packets.
fn buffered(ranks: u16, packets: u32) -> Config {
    Config {
        slot_bytes: 64,
        receive_buffer: Some(ReceiveBuffer { packets }),
        ..crate::common::config(ranks)
    }
}

fn id(step: u32) -> OperationId {
    OperationId { step, bucket: 0 }
}

/// So that they leave in one system call, also in a job that had multicast before.
#[test]
fn grants_follow_runs_to_their_source() {
    GATHERS.into_iter().for_each(grants_follow_runs);
}

fn grants_follow_runs(before: Gather) {
    let mut cores = [0, 1, 2].map(|rank| {
        let config = Config {
            rank,
            gather: before,
            send_run: 2,
            ..buffered(3, 30)
        };
        let mut core = Core::new(config).expect("valid");
        core.set_gather(Gather::Unicast);
        core.start(Time::ZERO, id(0), vec![1.0; 600])
            .expect("starts");
        core
    });
    let mut buf = vec![0; cores[0].max_datagram()];
    let first = cores[2].next_datagram(Time::ZERO, &mut buf);
    let first = first.expect("a contribution");
    assert_eq!(first.to, Destination::Rank(0));
    cores[0].handle_datagram(Time::ZERO, &buf[..first.len]);

    let whole = buf.len();
    let mut next = |room: usize| {
        let sent = cores[0].next_datagram(Time::ZERO, &mut buf[..room])?;
        let (header, _) = Header::parse(&buf[..sent.len]).expect("a packet");
        Some((sent.to, header.kind))
    };
    let to = |rank, kind| Some((Destination::Rank(rank), kind));
    for rank in [1, 1, 2] {
        assert_eq!(next(whole), to(rank, Kind::Scatter));
    }
    // Behind the run of two, and only there, is a packet that needs little room.
    assert_eq!(next(80), None);
    assert_eq!(next(whole), to(2, Kind::Scatter));
    assert_eq!(next(80), to(2, Kind::Control));
    assert_eq!(next(80), None);
    assert_eq!(next(whole), to(1, Kind::Scatter));
}

/// The data packets that rank 0 of two sends before it waits for a grant. It has received a packet of the other, which passed
/// `hops` switches.
fn sent_at_first(congestion_window: bool, hops: u8) -> usize {
    let config = Config {
        slot_bytes: 1408,
        congestion_window,
        ..buffered(2, 1000)
    };
    let mut cores = [0, 1].map(|rank| {
        let mut core = Core::new(Config {
            rank,
            ..config.clone()
        })
        .expect("valid");
        core.start(Time::ZERO, id(0), vec![1.0; 100_000])
            .expect("starts");
        core
    });
    let mut buf = vec![0; cores[0].max_datagram()];
    let first = cores[1].next_datagram(Time::ZERO, &mut buf);
    let (mut header, payload) =
        Header::parse(&buf[..first.expect("a contribution").len]).expect("a packet");
    header.switch_flags.hops = hops;
    let mut datagram = vec![0; header.len()];
    header.emit(&mut datagram);
    datagram.extend(payload);
    cores[0].handle_datagram(Time::ZERO, &datagram);
    let sent = std::iter::from_fn(|| {
        let sent = cores[0].next_datagram(Time::ZERO, &mut buf)?;
        Some(Header::parse(&buf[..sent.len]).expect("a packet").0.kind)
    });
    sent.filter(|kind| *kind == Kind::Scatter).count()
}

/// 64 KiB are 43 packets; without a window there is room for 63 in a socket that its process has not sized.
#[test]
fn the_first_congestion_window_is_small_where_no_switch_shows_its_queues() {
    assert_eq!(sent_at_first(false, 0), 63);
    assert_eq!(sent_at_first(true, 0), 43);
    assert_eq!(sent_at_first(true, 1), 63);
}

#[test]
fn receivers_never_have_more_packets_than_room() {
    for gather in GATHERS {
        for (ranks, packets) in [(2, 8), (4, 12), (9, 64)] {
            for (incast, send_run) in [(IncastPolicy::All, 1), (IncastPolicy::Fixed(2), 3)] {
                for loss in [0.0, 0.1] {
                    let config = Config {
                        gather,
                        incast,
                        send_run,
                        recycling: Some(Recycling::default()),
                        ..buffered(ranks, packets)
                    };
                    let mut network = Network::new(&config);
                    network.faults = lossy(loss, 7);
                    let mut random = Random::new(3);
                    let buckets: Vec<_> = (0..ranks).map(|_| random.bucket(5000)).collect();
                    for step in 0..3 {
                        let results = network.allreduce(id(step), &buckets);
                        if loss == 0.0 {
                            let complete = |r: &(_, _)| is_complete(r);
                            assert!(results.iter().all(complete), "{gather:?} {ranks}");
                        }
                    }
                    for (_, most) in &network.on_the_way {
                        assert!(
                            *most <= packets,
                            "{most} of {packets}: {gather:?} {ranks} {loss}"
                        );
                    }
                }
            }
        }
    }
}

fn is_complete((outcome, _): &(ultima_host::Outcome, Vec<f32>)) -> bool {
    outcome.closed_by == ClosedBy::Complete
}

#[test]
fn exact_operations_keep_to_credit() {
    for gather in GATHERS {
        let config = Config {
            gather,
            ..buffered(4, 12)
        };
        for loss in [0.0, 0.2] {
            let mut network = Network::new(&config);
            network.faults = lossy(loss, 5);
            let limit = Duration::from_secs(5);
            let what = (id(0), Exact::Sum, limit);
            let ended = network.run_exact(what, &powers(4, 3000), &at_once(4));
            for end in ended {
                let (_, sum) = end.expect("ran").expect("complete");
                assert!(sum.iter().all(|value| *value == 15.0));
            }
            assert!(network.on_the_way.iter().all(|(_, most)| *most <= 12));
        }
    }
}

/// With packets so long that the congestion window is smaller than the room, also when it falls.
#[test]
fn operations_end_with_a_congestion_window() {
    for (gather, loss) in GATHERS.into_iter().flat_map(|it| [(it, 0.0), (it, 0.1)]) {
        let config = Config {
            gather,
            slot_bytes: 1408,
            congestion_window: true,
            recycling: Some(Recycling::default()),
            key: Some(Key([7; 16])),
            ..buffered(4, 400)
        };
        let mut network = Network::new(&config);
        network.faults = lossy(loss, 7);
        let mut random = Random::new(3);
        let buckets: Vec<_> = (0..4).map(|_| random.bucket(100_000)).collect();
        for step in 0..3 {
            let results = network.allreduce(id(step), &buckets);
            assert!(loss > 0.0 || results.iter().all(is_complete), "{gather:?}");
        }
        let what = (id(3), Exact::Sum, Duration::from_secs(5));
        for end in network.run_exact(what, &powers(4, 100_000), &at_once(4)) {
            let (_, sum) = end.expect("ran").expect("complete");
            assert!(sum.iter().all(|value| *value == 15.0));
        }
        assert!(network.on_the_way.iter().all(|(_, most)| *most <= 400));
    }
}

/// A rank that gets nothing and sends nothing costs the others its own contribution.
#[test]
fn a_stopped_rank_does_not_stop_the_others() {
    for gather in GATHERS {
        let config = Config {
            gather,
            coding: ultima_host::Coding::Identity,
            ..buffered(4, 12)
        };
        let mut network = Network::new(&config);
        network.faults = Box::new(|_, to| match to {
            3 => vec![Duration::from_secs(60)],
            _ => vec![Duration::ZERO],
        });
        for step in 0..6 {
            let mut starts = at_once(4);
            starts[3] = None;
            let done = network.run(id(step), powers(4, 3000), &starts);
            for (rank, done) in done.into_iter().take(3).enumerate() {
                let done = done.expect("ended");
                // Shards 0 to 2 have the mean of 1, 2 and 4; shard 3 has no owner.
                let means = done.encoded[..2250].iter();
                let wrong = means.filter(|mean| **mean != 7.0 / 3.0).count();
                assert_eq!(wrong, 0, "rank {rank} in step {step}: {:?}", done.outcome);
            }
        }
        let (_, most) = network.on_the_way[3];
        let room = match gather {
            Gather::Unicast => 12,
            // The group does not wait for a stalled rank.
            Gather::Multicast => u32::MAX,
        };
        assert!(most <= room, "{most}");
    }
}

/// A rank that was stopped while it waited for credit still sends its contributions.
#[test]
fn a_rank_that_was_stopped_reads_grants_before_it_gives_up() {
    let mut cores = [0, 1].map(|rank| {
        let config = Config {
            rank,
            gather: Gather::Unicast,
            ..buffered(2, 4)
        };
        let mut core = Core::new(config).expect("valid");
        core.start(Time::ZERO, id(0), vec![1.0; 600])
            .expect("starts");
        core
    });
    let mut buf = vec![0; cores[0].max_datagram()];
    let mut now = Time::ZERO;
    // It has no credit left.
    while let Some(sent) = cores[0].next_datagram(now, &mut buf) {
        cores[1].handle_datagram(now, &buf[..sent.len]);
    }
    assert!(cores[0].totals().phases.scatter.sent < 10);
    now = now + cores[0].config().t_s * 9 / 10;
    // First it sends, then it receives, several times at once.
    for _ in 0..100 {
        for [from, to] in [[0, 1], [1, 0]] {
            while let Some(sent) = cores[from].next_datagram(now, &mut buf) {
                cores[to].handle_datagram(now, &buf[..sent.len]);
            }
        }
    }
    for core in &cores {
        let scatter = core.totals().phases.scatter;
        assert_eq!((scatter.sent, scatter.never_sent), (scatter.slots, 0));
    }
}

/// A forged sequence number, in data or in a request, delays its victim until the victim asks for credit.
#[test]
fn forged_sequence_numbers_stop_no_sender() {
    let config = Config {
        gather: Gather::Unicast,
        ..buffered(4, 12)
    };
    let forge = |kind, fill: &dyn Fn(&mut Header, &mut [u8])| {
        let mut header = Header::new(kind, config.job, config.epoch, 1, 0);
        let mut payload = [0; Credit::LEN];
        fill(&mut header, &mut payload);
        let mut datagram = vec![0; header.len()];
        header.emit(&mut datagram);
        datagram.extend(payload);
        datagram
    };
    let data = forge(Kind::Scatter, &|header, _| header.echoed = Ticks(1 << 30));
    let request = forge(Kind::Control, &|header, payload| {
        header.owner = 1;
        Credit::Request { last: 1 << 30 }.emit(payload);
    });
    let mut network = Network::new(&config);
    let mut random = Random::new(3);
    let buckets: Vec<_> = (0..4).map(|_| random.bucket(5000)).collect();
    for step in 0..20 {
        network.inject(0, &data);
        network.inject(0, &request);
        let results = network.allreduce(id(step), &buckets);
        assert!(results.iter().all(is_complete), "step {step}");
        for (_, most) in &network.on_the_way {
            assert!(*most <= 12, "{most}");
        }
    }
}

/// Otherwise an attacker without the key could make ranks send.
#[test]
fn replayed_packets_of_an_ended_operation_cause_no_grants() {
    let mut cores = [0, 1].map(|rank| {
        let config = Config {
            rank,
            gather: Gather::Unicast,
            key: Some(Key([7; 16])),
            ..buffered(2, 8)
        };
        let mut core = Core::new(config).expect("valid");
        core.start(Time::ZERO, id(0), vec![1.0; 600])
            .expect("starts");
        core
    });
    let mut seen = Vec::new();
    let mut buf = vec![0; cores[0].max_datagram()];
    let mut now = Time::ZERO;
    let mut asked = 0;
    // Until the last notice has left.
    while let Some(due) = cores[0].poll_timeout() {
        let mut idle = false;
        while !std::mem::replace(&mut idle, true) {
            for from in [0, 1] {
                while let Some(sent) = cores[from].next_datagram(now, &mut buf) {
                    idle = false;
                    let datagram = &buf[..sent.len];
                    let (header, payload) = Header::parse(datagram).expect("a packet");
                    let is_control = header.kind == Kind::Control;
                    let credit = Credit::parse(payload).filter(|_| is_control);
                    let is_request = matches!(credit, Some(Credit::Request { .. }));
                    // Grants are lost until a request is repeated.
                    if from == 1 || asked == 2 || !is_control {
                        cores[1 - from].handle_datagram(now, datagram);
                    }
                    if from == 1 {
                        seen.push(datagram.to_vec());
                        asked += u32::from(is_request);
                    }
                }
            }
        }
        let next = cores.iter().filter_map(Core::poll_transmit_at).min();
        now = next.unwrap_or(due).min(due);
    }
    assert_eq!(cores[0].totals().operations, 1);
    assert_eq!(asked, 2, "the repeated request was answered");
    let before = cores[0].totals().control_sent;
    assert!(before > 0);
    for datagram in &seen {
        cores[0].handle_datagram(now, datagram);
        while cores[0].next_datagram(now, &mut buf).is_some() {}
    }
    assert_eq!(cores[0].totals().control_sent, before);
}

/// Ranks that a scheduler stops at random, on paths that keep the order and lose nothing. Several buckets are in flight, and an
/// exact operation in every other step.
#[test]
fn a_rank_without_credit_sends_no_later_step_first() {
    for gather in GATHERS {
        for seed in 0..per_run(20, 400) {
            steps_in_order(gather, seed);
        }
    }
}

fn steps_in_order(gather: Gather, seed: u64) {
    const RANKS: u16 = 4;
    const STEPS: u32 = 6;
    const BOUND: Duration = Duration::from_secs(60);
    // The smallest has no value for the last rank.
    const BUCKETS: [usize; 3] = [3, 2000, 700];
    let mut cores: Vec<Core> = (0..RANKS)
        .map(|rank| {
            let config = Config {
                rank,
                gather,
                t_s: BOUND,
                t_b: 2 * BOUND,
                ..buffered(RANKS, 24)
            };
            Core::new(config).expect("valid")
        })
        .collect();
    let start = |core: &mut Core, now, step: u32| {
        for (bucket, len) in (0..).zip(BUCKETS) {
            let id = OperationId { step, bucket };
            match bucket == 0 && step % 2 == 1 {
                true => core.start_exact(now, id, Exact::Sum, vec![1.0; len], BOUND),
                false => core.start(now, id, vec![1.0; len]),
            }
            .expect("starts");
        }
    };
    let mut random = Random::new(seed);
    let mut now = Time::ZERO;
    cores.iter_mut().for_each(|core| start(core, now, 0));
    let mut ended = [0; RANKS as usize];
    let mut paths = vec![vec![VecDeque::new(); RANKS.into()]; RANKS.into()];
    let mut buf = vec![0; cores[0].max_datagram()];
    let all = STEPS as usize * BUCKETS.len();
    while ended.iter().any(|ended| *ended < all) {
        now = now + Duration::from_micros(1);
        let rank = random.below(RANKS.into()) as usize;
        let core = &mut cores[rank];
        core.handle_timeout(now);
        // It runs for a while: what one rank sent it, and what it can send then.
        let from = random.below(RANKS.into()) as usize;
        for _ in 0..random.below(40) {
            if let Some(datagram) = paths[from][rank].pop_front() {
                let datagram: Vec<u8> = datagram;
                core.handle_datagram(now, &datagram);
            }
        }
        while let Some(event) = core.poll_event() {
            match event {
                Event::Done { outcome, .. } => {
                    assert!(outcome.is_whole(), "{gather:?}, seed {seed}: {outcome:?}");
                }
                Event::Exact { ended, .. } => assert!(ended.is_ok()),
                Event::SlotTrimmed(_) => unreachable!("no switch trims"),
            }
            ended[rank] += 1;
            if ended[rank] % BUCKETS.len() == 0 && ended[rank] < all {
                start(core, now, (ended[rank] / BUCKETS.len()) as u32);
            }
        }
        for _ in 0..random.below(40) {
            if let Some(sent) = core.next_datagram(now, &mut buf) {
                let datagram = &buf[..sent.len];
                let receivers = (0..usize::from(RANKS)).filter(|receiver| match sent.to {
                    Destination::Rank(to) => usize::from(to) == *receiver,
                    Destination::Group => *receiver != rank,
                });
                receivers.for_each(|to| paths[rank][to].push_back(datagram.to_vec()));
            }
        }
    }
}
