//! The estimator and the codec against their theory, through the whole protocol, with several shapes of loss.
//!
//! Every random number comes from a fixed seed: the figures are printed (`--nocapture`) and the same in every
//! run. Bounds are four or five standard errors of the measurement, so another seed would pass too.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use crate::common::*;
use ultima_host::{Coding, Config, Estimation, OperationId, Phases, Rotation};
use ultima_testing::per_run;
use ultima_wire::{Header, Kind};

const RANKS: u16 = 4;
const N: f64 = RANKS as f64;
const SLOT: usize = 8;
/// Slots of each shard.
const SLOTS: u32 = 300;
const LEN: usize = RANKS as usize * SLOTS as usize * SLOT;

fn plain() -> Config {
    Config {
        slot_bytes: SLOT * 4,
        coding: Coding::Identity,
        ..config(RANKS)
    }
}

/// Drops SCATTER if `lost` returns true, and nothing else.
fn scatter_loss(mut lost: impl FnMut(&Header) -> bool + 'static) -> Faults {
    Box::new(move |header, _| {
        if header.kind == Kind::Scatter && lost(header) {
            vec![]
        } else {
            vec![Duration::ZERO]
        }
    })
}

fn independent(p: f64, seed: u64) -> Faults {
    let mut random = Random::new(seed);
    scatter_loss(move |_| random.chance(p))
}

/// Gilbert–Elliott per path: everything is lost in the bad state, which lasts `burst` packets on average.
fn bursty(p: f64, burst: f64, seed: u64) -> Faults {
    let mut random = Random::new(seed);
    let mut bad: HashMap<(u16, u16), bool> = HashMap::new();
    let enter = p / (1.0 - p) / burst;
    scatter_loss(move |header| {
        let bad = bad.entry((header.source, header.owner)).or_insert(false);
        *bad = if *bad {
            !random.chance(1.0 / burst)
        } else {
            random.chance(enter)
        };
        *bad
    })
}

/// Every source's last `share` of each shard is lost.
fn tail(share: f64, seed: u64) -> Faults {
    scatter_loss(move |header| {
        let id = OperationId {
            step: header.step,
            bucket: header.bucket,
        };
        let position = Rotation::new(seed, id, header.source).position(header.slot, header.slots);
        f64::from(position) >= f64::from(header.slots) * (1.0 - share)
    })
}

fn one_rank(p: f64, seed: u64) -> Faults {
    let mut random = Random::new(seed);
    scatter_loss(move |header| header.source == 1 && random.chance(p))
}

/// The weight of every rank's contribution in every slot: `weights[owner][slot][rank]`, over `steps`
/// operations.
///
/// Entry *i* of a slot is 1 in rank *i*'s contribution and 0 in all others, so the aggregate is the list of
/// weights.
fn weights(faults: Faults, steps: u32) -> Vec<Vec<[f64; RANKS as usize]>> {
    weights_by(Estimation::ArrivedMean, faults, 0..steps)
}

/// The same with another estimator, over `steps` after the steps before.
fn weights_by(
    estimation: Estimation,
    faults: Faults,
    steps: Range<u32>,
) -> Vec<Vec<[f64; RANKS as usize]>> {
    let buckets: Vec<Vec<f32>> = (0..usize::from(RANKS))
        .map(|rank| {
            (0..LEN)
                .map(|at| f32::from(u8::from(at % SLOT == rank)))
                .collect()
        })
        .collect();
    let mut network = Network::new(&Config {
        estimation,
        ..plain()
    });
    network.faults = faults;
    let mut weights = vec![Vec::new(); usize::from(RANKS)];
    for step in 0..steps.end {
        let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
        if step < steps.start {
            continue;
        }
        let aggregates = results[0].1.chunks(SLOT);
        for (at, aggregate) in aggregates.enumerate() {
            let slot = std::array::from_fn(|rank| f64::from(aggregate[rank]));
            weights[at / SLOTS as usize].push(slot);
        }
    }
    weights
}

