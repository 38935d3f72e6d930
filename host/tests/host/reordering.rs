//! Networks that reorder packets: a rank learns how late overtaken packets come, and still detects losses.

use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{Cause, ClosedBy, Coding, Config, OperationId, Outcome, Timeouts};
use ultima_testing::cases;
use ultima_wire::{Header, Kind};

const T_B: Duration = Duration::from_millis(20);
/// Operations in which ranks may learn.
const LEARNED_BY: u32 = 12;

/// A network that delays each packet by up to `jitter`, without regard for their order.
fn network(ranks: u16, t_b: Duration, jitter: Duration, seed: u64) -> Network {
    let mut network = Network::new(&Config {
        slot_bytes: 32,
        coding: Coding::Identity,
        t_s: t_b * 3 / 5,
        t_b,
        ..config(ranks)
    });
    network.fifo = false;
    network.link_rate = Some(100_000_000);
    network.faults = delays(jitter, seed, 0.0);
    network
}

fn delays(jitter: Duration, seed: u64, loss: f64) -> Faults {
    let mut random = Random::new(seed);
    Box::new(move |header, _| {
        let is_data = matches!(header.kind, Kind::Scatter | Kind::Gather);
        match is_data && random.chance(loss) {
            true => vec![],
            false => vec![Duration::from_nanos(
                random.below(jitter.as_nanos() as u64 + 1),
            )],
        }
    })
}

fn overtaken(results: &[(Outcome, Vec<f32>)]) -> u64 {
    let lost = results.iter().map(|(outcome, _)| outcome.lost);
    lost.map(|lost| lost.scatter.of(Cause::Overtaken) + lost.gather.of(Cause::Overtaken))
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(4, 200)))]

    #[test]
    fn ranks_learn_how_far_packets_overtake_each_other(
        ranks in 2u16..6,
        jitter in 1u64..1000,
        seed in any::<u64>(),
    ) {
        let jitter = Duration::from_micros(jitter);
        let mut network = network(ranks, T_B, jitter, seed);
        let buckets = powers(ranks, 1_000);
        let id = |step| OperationId { step, bucket: 0 };
        let mut falsely = 0;
        for step in 1..=60 {
            let lost = overtaken(&network.allreduce(id(step), &buckets));
            falsely += if step > LEARNED_BY { lost } else { 0 };
        }
        // The deepest reordering is seen late, if it is rare.
        prop_assert!(falsely <= 3, "{falsely} packets");

        // Losses are detected all the same: operations do not wait for t_B.
        network.faults = delays(jitter, seed, 0.02);
        let mut ended = 0;
        for step in 61..=100 {
            let results = network.allreduce(id(step), &buckets);
            ended += results.iter().filter(|(o, _)| o.closed_by == ClosedBy::KnownLoss).count();
            for (outcome, _) in &results {
                prop_assert!(outcome.closed_by <= ClosedBy::KnownLoss, "{outcome:?}");
            }
        }
        prop_assert!(ended > 0);
    }
}

/// Contributions take another path than aggregates and notices, as over two spines. In every tenth step that path stands
/// still for `stall`. Some contributions are lost.
fn two_paths(reorder: u32, stall: Duration, loss: f64) -> Network {
    let mut network = Network::new(&Config {
        slot_bytes: 32,
        coding: Coding::Identity,
        t_s: T_B * 3 / 5,
        t_b: T_B,
        reorder,
        ..config(4)
    });
    network.fifo = false;
    let mut random = Random::new(5);
    network.faults = Box::new(move |header, _| match header.kind {
        Kind::Scatter if random.chance(loss) => vec![],
        Kind::Scatter if header.step % 10 == 9 => vec![stall],
        _ => vec![Duration::ZERO],
    });
    network
}

fn steps(network: &mut Network, steps: std::ops::Range<u32>) -> Vec<Vec<Outcome>> {
    let buckets = powers(4, 1_000);
    let step = |step| {
        let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
        network.settle();
        results.into_iter().map(|(outcome, _)| outcome).collect()
    };
    steps.map(step).collect()
}

fn lost(ranks: &[Outcome]) -> u64 {
    ranks
        .iter()
        .map(|outcome| outcome.lost.scatter.total() + outcome.lost.gather.total())
        .sum()
}

#[test]
fn a_path_that_stands_still_for_a_fifth_of_t_b_loses_nothing() {
    let outcomes = steps(&mut two_paths(8, T_B / 5, 0.0), 0..200);
    assert_eq!(outcomes.iter().map(|ranks| lost(ranks)).sum::<u64>(), 0);
}

#[test]
fn only_the_first_stall_of_an_unknown_path_costs_packets() {
    let outcomes = steps(&mut two_paths(0, T_B / 5, 0.0), 0..200);
    let lossy: Vec<usize> = (0..200).filter(|step| lost(&outcomes[*step]) > 0).collect();
    assert_eq!(lossy, [9]);
}

