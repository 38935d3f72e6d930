//! Elements of 16 bits: errors of the formats, the same bits on all ranks, half of the packets.

use crate::common::{Network, Random, config, lossy};
use ultima_host::{Coding, Config, Element, OperationId, Recycling, Rejection};

const RANKS: u16 = 4;
const LEN: usize = 100_000;

fn buckets() -> Vec<Vec<f32>> {
    let mut random = Random::new(8);
    (0..RANKS).map(|_| random.bucket(LEN)).collect()
}

fn network(element: Element) -> Network {
    Network::new(&Config {
        element,
        recycling: Some(Recycling::default()),
        ..config(RANKS)
    })
}

/// Energy of the error relative to that of the mean.
fn error(result: &[f32], buckets: &[Vec<f32>]) -> f64 {
    let (mut difference, mut energy) = (0.0, 0.0);
    for (at, value) in result.iter().enumerate() {
        let sum: f64 = buckets.iter().map(|bucket| f64::from(bucket[at])).sum();
        let mean = sum / f64::from(RANKS);
        difference += (f64::from(*value) - mean).powi(2);
        energy += mean * mean;
    }
    difference / energy
}

#[test]
fn sixteen_bits_round_and_halve_the_packets() {
    let packets = |element| {
        let mut network = network(element);
        let buckets = buckets();
        let results = network.allreduce(OperationId::default(), &buckets);
        for (outcome, result) in &results {
            assert_eq!(result, &results[0].1, "{element:?}");
            assert_eq!(outcome.missed_aggregates, 0);
        }
        // Contributions are rounded, and so is their mean. The mean square of a uniform error within half a
        // unit is a third of its bound's.
        let unit: f64 = match element {
            Element::F32 => 2f64.powi(-24),
            Element::Bf16 => 2f64.powi(-8),
            Element::F16 => 2f64.powi(-11),
        };
        let error = error(&results[0].1, &buckets);
        assert!(error < 8.0 * unit * unit, "{element:?}: {error}");
        assert!(
            element == Element::F32 || error > unit * unit / 20.0,
            "{element:?}: {error}"
        );
        network.cores[0].totals().phases.scatter.sent
    };
    let whole = packets(Element::F32);
    for half in [Element::Bf16, Element::F16].map(packets) {
        assert!(half * 2 <= whole + 2 * u64::from(RANKS), "{half} {whole}");
    }
}

#[test]
fn losses_are_repaired_in_the_same_type() {
    let mut network = network(Element::Bf16);
    network.faults = lossy(0.1, 4);
    let buckets = buckets();
    for step in 0..4 {
        network.allreduce(OperationId { step, bucket: 0 }, &buckets);
        network.settle();
    }
    for core in &network.cores {
        let totals = core.totals();
        assert!(totals.recycling.repaired > 20, "{totals:?}");
        assert_eq!(totals.rejected.total(), 0, "{totals:?}");
    }
}

/// A gradient that overflowed: its bucket's values are lost in that step, and no residual contains them.
#[test]
fn overflows_are_not_carried() {
    for element in [Element::Bf16, Element::F16] {
        let mut network = Network::new(&Config {
            element,
            coding: Coding::Identity,
            recycling: Some(Recycling::default()),
            ..config(RANKS)
        });
        for overflowed in [f32::INFINITY, f32::NAN] {
            let mut buckets = vec![vec![1.001; 4_000]; RANKS.into()];
            buckets[1][..]
                .iter_mut()
                .step_by(10)
                .for_each(|value| *value = overflowed);
            let step = u32::from(overflowed.is_nan());
            network.allreduce(OperationId { step, bucket: 0 }, &buckets);
            network.settle();
            let mut carried = vec![0.0; 4_000];
            for core in &mut network.cores {
                for correction in core.take_corrections(0) {
                    correction.residual.add_to(&mut carried);
                }
            }
            assert!(carried.iter().all(|value| value.is_finite()), "{element:?}");
            assert!(carried.iter().any(|value| *value != 0.0), "{element:?}");
        }
    }
}

#[test]
fn another_type_is_refused() {
    let mut network = Network::new(&Config {
        coding: Coding::Identity,
        ..config(RANKS)
    });
    let mut other = Network::new(&Config {
        rank: 1,
        element: Element::F16,
        coding: Coding::Identity,
        ..config(RANKS)
    });
    let id = OperationId::default();
    network.cores[0]
        .start(network.now, id, vec![0.0; 100])
        .expect("starts");
    other.cores[1]
        .start(other.now, id, vec![0.0; 100])
        .expect("starts");
    let mut buf = vec![0; other.cores[1].max_datagram()];
    while let Some(sent) = other.cores[1].next_datagram(other.now, &mut buf) {
        network.inject(0, &buf[..sent.len]);
    }
    let rejected = network.cores[0].totals().rejected;
    assert!(rejected.of(Rejection::Dtype) > 0, "{rejected:?}");
}
