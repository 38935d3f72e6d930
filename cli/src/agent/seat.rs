//! A joined rank of this host: its session in one job, or in a row and a column of a grid.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use ultima_agent::{Configure, Context, Link, Membership, Session, Start, Unready, give_up};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::job::Line;
use ultima_host::trace::TraceFile;
use ultima_host::{Config, Grid, GridBounds, Hierarchical};

use super::averager::{Averager, Place};
use super::options::Options;
use super::rank::{self, Done, Work};

/// The job or grid of a name.
pub enum Named {
    /// One job.
    Flat(Box<api::Job>),
    /// A grid: its rows in order, then its columns.
    Grid(Grid, Vec<api::Job>),
}

impl Named {
    /// Looks up `name` at the controller.
    pub async fn find(client: &Client, name: &str) -> Result<Self> {
        let all = client.jobs().await?;
        let of_grid = |job: &api::Job| {
            let (grid, line) = Line::of(&job.name)?;
            (grid == name).then(|| (line, job.clone()))
        };
        let mut lines: Vec<(Line, api::Job)> = all.iter().filter_map(of_grid).collect();
        if lines.is_empty() || all.iter().any(|job| job.name == name) {
            return Ok(Named::Flat(Box::new(client.job(name).await?)));
        }
        lines.sort_by_key(|(line, _)| *line);
        let rows = lines
            .iter()
            .filter(|(line, _)| matches!(line, Line::Row(_)));
        let groups = rows.count() as u16;
        let grid = Grid::new(groups, lines.len() as u16 - groups)?;
        let is_place = |(at, (line, job)): (u16, &(Line, api::Job))| match at.checked_sub(groups) {
            None => *line == Line::Row(at) && job.members.len() == usize::from(grid.members()),
            Some(at) => {
                *line == Line::Column(at) && job.members.len() == usize::from(grid.groups())
            }
        };
        if !(0..).zip(&lines).all(is_place) {
            bail!("the jobs {name}.* are not a complete grid; delete it and create it again");
        }
        Ok(Named::Grid(
            grid,
            lines.into_iter().map(|(_, job)| job).collect(),
        ))
    }

    /// Its jobs.
    pub fn jobs(&self) -> &[api::Job] {
        match self {
            Named::Flat(job) => std::slice::from_ref(&**job),
            Named::Grid(_, jobs) => jobs,
        }
    }
}

/// The state of a rank before its first operation.
pub enum Ready {
    /// Operations may start.
    Begins(Start),
    /// The rank was removed from its job and has left, with the reason.
    Removed(String),
}

/// A rank that has joined, with its sockets open.
pub struct Seat {
    grid: Option<Grid>,
    /// One session, or those of a row and a column.
    pub sessions: Vec<Session>,
    /// True while it waits for a new rank after its old one was removed.
    waits: bool,
}

impl Seat {
    /// Takes the next free rank of this host.
    pub async fn join(
        context: &Context,
        options: &Options,
        named: &Named,
        trace: &mut Option<TraceFile>,
    ) -> Result<Self> {
        let (grid, jobs) = match named {
            Named::Flat(job) => {
                let whole: Configure = Arc::new(|config| config);
                let mut session = Session::join(context, &job.name, Link::Udp, &whole).await?;
                warn_of_slow_rate(&session, options);
                if let Err(error) = begin_trace(&mut session, options, trace) {
                    session.end();
                    give_up(&context.client, &session.membership).await;
                    return Err(error);
                }
                return Ok(Self {
                    grid: None,
                    sessions: vec![session],
                    waits: false,
                });
            }
            Named::Grid(grid, jobs) => (*grid, jobs),
        };
        let is_here = |job: &api::Job| job.members.iter().any(|m| m.host == *context.host);
        let groups = usize::from(grid.groups());
        let Some(group) = jobs[..groups].iter().position(is_here) else {
            bail!("host {} is in no group of {}", context.host, options.job);
        };
        let bounded = |of: fn(GridBounds, Config) -> Config| -> Configure {
            Arc::new(move |config| of(GridBounds::new(config.t_s, config.t_b), config))
        };
        let of_row = bounded(|bounds, config| bounds.of_row(config));
        let row = Session::join(context, &jobs[group].name, Link::Udp, &of_row).await?;
        let member = row.membership.rank;
        let job = &jobs[groups + usize::from(member)].name;
        let of_column = bounded(|bounds, config| bounds.of_column(config));
        let column = Session::join(context, job, Link::Udp, &of_column);
        let column = match column.await {
            Ok(column) => column,
            Err(error) => {
                give_up(&context.client, &row.membership).await;
                return Err(error.into());
            }
        };
        let seat = Self {
            grid: Some(grid),
            sessions: vec![row, column],
            waits: false,
        };
        if usize::from(seat.sessions[1].membership.rank) != group {
            seat.leave(&context.client).await;
            bail!(
                "{job} gave host {} a rank of another group; all ranks of a host must be in one group",
                context.host
            );
        }
        Ok(seat)
    }

