//! Arbitrary networks and forged packets cause no wrong mean, no hang, no panic, and no uncounted packet.

use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{
    ClosedBy, Coding, Config, Core, Destination, EarlyBounds, Estimation, Event, Exact, Gather,
    IncastPolicy, Layout, OperationId, Pacing, Part, RatePolicy, Recycling, Time, Timeouts,
};
use ultima_testing::cases;
use ultima_wire::{Feedback, Header, Kind, Ticks};

const T_B: Duration = Duration::from_millis(20);
const SLOT: usize = 8;

/// The faults of a network, and the starts of ranks.
#[derive(Clone, Debug)]
struct Schedule {
    ranks: u16,
    len: usize,
    gather: Gather,
    reorder: u32,
    early: usize,
    seed: u64,
    loss: f64,
    duplicates: f64,
    /// Share of copies without payload, as by a switch.
    cuts: f64,
    /// Largest extra delay of a copy in µs, which reorders.
    jitter: u64,
    /// Share of copies with a long wait in a queue and a mark.
    queues: f64,
    pacing: Option<Pacing>,
    incast: IncastPolicy,
    timeouts: Timeouts,
    recycling: Option<Recycling>,
    /// Any, without recycling.
    estimation: Estimation,
    /// By step and rank: the start in µs after the step's beginning; none for never.
    starts: Vec<Vec<Option<u64>>>,
    /// Repetitions of these steps: more operations than the timeouts' warm-up has.
    rounds: usize,
    /// A rank that is present only before or from a step.
    membership: Option<Membership>,
}

#[derive(Clone, Copy, Debug)]
struct Membership {
    rank: u16,
    step: usize,
    joins: bool,
}

impl Schedule {
    /// When the ranks start in each step.
    fn steps(&self) -> impl Iterator<Item = (u32, Vec<Option<Duration>>)> + '_ {
        let steps = std::iter::repeat_n(&self.starts, self.rounds).flatten();
        steps.enumerate().map(|(step, starts)| {
            let start = |(rank, start): (u16, &Option<u64>)| {
                let away = self
                    .membership
                    .is_some_and(|m| m.rank % self.ranks == rank && (step < m.step) == m.joins);
                start.filter(|_| !away).map(Duration::from_micros)
            };
            (step as u32, (0..).zip(starts).map(start).collect())
        })
    }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let start = prop_oneof![
        6 => Just(Some(0)),
        3 => (0u64..25_000).prop_map(Some),
        1 => Just(None),
    ];
    (2u16..=6, 0usize..400, any::<bool>(), 0u32..4, 1usize..2000).prop_flat_map(
        move |(ranks, len, multicast, reorder, early)| {
            let rank_starts = prop::collection::vec(start.clone(), usize::from(ranks));
            (
                any::<u64>(),
                prop_oneof![Just(0.0), 0.0..0.3, Just(0.9)],
                prop_oneof![Just(0.0), 0.0..0.5],
                prop_oneof![Just(0.0), 0.0..0.5],
                prop_oneof![Just(0u64), 0u64..1000, 0u64..30_000],
                prop::collection::vec(rank_starts, 1..6),
                (prop_oneof![Just(0.0), 0.0..1.0], pacing(), incast()),
                (
                    0usize..3,
                    prop::option::of(2u32..9),
                    prop_oneof![8 => Just(1), 1 => Just(9)],
                    0..Estimation::ALL.len(),
                ),
                prop::option::of((0u16..6, 0usize..30, any::<bool>())),
            )
                .prop_map(
                    move |(seed, loss, duplicates, cuts, jitter, starts, rates, more, member)| {
                        let (queues, pacing, incast) = rates;
                        let (timeouts, keep, rounds, estimation) = more;
                        Schedule {
                            ranks,
                            len,
                            gather: if multicast {
                                Gather::Multicast
                            } else {
                                Gather::Unicast
                            },
                            reorder,
                            early: early * 10,
                            seed,
                            loss,
                            duplicates,
                            cuts,
                            jitter,
                            queues,
                            pacing,
                            incast,
                            timeouts: Timeouts::ALL[timeouts],
                            recycling: keep.map(|keep| Recycling { keep }),
                            estimation: match keep {
                                Some(_) => Estimation::ArrivedMean,
                                None => Estimation::ALL[estimation],
                            },
                            starts,
                            rounds,
                            membership: member.map(|(rank, step, joins)| Membership {
                                rank,
                                step,
                                joins,
                            }),
                        }
                    },
                )
        },
    )
}

