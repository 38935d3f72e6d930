//! Decisions of all ranks: skipped updates and averaged replicas lose no values.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::training::{Rank, T_B, errors, id, recycling};
use crate::common::*;
use proptest::prelude::*;
use ultima_host::safeguards::{DriftRule, SkipRule, StopRule};
use ultima_host::{Config, Exact, OperationId, Rules, Safeguards, Verdict, underweight};
use ultima_testing::cases;
use ultima_wire::Kind;

const LIMIT: Duration = Duration::from_secs(5);
const LEN: usize = 300;
/// Steps at the end, without loss and with zero gradients: see `recycling.rs`.
const FLUSH: u32 = 8 + 2;

/// All ranks of a job that votes after every step.
struct Job {
    network: Network,
    ranks: Vec<Rank>,
    safeguards: Vec<Safeguards>,
    peace: Rc<Cell<bool>>,
    /// True if repairs of bounded operations are lost.
    unrepaired: Rc<Cell<bool>>,
    skipped: u32,
    healed: u32,
}

impl Job {
    fn new(config: &Config, rules: Rules, mut faults: Faults) -> Self {
        let mut network = Network::new(config);
        let peace = Rc::new(Cell::new(false));
        let unrepaired = Rc::new(Cell::new(false));
        let (at_peace, no_repair) = (peace.clone(), unrepaired.clone());
        network.faults = Box::new(move |header, to| {
            if at_peace.get() {
                return vec![Duration::ZERO];
            }
            let repair = header.kind == Kind::Repair && !header.host_flags.exact;
            match repair && no_repair.get() {
                true => vec![],
                false => faults(header, to),
            }
        });
        let ranks = 0..config.ranks;
        Self {
            network,
            ranks: ranks
                .clone()
                .map(|rank| Rank::new(config, rank, LEN))
                .collect(),
            safeguards: ranks.map(|_| Safeguards::new(rules, config.seed)).collect(),
            peace,
            unrepaired,
            skipped: 0,
            healed: 0,
        }
    }

    fn exact(&mut self, id: OperationId, exact: Exact, values: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let starts = at_once(self.network.ranks());
        let ended = self.network.run_exact((id, exact, LIMIT), values, &starts);
        let results = ended.into_iter();
        results
            .map(|ended| ended.expect("started").expect("complete").1)
            .collect()
    }

    /// One step: gradients until `zero_from`, ranks starting at `starts`.
    fn step(&mut self, zero_from: u32, starts: &[Option<Duration>]) {
        let encoded = self
            .ranks
            .iter_mut()
            .map(|rank| rank.contribute(zero_from).1);
        let encoded = encoded.collect();
        let step = self.ranks[0].step - 1;
        let done = self.network.run(id(step), encoded, starts);
        let mut outputs = Vec::new();
        let mut votes = Vec::new();
        let vote_id = OperationId { step, bucket: 100 };
        for (at, done) in done.iter().enumerate() {
            let done = done.as_ref().expect("every rank started");
            let rank = &mut self.ranks[at];
            outputs.push(rank.output(&mut self.network.cores[at], done));
            let parameters: Vec<f32> = rank.applied.iter().map(|value| *value as f32).collect();
            let lost = done.outcome.lost_share();
            assert!((0.0..=1.0).contains(&lost));
            votes.push(self.safeguards[at].vote(vote_id, lost, &parameters));
        }
        let votes = self.exact(vote_id, Exact::AllGather, &votes);
        let verdicts: Vec<Verdict> = (self.safeguards.iter_mut().zip(&votes))
            .map(|(safeguards, votes)| {
                let ranks = self.network.ranks();
                safeguards
                    .count(vote_id, votes, ranks)
                    .expect("nothing stops")
            })
            .collect();
        assert!(
            verdicts.iter().all(|verdict| verdict == &verdicts[0]),
            "{verdicts:?}"
        );
        for (rank, output) in self.ranks.iter_mut().zip(&outputs) {
            match verdicts[0].skip {
                true => rank.carry.skip(id(step).bucket, output),
                false => rank.add(output),
            }
        }
        self.skipped += u32::from(verdicts[0].skip);
        // Not at the end: averaging would hide earlier errors.
        if verdicts[0].heal && !self.peace.get() {
            self.heal(step);
        }
    }

    fn heal(&mut self, step: u32) {
        self.healed += 1;
        let parameters: Vec<Vec<f32>> = self
            .ranks
            .iter()
            .map(|rank| rank.applied.iter().map(|value| *value as f32).collect())
            .collect();
        let id = OperationId { step, bucket: 101 };
        let means = self.exact(id, Exact::Mean, &parameters);
        for (at, (rank, mean)) in self.ranks.iter_mut().zip(means).enumerate() {
            rank.applied = mean.into_iter().map(f64::from).collect();
            rank.carry.heal();
            self.network.cores[at].healed();
        }
    }

