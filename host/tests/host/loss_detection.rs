//! Loss detection: the events that end the wait for a packet, by [`LossDetection`].

use std::time::Duration;

use crate::common::*;
use ultima_host::{Cause, ClosedBy, Coding, Config, LossDetection, Outcome};
use ultima_wire::{Header, Kind};

const RANKS: u16 = 3;
const SLOT: usize = 16;

/// Rank 0's outcome if one packet from rank 1, number 4 of 10 slots, is lost or has no payload.
fn outcome(loss_detection: LossDetection, kind: Kind, lost: bool) -> Outcome {
    let mut network = Network::new(&Config {
        loss_detection,
        slot_bytes: SLOT * 4,
        coding: Coding::Identity,
        ..config(RANKS)
    });
    let hit = move |header: &Header, to: u16| {
        (header.kind, header.source, header.slot, to) == (kind, 1, 4, 0)
    };
    if lost {
        network.faults = Box::new(move |header, to| match hit(header, to) {
            true => vec![],
            false => vec![Duration::ZERO],
        });
    } else {
        network.switch = Some(Box::new(move |header, to| {
            header.switch_flags.trimmed = hit(header, to);
        }));
    }
    let buckets = powers(RANKS, usize::from(RANKS) * 10 * SLOT);
    let mut done = network.run(ID, buckets, &at_once(RANKS));
    let outcome = done.swap_remove(0).expect("started").outcome;
    network.settle();
    network.check_accounts();
    outcome
}

#[test]
fn a_rank_waits_for_losses_that_it_does_not_detect() {
    let bounds = config(RANKS);
    for (kind, bound) in [(Kind::Scatter, bounds.t_s), (Kind::Gather, bounds.t_b)] {
        for loss_detection in LossDetection::ALL {
            for lost in [false, true] {
                let outcome = outcome(loss_detection, kind, lost);
                let is_answered = match loss_detection {
                    LossDetection::TimeoutOnly => false,
                    LossDetection::Trimmed => !lost,
                    LossDetection::InOrder => true,
                };
                let what = format!("{loss_detection:?} {kind:?} {lost} {:?}", outcome.duration);
                if is_answered {
                    assert!(outcome.duration < Duration::from_millis(2), "{what}");
                    assert_eq!(outcome.closed_by, ClosedBy::KnownLoss, "{what}");
                } else {
                    assert!(outcome.duration >= bound, "{what}");
                    assert!(outcome.closed_by > ClosedBy::KnownLoss, "{what}");
                }
                // The cause is reported in every case.
                let cause = match (lost, is_answered) {
                    (false, _) => Cause::Trimmed,
                    (true, true) => Cause::Overtaken,
                    (true, false) => Cause::Overdue,
                };
                let lost = match kind {
                    Kind::Scatter => outcome.lost.scatter,
                    _ => outcome.lost.gather,
                };
                assert_eq!((lost.total(), lost.of(cause)), (1, 1), "{what}");
            }
        }
    }
}