/// From rates that suffice for an operation to rates that do not.
fn pacing() -> impl Strategy<Value = Option<Pacing>> {
    let paced = (1_000_000u64..1_000_000_000, 0u32..5000, 0usize..3).prop_map(
        |(bits_per_second, burst, policy)| Pacing {
            bits_per_second,
            burst,
            policy: RatePolicy::ALL[policy],
        },
    );
    prop::option::of(paced)
}

fn incast() -> impl Strategy<Value = IncastPolicy> {
    prop_oneof![
        Just(IncastPolicy::All),
        Just(IncastPolicy::Dynamic),
        (1u8..=15).prop_map(IncastPolicy::Fixed),
    ]
}

fn network(schedule: &Schedule) -> Network {
    let mut network = Network::new(&Config {
        slot_bytes: SLOT * 4,
        coding: Coding::Identity,
        gather: schedule.gather,
        reorder: schedule.reorder,
        early: EarlyBounds {
            operations: 2,
            bytes: schedule.early,
        },
        t_s: T_B * 3 / 5,
        t_b: T_B,
        pacing: schedule.pacing,
        incast: schedule.incast,
        timeouts: schedule.timeouts,
        recycling: schedule.recycling,
        estimation: schedule.estimation,
        ..config(schedule.ranks)
    });
    let mut random = Random::new(schedule.seed);
    let Schedule {
        loss,
        duplicates,
        cuts,
        jitter,
        queues,
        ..
    } = *schedule;
    let mut cut = Random::new(schedule.seed ^ 1);
    network.switch = Some(Box::new(move |header, _| {
        header.switch_flags.trimmed = cut.chance(cuts);
        header.switch_flags.late = header.switch_flags.trimmed && cut.chance(0.5);
        // Some copies pass no switch that stamps.
        header.switch_flags.hops = u8::from(cut.chance(0.5));
        if header.switch_flags.hops > 0 && cut.chance(queues) {
            header.path_queue = Ticks(cut.below(10_000) as u32);
            header.switch_flags.congestion = cut.chance(0.5);
        }
    }));
    network.fifo = false;
    network.faults = Box::new(move |_, _| {
        let mut delay = || Duration::from_micros(random.below(jitter + 1));
        let delays = [delay(), delay()];
        match random.unit() {
            u if u < loss => vec![],
            u if u < loss + duplicates => delays.to_vec(),
            _ => delays[..1].to_vec(),
        }
    });
    network
}

/// True if `mean` is the mean of rank r's contribution 2^r and some others.
fn is_mean_of_some(mean: f32, owner: u16, ranks: u16) -> bool {
    (0..1u16 << ranks)
        .filter(|subset| subset & 1 << owner != 0)
        .any(|subset| f32::from(subset) / subset.count_ones() as f32 == mean)
}

