//! Budgets: how long a packet's receivers will still wait, from their FEEDBACK.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{Coding, Config, Gather};
use ultima_testing::cases;
use ultima_wire::{Kind, Ticks};

const T_B: Duration = Duration::from_millis(20);
const DELAY: Duration = Duration::from_micros(50);
/// Rounding to ticks: of the report, of the budget, and of the time of sending.
const ROUNDING: u64 = 3;

/// One copy of a packet.
struct Sent {
    kind: Kind,
    from: u16,
    to: u16,
    at: u64,
    budget: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(40, 1000)))]

    /// No packet is late for a receiver with a report while that waits, and no budget exceeds the longest
    /// wait.
    #[test]
    fn budgets_are_the_longest_wait(
        starts in prop::collection::vec(0u64..15_000, 2..6),
        slots in 1usize..20,
        multicast in any::<bool>(),
    ) {
        let ranks = starts.len() as u16;
        let gather = if multicast { Gather::Multicast } else { Gather::Unicast };
        let mut network = Network::new(&Config {
            slot_bytes: 256,
            t_s: T_B * 3 / 5,
            t_b: T_B,
            coding: Coding::Identity,
            gather,
            ..config(ranks)
        });
        network.delay = DELAY;
        let log = Rc::new(RefCell::new(Vec::new()));
        let sent = log.clone();
        network.faults = Box::new(move |header, to| {
            sent.borrow_mut().push(Sent {
                kind: header.kind,
                from: header.source,
                to,
                at: header.sent_at.0.into(),
                budget: header.budget.0.into(),
            });
            vec![Duration::ZERO]
        });
        let begins: Vec<_> = starts.iter().map(|us| Some(Duration::from_micros(*us))).collect();
        let buckets = vec![vec![1.0; usize::from(ranks) * slots * 64]; usize::from(ranks)];
        network.run(ID, buckets, &begins);

        let ticks = |span: Duration| u64::from(Ticks::from(span).0);
        let deadline = |rank: u16| {
            ticks(Duration::from_micros(starts[usize::from(rank)]) + T_B)
        };
        let log = log.borrow();
        for (at, packet) in log.iter().enumerate() {
            // The ranks whose report the sender had by then: certainly, or possibly.
            let told = |margin: u64| -> BTreeSet<u16> {
                let before = packet.at + margin;
                let feedback = log[..at].iter().filter(|s| s.kind == Kind::Feedback);
                feedback
                    .filter(|s| s.to == packet.from && s.at + ticks(DELAY) + 1 < before)
                    .map(|s| s.from)
                    .collect()
            };
            let (surely, perhaps) = (told(0), told(3));
            let own = deadline(packet.from);
            let to_all = multicast && packet.kind != Kind::Scatter;
            let receivers: Vec<u16> = if to_all {
                (0..ranks).filter(|rank| *rank != packet.from).collect()
            } else {
                vec![packet.to]
            };
            let at_least = if surely == perhaps {
                receivers.iter().map(|r| if surely.contains(r) { deadline(*r) } else { own }).max()
            } else {
                None
            };
            let at_most = receivers
                .iter()
                .map(|r| if surely.contains(r) { deadline(*r) } else { own.max(deadline(*r)) })
                .max();
            let until = packet.at + packet.budget;
            prop_assert!(until + ROUNDING >= at_least.unwrap_or(0), "{until} {at_least:?}");
            // A report is older than the sender knows, by the time of its path.
            let most = at_most.expect("a receiver") + ticks(DELAY) + ROUNDING;
            prop_assert!(until <= most, "{until} {at_most:?}");
        }
    }
}

/// Bounds of hours exceed the range of budgets: such a packet has no limit.
#[test]
fn a_wait_beyond_the_fields_range_is_no_limit() {
    let hours = Duration::from_secs(2 * 3600);
    let mut network = Network::new(&Config {
        t_s: hours / 2,
        t_b: hours,
        ..config(2)
    });
    network.faults = Box::new(|header, _| {
        assert_eq!(header.budget, Ticks::MAX);
        vec![Duration::ZERO]
    });
    network.allreduce(ID, &[vec![1.0; 100], vec![2.0; 100]]);
}