    /// Steps without faults, in which corrections and residuals arrive.
    fn flush(&mut self) {
        self.peace.set(true);
        let zero_from = self.ranks[0].step;
        for _ in 0..FLUSH {
            self.step(zero_from, &at_once(self.network.ranks()));
            self.network.settle();
        }
    }

    fn worst_error(&self) -> f64 {
        let ranks = self.ranks.len() as f64;
        errors(&self.ranks, ranks).into_iter().fold(0.0, f64::max)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(20, 600)))]

    /// Σ applied + Σ residual = Σ exact at every rank, with arbitrary losses, delays, skipped updates and
    /// averaged replicas.
    #[test]
    fn skipping_and_healing_lose_no_values(
        (ranks, seed) in (2u16..=5, any::<u64>()),
        loss in prop_oneof![0.0..0.3, Just(0.5)],
        skip in 0.0..0.6,
        (every, bound) in (1u32..5, prop_oneof![Just(0.0), Just(1e-2)]),
        late in prop_oneof![Just(0u64), 0u64..40_000],
        unrepaired in any::<bool>(),
    ) {
        let rules = Rules {
            skip: Some(SkipRule { share: skip }),
            drift: Some(DriftRule { bound, every }),
            stop: None,
            coding: None,
        };
        // No doubt lapses during the run; another test covers that.
        let mut job = Job::new(&recycling(ranks, 32), rules, lossy(loss, seed));
        let mut random = Random::new(seed);
        for step in 0..15 {
            // Replicas are averaged while some ranks lack corrections.
            job.unrepaired.set(unrepaired && step % 3 != 2);
            let starts: Vec<_> =
                (0..ranks).map(|_| Some(Duration::from_micros(random.below(late + 1)))).collect();
            job.step(15, &starts);
        }
        job.flush();
        let error = job.worst_error();
        prop_assert!(error < 1e-9, "{error}; skipped {}, healed {}", job.skipped, job.healed);
        let lapsed: u64 = job.network.cores.iter().map(|core| core.totals().recycling.lapsed).sum();
        prop_assert_eq!(lapsed, 0);
    }
}

/// The property's events do happen.
#[test]
fn updates_are_skipped_and_replicas_healed() {
    let rules = Rules {
        skip: Some(SkipRule { share: 0.25 }),
        drift: Some(DriftRule {
            bound: 1e-3,
            every: 3,
        }),
        stop: None,
        coding: None,
    };
    let mut job = Job::new(&recycling(4, 8), rules, lossy(0.2, 5));
    for _ in 0..30 {
        job.step(30, &at_once(4));
    }
    assert!((3..27).contains(&job.skipped), "{}", job.skipped);
    assert!((5..=10).contains(&job.healed), "{}", job.healed);
    job.flush();
    assert!(job.worst_error() < 1e-9, "{}", job.worst_error());
}

/// No repair arrives for six steps, and replicas are averaged in every second one: a rank contributes the
/// corrections of them.
#[test]
fn corrections_of_healed_replicas_are_contributed() {
    let rules = Rules {
        drift: Some(DriftRule {
            bound: 0.0,
            every: 1,
        }),
        ..Rules::default()
    };
    let mut job = Job::new(&recycling(4, 32), rules, lossy(0.2, 5));
    job.unrepaired.set(true);
    for _ in 0..6 {
        job.step(6, &at_once(4));
    }
    // They are equal in the next step's measurement.
    assert_eq!(job.healed, 3);
    let owed = |job: &Job| -> u64 {
        let recycling = job.network.cores.iter().map(|core| core.totals().recycling);
        recycling.map(|r| r.unresolved - r.repaired).sum()
    };
    assert!(owed(&job) > 50, "{}", owed(&job));
    job.flush();
    assert_eq!(owed(&job), 0);
    assert!(job.worst_error() < 1e-9, "{}", job.worst_error());
}

