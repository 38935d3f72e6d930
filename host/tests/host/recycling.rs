//! Undelivered values arrive in later operations: Σ applied + Σ residual = Σ exact, in any network.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use crate::common::training::{Rank, SLOT, T_B, errors, id, recycling};
use crate::common::*;
use proptest::prelude::*;
use ultima_host::{
    Buffer, Coding, Config, Core, EarlyBounds, Element, Gather, Layout, ReceiveBuffer,
    RecyclingCounters, Rejection, Time,
};
use ultima_testing::cases;
use ultima_wire::{Header, Key, Kind, RepairRequest, Requested, Ticks};

/// Steps without loss and with zero gradients at the end of a run: the maximum age of doubts in these tests,
/// then one for late corrections, and one that averages the last residuals.
const FLUSH: u32 = 8 + 2;

/// Trains until every rank has done `steps` and [`FLUSH`] more. `pause` returns a rank's compute time before
/// a step. The network has no faults once all have done `steps`.
fn train(
    network: &mut Network,
    (steps, len): (u32, usize),
    mut pause: impl FnMut(u16, u32) -> Duration,
) -> Vec<Rank> {
    let config = network.cores[0].config().clone();
    let losses_end = Rc::new(Cell::new(false));
    let mut faults = std::mem::replace(&mut network.faults, perfect());
    let has_ended = losses_end.clone();
    network.faults = Box::new(move |header, to| match has_ended.get() {
        true => vec![Duration::ZERO],
        false => faults(header, to),
    });
    if let Some(mut switch) = network.switch.take() {
        let has_ended = losses_end.clone();
        network.switch = Some(Box::new(move |header, to| {
            if !has_ended.get() {
                switch(header, to);
            }
        }));
    }
    let mut ranks: Vec<Rank> = (0..config.ranks)
        .map(|rank| Rank::new(&config, rank, len))
        .collect();
    // First with faults, each rank at its own pace.
    network.run_ranks(|core, rank, done| {
        let this = &mut ranks[usize::from(rank)];
        if let Some(done) = done {
            this.apply(core, &done);
        }
        (this.step < steps).then(|| {
            let pause = pause(rank, this.step);
            let (id, encoded) = this.contribute(steps);
            (pause, id, encoded)
        })
    });
    losses_end.set(true);
    for _ in 0..FLUSH {
        together(network, &mut ranks, steps);
        network.settle();
    }
    ranks
}

/// One step that all ranks start at once.
fn together(network: &mut Network, ranks: &mut [Rank], zero_from: u32) {
    let encoded = ranks.iter_mut().map(|rank| rank.contribute(zero_from).1);
    let encoded = encoded.collect();
    let starts = vec![Some(Duration::ZERO); ranks.len()];
    let id = id(ranks[0].step - 1);
    for (at, done) in network.run(id, encoded, &starts).iter().enumerate() {
        let done = done.as_ref().expect("every rank started");
        ranks[at].apply(&mut network.cores[at], done);
    }
}

fn counters(network: &Network) -> RecyclingCounters {
    let mut sum = RecyclingCounters::default();
    for core in &network.cores {
        sum += core.totals().recycling;
    }
    sum
}

/// Every slot in doubt was repaired or lapsed.
fn check_counters(counters: &RecyclingCounters) {
    assert_eq!(
        counters.unresolved,
        counters.repaired + counters.lapsed,
        "{counters:?}"
    );
}