/// Runs half an operation at every rank that starts. Returns each rank's end.
fn run_half(
    network: &mut Network,
    (id, part): (OperationId, Part),
    values: &[Vec<f32>],
    starts: &[Option<Duration>],
) -> Vec<Option<Done>> {
    let begin = network.now;
    let mut waiting: Vec<(Time, u16)> = (0..)
        .zip(starts)
        .filter_map(|(rank, start)| Some((begin + (*start)?, rank)))
        .collect();
    let mut left = waiting.len();
    let mut done: Vec<Option<Done>> = starts.iter().map(|_| None).collect();
    while left > 0 {
        let due = waiting.iter().map(|(at, _)| *at);
        let now = network.next_event().into_iter().chain(due).min();
        let now = now.expect("something happens").max(network.now);
        let mut ended = Vec::new();
        while let Some(at) = waiting.iter().position(|(at, _)| *at <= now) {
            let (_, rank) = waiting.swap_remove(at);
            let values = values[usize::from(rank)].clone();
            let at_once = network.start_part(now, rank, (id, part.into()), values);
            ended.extend(at_once.into_iter().map(|done| (rank, done)));
        }
        ended.extend(network.advance(now));
        for (rank, end) in ended {
            left -= 1;
            let before = done[usize::from(rank)].replace(end);
            assert!(before.is_none(), "rank {rank} ended twice");
        }
    }
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100, 3000)))]

    #[test]
    fn no_schedule_gives_a_wrong_mean_or_a_hang(schedule in schedule()) {
        let ranks = schedule.ranks;
        let mut network = network(&schedule);
        for (step, starts) in schedule.steps() {
            let buckets: Vec<Vec<f32>> =
                (0..ranks).map(|rank| vec![f32::from(1u16 << rank); schedule.len]).collect();
            let id = OperationId { step, bucket: 0 };
            let done = network.run(id, buckets, &starts);
            let layout = Layout::new(schedule.len, ranks, SLOT);
            for (rank, done) in done.iter().enumerate() {
                let Some(done) = done else {
                    prop_assert!(starts[rank].is_none());
                    continue;
                };
                prop_assert!(done.outcome.duration <= T_B);
                for owner in 0..ranks {
                    for slot in 0..layout.slots(owner) {
                        let values = &done.encoded[layout.slot(owner, slot)];
                        prop_assert!(values.iter().all(|v| *v == values[0]), "a torn slot");
                        let missed = values[0] == 0.0 && usize::from(owner) != rank;
                        // Other estimators weigh ranks by more than this slot.
                        let is_mean = schedule.estimation != Estimation::ArrivedMean
                            || is_mean_of_some(values[0], owner, ranks);
                        prop_assert!(missed || is_mean, "{values:?}");
                    }
                }
            }
            // Ranks agree on every aggregate that they have.
            for at in 0..schedule.len {
                let mut have: Vec<f32> =
                    done.iter().flatten().map(|done| done.encoded[at]).filter(|v| *v != 0.0).collect();
                have.dedup();
                prop_assert!(have.len() <= 1, "{have:?}");
            }
        }
        network.settle();
        network.check_accounts();
    }

    /// Halves of operations, first one and then the other. An owner's scatter ends by t_S with a mean of some
    /// ranks, its gather by t_B with owners' values or zero.
    #[test]
    fn halves_end_in_time_with_arrived_packets(schedule in schedule()) {
        let schedule = Schedule { recycling: None, rounds: 1, ..schedule };
        let ranks = schedule.ranks;
        let mut network = network(&schedule);
        let layout = Layout::new(schedule.len, ranks, SLOT);
        let values = powers(ranks, schedule.len);
        for (step, starts) in schedule.steps() {
            for (bucket, part) in [(0, Part::Scatter), (1, Part::Gather)] {
                let half = (OperationId { step, bucket }, part);
                let done = run_half(&mut network, half, &values, &starts);
                for (rank, done) in (0u16..).zip(&done) {
                    let Some(done) = done else {
                        prop_assert!(starts[usize::from(rank)].is_none());
                        continue;
                    };
                    let bound = if part == Part::Scatter { T_B * 3 / 5 } else { T_B };
                    prop_assert!(done.outcome.duration <= bound, "{:?}", done.outcome);
                    for (owner, slot) in (0..ranks).flat_map(|o| (0..layout.slots(o)).map(move |s| (o, s))) {
                        let got = &done.encoded[layout.slot(owner, slot)];
                        prop_assert!(got.iter().all(|v| *v == got[0]), "a torn slot");
                        let given = f32::from(1u16 << owner);
                        let is_right = match (part, owner == rank) {
                            (Part::Scatter, true) => {
                                schedule.estimation != Estimation::ArrivedMean
                                    || is_mean_of_some(got[0], owner, ranks)
                            }
                            (Part::Scatter, false) => got[0] == 0.0,
                            (_, true) => got[0] == given,
                            (_, false) => got[0] == 0.0 || got[0] == given,
                        };
                        prop_assert!(is_right, "{part:?} of {rank}: {owner}'s {slot} is {}", got[0]);
                    }
                }
            }
        }
        network.settle();
        network.check_accounts();
    }

    /// The same schedule gives the same bits.
    #[test]
    fn every_run_can_be_repeated(schedule in schedule()) {
        let run = || {
            let mut network = network(&schedule);
            let mut random = Random::new(1);
            let mut runs = Vec::new();
            for (step, starts) in schedule.steps() {
                let buckets = (0..schedule.ranks).map(|_| random.bucket(schedule.len)).collect();
                for done in network.run(OperationId { step, bucket: 0 }, buckets, &starts) {
                    let bits = done.map(|done| {
                        let bits: Vec<u32> = done.encoded.iter().map(|v| v.to_bits()).collect();
                        (done.outcome, done.at, bits)
                    });
                    runs.push(bits);
                }
            }
            runs
        };
        prop_assert_eq!(run(), run());
    }

    /// With any FEEDBACK the rate stays between its bounds: all is sent at the smallest rate, and none faster
    /// than the limit.
    #[test]
    fn hostile_feedback_neither_stops_a_sender_nor_unbinds_it(
        told in prop::collection::vec((feedback(), 0u64..300), 0..200),
        policy in 0usize..3,
        incast in incast(),
    ) {
        const RATE: u64 = 1_000_000_000;
        const SLOTS: usize = 100;
        let pacing = Pacing { bits_per_second: RATE, burst: 1000, policy: RatePolicy::ALL[policy] };
        let config = Config {
            slot_bytes: SLOT * 4,
            coding: Coding::Identity,
            pacing: Some(pacing),
            incast,
            t_s: Duration::from_secs(1),
            t_b: Duration::from_secs(2),
            ..config(4)
        };
        let mut core = Core::new(config).expect("a good configuration");
        let mut buf = vec![0; core.max_datagram()];
        core.start(Time::ZERO, ID, vec![1.0; 4 * SLOTS * SLOT]).expect("starts");
        let (mut now, mut sent, mut scatter) = (Time::ZERO, 0, 0);
        // Three shards at the smallest rate. While the core gets FEEDBACK, this test takes no packets from
        // it.
        let frames = 3 * SLOTS as u64 * (42 + 52 + 4 * SLOT as u64);
        let asleep: u64 = told.iter().map(|(_, after)| after).sum();
        let most = Duration::from_nanos(64 * frames * 8_000_000_000 / RATE) + Duration::from_micros(1000 + asleep);
        let mut told = told.into_iter();
        while scatter < 3 * SLOTS {
            prop_assert!(now <= Time::ZERO + most, "{scatter} at {now:?}");
            while let Some(transmit) = core.next_datagram(now, &mut buf) {
                let (header, _) = Header::parse(&buf[..transmit.len]).expect("a header");
                let receivers = if transmit.to == Destination::Group { 3 } else { 1 };
                sent += receivers * (42 + transmit.len as u64);
                scatter += usize::from(header.kind == Kind::Scatter);
            }
            // A burst, and one packet to all, may exceed the rate.
            let limit = now.as_nanos() * RATE / 8_000_000_000 + 1000 + 3 * 200;
            prop_assert!(sent <= limit, "{sent} of {limit}");
            let rate = core.rate().expect("paced");
            prop_assert!((RATE / 64..=RATE).contains(&rate), "{rate}");
            let next = core.poll_transmit_at().map_or(Time::ZERO, |at| at.max(now));
            match told.next() {
                Some((datagram, after)) => {
                    now = now + Duration::from_micros(after);
                    core.handle_datagram(now, &datagram);
                }
                None => now = next,
            }
        }
    }

    /// Almost valid datagrams: headers with arbitrary fields, shortened and lengthened payloads.
    #[test]
    fn forged_datagrams_do_no_more_than_count(
        forgeries in prop::collection::vec(forgery(), 1..60),
        kept in 0usize..3000,
    ) {
        let early = EarlyBounds { operations: 3, bytes: kept };
        let config = Config { slot_bytes: SLOT * 4, early, ..config(4) };
        let mut core = Core::new(config).expect("a good configuration");
        let mut buf = vec![0; core.max_datagram()];
        let (before, after) = forgeries.split_at(forgeries.len() / 2);
        for datagram in before {
            core.handle_datagram(Time::ZERO, datagram);
        }
        core.start(Time::ZERO, ID, vec![1.0; 4 * 3 * SLOT]).expect("starts");
        let id = OperationId { bucket: 1, ..ID };
        core.start_exact(Time::ZERO, id, Exact::Sum, vec![1.0; 4 * 3 * SLOT], T_B).expect("starts");
        while core.next_datagram(Time::ZERO, &mut buf).is_some() {}
        for datagram in after {
            core.handle_datagram(Time::ZERO, datagram);
        }
        // No other rank is present: the operations end by their bounds, an exact one is removed after another
        // limit, and every packet is counted.
        while let Some(due) = core.poll_timeout() {
            core.handle_timeout(due);
            prop_assert!(due <= Time::ZERO + 2 * T_B);
        }
        let ended = std::iter::from_fn(|| core.poll_event());
        let ended = ended.filter(|event| !matches!(event, Event::SlotTrimmed(_)));
        prop_assert_eq!(ended.count(), 2);
        core.shut_down(Time::ZERO + T_B);
        let totals = core.totals();
        let mut accounted = totals.rejected.total() + totals.feedback_received;
        accounted += totals.exact.repairs_received;
        for phase in [totals.phases.scatter, totals.phases.gather] {
            accounted += phase.in_time + phase.trimmed + phase.late + phase.duplicates + phase.refused;
        }
        // FEEDBACK of operations that never start is removed with them, uncounted.
        prop_assert!(accounted <= forgeries.len() as u64);
        let feedback = forgeries
            .iter()
            .filter(|d| Header::parse(d).is_ok_and(|(h, _)| h.kind == Kind::Feedback))
            .count();
        prop_assert!(accounted + feedback as u64 >= forgeries.len() as u64);
    }
}

