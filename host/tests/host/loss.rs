//! Losses are detected as early as the protocol promises, and no wait exceeds its bound.

use std::time::Duration;

use crate::common::*;
use ultima_host::{
    ClosedBy, Coding, Config, Destination, EarlyBounds, Gather, OperationId, Pacing, RatePolicy,
    Rotation, StartError, Time, Transmit,
};
use ultima_testing::per_run;
use ultima_wire::{Key, Kind};

const T_S: Duration = Duration::from_millis(12);
const T_B: Duration = Duration::from_millis(20);
/// Slots of 64 values, so that small buckets have many.
const SLOT: usize = 64;

fn small_slots(ranks: u16) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        t_s: T_S,
        t_b: T_B,
        coding: Coding::Identity,
        ..config(ranks)
    }
}

#[test]
fn a_later_slot_shows_that_an_earlier_one_is_lost() {
    let config = small_slots(4);
    let len = 4 * 10 * SLOT;
    let rotation = Rotation::new(config.seed, ID, 2);
    let mut network = Network::new(&config);
    network.faults = Box::new(move |header, _| {
        let lost = header.kind == Kind::Scatter
            && (header.source, header.owner) == (2, 1)
            && rotation.position(header.slot, 10) == 4;
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let results = network.allreduce(ID, &powers(4, len));
    let (owner, bucket) = &results[1];
    assert_eq!(owner.shard_closed_by, ClosedBy::KnownLoss);
    assert_eq!(owner.contributions, [0, 0, 0, 1, 9]);
    assert!(
        owner.duration < Duration::from_millis(1),
        "{:?}",
        owner.duration
    );
    // All ranks apply the owner's aggregate: the mean without rank 2's contribution in that slot.
    let slot = rotation.slot(4, 10) as usize;
    let start = len / 4 + slot * SLOT;
    assert_eq!(bucket[start], (1.0 + 2.0 + 8.0) / 3.0);
    assert_eq!(
        bucket.iter().filter(|v| **v == 15.0 / 4.0).count(),
        len - SLOT
    );
    for (outcome, other) in &results {
        assert_eq!(other, bucket);
        assert_eq!(outcome.missed_aggregates, 0);
    }
}

/// After its lost slots rank 2 sends only its GATHER, or its notice if that has to wait too.
#[test]
fn a_lost_tail_shows_by_the_next_packets_of_its_source() {
    for gather in GATHERS {
        let config = Config {
            gather,
            ..small_slots(4)
        };
        let seed = config.seed;
        let mut network = Network::new(&config);
        network.faults = Box::new(move |header, _| {
            let position = Rotation::new(seed, ID, header.source).position(header.slot.min(9), 10);
            let lost = header.kind == Kind::Scatter && header.source == 2 && position >= 5;
            if lost { vec![] } else { vec![Duration::ZERO] }
        });
        let results = network.allreduce(ID, &powers(4, 4 * 10 * SLOT));
        for (rank, (outcome, _)) in results.iter().enumerate() {
            let expected = if rank == 2 {
                ClosedBy::Complete
            } else {
                ClosedBy::KnownLoss
            };
            assert_eq!(outcome.closed_by, expected, "rank {rank}");
            assert!(
                outcome.duration < Duration::from_millis(1),
                "{:?}",
                outcome.duration
            );
        }
    }
}

/// Shards of one slot, and every rank missed its neighbour's contribution: no GATHER can be sent before a
/// rank gives up.
#[test]
fn owners_do_not_wait_for_each_other() {
    for gather in GATHERS {
        let config = Config {
            gather,
            ..small_slots(4)
        };
        let mut network = Network::new(&config);
        network.faults = Box::new(|header, to| {
            let lost = header.kind == Kind::Scatter && to == (header.source + 1) % 4;
            if lost { vec![] } else { vec![Duration::ZERO] }
        });
        let results = network.allreduce(ID, &powers(4, 4 * SLOT));
        for (outcome, _) in &results {
            assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
            assert_eq!(outcome.contributions, [0, 0, 0, 1, 0]);
            assert!(
                outcome.duration < Duration::from_millis(1),
                "{:?}",
                outcome.duration
            );
        }
    }
}

#[test]
fn a_lost_aggregate_shows_by_its_owners_notice() {
    for gather in GATHERS {
        let config = Config {
            gather,
            ..small_slots(3)
        };
        let mut network = Network::new(&config);
        network.faults = Box::new(|header, to| {
            let lost =
                header.kind == Kind::Gather && header.source == 0 && to == 2 && header.slot >= 8;
            if lost { vec![] } else { vec![Duration::ZERO] }
        });
        let results = network.allreduce(ID, &powers(3, 3 * 10 * SLOT));
        assert_eq!(results[1].0.closed_by, ClosedBy::Complete);
        let (outcome, bucket) = &results[2];
        assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
        assert_eq!(
            (outcome.missed_aggregates, outcome.missed_values),
            (2, 2 * SLOT)
        );
        assert!(
            outcome.duration < Duration::from_millis(1),
            "{:?}",
            outcome.duration
        );
        assert_eq!(bucket[8 * SLOT..10 * SLOT], [0.0; 2 * SLOT]);
        assert_eq!(bucket[8 * SLOT - 1], 7.0 / 3.0);
        assert_eq!(bucket[10 * SLOT], 7.0 / 3.0);
    }
}

#[test]
fn a_lost_notice_is_repeated() {
    let mut network = Network::new(&small_slots(3));
    let mut notices = 0;
    network.faults = Box::new(move |header, to| {
        let lost = match header.kind {
            Kind::Gather => header.source == 0 && to == 2 && header.slot == 0,
            Kind::Feedback if header.source == 0 && to == 2 && header.host_flags.last => {
                notices += 1;
                notices < 3
            }
            _ => false,
        };
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let results = network.allreduce(ID, &powers(3, 3 * 10 * SLOT));
    let outcome = &results[2].0;
    assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
    let repeats = T_B / 16 * 2;
    assert!(outcome.duration > repeats && outcome.duration < repeats + Duration::from_millis(1));
}

#[test]
fn without_any_sign_the_bounds_hold_to_the_nanosecond() {
    // Rank 1 neither sends nor receives.
    for gather in GATHERS {
        let mut network = Network::new(&Config {
            gather,
            ..small_slots(3)
        });
        network.faults = Box::new(|header, to| {
            if header.source == 1 || to == 1 {
                vec![]
            } else {
                vec![Duration::ZERO]
            }
        });
        let results = network.allreduce(ID, &powers(3, 3 * 10 * SLOT));
        for rank in [0, 2] {
            let outcome = &results[rank].0;
            assert_eq!(outcome.shard_closed_by, ClosedBy::Flush);
            assert_eq!(outcome.shard_duration, T_S);
            assert_eq!(outcome.closed_by, ClosedBy::Deadline);
            assert_eq!(outcome.duration, T_B);
            assert_eq!(outcome.contributions, [0, 0, 10, 0]);
            assert_eq!(outcome.missed_aggregates, 10);
        }
        assert_eq!(results[1].0.contributions, [0, 10, 0, 0]);
        network.settle();
        network.check_accounts();
    }
}

#[test]
fn a_late_starter_gets_earlier_packets() {
    for late in [Duration::from_millis(5), Duration::from_millis(30)] {
        let mut network = Network::new(&small_slots(3));
        let mut starts = at_once(3);
        starts[1] = Some(late);
        let done = network.run(ID, powers(3, 3 * 10 * SLOT), &starts);
        network.settle();
        network.check_accounts();
        let done: Vec<_> = done
            .into_iter()
            .map(|done| done.expect("all started"))
            .collect();
        if late < T_S {
            assert!(
                done.iter()
                    .all(|done| done.outcome.closed_by == ClosedBy::Complete)
            );
            assert_eq!(done[0].encoded, done[1].encoded);
        } else {
            // The others ended without it. It ends at once, with their packets.
            assert_eq!(done[0].outcome.closed_by, ClosedBy::Deadline);
            assert_eq!(done[1].outcome.contributions, [0, 0, 0, 10]);
            assert!(done[1].outcome.duration < Duration::from_millis(1));
            assert_eq!(done[1].outcome.missed_aggregates, 0);
            // All owners had closed, so it did not send its contributions. It owed its aggregates.
            assert_eq!(network.cores[1].totals().phases.scatter.never_sent, 20);
            let phases = [0, 2].map(|rank: usize| network.cores[rank].totals().phases);
            assert_eq!(phases.map(|phases| phases.gather.late), [10, 10]);
        }
    }
}

#[test]
fn a_silent_rank_is_waited_for_three_times() {
    let mut network = Network::new(&small_slots(3));
    network.faults = Box::new(|header, to| {
        let silent = (header.source == 2 || to == 2) && header.step < 6;
        if silent { vec![] } else { vec![Duration::ZERO] }
    });
    let (mut closed, mut suspected) = (Vec::new(), Vec::new());
    for step in 0..9 {
        let id = OperationId { step, bucket: 0 };
        let results = network.allreduce(id, &powers(3, 3 * 10 * SLOT));
        closed.push(results[0].0.closed_by);
        suspected.push(results[0].0.suspected.clone());
        assert!(results[0].0.duration <= T_B);
        network.settle();
    }
    use ClosedBy::{Complete, Deadline, KnownLoss};
    // In step 6 it is heard again, perhaps before the others have ended; from step 7 on they wait for it.
    assert_eq!(
        closed[..6],
        [
            Deadline, Deadline, Deadline, KnownLoss, KnownLoss, KnownLoss
        ]
    );
    assert_eq!(closed[7..], [Complete, Complete]);
    assert_eq!(suspected[1..4], [vec![], vec![2], vec![2]]);
    assert!(suspected[8].is_empty());
}

/// A rank that receives no packets runs at the pace of its bounds and finally stops: it must not train alone.
#[test]
fn a_rank_without_packets_from_others_stops() {
    let config = small_slots(3);
    let mut network = Network::new(&config);
    network.faults = Box::new(|_, _| vec![]);
    let id = |step| OperationId { step, bucket: 0 };
    let starts = [Some(Duration::ZERO), None, None];
    // Ten seconds of it.
    let operations = 500;
    for step in 0..operations {
        let done = network.run(id(step), powers(3, 3 * 10 * SLOT), &starts);
        let done = done[0].as_ref().expect("started");
        assert_eq!(done.outcome.duration, T_B, "step {step}");
        network.settle();
    }
    let (now, core) = (network.now, &mut network.cores[0]);
    let values = || vec![1.0; 3 * 10 * SLOT];
    let refused = core.start(now, id(operations), values());
    let alone = StartError::Alone {
        id: id(operations),
        operations,
        others: 2,
    };
    assert_eq!(refused, Err(alone));
    // The link is up again: any packet ends the silence.
    network.faults = perfect();
    network.cores[1]
        .start(now, id(operations), values())
        .expect("starts");
    let mut buf = vec![0; network.cores[1].max_datagram()];
    let to_us = |transmit: &Transmit| transmit.to == Destination::Rank(0);
    while let Some(transmit) = network.cores[1].next_datagram(now, &mut buf) {
        if to_us(&transmit) {
            network.inject(0, &buf[..transmit.len]);
        }
    }
    network.cores[0]
        .start(now, id(operations), values())
        .expect("starts");
}

#[test]
fn a_later_step_shows_that_a_source_is_past() {
    // Rank 1's packets of step 1 to rank 0 are lost, including the notices; its packets of step 2 are not.
    let sealed = Config {
        key: Some(Key([7; 16])),
        ..small_slots(2)
    };
    let mut network = Network::new(&sealed);
    network.faults = Box::new(|header, to| {
        if to == 0 && header.step == 1 {
            vec![]
        } else {
            vec![Duration::ZERO]
        }
    });
    let id = |step| OperationId { step, bucket: 0 };
    let values = || vec![1.0; 20 * SLOT];
    let now = Time::ZERO;
    network.cores[0]
        .start(now, id(1), values())
        .expect("starts");
    let mut other = Network::new(&sealed);
    other.faults = Box::new(|_, _| vec![]);
    let mut buf = vec![0; network.cores[0].max_datagram()];
    let peer = &mut other.cores[1];
    peer.start(now, id(2), values()).expect("starts");
    let transmit = peer.next_datagram(now, &mut buf).expect("a SCATTER");
    assert!(network.cores[0].poll_event().is_none());
    network.cores[0].handle_datagram(now, &buf[..transmit.len]);
    let Some(ultima_host::Event::Done { outcome, .. }) = network.cores[0].poll_event() else {
        panic!("nothing to wait for");
    };
    assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
    assert_eq!(outcome.contributions, [0, 10, 0]);
}

#[test]
fn accounts_balance_and_bounds_hold_under_random_loss() {
    for gather in GATHERS {
        for seed in 0..per_run(4, 10) {
            let p = [0.001, 0.02, 0.1, 0.5][seed as usize % 4];
            let config = Config {
                gather,
                reorder: seed % 3,
                ..small_slots(5)
            };
            let mut network = Network::new(&config);
            let mut random = Random::new(u64::from(seed));
            network.fifo = false;
            network.faults = Box::new(move |_, _| {
                let delay = Duration::from_nanos(random.below(200_000));
                match random.unit() {
                    u if u < p => vec![],
                    u if u < p + 0.05 => vec![delay, delay * 2],
                    _ => vec![delay],
                }
            });
            let mut closed = 0;
            for step in 0..20 {
                let id = OperationId { step, bucket: 0 };
                for (outcome, bucket) in network.allreduce(id, &powers(5, 5 * 7 * SLOT + 11)) {
                    assert!(outcome.duration <= T_B && outcome.shard_duration <= T_S);
                    closed += u32::from(outcome.closed_by == ClosedBy::KnownLoss);
                    assert!(bucket.iter().all(|value| (0.0..=16.0).contains(value)));
                }
            }
            assert!(closed > 0);
            network.settle();
            network.check_accounts();
        }
    }
}

/// A rate too low for the operation: packets that a bound stops count as never sent, and no rate is exceeded.
#[test]
fn pacing_limits_sent_packets() {
    let rate = 8_000_000;
    for gather in GATHERS {
        let pacing = Some(Pacing {
            bits_per_second: rate,
            burst: 1000,
            policy: RatePolicy::Fixed,
        });
        let mut network = Network::new(&Config {
            gather,
            pacing,
            ..small_slots(4)
        });
        let results = network.allreduce(ID, &powers(4, 4 * 100 * SLOT));
        assert!(
            results
                .iter()
                .all(|(outcome, _)| outcome.closed_by == ClosedBy::Deadline)
        );
        network.settle();
        for core in &network.cores {
            let phases = core.totals().phases;
            assert!(phases.scatter.never_sent > 0 && phases.gather.never_sent > 0);
            assert!(phases.gather.sent > 0);
            let frame = 42 + 52 + 4 * SLOT as u64;
            let bits = (phases.scatter.copies + phases.gather.copies) * frame * 8;
            // Before t_B, after a burst. A multicast's copies may exceed it once.
            let limit = rate * 20 / 1000 + 8 * (1000 + 3 * frame);
            assert!(bits <= limit && bits > limit / 2, "{bits} of {limit}");
        }
        network.check_accounts();
    }
}

#[test]
fn packets_stored_before_the_start_are_bounded() {
    let early = EarlyBounds {
        operations: 2,
        bytes: 20_000,
    };
    let mut network = Network::new(&Config {
        early,
        ..small_slots(3)
    });
    let mut starts = at_once(3);
    starts[1] = Some(Duration::from_millis(5));
    let done = network.run(ID, powers(3, 3 * 100 * SLOT), &starts);
    network.settle();
    let refused = network.cores[1].totals().phases.scatter.refused;
    // 20,000 bytes are 62 packets of 308 with 12 bytes of overhead each. Rank 1 got 200 before it started.
    assert_eq!(refused, 200 - 62);
    let outcome = &done[1].as_ref().expect("started").outcome;
    assert_eq!(outcome.shard_closed_by, ClosedBy::KnownLoss);
    network.check_accounts();
}

/// With two ranks, unicast and multicast are the same packets to the same receiver.
#[test]
fn two_ranks_need_no_group() {
    let run = |gather| {
        let mut network = Network::new(&Config {
            gather,
            ..small_slots(2)
        });
        let results = network.allreduce(ID, &powers(2, 1000));
        network.settle();
        (results, network.cores[0].totals())
    };
    assert_eq!(run(Gather::Multicast), run(Gather::Unicast));
}

/// A packet's budget is the longest wait among its receivers: from their reports, or the sender's own.
#[test]
fn budgets_are_the_receivers_waits() {
    let mut network = Network::new(&small_slots(3));
    let budgets = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = budgets.clone();
    network.faults = Box::new(move |header, to| {
        seen.borrow_mut()
            .push((header.kind, header.source, to, header.budget.as_ns()));
        vec![Duration::ZERO]
    });
    let mut starts = at_once(3);
    starts[1] = Some(Duration::from_millis(8));
    network.run(ID, powers(3, 3 * 10 * SLOT), &starts);
    let sent_in = |kind, source| {
        let budgets = budgets.borrow();
        let of = budgets.iter().filter(move |b| (b.0, b.1) == (kind, source));
        of.map(|b| b.3).collect::<Vec<_>>()
    };
    let close = |ns: u64, ms: u64| ns.abs_diff(ms * 1_000_000) < 300_000;
    // Rank 0 had no report when it sent its contributions, at once.
    assert!(sent_in(Kind::Scatter, 0).iter().all(|ns| close(*ns, 20)));
    // Rank 1 had the others' reports that they had waited 8 ms already.
    assert!(sent_in(Kind::Scatter, 1).iter().all(|ns| close(*ns, 12)));
    // Rank 1 waits longest for the aggregates, once it has reported. Before that no wait exceeds the sender's
    // own.
    assert!(
        sent_in(Kind::Gather, 0)
            .iter()
            .all(|ns| close(*ns, 20) || close(*ns, 12))
    );
    assert!(sent_in(Kind::Gather, 1).iter().all(|ns| close(*ns, 12)));
}
