//! Outcomes: arrivals by rank, durations of phases, and a run's histograms.

use std::time::Duration;

use crate::common::{Network, Random, config, powers};
use ultima_host::{
    ClosedBy, Coding, Config, FromRank, History, OperationId, Outcome, Rotation, Span,
};
use ultima_testing::per_run;
use ultima_wire::Kind;

const ID: OperationId = OperationId { step: 3, bucket: 1 };
const SLOT: usize = 16;
const T_S: Duration = Duration::from_millis(12);

fn small_slots(ranks: u16) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        t_s: T_S,
        coding: Coding::Identity,
        ..config(ranks)
    }
}

fn missing(outcome: &Outcome, rank: u16) -> Vec<(u16, u32, u32)> {
    let missing = outcome.missing_from(rank);
    missing
        .map(|(other, of)| (other, of.contributions, of.aggregates))
        .collect()
}

/// Rank 2's contribution to one slot of rank 1's shard is lost, and rank 3's aggregate of one slot on its way
/// to rank 0.
#[test]
fn an_outcome_counts_missing_packets_by_rank() {
    let config = small_slots(4);
    let rotation = Rotation::new(config.seed, ID, 2);
    let mut network = Network::new(&config);
    network.faults = Box::new(move |header, to| {
        let contribution = header.kind == Kind::Scatter
            && (header.source, header.owner) == (2, 1)
            && rotation.position(header.slot, 10) == 4;
        let aggregate =
            header.kind == Kind::Gather && (header.source, to, header.slot) == (3, 0, 7);
        match contribution || aggregate {
            true => vec![],
            false => vec![Duration::ZERO],
        }
    });
    let results = network.allreduce(ID, &powers(4, 4 * 10 * SLOT));
    let by_rank: Vec<_> = (0..)
        .zip(&results)
        .map(|(r, (o, _))| missing(o, r))
        .collect();
    assert_eq!(by_rank, [vec![(3, 0, 1)], vec![(2, 1, 0)], vec![], vec![]]);
    let whole = FromRank {
        contributions: 10,
        aggregates: 10,
    };
    assert_eq!(
        results[3].0.arrived,
        [whole, whole, whole, FromRank::default()]
    );
}

/// With arbitrary losses, the counts by rank add up to the others.
#[test]
fn arrivals_by_rank_add_up() {
    let mut random = Random::new(11);
    for seed in 0..per_run(4, 20) {
        let config = Config {
            seed,
            ..small_slots(5)
        };
        let loss = random.unit() * 0.4;
        let mut network = Network::new(&config);
        network.faults = crate::common::lossy(loss, seed);
        for (outcome, _) in network.allreduce(ID, &powers(5, 5 * 7 * SLOT - 3)) {
            let contributions: u32 = outcome.arrived.iter().map(|from| from.contributions).sum();
            let averaged = (0..).zip(&outcome.contributions);
            let averaged: u32 = averaged.map(|(m, slots)| m * slots).sum();
            let own_slots: u32 = outcome.contributions.iter().sum();
            assert_eq!(contributions, averaged - own_slots);
            let owed: u32 = outcome.slots.iter().sum::<u32>() - own_slots;
            let aggregates: u32 = outcome.arrived.iter().map(|from| from.aggregates).sum();
            assert_eq!(aggregates, owed - outcome.missed_aggregates);
        }
    }
}

#[test]
fn an_outcome_of_parts_is_their_sum() {
    let config = small_slots(5);
    let mut network = Network::new(&config);
    network.faults = crate::common::lossy(0.2, 7);
    let lens = [5 * 7 * SLOT - 3, 5 * 4 * SLOT];
    let parts = [0, 1].map(|part| {
        let id = OperationId {
            step: ID.step + part,
            ..ID
        };
        network.allreduce(id, &powers(5, lens[part as usize]))
    });
    let after = Duration::from_millis(5);
    for rank in 0..5u16 {
        let [first, second] = parts.each_ref().map(|ranks| &ranks[usize::from(rank)].0);
        let of = [(Duration::ZERO, first.clone()), (after, second.clone())];
        let whole = Outcome::of_parts(ID, of).expect("two parts");
        assert_eq!(whole.id, ID);
        assert_eq!(whole.closed_by, first.closed_by.max(second.closed_by));
        assert_eq!(whole.duration, first.duration.max(after + second.duration));
        assert_eq!(whole.t_b, first.t_b.max(after + second.t_b));
        assert_eq!(whole.owed, first.owed + second.owed);
        let lost = |outcome: &Outcome| outcome.lost_share() * outcome.owed as f64;
        assert!((lost(&whole) - lost(first) - lost(second)).abs() < 1e-6);
        let missing = |outcome: &Outcome| -> u32 {
            let missing = outcome.missing_from(rank);
            missing
                .map(|(_, from)| from.contributions + from.aggregates)
                .sum()
        };
        assert!(missing(&whole) > 0);
        assert_eq!(missing(&whole), missing(first) + missing(second));
        let longest = [first, second].map(|part| part.last.waited_for().map(|(_, time)| time));
        let waited = whole.last.waited_for().map(|(_, time)| time);
        assert_eq!(waited, longest[0].max(longest[1]));
    }
    assert_eq!(Outcome::of_parts(ID, []), None);
}