/// A FEEDBACK that almost fits the job: arbitrary fields and echoes.
fn feedback() -> impl Strategy<Value = Vec<u8>> {
    let extreme = || {
        prop_oneof![
            Just(0u32),
            Just(1),
            Just(u32::MAX - 1),
            Just(u32::MAX),
            any::<u32>()
        ]
    };
    let fields = (extreme(), extreme(), any::<(u8, u8)>(), any::<bool>());
    let header = (1u16..4, 0u8..=15, extreme(), any::<bool>());
    (
        header,
        fields,
        prop_oneof![9 => Just(Feedback::LEN), 1 => 0usize..30],
    )
        .prop_map(
            |((source, incast, echoed, echoes), (wait, queue, (marked, trimmed), notice), len)| {
                let mut header = Header::new(Kind::Feedback, 7, 1, source, source);
                header.incast = incast;
                header.echoed = Ticks(if echoes { echoed } else { 0 });
                header.slots = 3;
                let feedback = Feedback {
                    wait: Ticks(wait),
                    queue: Some(Ticks(queue)),
                    marked,
                    trimmed,
                    notice,
                };
                let mut datagram = vec![0; header.len() + len.max(Feedback::LEN)];
                let start = header.emit(&mut datagram);
                feedback.emit(&mut datagram[start..]);
                datagram.truncate(start + len);
                datagram
            },
        )
}

