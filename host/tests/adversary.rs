//! Whatever a network does, and whatever a forger sends: no wrong mean, no hang, no panic, nothing
//! unaccounted for.

mod common;

use std::time::Duration;

use common::*;
use proptest::prelude::*;
use ultima_host::{Coding, Config, Core, EarlyBounds, Event, Exact, Gather, OperationId, Time};
use ultima_wire::{Header, Kind};

const T_B: Duration = Duration::from_millis(20);
const SLOT: usize = 8;

/// What a network does to the packets, and when ranks start.
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
    /// Of copies: a switch sends their headers only.
    cuts: f64,
    /// Of copies: up to so many µs of extra delay, which reorders.
    jitter: u64,
    /// By step and rank: when it starts, in µs after the step's beginning; none never does.
    starts: Vec<Vec<Option<u64>>>,
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
            )
                .prop_map(move |(seed, loss, duplicates, cuts, jitter, starts)| {
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
                        starts,
                    }
                })
        },
    )
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
        ..config(schedule.ranks)
    });
    let mut random = Random::new(schedule.seed);
    let Schedule {
        loss,
        duplicates,
        cuts,
        jitter,
        ..
    } = *schedule;
    let mut cut = Random::new(schedule.seed ^ 1);
    network.switch = Some(Box::new(move |header, _| {
        header.switch_flags.trimmed = cut.chance(cuts);
        header.switch_flags.late = header.switch_flags.trimmed && cut.chance(0.5);
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

/// Whether `mean` is one of rank r's contribution 2^r with those of some others, averaged.
fn is_mean_of_some(mean: f32, owner: u16, ranks: u16) -> bool {
    (0..1u16 << ranks)
        .filter(|subset| subset & 1 << owner != 0)
        .any(|subset| f32::from(subset) / subset.count_ones() as f32 == mean)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_gives_a_wrong_mean_or_a_hang(schedule in schedule()) {
        let ranks = schedule.ranks;
        let mut network = network(&schedule);
        for (step, starts) in (0..).zip(&schedule.starts) {
            let buckets: Vec<Vec<f32>> =
                (0..ranks).map(|rank| vec![f32::from(1u16 << rank); schedule.len]).collect();
            let starts: Vec<_> = starts.iter().map(|s| s.map(Duration::from_micros)).collect();
            let id = OperationId { step, bucket: 0 };
            let done = network.run(id, buckets, &starts);
            let layout = ultima_host::Layout::new(schedule.len, ranks, SLOT);
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
                        prop_assert!(missed || is_mean_of_some(values[0], owner, ranks), "{values:?}");
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

    /// The same schedule gives the same bits.
    #[test]
    fn every_run_can_be_repeated(schedule in schedule()) {
        let run = || {
            let mut network = network(&schedule);
            let mut random = Random::new(1);
            let mut runs = Vec::new();
            for (step, starts) in (0..).zip(&schedule.starts) {
                let buckets = (0..schedule.ranks).map(|_| random.bucket(schedule.len)).collect();
                let starts: Vec<_> = starts.iter().map(|s| s.map(Duration::from_micros)).collect();
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

    /// Datagrams that are almost right: valid headers with fields out of anywhere, cut or
    /// lengthened payloads.
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
        while core.poll_transmit(Time::ZERO, &mut buf).is_some() {}
        for datagram in after {
            core.handle_datagram(Time::ZERO, datagram);
        }
        // Nobody else is there: the operations end by their bounds at the latest, an exact one is forgotten as long
        // after, and everything is accounted for.
        while let Some(due) = core.poll_timeout() {
            core.handle_timeout(due);
            prop_assert!(due <= Time::ZERO + 2 * T_B);
        }
        let ended = std::iter::from_fn(|| core.poll_event());
        let ended = ended.filter(|event| !matches!(event, Event::SlotGone(_)));
        prop_assert_eq!(ended.count(), 2);
        core.shut_down(Time::ZERO + T_B);
        let totals = core.totals();
        let mut accounted = totals.rejected.total() + totals.feedback_received;
        accounted += totals.exact.repairs_received;
        for phase in [totals.phases.scatter, totals.phases.gather] {
            accounted += phase.in_time + phase.cut + phase.late + phase.duplicates + phase.refused;
        }
        // FEEDBACK of operations that never start is forgotten with them.
        prop_assert!(accounted <= forgeries.len() as u64);
        let feedback = forgeries
            .iter()
            .filter(|d| Header::parse(d).is_ok_and(|(h, _)| h.kind == Kind::Feedback))
            .count();
        prop_assert!(accounted + feedback as u64 >= forgeries.len() as u64);
    }
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