/// Without recycling replicas drift permanently. Averaging makes them equal, bit by bit, and keeps their
/// mean.
#[test]
fn healed_replicas_are_equal() {
    let config = Config {
        recycling: None,
        ..recycling(4, 8)
    };
    let every = 5;
    let rules = Rules {
        drift: Some(DriftRule { bound: 1e-3, every }),
        ..Rules::default()
    };
    let mut job = Job::new(&config, rules, lossy(0.1, 5));
    for _ in 0..every - 1 {
        job.step(30, &at_once(4));
    }
    let spread = |job: &Job| {
        let first = &job.ranks[0].applied;
        job.ranks
            .iter()
            .map(|rank| {
                let squares = rank.applied.iter().zip(first).map(|(a, b)| (a - b).powi(2));
                squares.sum::<f64>().sqrt()
            })
            .fold(0.0, f64::max)
    };
    assert!(spread(&job) > 1e-2 && job.healed == 0);
    job.step(30, &at_once(4));
    assert_eq!((spread(&job), job.healed), (0.0, 1));
    job.peace.set(true);
    for _ in 0..every {
        job.step(30, &at_once(4));
    }
    // Equal replicas without losses stay equal.
    assert_eq!(spread(&job), 0.0);
}

/// Rank 3 loses a quarter of its packets: all ranks stop in the same step, and name it.
#[test]
fn a_job_whose_loss_stays_high_stops_everywhere() {
    let config = recycling(4, 8);
    let mut random = Random::new(1);
    let mut network = Network::new(&config);
    network.faults = Box::new(move |_, to| match to == 3 && random.chance(0.25) {
        true => vec![],
        false => vec![Duration::ZERO],
    });
    let rules = Rules {
        stop: Some(StopRule {
            share: 0.1,
            updates: 5,
        }),
        ..Rules::default()
    };
    let mut safeguards = vec![Safeguards::new(rules, 1); 4];
    for step in 0..5 {
        let buckets = (0..4).map(|_| vec![1.0; LEN]).collect();
        let done = network.run(id(step), buckets, &at_once(4));
        let vote_id = OperationId { step, bucket: 100 };
        let votes: Vec<Vec<f32>> = (done.iter().flatten().zip(&safeguards))
            .map(|(done, safeguards)| safeguards.vote(vote_id, done.outcome.lost_share(), &[]))
            .collect();
        let ended = network.run_exact((vote_id, Exact::AllGather, LIMIT), &votes, &at_once(4));
        for (ended, safeguards) in ended.into_iter().zip(&mut safeguards) {
            let (_, votes) = ended.expect("started").expect("complete");
            let counted = safeguards.count(vote_id, &votes, 4);
            match step {
                4 => {
                    let error = counted.expect_err("five in a row");
                    assert_eq!((error.step, error.rank, error.updates), (4, 3, 5));
                }
                _ => assert!(!counted.expect("not yet").skip),
            }
        }
    }
}

/// Rank 2 is late for every step: its data have no weight, the others' a third each; and it learns how far
/// the others are.
#[test]
fn a_rank_that_is_always_late_is_named_with_its_weight() {
    let mut network = Network::new(&Config {
        recycling: None,
        ..recycling(4, 8)
    });
    let mut weights = Vec::new();
    for step in 0..100 {
        let late = Some(T_B * 7 / 10);
        let starts = [
            Some(Duration::ZERO),
            Some(Duration::ZERO),
            late,
            Some(Duration::ZERO),
        ];
        let done = network.run(id(step), vec![vec![1.0; LEN]; 4], &starts);
        let outcome = &done[0].as_ref().expect("started").outcome;
        assert_eq!(outcome.newest_step, Some(step));
        weights = outcome.weights.clone();
        if step > 5 {
            let named: Vec<u16> = underweight(&outcome.weights)
                .map(|(rank, _)| rank)
                .collect();
            assert_eq!(named, [2]);
        }
    }
    for (rank, weight) in weights.into_iter().enumerate() {
        let expected = if rank == 2 { 0.0 } else { 1.0 / 3.0 };
        assert!((weight - expected).abs() < 1e-3, "rank {rank}: {weight}");
    }
}

/// A rank that slept through nine steps learns it from its first packets. It runs them in no time with the
/// stored packets, and no other rank waits for it.
#[test]
fn a_rank_that_is_behind_learns_where_the_others_are() {
    let mut network = Network::new(&recycling(3, 8));
    let awake = [Some(Duration::ZERO), Some(Duration::ZERO), None];
    for step in 0..10 {
        network.run(id(step), vec![vec![1.0; LEN]; 3], &awake);
        network.settle();
    }
    assert_eq!(network.cores[2].newest_step(), Some(9));
    let began = network.now;
    for step in 0..10 {
        let only = [None, None, Some(Duration::ZERO)];
        let done = network.run(id(step), vec![vec![0.0; LEN]; 3], &only);
        let outcome = &done[2].as_ref().expect("started").outcome;
        assert_eq!(outcome.newest_step, Some(9));
        if step < 9 {
            assert_eq!(network.now, began, "step {step}");
        }
    }
}