/// The faults of a network, and the delays of ranks.
#[derive(Clone, Debug)]
struct Schedule {
    ranks: u16,
    len: usize,
    steps: u32,
    gather: Gather,
    reorder: u32,
    element: Element,
    seed: u64,
    loss: f64,
    duplicates: f64,
    cuts: f64,
    /// µs.
    jitter: u64,
    /// Probability that a rank computes for up to three times t_B.
    stragglers: f64,
    /// Packets that each rank has room for. None: no flow control.
    room: Option<u32>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let share = |most: f64| prop_oneof![Just(0.0), 0.0..most];
    (
        (2u16..=5, 1usize..300, 1u32..8, any::<bool>(), 0u32..4),
        (
            any::<u64>(),
            prop::sample::select(&Element::ALL[..]),
            prop::option::of(8u32..100),
        ),
        prop_oneof![Just(0.0), 0.0..0.3, Just(0.9)],
        share(0.5),
        share(0.5),
        prop_oneof![Just(0u64), 0u64..1000, 0u64..30_000],
        share(0.5),
    )
        .prop_map(
            |(
                (ranks, len, steps, multicast, reorder),
                (seed, element, room),
                loss,
                duplicates,
                cuts,
                jitter,
                stragglers,
            )| {
                Schedule {
                    ranks,
                    len,
                    steps,
                    gather: if multicast {
                        Gather::Multicast
                    } else {
                        Gather::Unicast
                    },
                    reorder,
                    element,
                    seed,
                    loss,
                    duplicates,
                    cuts,
                    jitter,
                    stragglers,
                    room,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100, 3000)))]

    /// With loss of any packet (notices and requests included), trimming, reordering, duplicates, and packets
    /// and ranks later than t_B: while doubts do not lapse, every rank finally applies the exact sum.
    #[test]
    fn applied_and_residual_are_exact(schedule in schedule()) {
        let Schedule { ranks, len, steps, loss, duplicates, cuts, jitter, stragglers, .. } = schedule;
        let mut network = Network::new(&Config {
            gather: schedule.gather,
            reorder: schedule.reorder,
            element: schedule.element,
            receive_buffer: schedule.room.map(|packets| ReceiveBuffer { packets }),
            ..recycling(ranks, 1000)
        });
        network.fifo = false;
        let mut random = Random::new(schedule.seed);
        network.faults = Box::new(move |_, _| {
            let mut delay = || Duration::from_micros(random.below(jitter + 1));
            let delays = [delay(), delay()];
            match random.unit() {
                u if u < loss => vec![],
                u if u < loss + duplicates => delays.to_vec(),
                _ => delays[..1].to_vec(),
            }
        });
        let mut cut = Random::new(schedule.seed ^ 1);
        network.switch = Some(Box::new(move |header, _| {
            let data = matches!(header.kind, Kind::Scatter | Kind::Gather | Kind::Repair);
            header.switch_flags.trimmed = data && cut.chance(cuts);
            header.switch_flags.late = header.switch_flags.trimmed && cut.chance(0.5);
        }));
        let mut pauses = Random::new(schedule.seed ^ 2);
        let ranks = train(&mut network, (steps, len), |_, _| match pauses.chance(stragglers) {
            true => Duration::from_micros(pauses.below(60_000)),
            false => Duration::ZERO,
        });
        for error in errors(&ranks, f64::from(schedule.ranks)) {
            prop_assert!(error < 1e-9, "{error}");
        }
        let counters = counters(&network);
        prop_assert_eq!(counters.lapsed, 0);
        check_counters(&counters);
        network.check_accounts();
    }
}

/// Loses `p` of all packets in bursts of 8, by path.
fn bursts(p: f64, seed: u64) -> Faults {
    let mut random = Random::new(seed);
    let mut bad: HashMap<(u16, u16), bool> = HashMap::new();
    let (enter, leave) = (p / (1.0 - p) / 8.0, 1.0 / 8.0);
    Box::new(move |header, to| {
        let bad = bad.entry((header.source, to)).or_default();
        *bad = random.chance(if *bad { 1.0 - leave } else { enter });
        match *bad {
            true => vec![],
            false => vec![Duration::ZERO],
        }
    })
}

