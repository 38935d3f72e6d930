//! Votes on coding at which one rank misses results: it soon codes like the others, and its packets are
//! accepted again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::training::{id, recycling};
use crate::common::*;
use proptest::prelude::*;
use ultima_host::safeguards::{CodingInUse, CodingRule};
use ultima_host::{
    Buffer, Codec, Coding, Config, Exact, FromRank, OperationId, Piece, Rejection, Rules,
    Safeguards, Time,
};
use ultima_testing::cases;

const LIMIT: Duration = Duration::from_millis(200);
const LEN: usize = 400;
/// Steps with much loss, then as many with little, so that votes switch coding on and off.
const SPELL: u32 = 12;
const STEPS: u32 = 5 * SPELL;

/// A rank that votes like [`ultima_host::Collective`].
struct Voter {
    codec: Codec,
    coding: CodingInUse,
    safeguards: Safeguards,
}

/// The course of a job whose rank `misses` does not get the results of some votes.
struct Came {
    /// Steps after which ranks coded differently.
    parted: Vec<u32>,
    /// Steps in which packets were rejected for their coding.
    refused: Vec<u32>,
    /// Number of changes of coding at rank 0.
    changes: u32,
}

fn job(ranks: u16, every: u32, misses: u16, missed: impl Fn(u32) -> bool, seed: u64) -> Came {
    let config = Config {
        coding: Coding::Identity,
        recycling: None,
        ..recycling(ranks, 8)
    };
    let coded = Coding::Hadamard { log2_block: 4 };
    let rules = Rules {
        coding: Some(CodingRule { above: 0.2, every }),
        ..Rules::default()
    };
    let mut network = Network::new(&config);
    let (lossy, deaf) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (is_lossy, is_deaf) = (lossy.clone(), deaf.clone());
    let mut random = Random::new(seed);
    network.faults = Box::new(move |header, to| {
        let lost = match header.host_flags.exact {
            true => is_deaf.get() && to == misses,
            false => random.chance(if is_lossy.get() { 0.3 } else { 0.001 }),
        };
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let mut voters: Vec<Voter> = (0..ranks)
        .map(|_| Voter {
            codec: Codec::new(Coding::Identity, config.seed),
            coding: CodingInUse::new(false),
            safeguards: Safeguards::new(rules, config.seed),
        })
        .collect();
    let mut came = Came {
        parted: Vec::new(),
        refused: Vec::new(),
        changes: 0,
    };
    let refused_of = |network: &Network| -> u64 {
        let totals = network.cores.iter().map(|core| core.totals());
        totals.map(|t| t.rejected.of(Rejection::Coding)).sum()
    };
    for step in 0..STEPS {
        lossy.set((step / SPELL).is_multiple_of(2));
        let before = (refused_of(&network), voters[0].coding.is_on());
        for (voter, core) in voters.iter_mut().zip(&mut network.cores) {
            let coding = match voter.coding.is_on() {
                true => coded,
                false => Coding::Identity,
            };
            voter.codec.set_coding(coding);
            core.set_coding(coding);
        }
        let encoded = voters.iter_mut().map(|voter| {
            let mut encoded = Buffer::default();
            voter.codec.encode(id(step), &[1.0; LEN], &mut encoded);
            encoded.to_vec()
        });
        let encoded = encoded.collect();
        let done = network.run(id(step), encoded, &at_once(ranks));
        let mut votes = Vec::new();
        let vote_id = OperationId { step, bucket: 100 };
        for (voter, done) in voters.iter_mut().zip(&done) {
            let outcome = &done.as_ref().expect("started").outcome;
            voter.coding.heard(outcome.coded_otherwise);
            votes.push(voter.safeguards.vote(vote_id, outcome.lost_share(), &[]));
        }
        if refused_of(&network) > before.0 {
            came.refused.push(step);
        }
        if voters[0].safeguards.is_due(step) {
            deaf.set(missed(step));
            let ended =
                network.run_exact((vote_id, Exact::AllGather, LIMIT), &votes, &at_once(ranks));
            for ((voter, ended), rank) in voters.iter_mut().zip(ended).zip(0u16..) {
                match ended.expect("started") {
                    Err(_) => {
                        assert!(deaf.get() && rank == misses, "rank {rank} in step {step}");
                        voter.coding.missed();
                    }
                    Ok((_, votes)) => {
                        let counted = voter.safeguards.count(vote_id, &votes, ranks);
                        if let Some(on) = counted.expect("nothing stops").code {
                            voter.coding.agreed(on);
                        }
                    }
                }
            }
            deaf.set(false);
        }
        came.changes += u32::from(voters[0].coding.is_on() != before.1);
        if voters
            .iter()
            .any(|v| v.coding.is_on() != voters[0].coding.is_on())
        {
            came.parted.push(step);
        }
    }
    came
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(20, 600)))]

    /// A rank that missed a vote codes like the others one step later, and only that step's packets are
    /// rejected.
    #[test]
    fn a_rank_that_misses_a_vote_follows_a_step_later(
        (ranks, misses) in (3u16..=6).prop_flat_map(|ranks| (Just(ranks), 1..ranks)),
        every in 1u32..=4,
        misses_in in any::<u64>(),
        seed in any::<u64>(),
    ) {
        let missed = |step: u32| misses_in >> (step % 64) & 1 == 1;
        let came = job(ranks, every, misses, missed, seed);
        prop_assert!(came.changes >= 2, "{}", came.changes);
        for step in &came.parted {
            prop_assert!(missed(*step) && (step + 1) % every == 0, "after {step}");
        }
        for step in &came.refused {
            prop_assert!(*step > 0 && came.parted.contains(&(step - 1)), "in {step}");
        }
    }
}

/// Missed votes separate ranks for a step; without missed votes all ranks code alike.
#[test]
fn missed_votes_part_ranks_for_a_step() {
    let came = job(4, 3, 2, |_| true, 7);
    assert!(!came.parted.is_empty() && came.parted.len() == came.refused.len());
    assert!(came.parted.len() as u32 <= came.changes);
    let came = job(4, 3, 2, |_| false, 7);
    assert!(came.parted.is_empty() && came.refused.is_empty() && came.changes >= 2);
}

/// Coding pads 2,000 and 2,001 entries to the same length.
#[test]
fn buckets_of_another_length_with_the_same_padding_are_not_added() {
    let mut network = Network::new(&config(2));
    let mut ended = Vec::new();
    for (rank, entries) in [(0, 2000), (1, 2001)] {
        let mut encoded = Buffer::default();
        Codec::new(Coding::default(), 42).encode(id(0), &vec![1.0; entries], &mut encoded);
        assert_eq!(encoded.len(), 2048);
        let start = (id(0), Piece::whole(entries));
        network.start_part(Time::ZERO, rank, start, encoded.to_vec());
    }
    while ended.len() < 2 {
        let next = network.next_event().expect("both operations end");
        ended.extend(network.advance(next));
    }
    for (rank, done) in ended {
        let arrived = done.outcome.arrived;
        assert_eq!(arrived, [FromRank::default(); 2], "rank {rank}");
        assert_eq!(done.outcome.different, [1 - rank]);
        let rejected = network.cores[usize::from(rank)].totals().rejected;
        assert!(rejected.of(Rejection::Length) > 0);
    }
}
