//! Networks that reorder packets: a rank that was not told learns how far, and still detects losses.

use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{Cause, ClosedBy, Coding, Config, OperationId, Outcome};
use ultima_testing::cases;
use ultima_wire::Kind;

const T_B: Duration = Duration::from_millis(20);
/// Operations in which ranks may learn.
const LEARNED_BY: u32 = 12;

/// A network that delays each packet by up to `jitter`, without regard for their order.
fn network(ranks: u16, jitter: Duration, seed: u64) -> Network {
    let mut network = Network::new(&Config {
        slot_bytes: 32,
        coding: Coding::Identity,
        t_s: T_B * 3 / 5,
        t_b: T_B,
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
    #![proptest_config(ProptestConfig::with_cases(cases(12, 200)))]

    #[test]
    fn ranks_learn_how_far_packets_overtake_each_other(
        ranks in 2u16..6,
        jitter in 1u64..1000,
        seed in any::<u64>(),
    ) {
        let jitter = Duration::from_micros(jitter);
        let mut network = network(ranks, jitter, seed);
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