/// The error of the applied sum at the end of a run: with recycling at most a tenth, whether the ranks'
/// gradients differ by chance or permanently.
#[test]
fn over_a_run_the_error_is_a_tenth() {
    let (steps, len) = (60, 600);
    for p in [0.01, 0.05] {
        for bias in [0.0, 1.0] {
            let error = |recycled: bool| {
                let mut config = recycling(4, 8);
                config.recycling = config.recycling.filter(|_| recycled);
                let mut network = Network::new(&config);
                network.faults = bursts(p, 7);
                let mut ranks: Vec<Rank> =
                    (0..4).map(|rank| Rank::new(&config, rank, len)).collect();
                for rank in &mut ranks {
                    let bucket = rank.random.bucket(len);
                    rank.bias = bucket.into_iter().map(|value| bias * value).collect();
                }
                for _ in 0..steps {
                    together(&mut network, &mut ranks, steps);
                }
                let errors = errors(&ranks, 4.0);
                errors.iter().sum::<f64>() / errors.len() as f64
            };
            let (with, without) = (error(true), error(false));
            println!("loss {p}, bias {bias}: {without:.2e} without, {with:.2e} with recycling");
            assert!(
                with <= without / 10.0,
                "{with} and {without} at loss {p}, bias {bias}"
            );
        }
    }
}

/// Only rounding to 16 bits loses values: recycling carries the error, otherwise it stays.
#[test]
fn rounding_errors_are_carried() {
    for (element, least) in [(Element::Bf16, 1e-7), (Element::F16, 1e-9)] {
        let error = |recycled: bool| {
            let mut config = recycling(4, 8);
            config.element = element;
            config.recycling = config.recycling.filter(|_| recycled);
            let ranks = train(&mut Network::new(&config), (20, 500), |_, _| Duration::ZERO);
            errors(&ranks, 4.0).into_iter().fold(0.0, f64::max)
        };
        let (with, without) = (error(true), error(false));
        println!("{element:?}: {without:.1e} without, {with:.1e} with recycling");
        assert!(with < 1e-12, "{element:?}: {with}");
        assert!(without > least, "{element:?}: {without}");
    }
}

/// The equation is not trivial: the same network without recycling has a large error.
#[test]
fn without_recycling_the_sum_is_not_exact() {
    let error = |recycled: bool| {
        let mut config = recycling(4, 8);
        config.recycling = config.recycling.filter(|_| recycled);
        let mut network = Network::new(&config);
        network.faults = lossy(0.1, 5);
        let ranks = train(&mut network, (20, 500), |_, _| Duration::ZERO);
        let errors = errors(&ranks, 4.0);
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let (with, without) = (error(true), error(false));
    assert!(with < 1e-9, "{with}");
    assert!(without > 1e-2, "{without}");
}

/// Rank 2 sleeps for thirty steps of the others. They continue without it, it lets its shard lapse until it
/// has caught up, and its gradients are part of the next step in which it takes part.
#[test]
fn a_straggler_many_steps_behind_is_carried() {
    let mut network = Network::new(&Config {
        early: EarlyBounds {
            operations: 64,
            ..EarlyBounds::default()
        },
        ..recycling(4, 8)
    });
    let ranks = train(&mut network, (60, 500), |rank, step| match (rank, step) {
        (2, 10) => T_B * 5,
        // Once they suspect it, the others would take no time.
        _ => Duration::from_millis(2),
    });
    let lapsed: Vec<u64> = network
        .cores
        .iter()
        .map(|core| core.totals().recycling.lapsed)
        .collect();
    assert!(lapsed[0] > 0 && lapsed[2] == 0, "{lapsed:?}");
    for error in errors(&ranks, 4.0) {
        assert!(error < 1e-9, "{error}");
    }
    check_counters(&counters(&network));
}

/// Its shard lapses while it catches up, so it sends no data.
#[test]
fn a_straggler_many_steps_behind_is_not_silent() {
    for (reorder, key) in [(0, None), (0, Some(Key([7; 16]))), (100, None)] {
        let mut network = Network::new(&Config {
            reorder,
            key,
            ..recycling(4, 8)
        });
        let (mut catches_up, mut suspicions) = (false, Vec::new());
        network.run_ranks(|_, rank, done| {
            let step = done.as_ref().map_or(0, |done| done.outcome.id.step + 1);
            catches_up |= rank == 2 && step > 15;
            if let Some(done) = done
                && catches_up
            {
                suspicions.extend(done.outcome.suspected);
            }
            // It computes no gradients in the steps that it is behind.
            let delay = match (rank, step) {
                (2, 10) => T_B * 5,
                (2, 11..30) => Duration::from_micros(50),
                _ => Duration::from_millis(2),
            };
            (step < 60).then(|| (delay, id(step), vec![1.0; 500]))
        });
        assert_eq!(suspicions, [0; 0], "reorder {reorder}, key {key:?}");
        for core in &network.cores {
            assert_eq!(
                core.totals().rejected.of(Rejection::Step),
                0,
                "reorder {reorder}"
            );
        }
    }
}

/// Rank 3 leaves after ten steps. No rank averages the contributions to its shard, which go into the others'
/// next steps until those lapse as well.
#[test]
fn an_owner_that_leaves_loses_no_values() {
    let config = recycling(4, 4);
    let (len, steps, gone) = (400, 30, 10);
    let mut network = Network::new(&config);
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::new(&config, rank, len)).collect();
    for step in 0..steps {
        let zero_from = gone;
        let there = |rank: usize| rank != 3 || step < gone;
        let encoded = ranks.iter_mut().map(|rank| rank.contribute(zero_from).1);
        let encoded = encoded.collect();
        let starts: Vec<_> = (0..4)
            .map(|rank| there(rank).then_some(Duration::ZERO))
            .collect();
        for (at, done) in network.run(id(step), encoded, &starts).iter().enumerate() {
            if let Some(done) = done {
                ranks[at].apply(&mut network.cores[at], done);
            }
        }
        network.settle();
    }
    // Rank 3's own part of the sum ended with it.
    let replicas: Vec<&Vec<f64>> = ranks[..3].iter().map(|rank| &rank.applied).collect();
    assert!(replicas.iter().all(|applied| *applied == replicas[0]));
    let error = errors(&ranks, 4.0)[0];
    assert!(error < 1e-9, "{error}");
    assert!(network.cores[0].totals().recycling.lapsed > 0);
}