/// A rank that waits for lost packets waits less the next time, but long enough for late ones.
#[test]
fn losses_narrow_the_wait() {
    let mut network = two_paths(8, T_B / 10, 0.01);
    let longest = |outcomes: &[Vec<Outcome>]| {
        let ranks = outcomes.iter().flatten();
        ranks.map(|outcome| outcome.duration).max()
    };
    assert!(longest(&steps(&mut network, 0..1)) >= Some(T_B / 4));
    // The first stall, in step 9, comes after the wait has become shorter than it.
    steps(&mut network, 1..10);
    let dropped = network.scatter.dropped;
    let outcomes = steps(&mut network, 10..200);
    let falsely =
        outcomes.iter().map(|ranks| lost(ranks)).sum::<u64>() - (network.scatter.dropped - dropped);
    assert_eq!(falsely, 0);
    assert!(
        longest(&outcomes) < Some(T_B / 4),
        "{:?}",
        longest(&outcomes)
    );
}

/// Where packets overtake each other by microseconds, losses delay an operation about as little.
#[test]
fn slight_reordering_makes_no_loss_expensive() {
    let jitter = Duration::from_micros(200);
    let longest = |outcomes: &[Vec<Outcome>]| {
        let durations = outcomes.iter().flatten().map(|outcome| outcome.duration);
        durations.max().unwrap_or_default()
    };
    let mut network = network(4, 10 * T_B, jitter, 1);
    let without_loss = longest(&steps(&mut network, 0..20));
    network.faults = delays(jitter, 2, 0.02);
    let outcomes = steps(&mut network, 20..60);
    let dropped = network.scatter.dropped + network.gather.dropped;
    let lost: u64 = outcomes.iter().map(|ranks| lost(ranks)).sum();
    assert!((100..=dropped).contains(&lost), "{lost} of {dropped}");
    let with_loss = longest(&outcomes);
    let most = without_loss + 10 * jitter;
    assert!(with_loss < most, "{with_loss:?} {without_loss:?}");
}

/// A loss in a burst of packets is known one window after the burst, before the learned t_S.
#[test]
fn a_loss_in_a_burst_is_known_a_window_after_it() {
    const LEARNED: u32 = 30;
    let mut network = Network::new(&Config {
        slot_bytes: 32,
        coding: Coding::Identity,
        t_s: T_B * 3 / 5,
        t_b: T_B,
        timeouts: Timeouts::CauseAware,
        slack: T_B / 16,
        reorder: 8,
        ..config(2)
    });
    network.fifo = false;
    network.link_rate = Some(2_000_000_000);
    // 1,000 slots for each rank.
    let buckets = powers(2, 2 * 1_000 * 8);
    let run = |network: &mut Network, step| {
        let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
        network.settle();
        results.into_iter().map(|(outcome, _)| outcome).next()
    };
    let outcomes = (0..LEARNED).map(|step| run(&mut network, step));
    let burst = outcomes.last().flatten().unwrap().shard_duration;
    network.faults = Box::new(|header, to| {
        match header.kind == Kind::Scatter && header.slot == 500 && to == 0 {
            true => vec![],
            false => vec![Duration::ZERO],
        }
    });
    let outcome = run(&mut network, LEARNED).unwrap();
    assert_eq!(outcome.lost.scatter.of(Cause::Overtaken), 1, "{outcome:?}");
    assert_eq!(outcome.lost.scatter.total(), 1, "{outcome:?}");
    let expected = burst + outcome.t_b / 4;
    let error = outcome.shard_duration.abs_diff(expected);
    assert!(error < expected / 50, "{error:?} {outcome:?}");
    assert!(outcome.duration < outcome.t_s, "{outcome:?}");
}

/// A late packet that arrives again says nothing about the network.
#[test]
fn a_repeated_late_packet_does_not_lengthen_the_wait() {
    let mut network = two_paths(0, T_B, 0.0);
    let is_watched = |header: &Header, to| {
        (header.kind, header.slot, header.source, to) == (Kind::Scatter, 3, 1, 0)
    };
    network.faults = Box::new(move |header, to| match (header.kind, header.source, to) {
        _ if is_watched(header, to) => vec![T_B / 20, T_B / 2],
        // Rank 0 waits for rank 2 meanwhile.
        (Kind::Gather, 2, 0) => vec![T_B * 3 / 4],
        (Kind::Feedback, 2, 0) => vec![],
        _ => vec![Duration::ZERO],
    });
    let outcomes = steps(&mut network, 0..1);
    assert_eq!(outcomes[0][0].phases.scatter.late, 2);
    network.faults = Box::new(move |header, to| match is_watched(header, to) {
        true => vec![],
        false => vec![Duration::ZERO],
    });
    let duration = steps(&mut network, 1..2)[0][0].duration;
    // Twice the time by which the first copy was late.
    assert!((T_B / 10..T_B / 8).contains(&duration), "{duration:?}");
}