/// Mean and standard error.
fn mean(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

fn check(what: &str, (measured, error): (f64, f64), theory: f64) {
    println!("{what}: {measured:.5} ± {error:.5}, theory {theory:.5}");
    assert!(
        (measured - theory).abs() <= 5.0 * error + 1e-6,
        "{what}: {measured} ± {error}, theory {theory}"
    );
}

/// The weight of each rank over the whole bucket. Prints the largest deviation from 1/N.
fn bucket_weights(what: &str, weights: &[Vec<[f64; RANKS as usize]>]) -> [(f64, f64); 4] {
    let by_rank = std::array::from_fn(|rank| mean(weights.iter().flatten().map(|w| w[rank])));
    let stray = by_rank
        .iter()
        .map(|(w, _)| (w * N - 1.0).abs())
        .fold(0.0, f64::max);
    println!(
        "{what}: weights over the bucket stray from 1/N by up to {:.3} %",
        stray * 100.0
    );
    by_rank
}

/// E[1/(a+M)], M ~ Binomial(n, q).
fn inverse_moment(a: f64, n: u32, q: f64) -> f64 {
    (0..=n)
        .map(|k| {
            let choose = (0..k).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
            choose * q.powi(k as i32) * (1.0 - q).powi((n - k) as i32) / (a + f64::from(k))
        })
        .sum()
}

#[test]
fn weights_under_independent_loss() {
    for p in [0.01, 0.1, 0.3] {
        let weights = weights(independent(p, 1), 20);
        let q = 1.0 - p;
        let own = (1.0 - p.powf(N)) / (N * q);
        let other = q * inverse_moment(2.0, u32::from(RANKS) - 2, q);
        assert!(
            (own + (N - 1.0) * other - 1.0).abs() < 1e-12,
            "weights add up to one"
        );
        for (owner, weights) in weights.iter().enumerate() {
            for rank in 0..usize::from(RANKS) {
                let what = format!("loss {p}: weight of rank {rank} at owner {owner}");
                let theory = if rank == owner { own } else { other };
                check(&what, mean(weights.iter().map(|w| w[rank])), theory);
            }
        }
        for (rank, weight) in bucket_weights(&format!("loss {p}"), &weights)
            .iter()
            .enumerate()
        {
            check(
                &format!("loss {p}: weight of rank {rank}"),
                *weight,
                1.0 / N,
            );
        }
    }
}

#[test]
fn weights_when_one_rank_loses() {
    let p = 0.3;
    let weights = weights(one_rank(p, 2), 20);
    let measured = bucket_weights("rank 1 loses 30 %", &weights);
    // At its own shard nothing is missing; at the other N−1, its weight is 1/N or 0.
    let lossy = (1.0 - p) / N * (N - 1.0) / N + 1.0 / N / N;
    let other = (1.0 - lossy) / (N - 1.0);
    for (rank, weight) in measured.iter().enumerate() {
        check(
            &format!("weight of rank {rank}"),
            *weight,
            if rank == 1 { lossy } else { other },
        );
    }
    // The documented bias: rank 1 weighs p·(N−1)/N less than its part.
    assert!((lossy * N - (1.0 - p * (N - 1.0) / N)).abs() < 1e-12);
}

#[test]
fn the_scaled_sum_weighs_a_lossy_rank_like_the_others() {
    let weights = weights_by(Estimation::Scaled, one_rank(0.3, 2), 0..40);
    let what = "rank 1 loses 30 %, scaled";
    for (rank, (measured, error)) in bucket_weights(what, &weights).iter().enumerate() {
        println!("{what}: weight of rank {rank} {measured:.5} ± {error:.5}");
        assert!((measured * N - 1.0).abs() < 0.02, "{rank}: {measured}");
    }
}

#[test]
fn the_scaled_sum_waits_for_its_shard() {
    // The owner knows its missing slots of a source, and then the share of the shard.
    let mut network = Network::new(&Config {
        estimation: Estimation::Scaled,
        ..plain()
    });
    network.faults =
        scatter_loss(|header| header.source == 1 && header.owner == 0 && header.slot < 100);
    let results = network.allreduce(OperationId::default(), &vec![vec![1.0; LEN]; RANKS.into()]);
    let shard = &results[2].1[..LEN / usize::from(RANKS)];
    // All slots of the three others arrived; two thirds of rank 1's slots stand for all of them.
    let (lacking, whole) = shard.split_at(100 * SLOT);
    assert!(lacking.iter().all(|value| *value == 0.75), "{lacking:?}");
    assert!(
        whole.iter().all(|value| (*value - 1.125).abs() < 1e-6),
        "{whole:?}"
    );
}

/// Slots that wait for the rest of their shard close with it at t_S, once.
#[test]
fn the_scaled_sum_closes_with_the_flush() {
    let mut network = Network::new(&Config {
        estimation: Estimation::Scaled,
        ..plain()
    });
    let starts = [
        Some(Duration::ZERO),
        Some(Duration::ZERO),
        Some(Duration::ZERO),
        None,
    ];
    let done = network.run(
        OperationId::default(),
        vec![vec![1.0; LEN]; RANKS.into()],
        &starts,
    );
    for done in done.into_iter().flatten() {
        let slots: u32 = done.outcome.contributions.iter().sum();
        assert_eq!(
            (slots, done.outcome.contributions[3]),
            (SLOTS, SLOTS),
            "{:?}",
            done.outcome
        );
        assert_eq!(done.outcome.phases.gather.sent, u64::from(SLOTS));
    }
}

/// Bursts and equal tails make neighbouring slots lose together, but do not change the weights: each rank is
/// the owner, and in a burst, equally often. Standard errors are over operations, because slots of one are
/// not independent.
#[test]
fn bursts_and_tails_keep_weights_even() {
    type Shape = fn(u64) -> Faults;
    let shapes: [(&str, Shape); 2] = [
        ("bursts of 8", |seed| bursty(0.1, 8.0, seed)),
        ("tails of 20 %", |_| tail(0.2, 42)),
    ];
    for (what, faults) in shapes {
        let steps = 60;
        let weights = weights(faults(3), steps);
        bucket_weights(what, &weights);
        for rank in 0..usize::from(RANKS) {
            let per_step = (0..steps as usize).map(|step| {
                let slots = SLOTS as usize;
                let in_step = weights
                    .iter()
                    .flat_map(|w| &w[step * slots..(step + 1) * slots]);
                in_step.map(|w| w[rank]).sum::<f64>() / (N * f64::from(SLOTS))
            });
            check(
                &format!("{what}: weight of rank {rank}"),
                mean(per_step),
                1.0 / N,
            );
        }
    }
}

/// Rotations move equal tails to different slots. Otherwise the owner would be alone in a fifth of the slots.
#[test]
fn rotated_tails_hit_different_slots() {
    let steps = 100;
    let weights = weights(tail(0.2, 42), steps);
    // With starts drawn independently each contribution is missing with p = 0.2: alone with
    // probability 0.2³.
    let alone = weights
        .iter()
        .flatten()
        .filter(|w| w.contains(&1.0))
        .count();
    let share = alone as f64 / (f64::from(steps) * N * f64::from(SLOTS));
    println!("slots with the owner's contribution alone: {share:.4}, independent tails give 0.008");
    assert!(share < 0.03, "{share}");
    // The total cost of the tails does not depend on their position: each slot lacks 0.2·3 contributions on
    // average.
    let lacking = weights
        .iter()
        .flatten()
        .map(|w| w.iter().filter(|w| **w == 0.0).count() as f64);
    check(
        "contributions lacking per slot",
        (mean(lacking).0, 1e-6),
        0.6,
    );
}

/// The squared error of the owners' aggregates is s²·(E[1/m] − 1/N) for any shape of loss: *m* is the number
/// of contributions in the outcomes, s² the variance between ranks.
#[test]
fn variance_of_the_arrived_mean() {
    type Shape = fn(u64) -> Faults;
    let shapes: [(&str, Shape); 4] = [
        ("independent 10 %", |seed| independent(0.1, seed)),
        ("bursts of 8, 10 %", |seed| bursty(0.1, 8.0, seed)),
        ("tails of 20 %", |_| tail(0.2, 42)),
        ("rank 1 loses 30 %", |seed| one_rank(0.3, seed)),
    ];
    for (what, faults) in shapes {
        let steps = 10;
        let mut network = Network::new(&plain());
        network.faults = faults(4);
        let mut random = Random::new(5);
        let mut histogram = vec![0.0; usize::from(RANKS) + 1];
        let (mut squares, mut between) = (Vec::new(), 0.0);
        for step in 0..steps {
            let buckets: Vec<_> = (0..RANKS).map(|_| random.bucket(LEN)).collect();
            let exact = exact_mean(&buckets);
            let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
            for (outcome, _) in &results {
                for (sum, count) in histogram.iter_mut().zip(&outcome.contributions) {
                    *sum += f64::from(*count);
                }
            }
            squares.extend(
                results[0]
                    .1
                    .iter()
                    .zip(&exact)
                    .map(|(a, b)| (f64::from(*a) - b).powi(2)),
            );
            for (at, exact) in exact.iter().enumerate() {
                let deviations = buckets.iter().map(|b| (f64::from(b[at]) - exact).powi(2));
                between += deviations.sum::<f64>() / (N - 1.0);
            }
        }
        between /= squares.len() as f64;
        let slots: f64 = histogram.iter().sum();
        let inverse: f64 = (1..)
            .zip(&histogram[1..])
            .map(|(m, n)| n / slots / f64::from(m))
            .sum();
        let theory = between * (inverse - 1.0 / N);
        check(
            &format!("{what}: squared error"),
            mean(squares.into_iter()),
            theory,
        );
    }
}

/// The applied update if both phases lose: an aggregate is missing with p·(N−1)/N (never the own one) and
/// counts as zero. Relative to ‖mean‖², with *ρ* = s²/(N·‖mean‖²/L) the share of noise between ranks in the
/// mean: *p*(N−1)/N + (1 − *p*(N−1)/N)·N·(E[1/m] − 1/N)·ρ.
#[test]
fn update_error_under_loss_of_both_phases() {
    for (what, coding) in [("plain", Coding::Identity), ("Hadamard", Coding::default())] {
        let all = [0.1, 0.01];
        for p in all.into_iter().take(per_run(1, all.len())) {
            let mut network = Network::new(&Config { coding, ..plain() });
            network.faults = lossy(p, 6);
            let mut random = Random::new(7);
            let inverse = inverse_moment(1.0, u32::from(RANKS) - 1, 1.0 - p);
            let missing = p * (N - 1.0) / N;
            let (mut errors, mut noise) = (Vec::new(), Vec::new());
            for step in 0..40 {
                // A common gradient and each rank's own noise, of the same size.
                let common = random.bucket(LEN);
                let buckets: Vec<Vec<f32>> = (0..RANKS)
                    .map(|_| {
                        random
                            .bucket(LEN)
                            .iter()
                            .zip(&common)
                            .map(|(a, b)| a + b)
                            .collect()
                    })
                    .collect();
                let exact = exact_mean(&buckets);
                let norm: f64 = exact.iter().map(|x| x * x).sum();
                let between: f64 = buckets
                    .iter()
                    .flat_map(|b| b.iter().zip(&exact))
                    .map(|(a, b)| (f64::from(*a) - b).powi(2))
                    .sum::<f64>()
                    / (N - 1.0);
                noise.push(between / (N * norm));
                let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
                errors.push(relative_error(&results[1].1, &exact));
            }
            let (rho, _) = mean(noise.into_iter());
            let theory = missing + (1.0 - missing) * N * (inverse - 1.0 / N) * rho;
            check(
                &format!("{what}, loss {p}: update error"),
                mean(errors.into_iter()),
                theory,
            );
        }
    }
}

/// The same slots of every shard are lost in every step. Over the steps' signs each entry has the mean (1 −
/// share) of itself. Without the transform the slots' entries never arrive.
#[test]
fn a_fixed_loss_touches_all_entries_alike() {
    let lost_slots = SLOTS / 10;
    let mean_of = |coding: Coding, steps: u32| {
        let mut network = Network::new(&Config { coding, ..plain() });
        network.faults = Box::new(move |header, _| {
            let lost = header.kind == Kind::Gather && header.slot < lost_slots;
            if lost { vec![] } else { vec![Duration::ZERO] }
        });
        let bucket = Random::new(8).bucket(LEN);
        let mut sum = vec![0.0; LEN];
        for step in 0..steps {
            let buckets = vec![bucket.clone(); usize::from(RANKS)];
            let results = network.allreduce(OperationId { step, bucket: 0 }, &buckets);
            for (sum, value) in sum.iter_mut().zip(&results[0].1) {
                *sum += f64::from(*value) / f64::from(steps);
            }
        }
        (bucket, sum)
    };
    let steps = 150;
    // Rank 0's own shard arrives completely.
    let share = 0.1 * (N - 1.0) / N;
    let (bucket, average) = mean_of(Coding::default(), steps);
    let energy = bucket.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / LEN as f64;
    // The noise of one operation has the variance share·(1 − share)·energy; its mean over the steps
    // is what remains.
    let sigma = (share * (1.0 - share) * energy / f64::from(steps)).sqrt();
    let deviations: Vec<f64> = bucket
        .iter()
        .zip(&average)
        .map(|(x, m)| (m - (1.0 - share) * f64::from(*x)) / sigma)
        .collect();
    let (bias, error) = mean(deviations.iter().copied());
    check("mean deviation in σ", (bias, error), 0.0);
    let spread = deviations.iter().map(|d| d * d).sum::<f64>() / LEN as f64;
    println!("variance of the deviation in σ²: {spread:.3}");
    assert!((0.9..1.1).contains(&spread), "{spread}");
    // 9,600 normal deviates stay under 5.5 σ with probability 0.9996.
    let largest = deviations.iter().fold(0f64, |max, d| max.max(d.abs()));
    assert!(largest < 5.5, "an entry is off by {largest} σ");

    let (bucket, average) = mean_of(Coding::Identity, 3);
    let forgotten = bucket
        .iter()
        .zip(&average)
        .filter(|(x, m)| **x != 0.0 && **m == 0.0)
        .count();
    assert_eq!(forgotten, (N as usize - 1) * lost_slots as usize * SLOT);
}

/// Losses of any shape keep the counters consistent that the figures above use.
#[test]
fn outcomes_count_dropped_packets() {
    let mut network = Network::new(&plain());
    network.faults = lossy(0.1, 9);
    let buckets = vec![vec![1.0; LEN]; usize::from(RANKS)];
    let mut lost = Phases::default();
    for step in 0..5 {
        for (outcome, _) in network.allreduce(OperationId { step, bucket: 0 }, &buckets) {
            lost.gather.slots += u64::from(outcome.missed_aggregates);
            let contributions = outcome.contributions.iter().enumerate();
            lost.scatter.slots += contributions
                .map(|(m, slots)| (u64::from(RANKS) - m as u64) * u64::from(*slots))
                .sum::<u64>();
        }
    }
    network.settle();
    network.check_accounts();
    assert_eq!(lost.scatter.slots, network.scatter.dropped);
    assert_eq!(lost.gather.slots, network.gather.dropped);
}