/// A rank stores at most `keep` steps of slots in doubt, however long an owner is silent.
#[test]
fn memory_is_bounded_by_steps() {
    let config = recycling(3, 4);
    let mut network = Network::new(&config);
    network.faults = Box::new(|header, _| match header.source {
        1 => vec![],
        _ => vec![Duration::ZERO],
    });
    let (len, slots) = (1200, 1200 / 3 / SLOT as u64);
    train(&mut network, (40, len), |_, _| Duration::ZERO);
    let recycling = network.cores[0].totals().recycling;
    assert!(recycling.unresolved >= 40 * slots);
    let held = recycling.unresolved - recycling.repaired - recycling.lapsed;
    assert!(
        recycling.lapsed >= 30 * slots && held <= 4 * slots,
        "{recycling:?}"
    );
}

#[test]
fn requests_for_anything_do_no_harm() {
    let config = recycling(3, 4);
    let mut network = Network::new(&config);
    let mut random = Random::new(1);
    let buckets: Vec<Vec<f32>> = (0..3).map(|_| random.bucket(100)).collect();
    network.allreduce(id(0), &buckets);
    network.settle();
    let mut datagram = vec![0; 200];
    for forged in 0..2000u32 {
        let mut header = Header::new(Kind::Control, config.job, config.epoch, 1, 1);
        header.step = forged % 3;
        header.bucket = 3;
        header.slots = [4, 5, u32::MAX][random.below(3) as usize];
        let start = header.emit(&mut datagram);
        let wanted: Vec<u8> = (0..random.below(90))
            .map(|_| random.below(256) as u8)
            .collect();
        let first = [0, 3, u32::MAX][random.below(3) as usize];
        let request = RepairRequest {
            of: Requested::Aggregates,
            first,
            wanted: &wanted,
        };
        let len = start + request.emit(&mut datagram[start..]);
        network.inject(0, &datagram[..len]);
    }
    // Together they request each slot of the one existing operation.
    network.settle();
    let layout = Layout::new(112, 3, SLOT);
    let sent = network.cores[0].totals().recycling.repairs_sent;
    assert!(sent <= u64::from(layout.slots(0)), "{sent}");
}

