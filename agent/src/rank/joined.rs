//! A rank that has joined its job, or its row and column, until its first operation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{TryFutureExt, try_join_all};
use tokio::time::Instant;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_host::{Config, Error, Grid, GridBounds, Hierarchical};

use super::running::{GridMember, Members};
use super::{EpochMember, JobOrGrid, Position, RunningRank};
use crate::{
    Configure, Context, Departure, Link, Membership, Session, SessionError, Start, give_up,
};

/// A rank that has joined, with its sockets open.
pub struct JoinedRank {
    grid: Option<Grid>,
    /// One session, or those of a row and a column. Empty while the rank waits for a place.
    sessions: Vec<Session>,
    /// True if the rank joins again after its epoch was cancelled.
    rejoins: bool,
}

/// The state of a rank before its first operation.
pub(super) enum Ready {
    /// Operations may start.
    Begins(Start),
    /// The rank has left, because it was removed or its job cannot begin: the reason.
    Removed(String),
}

impl JoinedRank {
    /// Takes the next free rank of the context's host in a job or grid. Waits until `until` for jobs that are not ready.
    ///
    /// # Errors
    /// [`SessionError`]; the rank is given back.
    pub async fn join(
        context: &Context,
        target: &JobOrGrid,
        until: Instant,
    ) -> Result<Self, SessionError> {
        match target {
            JobOrGrid::Job(job) => Self::join_job(context, &job.name, Link::Udp, until).await,
            JobOrGrid::Grid { grid, jobs } => Self::join_grid(context, *grid, jobs, until).await,
        }
    }

    /// Takes the next free rank of the context's host in a job. Waits until `until` for a job that is not ready.
    ///
    /// # Errors
    /// [`SessionError`]; the rank is given back.
    pub async fn join_job(
        context: &Context,
        job: &str,
        link: Link,
        until: Instant,
    ) -> Result<Self, SessionError> {
        let rejoins = matches!(link, Link::Udp);
        let whole: Configure = Arc::new(|config| config);
        let session = Session::join(context, job, link, &whole, until).await?;
        Ok(Self {
            grid: None,
            sessions: vec![session],
            rejoins,
        })
    }

    async fn join_grid(
        context: &Context,
        grid: Grid,
        jobs: &[api::Job],
        until: Instant,
    ) -> Result<Self, SessionError> {
        let is_here = |job: &api::Job| job.members.iter().any(|m| m.host == *context.host);
        let groups = usize::from(grid.groups());
        let Some(group) = jobs[..groups].iter().position(is_here) else {
            let host = context.host.to_string();
            return Err(SessionError::NoGroup { host });
        };
        let bounded = |of: fn(GridBounds, Config) -> Config| -> Configure {
            Arc::new(move |config| of(GridBounds::new(config.t_s, config.t_b), config))
        };
        let of_row = bounded(|bounds, config| bounds.of_row(config));
        let row = Session::join(context, &jobs[group].name, Link::Udp, &of_row, until).await?;
        let member = row.membership.rank;
        let job = &jobs[groups + usize::from(member)].name;
        let of_column = bounded(|bounds, config| bounds.of_column(config));
        let column = Session::join(context, job, Link::Udp, &of_column, until);
        let column = match column.await {
            Ok(column) => column,
            Err(error) => {
                give_up(&context.client, &row.membership).await;
                return Err(error);
            }
        };
        let rank = Self {
            grid: Some(grid),
            sessions: vec![row, column],
            rejoins: false,
        };
        if usize::from(rank.sessions[1].membership.rank) != group {
            rank.leave(&context.client).await;
            return Err(SessionError::OtherGroup {
                job: job.clone(),
                host: context.host.to_string(),
            });
        }
        Ok(rank)
    }

    /// The sessions: one, or those of a row and a column.
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// The session of a job's rank, for a trace of its packets. The trace is of one epoch, so the rank does not join again
    /// after a cancelled change.
    pub fn session_to_trace(&mut self) -> Option<&mut Session> {
        self.rejoins = false;
        self.sessions.first_mut()
    }

