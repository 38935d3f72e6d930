//! Ranks that have left the job, by the controller's word, are not awaited.

use std::time::Duration;

use crate::common::*;
use ultima_host::{
    ClosedBy, Coding, Config, Core, Exact, Gather, OperationId, ReceiveBuffer, StartError, Time,
};

const T_S: Duration = Duration::from_millis(12);
const T_B: Duration = Duration::from_millis(20);
/// The time for last packets: t_B/16.
const LAST_PACKETS: Duration = Duration::from_micros(1_250);
const LEN: usize = 3000;

fn config(ranks: u16) -> Config {
    Config {
        slot_bytes: 256,
        t_s: T_S,
        t_b: T_B,
        coding: Coding::Identity,
        ..crate::common::config(ranks)
    }
}

fn id(step: u32) -> OperationId {
    OperationId { step, bucket: 0 }
}

/// Rank 2 takes part in step 0 only. The others learn so in step 1.
#[test]
fn operations_wait_for_last_packets_and_then_not_at_all() {
    for gather in [Gather::Unicast, Gather::Multicast] {
        let mut network = Network::new(&Config {
            gather,
            ..config(3)
        });
        network.run(id(0), powers(3, LEN), &at_once(3));
        let starts = [Some(Duration::ZERO), Some(Duration::ZERO), None];
        for step in 1..5 {
            if step == 1 {
                for core in &mut network.cores[..2] {
                    core.left(network.now, &[2, 2, 9]);
                }
            }
            let done = network.run(id(step), powers(3, LEN), &starts);
            for done in done.into_iter().flatten() {
                let outcome = done.outcome;
                assert_eq!(outcome.left, [2]);
                assert_eq!(outcome.closed_by, ClosedBy::KnownLoss, "{gather:?} {step}");
                let bound = if step == 1 {
                    LAST_PACKETS
                } else {
                    Duration::ZERO
                };
                let spare = Duration::from_millis(1);
                let duration = outcome.duration;
                assert!((bound..bound + spare).contains(&duration), "{duration:?}");
                // The mean of the others.
                assert!(done.encoded[..LEN / 3].iter().all(|value| *value == 1.5));
                assert!(
                    done.encoded[LEN / 3 * 2..]
                        .iter()
                        .all(|value| *value == 0.0)
                );
            }
        }
    }
}

/// The controller's word is faster than rank 1's last packets.
#[test]
fn last_packets_on_their_way_count() {
    let mut network = Network::new(&config(2));
    network.delay = LAST_PACKETS / 4;
    network.cores[0].left(Time::ZERO, &[1]);
    let done = network.run(id(0), powers(2, LEN), &at_once(2));
    for done in done.into_iter().flatten() {
        assert_eq!(done.outcome.closed_by, ClosedBy::Complete);
    }
}

#[test]
fn a_rank_that_was_left_alone_stops() {
    let mut network = Network::new(&config(3));
    network.run(id(0), powers(3, LEN), &at_once(3));
    // Rank 1 is a step ahead when it leaves.
    let first = [None, Some(Duration::ZERO), None];
    network.run(id(1), powers(3, LEN), &first);
    let (now, core) = (network.now, &mut network.cores[0]);
    core.left(now, &[1, 2]);
    let later = now + LAST_PACKETS;
    core.handle_timeout(later);
    let values = || vec![1.0; LEN];
    // Packets of rank 1 have arrived.
    core.start(later, id(1), values()).expect("starts");
    assert!(core.poll_event().is_some(), "it waits for none");
    let alone = StartError::Left { id: id(2) };
    assert_eq!(core.start(later, id(2), values()), Err(alone));
    let exact = core.start_exact(later, id(2), Exact::Sum, values(), T_B);
    assert_eq!(exact, Err(alone));
}

#[test]
fn exact_operations_end_with_the_ranks_that_have_left() {
    const HOUR: Duration = Duration::from_secs(3600);
    // One value has one owner: rank 0 awaits rank 2, and rank 1 only rank 0.
    for len in [1, LEN] {
        let mut network = Network::new(&config(3));
        let start = |core: &mut Core, now, step| {
            core.start_exact(now, id(step), Exact::Sum, vec![1.0; len], HOUR)
        };
        for step in 0..2 {
            let now = network.now;
            for core in &mut network.cores[..2] {
                start(core, now, step).expect("starts");
                core.left(now, &[2]);
            }
            network.run_until(now + 2 * LAST_PACKETS);
            for ended in &mut network.exact[..2] {
                let (_, ended) = ended.pop().expect("it has ended");
                let error = ended.expect_err("rank 2 is missing");
                assert_eq!(error.left, [2]);
                let text = error.to_string();
                assert!(text.ends_with("the job was left by rank 2"), "{text}");
            }
        }
    }
}

/// A rank that has left with the result takes nothing from the others.
#[test]
fn exact_operations_go_on_without_a_rank_that_needs_nothing() {
    let mut network = Network::new(&config(3));
    let values = powers(3, LEN);
    let exact = (id(0), Exact::Sum, Duration::from_secs(1));
    for core in &mut network.cores[..2] {
        core.left(Time::ZERO, &[2]);
    }
    for ended in network.run_exact(exact, &values, &at_once(3)) {
        let (_, sum) = ended.expect("started").expect("complete");
        assert!(sum.iter().all(|value| *value == 7.0));
    }
}

/// Rank 2 sends its only slot to rank 1, although rank 0 is first in turn and grants no credit any more.
#[test]
fn aggregates_skip_ranks_that_have_left() {
    let mut network = Network::new(&Config {
        gather: Gather::Unicast,
        receive_buffer: Some(ReceiveBuffer { packets: 16 }),
        ..config(3)
    });
    for core in &mut network.cores[1..] {
        core.left(Time::ZERO, &[0]);
    }
    network.run_until(Time::ZERO + 2 * LAST_PACKETS);
    let exact = (
        id(0),
        Exact::Broadcast { root: 2 },
        Duration::from_secs(3600),
    );
    let starts = [None, Some(Duration::ZERO), Some(Duration::ZERO)];
    let mut ended = network.run_exact(exact, &powers(3, 1), &starts);
    let (outcome, values) = ended.remove(1).expect("started").expect("complete");
    assert_eq!((outcome.requests, values), (0, vec![4.0]));
    network.run_until(network.now + T_B);
    assert!(network.cores[1..].iter().all(|core| !core.is_needed()));
}