/// A rank that requests a whole shard every 5 us gets it once in one to two round trips, which are 50 us
/// because it echoes none.
#[test]
fn a_flood_of_requests_is_answered_once_in_a_round_trip() {
    let config = recycling(3, 4);
    let mut network = Network::new(&config);
    let mut random = Random::new(1);
    let buckets: Vec<Vec<f32>> = (0..3).map(|_| random.bucket(100)).collect();
    network.allreduce(id(0), &buckets);
    network.settle();
    let slots = Layout::new(112, 3, SLOT).slots(0);
    let mut header = Header::new(Kind::Control, config.job, config.epoch, 1, 1);
    (header.bucket, header.slots) = (3, slots);
    let mut datagram = vec![0; 200];
    let start = header.emit(&mut datagram);
    let request = RepairRequest {
        of: Requested::Aggregates,
        first: 0,
        wanted: &[0xff],
    };
    let len = start + request.emit(&mut datagram[start..]);
    for _ in 0..200 {
        network.inject(0, &datagram[..len]);
        let next = network.now + Duration::from_micros(5);
        network.run_until(next);
    }
    let recycling = network.cores[0].totals().recycling;
    assert_eq!(recycling.requests_received, 200);
    let shards = recycling.repairs_sent / u64::from(slots);
    assert!((10..=20).contains(&shards), "{recycling:?}");
}

/// Corrections are decoded with their own operation's coding, whatever later ones use.
#[test]
fn the_equation_holds_when_the_coding_changes() {
    let config = recycling(4, 8);
    let mut network = Network::new(&config);
    network.faults = lossy(0.2, 9);
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::new(&config, rank, 500)).collect();
    let steps = 24;
    for step in 0..steps + FLUSH {
        if step == steps {
            network.faults = perfect();
        }
        if step % 3 == 0 {
            let coding = match step % 2 {
                0 => Coding::Identity,
                _ => config.coding,
            };
            for (rank, core) in ranks.iter_mut().zip(&mut network.cores) {
                rank.codec.set_coding(coding);
                core.set_coding(coding);
            }
        }
        together(&mut network, &mut ranks, steps);
    }
    network.settle();
    let counters = counters(&network);
    assert!(
        counters.uncounted > 100 && counters.repaired > 100,
        "{counters:?}"
    );
    assert_eq!(network.cores[0].totals().rejected.total(), 0);
    for error in errors(&ranks, 4.0) {
        assert!(error < 1e-9, "{error}");
    }
}

/// With loss on every path, all ranks see a NaN or an infinity in that step, and nothing of it stays.
#[test]
fn non_finite_values_leave_no_trace() {
    for element in Element::ALL {
        for poison in [f32::NAN, f32::INFINITY] {
            let config = Config {
                element,
                ..recycling(4, 1000)
            };
            let mut network = Network::new(&config);
            network.faults = lossy(0.2, 3);
            let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::new(&config, rank, 300)).collect();
            for (rank, first) in (0..).zip(&mut ranks) {
                first.skipped = Some((3, if rank == 1 { poison } else { 0.0 }));
            }
            for step in 0..8 {
                let encoded = ranks.iter_mut().map(|rank| rank.contribute(6).1).collect();
                let ended = network.run(id(step), encoded, &at_once(4));
                for ((rank, core), done) in ranks.iter_mut().zip(&mut network.cores).zip(ended) {
                    let output = rank.output(core, &done.expect("every rank started"));
                    let is_finite = output.iter().all(|value| value.is_finite());
                    assert_eq!(is_finite, step != 3, "{element:?} {poison} step {step}");
                    let residual = rank.carry.residual(3).expect("recycled");
                    assert!(residual.iter().all(|value| value.is_finite()));
                    if is_finite {
                        rank.add(&output);
                    }
                }
            }
            network.faults = perfect();
            for _ in 8..14 {
                together(&mut network, &mut ranks, 6);
                network.settle();
            }
            let most = errors(&ranks, 4.0).into_iter().fold(0.0, f64::max);
            assert!(most < 1e-6, "{element:?} {poison}: error {most}");
        }
    }
}

