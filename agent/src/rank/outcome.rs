//! The outcome of an operation at one rank, over all phases of a grid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ultima_host::{ClosedBy, FromRank, Losses, Outcome, Phases};

use super::Position;

/// The outcome of an operation at one rank.
#[derive(Clone, Debug)]
pub struct RankOutcome {
    position: Position,
    first: Outcome,
    /// In a grid: the average across groups, and the gather.
    rest: Vec<Outcome>,
}

impl RankOutcome {
    /// The outcome of an operation of a job.
    pub(super) fn of_job(position: Position, outcome: Outcome) -> Self {
        Self {
            position,
            first: outcome,
            rest: Vec::new(),
        }
    }

    /// The outcome of an operation of a grid: scatter, average across groups, gather.
    pub(super) fn of_grid(position: Position, [scatter, across, gather]: [Outcome; 3]) -> Self {
        Self {
            position,
            first: scatter,
            rest: vec![across, gather],
        }
    }

    /// The rank's position at the time.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The outcome, or in a grid that of each phase.
    pub fn phases(&self) -> impl DoubleEndedIterator<Item = &Outcome> + Clone {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn last(&self) -> &Outcome {
        self.rest.last().unwrap_or(&self.first)
    }

    /// True if the result contains every contribution of every rank.
    pub fn is_whole(&self) -> bool {
        self.phases().all(Outcome::is_whole)
    }

    /// Time from start to end.
    pub fn duration(&self) -> Duration {
        self.phases().map(|phase| phase.duration).sum()
    }

    /// Time until this rank's shard closed; in a grid, until it was averaged over all groups.
    pub fn shard_duration(&self) -> Duration {
        let last = self.last();
        self.duration() - last.duration + last.shard_duration
    }

    /// The worst reason for the end of a phase.
    pub fn closed_by(&self) -> ClosedBy {
        let worst = self.phases().map(|phase| phase.closed_by).max();
        worst.unwrap_or_default()
    }

    /// Losses by cause.
    pub fn lost(&self) -> Losses {
        let mut sum = Losses::default();
        self.phases().for_each(|phase| sum += phase.lost);
        sum
    }

    /// Missing packets by sender, with ranks of the whole grid.
    pub fn missing_from(&self) -> Vec<(u16, FromRank)> {
        let position = &self.position;
        let mut missing: BTreeMap<u16, FromRank> = BTreeMap::new();
        for (phase, outcome) in self.phases().enumerate() {
            let job = Position::job_of_phase(phase);
            for (other, lacking) in outcome.missing_from(position.in_job(job).rank) {
                let sum = missing.entry(position.of_job(job, other)).or_default();
                sum.contributions += lacking.contributions;
                sum.aggregates += lacking.aggregates;
            }
        }
        missing.into_iter().collect()
    }

    /// Ranks that were silent in this operation and at least the two before, with ranks of the whole grid.
    pub fn suspected(&self) -> Vec<u16> {
        self.of_all_phases(|outcome| &outcome.suspected)
    }

    /// Ranks that sent no data in one of the phases: no contribution and no aggregate arrived. Numbers are those of the whole grid.
    pub fn nothing_from(&self) -> BTreeSet<u16> {
        let ranks = self.phases().enumerate().flat_map(|(phase, outcome)| {
            let in_job = self.position.in_job(Position::job_of_phase(phase));
            let ranks = outcome.nothing_from(in_job.rank);
            ranks.map(move |other| self.position.of_job(Position::job_of_phase(phase), other))
        });
        ranks.collect()
    }

    /// Ranks that have left the job before all of their packets arrived, with their numbers in the whole grid.
    pub fn left(&self) -> Vec<u16> {
        let missing: BTreeSet<u16> = self
            .missing_from()
            .into_iter()
            .map(|(rank, _)| rank)
            .collect();
        self.of_all_phases(|outcome| &outcome.left)
            .into_iter()
            .filter(|rank| missing.contains(rank))
            .collect()
    }

    /// The ranks that `of` returns of any phase, with ranks of the whole grid.
    fn of_all_phases(&self, of: impl Fn(&Outcome) -> &Vec<u16>) -> Vec<u16> {
        let ranks = self.phases().enumerate().flat_map(|(phase, outcome)| {
            let job = Position::job_of_phase(phase);
            let ranks = of(outcome).iter();
            ranks.map(move |&other| self.position.of_job(job, other))
        });
        let all: BTreeSet<u16> = ranks.collect();
        all.into_iter().collect()
    }

    /// All phases as one outcome, for a history.
    pub fn folded(&self) -> Outcome {
        Outcome {
            closed_by: self.closed_by(),
            duration: self.duration(),
            shard_duration: self.shard_duration(),
            lost: self.lost(),
            owed: self.phases().map(|phase| phase.owed).sum(),
            ..self.last().clone()
        }
    }

    /// The number of a job in which packets of other ranks were expected, but none arrived.
    pub fn silent_job(&self) -> Option<usize> {
        let phases = self.phases().enumerate().map(|(phase, outcome)| {
            let Phases { scatter, gather } = outcome.phases;
            let came = [scatter, gather].map(|phase| phase.in_time + phase.trimmed + phase.late);
            Expected {
                job: Position::job_of_phase(phase),
                packets: outcome.owed,
                came: came.iter().sum(),
            }
        });
        silent_job(phases)
    }
}

/// Packets that one phase expected in a job, and those that came.
struct Expected {
    job: usize,
    packets: u64,
    came: u64,
}

/// The first job in which packets were expected but none came.
fn silent_job(phases: impl Iterator<Item = Expected>) -> Option<usize> {
    let mut jobs: BTreeMap<usize, Expected> = BTreeMap::new();
    for phase in phases {
        jobs.entry(phase.job)
            .and_modify(|sum| {
                sum.packets += phase.packets;
                sum.came += phase.came;
            })
            .or_insert(phase);
    }
    let mut jobs = jobs.values();
    let silent = jobs.find(|sum| sum.packets > 0 && sum.came == 0);
    silent.map(|sum| sum.job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_column_is_found_despite_packets_of_the_row() {
        let of = |phases: &[[u64; 2]]| {
            let phases = phases.iter().enumerate();
            silent_job(phases.map(|(phase, &[packets, came])| Expected {
                job: Position::job_of_phase(phase),
                packets,
                came,
            }))
        };
        assert_eq!(of(&[[7, 7], [6, 0], [7, 7]]), Some(1));
        assert_eq!(of(&[[7, 0], [6, 6], [7, 0]]), Some(0));
        assert_eq!(of(&[[7, 0], [6, 1], [7, 1]]), None);
        // No packet is expected, so none is missing.
        assert_eq!(of(&[[7, 7], [0, 0], [7, 7]]), None);
        assert_eq!(of(&[[4, 0]]), Some(0));
    }
}
