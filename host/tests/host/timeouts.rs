//! Learned timeouts in virtual time, by policy and by cause of delay.

use std::time::Duration;

use crate::common::{Network, Random, config, lossy, perfect};
use ultima_host::{Cause, ClosedBy, Config, Gather, LossDetection, OperationId, Outcome, Timeouts};
use ultima_wire::Kind;

const RANKS: u16 = 4;
const LEN: usize = 4 * 352 * 20;
const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// Bounds of 600 ms and 1 s are a thousand times the duration of an operation here.
fn network(timeouts: Timeouts) -> Network {
    Network::new(&Config {
        t_s: 600 * MS,
        t_b: 1000 * MS,
        timeouts,
        ..config(RANKS)
    })
}

/// Runs one operation in every step of `steps`. Rank *i* starts `start(step, i)` after the others have ended
/// the last.
fn run(
    network: &mut Network,
    steps: std::ops::Range<u32>,
    mut start: impl FnMut(u32, u16) -> Duration,
) -> Vec<Vec<Outcome>> {
    steps
        .map(|step| {
            let id = OperationId { step, bucket: 0 };
            let starts: Vec<_> = (0..RANKS).map(|rank| Some(start(step, rank))).collect();
            let done = network.run(id, vec![vec![1.0; LEN]; RANKS.into()], &starts);
            network.settle();
            let outcome = |done: Option<crate::common::Done>| done.expect("started").outcome;
            done.into_iter().map(outcome).collect()
        })
        .collect()
}

/// The share of contributions and aggregates that did not arrive in time.
fn missing(outcomes: &[Vec<Outcome>]) -> f64 {
    let outcomes = outcomes.iter().flatten();
    let (lost, owed) = outcomes.fold((0, 0), |(lost, owed), outcome| {
        let slots: u64 = outcome.contributions.iter().map(|n| u64::from(*n)).sum();
        let here = outcome.lost.scatter.total() + outcome.lost.gather.total();
        (lost + here, owed + 2 * slots * u64::from(RANKS - 1))
    });
    lost as f64 / owed as f64
}

/// Slack keeps a rank that stops for less than that in time. `published` has none.
#[test]
fn slack_extends_the_learned_bounds() {
    for (timeouts, slack) in [(Timeouts::CauseAware, 5), (Timeouts::Published, 0)] {
        let mut network = Network::new(&Config {
            t_s: 600 * MS,
            t_b: 1000 * MS,
            timeouts,
            slack: 5 * MS,
            ..config(RANKS)
        });
        // Rank 1 stops in the last operation only.
        let stops = |step, rank| match (step, rank) {
            (29, 1) => 4 * MS,
            _ => Duration::ZERO,
        };
        let outcomes = run(&mut network, 0..30, stops);
        for outcome in &outcomes[28] {
            assert!((slack * MS..(slack + 1) * MS).contains(&outcome.t_s));
            assert!((2 * slack * MS..(2 * slack + 1) * MS).contains(&outcome.t_b));
        }
        assert_eq!(missing(&outcomes[29..]) == 0.0, slack > 0, "{timeouts:?}");
    }
}

/// A burst toward rank 0 delays its packets of the last operation, on links where an operation takes 4 ms.
#[test]
fn a_deadline_factor_ends_the_wait_for_a_burst() {
    const LAST: u32 = 40;
    for (deadline_factor, is_cut) in [(Some(2.0), true), (None, false)] {
        let mut network = Network::new(&Config {
            t_s: 600 * MS,
            t_b: 1000 * MS,
            timeouts: Timeouts::CauseAware,
            slack: 60 * MS,
            deadline_factor,
            ..config(RANKS)
        });
        network.faults = Box::new(|header, to| {
            vec![match (header.step, to) {
                (LAST, 0) => 30 * MS,
                _ => 2 * MS,
            }]
        });
        let outcomes = run(&mut network, 0..LAST + 1, |_, _| Duration::ZERO);
        let [usual, last] = [LAST - 1, LAST].map(|step| &outcomes[step as usize][0]);
        assert!((4 * MS..5 * MS).contains(&usual.duration), "{usual:?}");
        assert_eq!(last.duration <= 2 * usual.duration, is_cut, "{last:?}");
        assert_eq!(missing(&outcomes[LAST as usize..]) > 0.0, is_cut);
    }
}