/// Residuals follow the loss scale: with it divided out, training is as with a scale of 1.
#[test]
fn residuals_follow_the_loss_scale() {
    let config = recycling(3, 1000);
    let applied = |scales: [f32; 3]| {
        let mut network = Network::new(&config);
        network.faults = lossy(0.3, 5);
        let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::new(&config, rank, 200)).collect();
        for step in 0..9 {
            // Powers of two: no rounding.
            let scale = scales[step as usize / 3];
            let encoded = ranks.iter_mut().map(|rank| {
                rank.carry.set_scale(scale);
                let mut gradient = rank.random.bucket(rank.len);
                gradient.iter_mut().for_each(|value| *value *= scale);
                let mut encoded = Buffer::default();
                let contributed = rank.carry.contribute(id(step), &gradient);
                rank.codec.encode(id(step), contributed, &mut encoded);
                encoded.to_vec()
            });
            let encoded = encoded.collect();
            let ended = network.run(id(step), encoded, &at_once(3));
            for ((rank, core), done) in ranks.iter_mut().zip(&mut network.cores).zip(ended) {
                let mut output = rank.output(core, &done.expect("every rank started"));
                output.iter_mut().for_each(|value| *value /= scale);
                rank.add(&output);
            }
        }
        ranks
            .into_iter()
            .map(|rank| rank.applied)
            .collect::<Vec<_>>()
    };
    assert_eq!(applied([1.0; 3]), applied([65536.0, 32768.0, 1024.0]));
}

/// The echo of a request measures the network, whatever old packets an attacker repeats.
#[test]
fn replayed_packets_change_no_round_trip() {
    let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
    let mut cores = [0, 1].map(|rank| {
        let config = Config {
            rank,
            gather: Gather::Unicast,
            ..recycling(2, 8)
        };
        Core::new(config).expect("valid")
    });
    let mut buf = vec![0; cores[0].max_datagram()];
    let mut replayed = Vec::new();
    // Of the second operation, rank 0 gets no aggregates.
    for (step, now) in [(0, at(10)), (1, at(20))] {
        for core in &mut cores {
            core.start(now, id(step), vec![1.0; 4 * SLOT])
                .expect("starts");
        }
        let mut idle = false;
        while !std::mem::replace(&mut idle, true) {
            for from in [1, 0] {
                while let Some(sent) = cores[from].next_datagram(now, &mut buf) {
                    idle = false;
                    let datagram = &buf[..sent.len];
                    let (header, _) = Header::parse(datagram).expect("a packet");
                    if from == 1 && step == 0 {
                        replayed.push(datagram.to_vec());
                    }
                    if from == 0 || step == 0 || header.kind == Kind::Scatter {
                        cores[1 - from].handle_datagram(now, datagram);
                    }
                }
            }
        }
    }
    let now = at(20) + 2 * T_B;
    let core = &mut cores[0];
    core.handle_timeout(now);
    for datagram in &replayed {
        core.handle_datagram(now, datagram);
    }
    // It requests overdue aggregates after another t_B.
    let now = now + T_B;
    let mut echoes = Vec::new();
    while let Some(sent) = core.next_datagram(now, &mut buf) {
        let (header, payload) = Header::parse(&buf[..sent.len]).expect("a packet");
        if RepairRequest::parse(payload).is_some() {
            echoes.push(header.echoed);
        }
    }
    let expected = Ticks::from_clock_ns(now.as_nanos()).0;
    assert!(!echoes.is_empty());
    assert!(
        echoes.iter().all(|echo| expected - echo.0 < 10),
        "{echoes:?}"
    );
}