    /// True while the rank waits for a new place, after its epoch was cancelled.
    pub(super) fn is_waiting(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The rank's position in its job or grid.
    pub fn position(&self) -> Position {
        let of = |session: &Session| {
            let config = session.collective.config();
            (config.rank, config.ranks)
        };
        match (self.grid, &self.sessions[..]) {
            (Some(grid), [row, column, ..]) => {
                let ((member, _), (group, _)) = (of(row), of(column));
                Position {
                    rank: grid.rank(group, member),
                    ranks: grid.ranks(),
                    grid: Some(grid),
                }
            }
            (_, sessions) => {
                let (rank, ranks) = sessions.first().map(of).unwrap_or_default();
                Position::in_flat_job(rank, ranks)
            }
        }
    }

    /// Waits until operations may start. If the rank's epoch is cancelled, joins again when a rank is free.
    pub(super) async fn ready(&mut self, context: &Context) -> Result<Ready, SessionError> {
        loop {
            let ready = self.sessions.iter_mut().enumerate();
            let ready = ready.map(|(at, session)| {
                let ready = session.ready(context);
                ready.map_err(move |departure| (at, departure))
            });
            let (at, departure) = match try_join_all(ready).await {
                Ok(starts) => {
                    // A row and a column start with the same operation.
                    let start = starts.first().copied();
                    return Ok(Ready::Begins(start.expect("a rank has a session")));
                }
                Err(departed) => departed,
            };
            let session = &self.sessions[at];
            let cancelled = matches!(departure, Departure::Ended(_));
            if cancelled && self.rejoins && session.never_was(&context.client).await? {
                let session = self.sessions.pop().expect("a rank has a session");
                let session = session.join_again(context, departure.reason()).await?;
                self.sessions.push(session);
                continue;
            }
            let Membership { job, rank, .. } = &session.membership;
            let removed = match departure {
                Departure::CannotBegin(why) => format!("job {job} cannot begin: {why}"),
                Departure::LeftOut(why) | Departure::Ended(why) => {
                    format!("rank {rank} of job {job} was removed: {why}")
                }
            };
            self.leave(&context.client).await;
            return Ok(Ready::Removed(removed));
        }
    }

    /// Gives the rank back.
    pub async fn leave(&self, client: &Client) {
        for session in &self.sessions {
            session.end();
            give_up(client, &session.membership).await;
        }
    }

    /// Turns the rank's session into one that follows the job's changes. None for a rank of a grid. For `linger`, see
    /// [`EpochMember::new`].
    pub fn into_member(mut self, context: &Context, linger: Duration) -> Option<EpochMember> {
        match self.grid {
            Some(_) => None,
            None => {
                let session = self.sessions.pop()?;
                Some(EpochMember::new(session, context.clone(), linger))
            }
        }
    }

    /// The rank, ready for operations. For `linger`, see [`EpochMember::new`].
    ///
    /// # Errors
    /// The row and the column do not form a grid.
    pub fn run(mut self, context: &Context, linger: Duration) -> Result<RunningRank, Error> {
        let position = self.position();
        let members = match (self.grid, self.sessions.pop(), self.sessions.pop()) {
            (Some(grid), Some(column), Some(row)) => {
                let lines = [&row, &column];
                Members::Grid(Box::new(GridMember {
                    memberships: lines.map(|session| session.membership.clone()),
                    quiet: lines.map(|session| session.quiet.clone()),
                    attending: lines.map(Session::attending),
                    collective: Hierarchical::new(grid, row.collective, column.collective)?,
                }))
            }
            (_, session, _) => {
                let session = session.expect("a rank has a session");
                Members::Job(Box::new(EpochMember::new(session, context.clone(), linger)))
            }
        };
        Ok(RunningRank::new(members, position))
    }
}
