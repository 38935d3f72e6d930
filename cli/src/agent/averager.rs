//! The collective of a rank, or the two collectives of a rank in a grid.

use std::time::Duration;

use tokio::task::AbortHandle;
use ultima_agent::{Go, Membership, Session};
use ultima_host::{Error, Grid, GridOutcome, Hierarchical, OperationId, Outcome, Prober, Report};

/// The collective of a rank, or those of its row and its column.
pub enum Averager {
    Flat(Box<Session>),
    Grid {
        both: Box<Hierarchical>,
        memberships: Box<[Membership; 2]>,
        attending: [Option<AbortHandle>; 2],
    },
}

impl Averager {
    /// Averages `bucket`. Returns the outcome, or those of the three phases in a grid.
    ///
    /// # Errors
    /// See [`Collective::allreduce`](ultima_host::Collective::allreduce) and [`Hierarchical::allreduce`].
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

    /// A prober for each job of the rank.
    pub fn probers(&mut self) -> Vec<Prober> {
        match self {
            Averager::Flat(session) => vec![session.collective.prober()],
            Averager::Grid { both, .. } => both.probers().into(),
        }
    }

    /// Receives for another `linger`, then ends the session. Returns a report for each job.
    ///
    /// # Errors
    /// [`Error::Link`] if the network failed.
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

    /// Whether an operation belongs to this epoch; a grid has only one epoch.
    pub fn go(&self, operation: u32) -> Go<Box<Session>> {
        match self {
            Averager::Flat(session) => session.epochs.go(operation),
            Averager::Grid { .. } => Go::Begin,
        }
    }

    /// The epoch; in a grid, that of the row.
    pub fn epoch(&self) -> u16 {
        match self {
            Averager::Flat(session) => session.membership.epoch,
            Averager::Grid { memberships, .. } => memberships[0].epoch,
        }
    }

    /// The memberships of this rank, by job.
    pub fn memberships(&self) -> Vec<Membership> {
        match self {
            Averager::Flat(session) => vec![session.membership.clone()],
            Averager::Grid { memberships, .. } => memberships.to_vec(),
        }
    }

    /// Reports silent ranks. The members of rows and columns are fixed, so a grid ignores them.
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

/// A rank's position in its job or grid.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The rank.
    pub rank: u16,
    /// The number of ranks.
    pub ranks: u16,
    /// The grid, if any.
    pub grid: Option<Grid>,
}

/// The two jobs of a rank in a grid.
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
    /// A position in a job that is not a grid: rank, and number of ranks.
    pub fn flat((rank, ranks): (u16, u16)) -> Self {
        Self {
            rank,
            ranks,
            grid: None,
        }
    }

    /// This rank's number in one of its jobs, and the number of ranks there.
    pub fn in_job(&self, job: usize) -> (u16, u16) {
        match self.grid {
            None => (self.rank, self.ranks),
            Some(grid) => match JOBS[job] {
                Job::Row => (grid.member_of(self.rank), grid.members()),
                Job::Column => (grid.group_of(self.rank), grid.groups()),
            },
        }
    }

    /// The rank that has number `other` in one of this rank's jobs.
    pub fn of_job(&self, job: usize, other: u16) -> u16 {
        match self.grid {
            None => other,
            Some(grid) => match JOBS[job] {
                Job::Row => grid.rank(grid.group_of(self.rank), other),
                Job::Column => grid.rank(other, grid.member_of(self.rank)),
            },
        }
    }

    /// The job of a phase of an operation.
    pub fn job_of_phase(phase: usize) -> usize {
        usize::from(PHASES[phase] == Job::Column)
    }
}
