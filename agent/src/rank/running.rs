//! A rank from its first operation on.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use tokio::task::AbortHandle;
use ultima_host::{
    Error, GridOutcome, Hierarchical, OperationId, Prober, Report as RankReport, Stopped,
};
use ultima_wire::Report;

use super::{EpochMember, Position, RankOutcome, Silence};
use crate::{Departure, Membership, Quiet, RENDEZVOUS, ask, meet};

/// A rank of a job, or of a grid, from its first operation on.
pub struct RunningRank {
    members: Members,
    position: Position,
}

/// The jobs of a rank.
pub(super) enum Members {
    /// One, whose members may change.
    Job(Box<EpochMember>),
    /// A row and a column.
    Grid(Box<GridMember>),
}

/// A rank's row and column. Their members are fixed.
pub(super) struct GridMember {
    pub(super) collective: Hierarchical,
    pub(super) memberships: [Membership; 2],
    pub(super) quiet: [Quiet; 2],
    pub(super) attending: [Option<AbortHandle>; 2],
}

impl RunningRank {
    pub(super) fn new(members: Members, position: Position) -> Self {
        Self { members, position }
    }

    /// The rank's position in its job or grid.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The epoch; in a grid, that of the row.
    pub fn epoch(&self) -> u16 {
        match &self.members {
            Members::Job(member) => member.membership().epoch,
            Members::Grid(grid) => grid.memberships[0].epoch,
        }
    }

    /// The memberships of this rank, by job.
    pub fn memberships(&self) -> Vec<Membership> {
        match &self.members {
            Members::Job(member) => vec![member.membership().clone()],
            Members::Grid(grid) => grid.memberships.to_vec(),
        }
    }

    fn job(&self, number: usize) -> String {
        match &self.members {
            Members::Job(member) => member.membership().job.clone(),
            Members::Grid(grid) => grid.memberships[number].job.clone(),
        }
    }

    fn probers(&mut self) -> Vec<Prober> {
        match &mut self.members {
            Members::Job(member) => vec![member.collective().prober()],
            Members::Grid(grid) => grid.collective.probers().into(),
        }
    }

    /// Exchanges packets with all other ranks in each job, before the first operation. Blocks. Returns the ranks that are
    /// silent, by job.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn meet(&mut self) -> Result<Vec<Silence>, Stopped> {
        let probers = self.probers();
        let position = self.position;
        // In parallel, so that an incomplete row does not delay the column.
        let silent: Vec<Vec<u16>> = thread::scope(|scope| {
            let meeting = probers.iter().enumerate().map(|(job, prober)| {
                let Position { rank, ranks, .. } = position.in_job(job);
                scope.spawn(move || meet(prober, rank, ranks, RENDEZVOUS))
            });
            let meeting: Vec<_> = meeting.collect();
            let met = meeting.into_iter().map(|met| match met.join() {
                Ok(met) => met,
                Err(panic) => resume_unwind(panic),
            });
            met.collect::<Result<_, Stopped>>()
        })?;
        let by_job = silent.into_iter().enumerate();
        let by_job = by_job.filter(|(_, silent)| !silent.is_empty());
        let silences = by_job.map(|(job, silent)| {
            let from = silent.iter().map(|&other| position.of_job(job, other));
            Silence::Ranks {
                job: self.job(job),
                rank: position.rank,
                from: from.collect(),
            }
        });
        Ok(silences.collect())
    }

    /// Waits until operation `step` may start: see [`EpochMember::enter`].
    ///
    /// # Errors
    /// [`Departure`]: the rank has no more operations.
    ///
    /// # Panics
    /// Outside of the runtime, or on a thread of it that must not block.
    pub fn enter(&mut self, step: u32) -> Result<(), Departure> {
        match &mut self.members {
            Members::Job(member) => {
                if member.enter(step)? {
                    let config = member.collective().config();
                    self.position = Position::in_flat_job(config.rank, config.ranks);
                }
            }
            Members::Grid(grid) => grid.quiet.iter().for_each(Quiet::wait),
        }
        Ok(())
    }

    /// Averages `bucket`, and reports silent ranks of a job to the controller.
    ///
    /// # Errors
    /// See [`Collective::allreduce`](ultima_host::Collective::allreduce) and [`Hierarchical::allreduce`].
    pub fn allreduce(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<RankOutcome, Error> {
        Ok(match &mut self.members {
            Members::Job(member) => {
                let outcome = member.collective().allreduce(id, bucket)?;
                member.suspect(&outcome.suspected);
                RankOutcome::of_job(self.position, outcome)
            }
            Members::Grid(grid) => {
                let GridOutcome {
                    scatter,
                    across,
                    gather,
                } = grid.collective.allreduce(id, bucket)?;
                RankOutcome::of_grid(self.position, [scatter, across, gather])
            }
        })
    }

    /// The silence of an operation without any packet of the others, if it was one.
    pub fn silence(&self, outcome: &RankOutcome) -> Option<Silence> {
        let job = outcome.silent_job()?;
        Some(Silence::Operation {
            job: self.job(job),
            rank: self.position.rank,
        })
    }

    /// Requests an operation's counters from this host's switch: see [`ask`]. None in a grid, without a rank on another
    /// host, and without an answer.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn ask_switch(&mut self, about: OperationId) -> Result<Option<Report>, Stopped> {
        match &mut self.members {
            Members::Job(member) => match member.membership().elsewhere() {
                Some(other) => ask(&member.collective().prober(), other, about),
                None => Ok(None),
            },
            Members::Grid(_) => Ok(None),
        }
    }

    /// Receives for another `linger`, then ends the contact with the controller. Returns a report for each epoch of a job,
    /// or for the row and the column of a grid.
    ///
    /// # Errors
    /// [`Error::Link`] if the network failed.
    pub fn finish(self, linger: Duration) -> Result<Vec<RankReport>, Error> {
        match self.members {
            Members::Job(member) => member.finish(linger),
            Members::Grid(grid) => {
                let reports = grid.collective.finish(linger);
                let attending = grid.attending.into_iter().flatten();
                attending.for_each(|attending| attending.abort());
                Ok(reports?.to_vec())
            }
        }
    }
}
