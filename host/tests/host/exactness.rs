//! Without loss an AllReduce is the exact mean, the same on every rank and in every run.

use std::cmp::Reverse;

use crate::common::*;
use ultima_host::{
    ClosedBy, Coding, Config, Core, Element, Event, Layout, OperationId, Rotation, Time,
};
use ultima_testing::per_run;

/// Averages random buckets and checks values, replicas, the closing cause and the counters.
fn check(config: &Config, len: usize) {
    let mut random = Random::new(len as u64);
    let buckets: Vec<_> = (0..config.ranks).map(|_| random.bucket(len)).collect();
    let exact = exact_mean(&buckets);
    let mut network = Network::new(config);
    let results = network.allreduce(ID, &buckets);
    let context = format!("{} ranks, {len} values, {:?}", config.ranks, config.coding);
    assert!(all_closed_by(&results, ClosedBy::Complete), "{context}");
    for (outcome, bucket) in &results {
        assert_eq!(bucket, &results[0].1, "{context}: replicas differ");
        assert_eq!(outcome.missed_aggregates, 0);
        let everyone = outcome.contributions[usize::from(config.ranks)];
        assert_eq!(
            outcome.contributions.iter().sum::<u32>(),
            everyone,
            "{context}"
        );
    }
    // Entries are at most 2; each of the N additions and 24 butterflies rounds by 2^-24 of its
    // result.
    let tolerance = 2.0 * (f64::from(config.ranks) + 24.0) * f64::powi(2.0, -24);
    for (at, (value, exact)) in results[0].1.iter().zip(&exact).enumerate() {
        assert!(
            (f64::from(*value) - exact).abs() <= tolerance,
            "{context}, {at}: {value} {exact}"
        );
    }
    network.settle();
    network.check_accounts();
}

#[test]
fn odd_sizes() {
    for coding in CODINGS {
        for gather in GATHERS {
            for ranks in [2, 3, 5, 8] {
                for len in [0, 1, 2, 3, 7, 97, 1009, 4099, 10_007] {
                    check(
                        &Config {
                            coding,
                            gather,
                            ..config(ranks)
                        },
                        len,
                    );
                }
            }
        }
    }
}

#[test]
fn thirty_two_ranks() {
    for len in [1, 31, 33, 100_003] {
        check(&config(32), len);
    }
}

#[test]
fn a_million_values() {
    check(&config(4), 1_000_003);
}

#[test]
fn large_slots_and_buckets() {
    let config = Config {
        slot_bytes: 8192,
        ..config(3)
    };
    check(&config, per_run(1_000_033, 10_000_019));
}

/// The order in which an owner adds the ranks' contributions to a slot: its own, then those whose rotation comes to the
/// slot first.
fn order_of_sum(config: &Config, id: OperationId, owner: u16, slot: u32, slots: u32) -> Vec<u16> {
    let mut ranks: Vec<u16> = (0..config.ranks).collect();
    ranks.sort_by_key(|rank| {
        let rotation = Rotation::new(config.seed, id, *rank);
        let position = rotation.position(slot, slots);
        (*rank != owner, position, Reverse(*rank))
    });
    ranks
}

#[test]
fn without_coding_a_mean_is_the_sum_in_the_order_of_rotations() {
    let config = Config {
        coding: Coding::Identity,
        ..config(5)
    };
    let mut random = Random::new(5);
    let buckets: Vec<_> = (0..5).map(|_| random.bucket(5001)).collect();
    let results = Network::new(&config).allreduce(ID, &buckets);
    let layout = Layout::new(5001, 5, config.slot_len());
    for owner in 0..5 {
        let slots = layout.slots(owner);
        for slot in 0..slots {
            let order = order_of_sum(&config, ID, owner, slot, slots);
            for at in layout.slot(owner, slot) {
                let values = order.iter().map(|rank| buckets[usize::from(*rank)][at]);
                let sum = values.reduce(|sum, value| sum + value).expect("five ranks");
                assert_eq!(results[0].1[at], sum / 5.0);
            }
        }
    }
}

#[test]
fn many_steps_of_many_buckets() {
    let mut network = Network::new(&config(4));
    let mut random = Random::new(9);
    for step in 1..20 {
        for bucket in [2, 0, 1] {
            let buckets: Vec<_> = (0..4)
                .map(|_| random.bucket(5000 + step as usize))
                .collect();
            let results = network.allreduce(OperationId { step, bucket }, &buckets);
            assert!(all_closed_by(&results, ClosedBy::Complete));
            assert!(relative_error(&results[3].1, &exact_mean(&buckets)) < 1e-12);
        }
    }
    network.settle();
    network.check_accounts();
}