fn forgery() -> impl Strategy<Value = Vec<u8>> {
    let header = (
        (0usize..7, 0u16..5, 0u16..5),
        prop_oneof![5 => Just((7u16, 1u16)), 1 => any::<(u16, u16)>()],
        prop_oneof![5 => (0u32..3, 0u16..2), 1 => any::<(u32, u16)>()],
        prop_oneof![5 => (0u32..4, Just(3u32)), 1 => any::<(u32, u32)>()],
        any::<(u8, u16, bool)>(),
    );
    let forged = (
        header,
        prop_oneof![3 => Just(SLOT * 4), 1 => Just(0), 1 => Just(4usize), 1 => 0usize..100],
    )
        .prop_map(|((ranks, job, operation, slot, rest), payload)| {
            let (kind, source, owner) = ranks;
            let mut header = Header::new(Kind::ALL[kind], job.0, job.1, source, owner);
            (header.step, header.bucket) = operation;
            (header.slot, header.slots) = slot;
            header.host_flags.last = rest.2;
            header.host_flags.hadamard = rest.0 & 3 != 0;
            header.host_flags.exact = rest.0 & 16 != 0;
            header.dtype = if rest.0 & 12 == 0 {
                ultima_wire::Dtype::F16
            } else {
                ultima_wire::Dtype::F32
            };
            header.contributions = rest.1;
            header.switch_flags.trimmed = rest.1 & 3 == 0;
            header.switch_flags.late = rest.1 & 12 == 0;
            let mut datagram = vec![0xff; header.len() + payload];
            header.emit(&mut datagram);
            datagram
        });
    prop_oneof![9 => forged, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

/// A packet in rank 1's name, of a step that it has not reached.
fn far_ahead(config: &Config, kind: Kind, step: u32) -> Vec<u8> {
    let owner = if kind == Kind::Scatter { 0 } else { 1 };
    let mut header = Header::new(kind, config.job, config.epoch, 1, owner);
    (header.step, header.slots) = (step, 1);
    let mut datagram = vec![0; header.len()];
    header.emit(&mut datagram);
    datagram
}

#[test]
fn a_forged_step_far_ahead_changes_no_operation() {
    for recycling in [None, Some(Recycling::default())] {
        let config = Config {
            slot_bytes: 4 * SLOT,
            recycling,
            ..config(4)
        };
        let mut network = Network::new(&config);
        for step in 0..20 {
            for forged in [200, 50_000, u32::MAX] {
                for kind in [Kind::Scatter, Kind::Gather] {
                    network.inject(0, &far_ahead(&config, kind, forged));
                }
            }
            let id = OperationId { step, bucket: 0 };
            let results = network.allreduce(id, &powers(4, 300));
            assert!(all_closed_by(&results, ClosedBy::Complete), "step {step}");
        }
    }
}

#[test]
fn a_forged_packet_of_the_next_step_ends_no_wait() {
    let config = Config {
        slot_bytes: 4 * SLOT,
        ..config(4)
    };
    for kind in [Kind::Scatter, Kind::Gather] {
        let mut network = Network::new(&config);
        // Longer than a rank waits for packets that others may have overtaken.
        network.faults = Box::new(move |header, _| match header.source {
            1 => vec![config.t_b / 8],
            _ => vec![Duration::ZERO],
        });
        for step in 0..20 {
            let id = OperationId { step, bucket: 0 };
            for (rank, values) in (0..).zip(powers(4, 300)) {
                network.start_part(network.now, rank, (id, Part::Whole.into()), values);
            }
            network.inject(0, &far_ahead(&config, kind, step + 1));
            while let Some(next) = network.next_event() {
                for (rank, done) in network.advance(next) {
                    let closed_by = done.outcome.closed_by;
                    assert_eq!(closed_by, ClosedBy::Complete, "step {step}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn a_trimmed_feedback_says_nothing_of_its_sender() {
    let config = Config {
        slot_bytes: 4 * SLOT,
        coding: Coding::Identity,
        ..config(3)
    };
    let mut network = Network::new(&config);
    for rank in 0..3 {
        let values = vec![f32::from(rank); 300];
        network.start_part(Time::ZERO, rank, (ID, Part::Whole.into()), values);
    }
    for last in [false, true] {
        let mut header = Header::new(Kind::Feedback, config.job, config.epoch, 1, 1);
        (header.step, header.host_flags.last) = (ID.step, last);
        header.switch_flags.trimmed = true;
        let mut datagram = vec![0; header.len()];
        header.emit(&mut datagram);
        network.inject(0, &datagram);
    }
    while let Some(next) = network.next_event() {
        for (rank, done) in network.advance(next) {
            assert_eq!(done.outcome.closed_by, ClosedBy::Complete, "rank {rank}");
        }
    }
}
