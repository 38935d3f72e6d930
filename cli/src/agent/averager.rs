//! What averages a rank's buckets: one collective, or those of a grid.

use std::time::Duration;

use ultima_host::{
    Collective, Error, Grid, GridOutcome, Hierarchical, OperationId, Outcome, Prober, Report,
};

/// A rank's collective, or its row's and its column's.
pub enum Averager {
    Flat(Box<Collective>),
    Grid(Box<Hierarchical>),
}

impl Averager {
    /// Averages `bucket`; how the operation ended, or its three phases.
    ///
    /// # Errors
    /// As [`Collective::allreduce`] and [`Hierarchical::allreduce`].
    pub fn allreduce(
        &mut self,
        id: OperationId,
        bucket: &mut [f32],
    ) -> Result<Vec<Outcome>, Error> {
        Ok(match self {
            Averager::Flat(collective) => vec![collective.allreduce(id, bucket)?],
            Averager::Grid(grid) => {
                let GridOutcome {
                    scatter,
                    across,
                    gather,
                } = grid.allreduce(id, bucket)?;
                vec![scatter, across, gather]
            }
        })
    }

    /// One for each job that the rank is in.
    pub fn probers(&mut self) -> Vec<Prober> {
        match self {
            Averager::Flat(collective) => vec![collective.prober()],
            Averager::Grid(grid) => grid.probers().into(),
        }
    }

    /// Goes on receiving for `linger`, then ends; what happened, by job.
    ///
    /// # Errors
    /// [`Error::Link`] if the network is gone.
    pub fn finish(self, linger: Duration) -> Result<Vec<Report>, Error> {
        Ok(match self {
            Averager::Flat(collective) => vec![collective.finish(linger)?],
            Averager::Grid(grid) => grid.finish(linger)?.to_vec(),
        })
    }
}

/// A rank's place in its job, flat or a grid.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Which rank.
    pub rank: u16,
    /// Of how many.
    pub ranks: u16,
    /// How they stand, if not alone.
    pub grid: Option<Grid>,
}

/// The jobs of a grid that a rank is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Row,
    Column,
}

/// In the order of [`Averager::probers`].
const JOBS: [Job; 2] = [Job::Row, Job::Column];
/// In the order of [`Averager::allreduce`]'s outcomes.
const PHASES: [Job; 3] = [Job::Row, Job::Column, Job::Row];

impl Place {
    /// This rank's number, and that of its job's ranks, in the job with that number.
    pub fn in_job(&self, job: usize) -> (u16, u16) {
        match self.grid {
            None => (self.rank, self.ranks),
            Some(grid) => match JOBS[job] {
                Job::Row => (grid.member_of(self.rank), grid.members()),
                Job::Column => (grid.group_of(self.rank), grid.groups()),
            },
        }
    }

    /// Which rank has number `other` in the job with that number.
    pub fn of_job(&self, job: usize, other: u16) -> u16 {
        match self.grid {
            None => other,
            Some(grid) => match JOBS[job] {
                Job::Row => grid.rank(grid.group_of(self.rank), other),
                Job::Column => grid.rank(other, grid.member_of(self.rank)),
            },
        }
    }

    /// In which job an operation's phase is.
    pub fn job_of_phase(phase: usize) -> usize {
        usize::from(PHASES[phase] == Job::Column)
    }
}