/// Rank 0 stops after its aggregates of step 1 have reached rank 2 alone. The ranks that wait for them start step 2 in time for
/// rank 2, so that only rank 0's packets are missing.
#[test]
fn a_stopped_rank_sets_the_others_apart_by_less_than_they_wait() {
    let mut network = Network::new(&Config {
        t_s: 600 * MS,
        t_b: 1000 * MS,
        timeouts: Timeouts::CauseAware,
        slack: 60 * MS,
        ..config(RANKS)
    });
    network.faults = Box::new(|header, to| {
        let lost = header.source == 0
            && match header.step {
                0 => false,
                1 => header.kind != Kind::Scatter && to != 2,
                _ => true,
            };
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let mut outcomes: Vec<(u16, Outcome)> = Vec::new();
    network.run_ranks(|_, rank, done| {
        let step = done.as_ref().map_or(0, |done| done.outcome.id.step + 1);
        outcomes.extend(done.map(|done| (rank, done.outcome)));
        let steps = if rank == 0 { 2 } else { 8 };
        let id = OperationId { step, bucket: 0 };
        (step < steps).then(|| (Duration::ZERO, id, vec![1.0; LEN]))
    });
    let of_others = outcomes.iter().filter(|(rank, _)| *rank != 0);
    let mut missed = 0;
    for (rank, outcome) in of_others {
        let from: Vec<u16> = outcome.missing_from(*rank).map(|(from, _)| from).collect();
        assert!(from.is_empty() || from == [0], "rank {rank}: {outcome:?}");
        missed += from.len();
    }
    assert!(missed > 0);
}

/// A deadline that a running job gets bounds its next operations, and never exceeds the configured one.
#[test]
fn a_deadline_set_later_ends_operations() {
    let mut network = network(Timeouts::CauseAware);
    let stops = |_, rank| if rank == 1 { 300 * MS } else { Duration::ZERO };
    let mut bounds = |step: u32, deadline: Duration| {
        for core in &mut network.cores {
            core.set_deadline(deadline);
        }
        let outcomes = run(&mut network, step..step + 1, stops);
        let first = &outcomes[0][0];
        (first.t_s, first.t_b, missing(&outcomes) > 0.0)
    };
    assert_eq!(bounds(0, 5000 * MS), (600 * MS, 1000 * MS, false));
    assert_eq!(bounds(1, 100 * MS), (60 * MS, 100 * MS, true));
    assert_eq!(bounds(2, 1000 * MS), (600 * MS, 1000 * MS, false));
}

/// A job with a group sends its results to each rank after `set_gather`, and to the group again.
#[test]
fn the_gather_of_a_running_job_changes() {
    let mut network = Network::new(&Config {
        gather: Gather::Multicast,
        ..config(RANKS)
    });
    let others = u64::from(RANKS - 1);
    let order = [Gather::Multicast, Gather::Unicast, Gather::Multicast];
    for (step, gather) in (0..).zip(order) {
        for core in &mut network.cores {
            core.set_gather(gather);
        }
        let outcomes = run(&mut network, step..step + 1, |_, _| Duration::ZERO);
        assert_eq!(missing(&outcomes), 0.0);
        let sent = outcomes[0][0].phases.gather;
        let each = if gather == Gather::Unicast { 1 } else { others };
        assert_eq!(sent.copies, sent.sent * each, "{gather:?}");
        assert!(sent.sent > 0);
    }
}

#[test]
fn bounds_shrink_to_the_duration_of_operations() {
    for timeouts in [Timeouts::Published, Timeouts::CauseAware] {
        let mut network = network(timeouts);
        let outcomes = run(&mut network, 0..30, |_, _| Duration::ZERO);
        for outcome in &outcomes[0] {
            assert_eq!((outcome.t_s, outcome.t_b), (600 * MS, 1000 * MS));
        }
        for outcome in outcomes[20..].iter().flatten() {
            assert_eq!(outcome.closed_by, ClosedBy::Complete, "{outcome:?}");
            assert!(outcome.t_s < MS && outcome.t_b < MS && outcome.t_s < outcome.t_b);
            assert!(outcome.t_s >= outcome.shard_duration && outcome.t_b >= outcome.duration);
        }
    }
}

#[test]
fn a_dead_rank_costs_the_learned_bound_not_the_configured_one() {
    for timeouts in [Timeouts::Published, Timeouts::CauseAware] {
        let mut network = network(timeouts);
        run(&mut network, 0..25, |_, _| Duration::ZERO);
        let buckets = || vec![vec![1.0; LEN]; RANKS.into()];
        let starts = [
            Some(Duration::ZERO),
            Some(Duration::ZERO),
            Some(Duration::ZERO),
            None,
        ];
        let done = network.run(
            OperationId {
                step: 25,
                bucket: 0,
            },
            buckets(),
            &starts,
        );
        for outcome in done.into_iter().flatten().map(|done| done.outcome) {
            assert_eq!(outcome.closed_by, ClosedBy::Deadline);
            assert!(outcome.duration < 2 * MS, "{outcome:?}");
        }
    }
}

#[test]
fn drops_never_extend_bounds() {
    let mut network = network(Timeouts::CauseAware);
    let quiet = run(&mut network, 0..60, |_, _| Duration::ZERO);
    network.faults = lossy(0.05, 3);
    let lossy = run(&mut network, 60..200, |_, _| Duration::ZERO);
    let t_b = |outcomes: &[Vec<Outcome>]| outcomes.last().expect("some")[0].t_b;
    assert!(
        t_b(&lossy) <= t_b(&quiet) * 5 / 4,
        "{:?} {:?}",
        t_b(&lossy),
        t_b(&quiet)
    );
    assert!(missing(&lossy) > 0.03);
}

/// Sometimes delays a source's stage by a log-normal tail's excess.
fn stragglers(random: &mut Random) -> Duration {
    if random.chance(0.02) {
        (100 + random.below(300) as u32) * US
    } else {
        Duration::ZERO
    }
}

#[test]
fn stragglers_are_waited_for_as_the_chosen_share_asks() {
    let share = |timeouts| {
        let mut random = Random::new(5);
        let mut network = network(timeouts);
        let outcomes = run(&mut network, 0..800, |_, _| stragglers(&mut random));
        (missing(&outcomes[100..]), outcomes[799][0].t_b)
    };
    let (published, cause_aware) = (share(Timeouts::Published), share(Timeouts::CauseAware));
    println!("missing: {published:?} as published, {cause_aware:?} cause-aware");
    // The target is 0.0007; about forty stragglers of four ranks do not measure it more precisely.
    assert!(cause_aware.0 < 1.5e-3, "{cause_aware:?}");
    assert!(
        published.0 > 2.0 * cause_aware.0,
        "{published:?} {cause_aware:?}"
    );
    assert!(cause_aware.1 < 5 * MS, "{cause_aware:?}");
}

#[test]
fn a_rank_that_is_always_late_delays_no_other_rank() {
    let mut network = network(Timeouts::CauseAware);
    run(&mut network, 0..25, |_, _| Duration::ZERO);
    let late = |_, rank| match rank {
        3 => 50 * MS,
        _ => Duration::ZERO,
    };
    let outcomes = run(&mut network, 25..100, late);
    for outcome in &outcomes.last().expect("some")[..3] {
        assert!(outcome.duration < 4 * MS, "{outcome:?}");
        let lacking = u64::from(outcome.contributions[usize::from(RANKS - 1)]);
        assert_eq!(lacking, LEN as u64 / 352 / u64::from(RANKS), "{outcome:?}");
    }
    // When it is in time again it counts, and is waited for.
    let outcomes = run(&mut network, 100..140, |_, _| Duration::ZERO);
    assert_eq!(
        outcomes.last().expect("some")[0].closed_by,
        ClosedBy::Complete
    );
}

/// A rank that starts last has all contributions at once, in most steps. It waits for those that are late nevertheless.
#[test]
fn a_rank_that_starts_last_waits_for_a_straggler() {
    let mut network = network(Timeouts::CauseAware);
    let late = |step, rank| match rank {
        3 => 1000 * US,
        2 if step % 10 == 9 => 1250 * US,
        _ => Duration::ZERO,
    };
    let outcomes = run(&mut network, 0..200, late);
    assert_eq!(missing(&outcomes), 0.0);
}

/// A rank with losses in every step is overdue. Ranks without losses are not, and are waited for.
#[test]
fn one_rank_that_loses_makes_no_other_one_overdue() {
    for (loss_detection, reorder) in [
        (LossDetection::TimeoutOnly, 0),
        (LossDetection::Trimmed, 0),
        (LossDetection::InOrder, u32::MAX),
    ] {
        let mut network = Network::new(&Config {
            t_s: 60 * MS,
            t_b: 100 * MS,
            timeouts: Timeouts::CauseAware,
            loss_detection,
            reorder,
            ..config(RANKS)
        });
        // Its notices do not arrive either.
        network.faults = Box::new(|header, to| {
            let lost = header.kind == Kind::Scatter && header.slot == 4;
            match (header.source, to) {
                (3, 0) if lost || header.kind == Kind::Feedback => vec![],
                _ => perfect()(header, to),
            }
        });
        let late = |_, rank| match rank {
            1 | 2 => MS,
            _ => Duration::ZERO,
        };
        let outcomes = run(&mut network, 0..90, late);
        for outcome in outcomes[70..].iter().map(|ranks| &ranks[0]) {
            assert_eq!(outcome.lost.scatter.of(Cause::Overdue), 1, "{outcome:?}");
            assert!(outcome.t_s > MS, "{outcome:?}");
        }
    }
}

/// Loses the tail of rank 3's contributions to rank 0, and every later packet that would show it.
fn lose_a_tail(network: &mut Network) {
    network.faults = Box::new(|header, to| {
        let tail = header.kind == Kind::Scatter && header.slot % 20 == 7;
        let tells = matches!(header.kind, Kind::Feedback | Kind::Gather);
        match (header.source, to) {
            (3, 0) if tail || tells => vec![],
            _ => perfect()(header, to),
        }
    });
}

#[test]
fn a_lost_tail_is_waited_for_a_tenth_of_t_c() {
    // Packets may overtake each other, so a later one does not show at once that an earlier one is lost.
    let mut network = Network::new(&Config {
        t_s: 600 * MS,
        t_b: 1000 * MS,
        timeouts: Timeouts::Published,
        reorder: 30,
        gather: Gather::Unicast,
        ..config(RANKS)
    });
    network.link_rate = Some(1_000_000_000);
    let late = |step, rank| match (step % 10, rank) {
        (3, 1) => 2 * MS,
        _ => Duration::ZERO,
    };
    run(&mut network, 0..30, late);
    lose_a_tail(&mut network);
    let outcomes = run(&mut network, 30..31, |_, _| Duration::ZERO);
    let outcome = &outcomes[0][0];
    assert_eq!(outcome.shard_closed_by, ClosedBy::Early, "{outcome:?}");
    assert_eq!(outcome.lost.scatter.of(Cause::Overdue), 1);
    assert!(outcome.shard_duration < outcome.t_s, "{outcome:?}");
}

#[test]
fn reports_of_others_cannot_extend_a_bound() {
    // Rank 3 announces the longest t_C that fits the header.
    for timeouts in [Timeouts::Published, Timeouts::CauseAware] {
        let mut network = network(timeouts);
        network.switch = Some(Box::new(|header, _| {
            if header.source == 3 {
                header.shared_tc = u16::MAX;
            }
        }));
        let outcomes = run(&mut network, 0..60, |_, _| Duration::ZERO);
        let last = outcomes.last().expect("some");
        assert!(last.iter().all(|outcome| outcome.t_b < MS), "{last:?}");
    }
}

#[test]
fn a_rank_that_misses_both_bounds_closes_its_shard_with_its_contributions() {
    let mut network = network(Timeouts::Fixed);
    let core = &mut network.cores[0];
    for step in 0..2 {
        // In the second operation a result's buffer has the first one's values.
        let id = OperationId { step, bucket: 0 };
        let now = network.now + (step + 1) * 2000 * MS;
        core.start(now, id, vec![1.0 + step as f32; LEN])
            .expect("starts");
        core.handle_timeout(now + 1500 * MS);
        let Some(ultima_host::Event::Done { outcome, result }) = core.poll_event() else {
            panic!("ended");
        };
        assert_eq!(outcome.closed_by, ClosedBy::Deadline);
        assert_eq!(
            outcome.contributions[1],
            LEN as u32 / 352 / u32::from(RANKS)
        );
        assert_eq!(
            outcome.lost.scatter.total(),
            3 * LEN as u64 / 352 / u64::from(RANKS)
        );
        let shard = LEN / usize::from(RANKS);
        assert!(
            result[..shard]
                .iter()
                .all(|value| *value == 1.0 + step as f32)
        );
        assert!(result[shard..].iter().all(|value| *value == 0.0));
    }
}

/// Several buckets of a step in flight, in a different order at every rank: each learns its own bounds, at
/// almost no cost, and with losses no rank waits as long as configured.
#[test]
fn buckets_in_flight_learn_each_for_itself() {
    for timeouts in [Timeouts::Published, Timeouts::CauseAware] {
        let mut network = network(timeouts);
        // Ten slots take 40 us on this link.
        network.link_rate = Some(3_000_000_000);
        let mut random = Random::new(3);
        network.faults = Box::new(move |_, _| vec![US * random.below(100) as u32]);
        let mut quiet = Vec::new();
        let slots = [1, 8, 3, 20];
        let mut bounds = [Duration::ZERO; 4];
        for step in 0..140 {
            if step == 100 {
                network.faults = lossy(0.02, 7);
            }
            let buckets: Vec<(OperationId, Vec<f32>)> = (0u16..)
                .zip(slots)
                .map(|(bucket, slots)| (OperationId { step, bucket }, vec![1.0; 4 * 352 * slots]))
                .collect();
            for (rank, ended) in network.run_buckets(&buckets).iter().enumerate() {
                assert_eq!(ended.len(), slots.len(), "rank {rank} in step {step}");
                for outcome in ended {
                    let limits = (outcome.t_s, outcome.t_b) == (600 * MS, 1000 * MS);
                    assert_eq!(limits, step < 20, "{timeouts:?} {outcome:?}");
                    assert!(step < 20 || outcome.duration < 10 * MS, "{outcome:?}");
                    bounds[usize::from(outcome.id.bucket)] = outcome.t_b;
                }
                if (20..100).contains(&step) {
                    quiet.push(ended.clone());
                }
            }
        }
        // A tail costs little, whatever the effect of buckets on each other.
        let late = |o: &Outcome| o.lost.scatter.total() + o.lost.gather.total();
        let sum = |of: &dyn Fn(&Outcome) -> u64| quiet.iter().flatten().map(of).sum::<u64>() as f64;
        let lost = sum(&late) / sum(&|o| o.owed);
        println!("{timeouts:?}: {bounds:?}, {lost:.1e} late");
        assert!(lost < 0.01, "{timeouts:?}: {lost}");
        // Each learned its own bounds.
        bounds.sort_unstable();
        assert!(
            bounds.windows(2).all(|two| two[0] < two[1]),
            "{timeouts:?}: {bounds:?}"
        );
    }
}
