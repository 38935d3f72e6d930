//! Exact operations: every value arrives, or an error names the missing ranks.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{
    Coding, Config, Core, EarlyBounds, Exact, Gather, Layout, OperationId, Rejection, StartError,
    Time,
};
use ultima_testing::cases;
use ultima_wire::{Header, HostFlags, Kind, RepairRequest, Requested};

const T_B: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(10);
const SLOT: usize = 8;

fn exact_config(ranks: u16) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        t_s: T_B * 3 / 5,
        t_b: T_B,
        ..config(ranks)
    }
}

fn random_buckets(ranks: u16, len: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random::new(seed);
    (0..ranks).map(|_| random.bucket(len)).collect()
}

/// Every rank's expected result.
fn expected(exact: Exact, values: &[Vec<f32>]) -> Vec<f32> {
    let sum = |at: usize| values.iter().fold(0.0f32, |sum, of_rank| sum + of_rank[at]);
    match exact {
        Exact::Sum => (0..values[0].len()).map(sum).collect(),
        Exact::Mean => {
            let ranks = values.len() as f32;
            (0..values[0].len()).map(|at| sum(at) / ranks).collect()
        }
        Exact::Broadcast { root } => values[usize::from(root)].clone(),
        Exact::AllGather => values.concat(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs an operation and checks every rank's result, bit by bit.
fn check(
    network: &mut Network,
    id: OperationId,
    exact: Exact,
    len: usize,
    starts: &[Option<Duration>],
) {
    let values = random_buckets(network.ranks(), len, u64::from(id.step));
    let expected = bits(&expected(exact, &values));
    for ended in network.run_exact((id, exact, LIMIT), &values, starts) {
        let (outcome, result) = ended.expect("started").expect("complete");
        assert_eq!(bits(&result), expected, "{exact:?}");
        assert_eq!(outcome.id, id);
    }
}

fn kinds(ranks: u16) -> [Exact; 4] {
    let root = ranks / 2;
    [
        Exact::Sum,
        Exact::Mean,
        Exact::Broadcast { root },
        Exact::AllGather,
    ]
}

#[test]
fn without_loss_no_repair_is_requested() {
    for gather in GATHERS {
        for ranks in [2, 3, 5, 32] {
            for len in [0, 1, 2, 31, 500] {
                let mut network = Network::new(&Config {
                    gather,
                    ..exact_config(ranks)
                });
                for (step, exact) in (0..).zip(kinds(ranks)) {
                    let id = OperationId { step, bucket: 9 };
                    check(&mut network, id, exact, len, &at_once(ranks));
                }
                network.settle();
                for core in &network.cores {
                    let totals = core.totals();
                    assert_eq!(totals.exact.complete, 4);
                    assert_eq!(totals.exact.requests_sent, 0);
                    assert_eq!(totals.rejected.total(), 0);
                    assert!(!core.is_needed());
                }
                network.check_accounts();
            }
        }
    }
}

/// The faults of a network.
#[derive(Clone, Debug)]
struct Schedule {
    ranks: u16,
    len: usize,
    gather: Gather,
    reorder: u32,
    /// Bytes stored of operations not yet started: too few for some.
    early: usize,
    seed: u64,
    loss: f64,
    duplicates: f64,
    cuts: f64,
    /// Largest extra delay in µs.
    jitter: u64,
    /// By rank: its start in µs.
    starts: Vec<u64>,
    /// The first kind of operation.
    kind: usize,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    (
        2u16..=6,
        0usize..400,
        any::<bool>(),
        0u32..4,
        0usize..20_000,
    )
        .prop_flat_map(|(ranks, len, multicast, reorder, early)| {
            let start = prop_oneof![3 => Just(0u64), 2 => 0u64..2_000_000];
            (
                any::<u64>(),
                prop_oneof![Just(0.0), 0.0..0.3, Just(0.5)],
                prop_oneof![Just(0.0), 0.0..0.5],
                prop_oneof![Just(0.0), 0.0..0.5],
                prop_oneof![Just(0u64), 0u64..1000, 0u64..30_000],
                prop::collection::vec(start, usize::from(ranks)),
                0usize..4,
            )
                .prop_map(
                    move |(seed, loss, duplicates, cuts, jitter, starts, kind)| Schedule {
                        ranks,
                        len,
                        gather: match multicast {
                            true => Gather::Multicast,
                            false => Gather::Unicast,
                        },
                        reorder,
                        early,
                        seed,
                        loss,
                        duplicates,
                        cuts,
                        jitter,
                        starts,
                        kind,
                    },
                )
        })
}

fn network(schedule: &Schedule) -> Network {
    let mut network = Network::new(&Config {
        gather: schedule.gather,
        reorder: schedule.reorder,
        early: EarlyBounds {
            operations: 2,
            bytes: schedule.early,
        },
        ..exact_config(schedule.ranks)
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
        // A switch trims only data, and no packet without a limit is late.
        let data = [Kind::Scatter, Kind::Gather, Kind::Repair].contains(&header.kind);
        header.switch_flags.trimmed = data && cut.chance(cuts);
        assert!(!data || header.budget == ultima_wire::Ticks::MAX || !header.host_flags.exact);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(60, 2000)))]

    /// Up to half of the packets lost, half of the rest trimmed, all of them reordered and duplicated, and
    /// ranks that start two seconds late: every rank has every bit.
    #[test]
    fn every_schedule_ends_with_everything(schedule in schedule()) {
        let mut network = network(&schedule);
        let starts: Vec<_> = schedule.starts.iter().map(|us| Some(Duration::from_micros(*us))).collect();
        let mut exacts = kinds(schedule.ranks);
        exacts.rotate_left(schedule.kind);
        for (step, exact) in (0..).zip(exacts) {
            check(&mut network, OperationId { step, bucket: 1 }, exact, schedule.len, &starts);
        }
        network.settle();
        for core in &network.cores {
            prop_assert_eq!(core.totals().rejected.total(), 0);
        }
        network.check_accounts();
    }

    /// The same schedule gives the same packets.
    #[test]
    fn every_run_can_be_repeated(schedule in schedule()) {
        let run = || {
            let mut network = network(&schedule);
            let starts: Vec<_> = schedule.starts.iter().map(|us| Some(Duration::from_micros(*us))).collect();
            check(&mut network, ID, kinds(schedule.ranks)[schedule.kind], schedule.len, &starts);
            let totals: Vec<_> = network.cores.iter().map(Core::totals).collect();
            (network.now, totals)
        };
        prop_assert_eq!(run(), run());
    }
}

/// The cost: half of all packets lost, a hundred thousand values among eight ranks.
#[test]
fn half_of_the_packets_lost_cost_a_few_rounds() {
    for gather in GATHERS {
        let mut network = Network::new(&Config {
            gather,
            slot_bytes: 1408,
            ..exact_config(8)
        });
        network.faults = lossy(0.5, 3);
        let begin = network.now;
        check(&mut network, ID, Exact::Mean, 100_000, &at_once(8));
        let took = network.now.since(begin);
        let mut exact = network.cores[0].totals().exact;
        for core in &network.cores[1..] {
            exact += core.totals().exact;
        }
        println!("{gather:?}: {took:?}, {exact:?}");
        // 285 slots: 1,995 contributions and as many copies of aggregates. Half of each arrives at first, and
        // half of the repeats: so as many repeats as missing packets, plus some at the end.
        assert!(exact.contributions_resent < 3 * 1995, "{exact:?}");
        assert!(exact.repairs_sent < 3 * 1995, "{exact:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

/// Bounded and exact operations in one step, with loss, do not disturb each other.
#[test]
fn both_kinds_in_one_step() {
    let config = Config {
        coding: Coding::Identity,
        ..exact_config(4)
    };
    let mut network = Network::new(&config);
    network.faults = lossy(0.1, 1);
    for step in 0..20 {
        let gradients = random_buckets(4, 300, u64::from(step));
        let done = network.run(OperationId { step, bucket: 0 }, gradients, &at_once(4));
        for done in done.into_iter().flatten() {
            assert!(done.outcome.duration <= T_B);
            assert!(done.outcome.suspected.is_empty());
        }
        check(
            &mut network,
            OperationId { step, bucket: 1 },
            Exact::AllGather,
            5,
            &at_once(4),
        );
    }
    network.settle();
    network.check_accounts();
}

/// Rank 2 never starts: the others report it at their limit, and have removed the operation after another
/// one.
#[test]
fn missing_ranks_are_named() {
    for exact in [Exact::Sum, Exact::AllGather] {
        let mut network = Network::new(&exact_config(4));
        let starts = [Some(0), Some(3), None, Some(5)].map(|ms| ms.map(Duration::from_millis));
        let values = random_buckets(4, 100, 1);
        let limit = Duration::from_secs(1);
        let ended = network.run_exact((ID, exact, limit), &values, &starts);
        for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let error = ended.expect("started").expect_err("rank 2 is missing");
            assert_eq!(
                (error.waited, &error.silent[..]),
                (limit, &[2][..]),
                "rank {rank}"
            );
            assert!(error.aggregates.contains(&2));
            assert!(error.differing.is_empty());
            assert!(
                error.to_string().ends_with("no packet from rank 2"),
                "{error}"
            );
        }
        let requests = network.cores[0].totals().exact.requests_sent;
        // Intervals double up to t_B: about sixty in a second, to every rank and in two phases at most.
        assert!((50..400).contains(&requests), "{requests}");
        assert!(network.cores[0].is_needed());
        network.settle();
        assert!(
            network
                .cores
                .iter()
                .all(|core| !core.is_needed() && core.poll_timeout().is_none())
        );
        network.check_accounts();
    }
}

/// Rank 1 runs another operation under the id: each side rejects the other's packets and names it.
#[test]
fn ranks_that_differ_are_named() {
    let config = Config {
        coding: Coding::Identity,
        ..exact_config(3)
    };
    let limit = Duration::from_millis(100);
    type Start = fn(&mut Core, Time) -> Result<(), StartError>;
    let starts: [(Start, Rejection); 3] = [
        (
            |core, now| core.start(now, ID, vec![1.0; 90]),
            Rejection::Exact,
        ),
        (
            |core, now| {
                let broadcast = Exact::Broadcast { root: 1 };
                core.start_exact(
                    now,
                    ID,
                    broadcast,
                    vec![1.0; 90],
                    Duration::from_millis(100),
                )
            },
            Rejection::Exact,
        ),
        (
            |core, now| {
                core.start_exact(
                    now,
                    ID,
                    Exact::Sum,
                    vec![1.0; 190],
                    Duration::from_millis(100),
                )
            },
            Rejection::Slot,
        ),
    ];
    for (start, rejection) in starts {
        let mut network = Network::new(&config);
        start(&mut network.cores[1], network.now).expect("starts");
        let values = vec![vec![1.0; 90]; 3];
        let there = [Some(Duration::ZERO), None, Some(Duration::ZERO)];
        let ended = network.run_exact((ID, Exact::Sum, limit), &values, &there);
        for rank in [0, 2] {
            let error = ended[rank]
                .as_ref()
                .expect("started")
                .as_ref()
                .expect_err("differs");
            assert_eq!(error.differing, [1]);
            assert!(
                error
                    .to_string()
                    .contains("packets of rank 1 belong to another operation")
            );
        }
        for core in &network.cores {
            assert!(core.totals().rejected.of(rejection) > 0, "{rejection:?}");
        }
    }
}

#[test]
fn an_exact_operation_keeps_the_next_step_waiting() {
    let mut network = Network::new(&exact_config(2));
    let core = &mut network.cores[0];
    let at = |step| OperationId { step, bucket: 0 };
    let start = |core: &mut Core, step, exact| {
        core.start_exact(Time::ZERO, at(step), exact, vec![1.0], LIMIT)
    };
    assert_eq!(start(core, 1, Exact::Sum), Ok(()));
    assert_eq!(start(core, 1, Exact::Sum), Err(StartError::Repeated(at(1))));
    let under_way = StartError::StepUnderWay {
        id: at(2),
        under_way: at(1),
    };
    assert_eq!(core.start(Time::ZERO, at(2), vec![1.0]), Err(under_way));
    let root = StartError::Root {
        id: at(1),
        root: 2,
        last: 1,
    };
    assert_eq!(start(core, 1, Exact::Broadcast { root: 2 }), Err(root));
}

/// All notices of results are lost, and there is no later step: ranks answer until no other rank can be
/// waiting.
#[test]
fn a_complete_rank_answers_requests() {
    let mut network = Network::new(&exact_config(3));
    // While it is deaf, rank 2 gets only contributions from rank 0.
    let deaf = Rc::new(Cell::new(true));
    let is_deaf = deaf.clone();
    network.faults = Box::new(move |header, to| {
        let unheard = (header.source, to) == (0, 2) && header.kind != Kind::Scatter;
        match header.kind == Kind::Feedback || is_deaf.get() && unheard {
            true => vec![],
            false => vec![Duration::ZERO],
        }
    });
    let values = random_buckets(3, 100, 1);
    for core in &mut network.cores {
        let values = values[usize::from(core.config().rank)].clone();
        core.start_exact(Time::ZERO, ID, Exact::Sum, values, LIMIT)
            .expect("starts");
    }
    let ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
    network.run_until(ms(150));
    let ended: Vec<usize> = network.exact.iter().map(Vec::len).collect();
    assert_eq!(ended, [1, 1, 0]);
    deaf.set(false);
    network.run_until(ms(600));
    let (_, ended) = network.exact[2].pop().expect("it has asked");
    let result = ended.expect("complete").1;
    assert_eq!(bits(&result), bits(&expected(Exact::Sum, &values)));
    assert!(network.cores.iter().all(Core::is_needed));
    network.run_until(Time::ZERO + 2 * LIMIT);
    assert!(network.cores.iter().all(|core| !core.is_needed()));
}

/// A leaving rank waits for ranks that may send requests, while they respond: not for one that fell silent.
#[test]
fn the_silent_are_not_waited_for() {
    let mut network = Network::new(&exact_config(3));
    let ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
    let hour = Duration::from_secs(3600);
    // Rank 2 contributes and gets nothing. After 300 ms it is gone.
    let gone = Rc::new(Cell::new(false));
    let is_gone = gone.clone();
    network.faults = Box::new(move |header, to| {
        let lost = to == 2 || header.source == 2 && is_gone.get();
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let values = random_buckets(3, 100, 1);
    for core in &mut network.cores {
        let values = values[usize::from(core.config().rank)].clone();
        core.start_exact(Time::ZERO, ID, Exact::Sum, values, hour)
            .expect("starts");
    }
    network.run_until(ms(300));
    // It is waited for while it sends requests.
    let until = network.cores[0].needed_until().expect("rank 2 lacks it");
    assert!(ms(300) < until, "{until:?}");
    gone.set(true);
    network.run_until(ms(600));
    let later = network.cores[0].needed_until().expect("rank 2 lacks it");
    // Four times t_B after its last packet.
    let t_b = network.cores[0].config().t_b;
    assert!(later <= ms(300) + 4 * t_b, "{later:?}");
    assert!(network.cores[0].is_needed());
}

/// A rank with endless requests causes no endless repeats, and its requests prove nothing about other data.
#[test]
fn requests_for_anything_do_no_harm() {
    let config = exact_config(3);
    let mut network = Network::new(&config);
    let mut random = Random::new(1);
    let values = random_buckets(3, 300, 1);
    let mut forged = Vec::new();
    for number in 0..4000u32 {
        let mut header = Header::new(Kind::Control, config.job, config.epoch, 1, 1);
        header.step = number % 3;
        header.slots = [12, 13, u32::MAX][random.below(3) as usize];
        header.host_flags = HostFlags {
            exact: true,
            ..HostFlags::default()
        };
        let wanted: Vec<u8> = (0..random.below(90))
            .map(|_| random.below(256) as u8)
            .collect();
        let request = RepairRequest {
            of: [Requested::Aggregates, Requested::Contributions][random.below(2) as usize],
            first: [0, 3, u32::MAX][random.below(3) as usize],
            wanted: &wanted,
        };
        let mut datagram = vec![0; 200];
        let start = header.emit(&mut datagram);
        let len = start + request.emit(&mut datagram[start..]);
        datagram.truncate(len);
        forged.push(datagram);
    }
    network.cores[0]
        .start_exact(Time::ZERO, ID, Exact::Sum, values[0].clone(), LIMIT)
        .expect("starts");
    let mut buf = vec![0; network.cores[0].max_datagram()];
    let (mut sent, mut now) = (0, Time::ZERO);
    for datagram in forged {
        now = now + Duration::from_micros(5);
        network.cores[0].handle_datagram(now, &datagram);
        while network.cores[0].next_datagram(now, &mut buf).is_some() {
            sent += 1;
        }
    }
    // 20 ms are 32 rounds of 0.625 ms, each with room for the 13 slots of one shard. Rank 0 has sent 25
    // contributions itself, and some requests.
    let layout = Layout::new(300, 3, SLOT);
    let shard = u64::from(layout.slots(1));
    assert_eq!(shard, 13);
    let exact = network.cores[0].totals().exact;
    assert!(exact.contributions_resent > 0);
    assert!(exact.contributions_resent <= 33 * shard, "{exact:?}");
    // It has no closed slot to send.
    assert_eq!(exact.repairs_sent, 0);
    assert!(sent <= 33 * shard + 26 + exact.requests_sent, "{sent}");
}