#[test]
fn an_outcome_says_when_its_phases_last_packets_passed() {
    let config = small_slots(3);
    let mut network = Network::new(&config);
    // Rank 2 starts 5 ms after the others.
    let late = Duration::from_millis(5);
    let starts = [Some(Duration::ZERO), Some(Duration::ZERO), Some(late)];
    let done = network.run(ID, powers(3, 3 * 10 * SLOT), &starts);
    let outcomes: Vec<Outcome> = done
        .into_iter()
        .map(|d| d.expect("it ends").outcome)
        .collect();
    let delay = network.delay;
    let last = outcomes[0].last;
    assert_eq!(last.contribution_sent, Some(Duration::ZERO));
    assert_eq!(last.contribution_came, Some(late + delay));
    assert_eq!(last.contribution_from, Some(2));
    assert_eq!(last.others_last_came, Some(delay));
    assert_eq!(outcomes[0].shard_duration, late + delay);
    assert_eq!(last.aggregate_came, Some(outcomes[0].duration));
    // The others' packets had arrived before rank 2 started.
    assert_eq!(outcomes[2].last.contribution_came, Some(Duration::ZERO));
    assert_eq!(outcomes[2].shard_duration, Duration::ZERO);
    assert_eq!(outcomes[2].gather_duration(), outcomes[2].duration);
}

#[test]
fn a_bound_that_passes_leaves_no_last_packet() {
    let config = small_slots(3);
    let mut network = Network::new(&config);
    let starts = [Some(Duration::ZERO), None, None];
    let done = network.run(ID, powers(3, 3 * SLOT), &starts);
    let outcome = &done[0].as_ref().expect("it ends").outcome;
    assert_eq!(
        (outcome.last.contribution_came, outcome.last.aggregate_came),
        (None, None)
    );
    assert_eq!(outcome.closed_by, ClosedBy::Deadline);
    assert_eq!(outcome.shard_duration, T_S);
    assert_eq!(missing(outcome, 0), [(1, 1, 1), (2, 1, 1)]);
}

#[test]
fn a_history_separates_operations_by_closing_cause() {
    let config = small_slots(3);
    let mut network = Network::new(&config);
    let mut history = History::default();
    let mut owed = 0;
    for step in 0..6 {
        let id = OperationId { step, bucket: 0 };
        // Every third time rank 2 is absent.
        let there = Some(Duration::ZERO);
        let starts = [there, there, there.filter(|_| step % 3 != 2)];
        let done = network.run(id, powers(3, 3 * SLOT), &starts);
        let outcome = &done[0].as_ref().expect("it ends").outcome;
        history.add(outcome);
        owed += outcome.owed;
    }
    let count = |span, by| history.of(span, by).count();
    assert_eq!(history.operations(), 6);
    assert_eq!(count(Span::Operation, ClosedBy::Complete), 4);
    assert_eq!(count(Span::Operation, ClosedBy::Deadline), 2);
    assert_eq!(count(Span::Shard, ClosedBy::Flush), 2);
    assert_eq!(count(Span::Gather, ClosedBy::Deadline), 2);
    assert_eq!(history.of(Span::Shard, ClosedBy::Flush).max(), T_S);
    assert_eq!(history.all(Span::Operation).max(), config.t_b);
    assert!(history.all(Span::Operation).quantile(0.5) < T_S);
    assert_eq!((history.owed(), history.lost().scatter.total()), (owed, 2));
    assert_eq!(history.lost().gather.total(), 2);
    let mut twice = history.clone();
    twice.merge(&history);
    assert_eq!(twice.operations(), 12);
    assert_eq!(twice.lost().gather.total(), 4);
}
