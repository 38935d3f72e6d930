//! What averages a rank's buckets: one collective, or those of a grid.

use std::time::Duration;

use tokio::task::AbortHandle;
use ultima_agent::{Go, Membership, Session};
use ultima_host::{Error, Grid, GridOutcome, Hierarchical, OperationId, Outcome, Prober, Report};

/// A rank's collective, or its row's and its column's.
pub enum Averager {
    Flat(Box<Session>),
    Grid {
        both: Box<Hierarchical>,
        memberships: Box<[Membership; 2]>,
        attending: [Option<AbortHandle>; 2],
    },
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
            Averager::Flat(session) => vec![session.collective.allreduce(id, bucket)?],
            Averager::Grid { both: grid, .. } => {
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
            Averager::Flat(session) => vec![session.collective.prober()],
            Averager::Grid { both, .. } => both.probers().into(),
        }
    }

    /// Goes on receiving for `linger`, then ends and attends no more; what happened, by job.
    ///
    /// # Errors
    /// [`Error::Link`] if the network is gone.
    pub fn finish(self, linger: Duration) -> Result<Vec<Report>, Error> {
        Ok(match self {
            Averager::Flat(session) => {
                let attending = session.attending();
                let report = session.collective.finish(linger);
                end(attending);
                vec![report?]
            }
            Averager::Grid {
                both, attending, ..
            } => {
                let reports = both.finish(linger);
                attending.into_iter().for_each(end);
                reports?.to_vec()
            }
        })
    }

    /// Whether an operation begins in this epoch; a grid has but one.
    pub fn go(&self, operation: u32) -> Go<Box<Session>> {
        match self {
            Averager::Flat(session) => session.epochs.go(operation),
            Averager::Grid { .. } => Go::Begin,
        }
    }

    /// The epoch, of a grid its row's.
    pub fn epoch(&self) -> u16 {
        match self {
            Averager::Flat(session) => session.membership.epoch,
            Averager::Grid { memberships, .. } => memberships[0].epoch,
        }
    }

    /// This rank's places, by job.
    pub fn memberships(&self) -> Vec<Membership> {
        match self {
            Averager::Flat(session) => vec![session.membership.clone()],
            Averager::Grid { memberships, .. } => memberships.to_vec(),
        }
    }

    /// Of which ranks this one hears nothing. Rows and columns keep their members, whoever is silent.
    pub fn suspect(&self, ranks: Vec<u16>) {
        if let Averager::Flat(session) = self {
            let ranks: Vec<u32> = ranks.into_iter().map(u32::from).collect();
            session.suspects.send_if_modified(|now| {
                let changes = *now != ranks;
                *now = ranks;
                changes
            });
        }
    }
}

fn end(attending: Option<AbortHandle>) {
    if let Some(attending) = attending {
        attending.abort();
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
    /// That rank of so many, alone.
    pub fn flat((rank, ranks): (u16, u16)) -> Self {
        Self {
            rank,
            ranks,
            grid: None,
        }
    }

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