/// The order of arrival does not matter.
#[test]
fn runs_with_other_delays_are_bit_identical() {
    let run = |seed| {
        let mut network = Network::new(&config(6));
        let mut random = Random::new(seed);
        network.fifo = false;
        network.faults =
            Box::new(move |_, _| vec![std::time::Duration::from_nanos(random.below(1_000_000))]);
        for core in &mut network.cores {
            assert_eq!(core.config().reorder, 0);
        }
        let mut random = Random::new(3);
        let buckets: Vec<_> = (0..6).map(|_| random.bucket(20_011)).collect();
        network.allreduce(ID, &buckets)
    };
    // Without a tolerance for reordering some would count as lost.
    assert!(
        run(1)
            .iter()
            .any(|(outcome, _)| outcome.closed_by != ClosedBy::Complete)
    );
    let tolerant = |seed| {
        let mut network = Network::new(&Config {
            reorder: 10_000,
            ..config(6)
        });
        let mut delays = Random::new(seed);
        network.fifo = false;
        network.faults =
            Box::new(move |_, _| vec![std::time::Duration::from_nanos(delays.below(1_000_000))]);
        let mut random = Random::new(3);
        let buckets: Vec<_> = (0..6).map(|_| random.bucket(20_011)).collect();
        network.allreduce(ID, &buckets)
    };
    let (a, b) = (tolerant(1), tolerant(2));
    assert!(all_closed_by(&a, ClosedBy::Complete) && all_closed_by(&b, ClosedBy::Complete));
    assert_eq!(a[0].1, b[0].1);
    assert_eq!(a[0].1, a[5].1);
}

/// Sums of f32 depend on their order, and contributions are added as they arrive where that keeps it.
#[test]
fn contributions_are_added_in_the_order_of_rotations_whatever_arrives_first() {
    let (ranks, len, owner) = (4, 1000, 1);
    let value = |rank: usize, at: usize| ((at * 7 + rank * 13) % 1001) as f32 / 3.0 - 100.0;
    let id = OperationId { step: 0, bucket: 0 };
    let orders = [
        [0, 2, 3],
        [0, 3, 2],
        [2, 0, 3],
        [2, 3, 0],
        [3, 0, 2],
        [3, 2, 0],
    ];
    // The order of arrival, and the rank whose contributions are lost.
    let cases = orders
        .iter()
        .flat_map(|order| [None, Some(0), Some(2), Some(3)].map(|lost| (order, lost)));
    for (order, lost) in cases {
        for element in Element::ALL {
            let config = Config {
                element,
                slot_bytes: 256,
                coding: Coding::Identity,
                ..config(ranks)
            };
            let start = |rank: u16| {
                let config = config.clone();
                let mut core = Core::new(Config { rank, ..config }).expect("a good configuration");
                let bucket: Vec<f32> = (0..len).map(|at| value(rank.into(), at)).collect();
                core.start(Time::ZERO, id, bucket).expect("starts");
                core
            };
            let mut core = start(owner);
            for source in order.iter().filter(|source| Some(**source) != lost) {
                for datagram in sent(&mut start(*source)) {
                    core.handle_datagram(Time::ZERO, &datagram);
                }
            }
            core.handle_timeout(Time::ZERO + config.t_b);
            let Some(Event::Done { result, .. }) = core.poll_event() else {
                panic!("an operation ends at t_B");
            };
            let round = |value: f32| match element {
                Element::F32 => value,
                Element::Bf16 => half::bf16::from_f32(value).to_f32(),
                Element::F16 => half::f16::from_f32(value).to_f32(),
            };
            let layout = Layout::new(len, ranks, config.slot_len());
            let slots = layout.slots(owner);
            let values =
                (0..slots).flat_map(|slot| layout.slot(owner, slot).map(move |at| (slot, at)));
            for (slot, at) in values {
                let mut there = order_of_sum(&config, id, owner, slot, slots);
                there.retain(|rank| Some(*rank) != lost);
                let values = there.iter().map(|rank| match *rank == owner {
                    true => value((*rank).into(), at),
                    false => round(value((*rank).into(), at)),
                });
                let sum = values
                    .reduce(|sum, value| sum + value)
                    .expect("the owner's");
                let mean = round(sum / there.len() as f32);
                assert_eq!(
                    result[at].to_bits(),
                    mean.to_bits(),
                    "{order:?} {lost:?} {element:?} {at}"
                );
            }
        }
    }
}