    pub fn memberships(&self) -> impl Iterator<Item = &Membership> {
        self.sessions.iter().map(|session| &session.membership)
    }

    /// Its position in the job or grid.
    pub fn place(&self) -> Place {
        let of = |session: &Session| {
            let config = session.collective.config();
            (config.rank, config.ranks)
        };
        match (self.grid, &self.sessions[..]) {
            (Some(grid), [row, column, ..]) => {
                let ((member, _), (group, _)) = (of(row), of(column));
                Place {
                    rank: grid.rank(group, member),
                    ranks: grid.ranks(),
                    grid: Some(grid),
                }
            }
            (_, sessions) => Place::flat(sessions.first().map(of).unwrap_or_default()),
        }
    }

    /// Waits until operations may start. If the rank's epoch is cancelled, joins again when a rank is free.
    ///
    /// # Errors
    /// The controller does not answer, or rejects the rank.
    pub async fn ready(&mut self, context: &Context, options: &Options) -> Result<Ready> {
        loop {
            let ready = self
                .sessions
                .iter_mut()
                .map(|session| session.ready(context));
            let (why, is_over) = match try_join_all(ready).await {
                // A row and a column start with the same operation.
                Ok(starts) => {
                    let start = starts.first().copied().with_context(|| no_job(context))?;
                    return Ok(Ready::Begins(start));
                }
                Err(Unready::LeftOut(why)) => (why, false),
                Err(Unready::Over(why)) => (why, true),
            };
            let Some(session) = self.sessions.pop() else {
                bail!("{}: {why}", no_job(context));
            };
            // The members of rows and columns are fixed, and a trace is of one epoch.
            let is_alone = self.sessions.is_empty() && options.trace.is_none();
            if is_over && is_alone && session.never_was(&context.client).await? {
                self.waits = true;
                self.sessions.push(session.join_again(context, &why).await?);
                self.waits = false;
                continue;
            }
            let Membership { job, rank, .. } = &session.membership;
            let removed = format!("rank {rank} of job {job} was removed: {why}");
            session.end();
            give_up(&context.client, &session.membership).await;
            self.leave(&context.client).await;
            return Ok(Ready::Removed(removed));
        }
    }

    /// True while it waits for a new rank.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Releases the rank.
    pub async fn leave(&self, client: &Client) {
        for membership in self.memberships() {
            give_up(client, membership).await;
        }
    }

    /// Runs the operations.
    pub async fn run(self, work: Work) -> Result<Done> {
        let mut sessions = self.sessions;
        let averager = match (self.grid, sessions.pop(), sessions.pop()) {
            (Some(grid), Some(column), Some(row)) => {
                let memberships =
                    Box::new([&row, &column].map(|session| session.membership.clone()));
                let attending = [row.attending(), column.attending()];
                let both = Hierarchical::new(grid, row.collective, column.collective)?;
                Averager::Grid {
                    both: Box::new(both),
                    memberships,
                    attending,
                }
            }
            (_, Some(session), _) => Averager::Flat(Box::new(session)),
            _ => bail!("internal error: a rank has no job"),
        };
        tokio::task::spawn_blocking(move || rank::run(work, averager)).await?
    }
}

/// The error of a seat without a session.
fn no_job(context: &Context) -> String {
    format!("internal error: a rank on host {} has no job", context.host)
}

/// Writes the session's packets to the agent's trace file, which the first session creates.
fn begin_trace(
    session: &mut Session,
    options: &Options,
    trace: &mut Option<TraceFile>,
) -> Result<()> {
    match (&options.trace, &trace) {
        (Some(path), None) => {
            let source = format!("job {}", session.membership.job);
            let file = session.trace_to(path, &source);
            *trace = Some(file.with_context(|| path.display().to_string())?);
        }
        (_, Some(trace)) => session.collective.trace(Box::new(trace.sink())),
        (None, None) => {}
    }
    Ok(())
}

/// Warns if a rank cannot send its values before the deadline. It sends its contributions to the other shards, and its own
/// shard once.
fn warn_of_slow_rate(session: &Session, options: &Options) {
    let config = session.collective.config();
    let values = options.allreduce.get();
    let took = config.pacing.map(|pacing| {
        let bits = f64::from(values) * 32.0;
        Duration::from_secs_f64(bits / pacing.bits_per_second as f64)
    });
    if let Some(took) = took.filter(|took| *took > config.t_b) {
        let Membership { job, rank, .. } = &session.membership;
        eprintln!(
            "warning: rank {rank} of {job}: {values} values take at least {took:.1?} to send at this rate, longer than the deadline of \
             {:?}: use fewer with --allreduce, or a longer --deadline",
            config.t_b
        );
    }
}
