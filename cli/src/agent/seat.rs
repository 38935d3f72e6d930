//! A rank of this host: in one job, or in a row and a column of a grid.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use ultima_agent::{Membership, PACING_BURST};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_controller::job::Line;
use ultima_host::trace::TraceFile;
use ultima_host::{Coding, Config, EarlyBounds, Grid, GridBounds, Hierarchical, Pacing, Recycling};

use super::averager::{Averager, Place};
use super::options::Options;
use super::rank::{self, Done, Work};
use super::side::{Configure, Shared, Side, Start, Unready, give_up};

/// Operations that a rank may fall behind before packets of the newest find no room.
const EARLY_OPERATIONS: usize = 64;

/// The job that a name stands for.
pub enum Named {
    /// One job.
    Flat(Box<api::Job>),
    /// A grid, with its rows in their order, then its columns.
    Grid(Grid, Vec<api::Job>),
}

impl Named {
    /// What the controller has under `name`.
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
            bail!("the jobs {name}.* are not all rows and columns of one grid; create it again");
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

/// What has become of a rank before its first operation.
pub enum Ready {
    /// Operations may begin.
    Begins(Start),
    /// It has no place in its job any more, and has left; in words.
    NoPlace(String),
}

/// A rank that has joined, with its sockets open.
pub struct Seat {
    grid: Option<Grid>,
    /// One, or a row's and a column's.
    pub sides: Vec<Side>,
    /// Whether it has given up one place and has no other yet.
    waits: bool,
}

impl Seat {
    /// Takes the next free rank of this host.
    pub async fn join(
        shared: &Shared,
        named: &Named,
        trace: &mut Option<TraceFile>,
    ) -> Result<Self> {
        let options = &shared.options;
        let (grid, jobs) = match named {
            Named::Flat(job) => {
                let options = options.clone();
                let configure: Configure = Arc::new(move |config| configure(&options, config));
                let side = Side::join(shared, &job.name, trace, &configure).await?;
                let sides = vec![side];
                return Ok(Self {
                    grid: None,
                    sides,
                    waits: false,
                });
            }
            Named::Grid(grid, jobs) => (*grid, jobs),
        };
        let is_here = |job: &api::Job| job.members.iter().any(|m| m.host == *shared.host);
        let groups = usize::from(grid.groups());
        let Some(group) = jobs[..groups].iter().position(is_here) else {
            bail!("no group of {} has host {}", options.job, shared.host);
        };
        let bounded = |of: fn(GridBounds, Config) -> Config| -> Configure {
            let options = options.clone();
            Arc::new(move |config| {
                let config = configure(&options, config);
                of(GridBounds::new(config.t_s, config.t_b), config)
            })
        };
        let of_row = bounded(|bounds, config| bounds.of_row(config));
        let row = Side::join(shared, &jobs[group].name, trace, &of_row).await?;
        let member = row.membership.rank;
        let job = &jobs[groups + usize::from(member)].name;
        let of_column = bounded(|bounds, config| bounds.of_column(config));
        let column = Side::join(shared, job, trace, &of_column);
        let column = match column.await {
            Ok(column) => column,
            Err(error) => {
                give_up(&shared.client, &row.membership).await;
                return Err(error);
            }
        };
        let seat = Self {
            grid: Some(grid),
            sides: vec![row, column],
            waits: false,
        };
        if usize::from(seat.sides[1].membership.rank) != group {
            seat.leave(&shared.client).await;
            bail!(
                "{job} gave host {} another group's rank; its ranks are to be of one group",
                shared.host
            );
        }
        Ok(seat)
    }

    pub fn memberships(&self) -> impl Iterator<Item = &Membership> {
        self.sides.iter().map(|side| &side.membership)
    }

    /// Which rank of its job it is.
    pub fn place(&self) -> Place {
        let of = |side: &Side| {
            let config = side.collective.config();
            (config.rank, config.ranks)
        };
        match (self.grid, &self.sides[..]) {
            (Some(grid), [row, column, ..]) => {
                let ((member, _), (group, _)) = (of(row), of(column));
                Place {
                    rank: grid.rank(group, member),
                    ranks: grid.ranks(),
                    grid: Some(grid),
                }
            }
            (_, sides) => Place::flat(sides.first().map(of).unwrap_or_default()),
        }
    }

    /// Waits until operations may begin; the first. One whose change is called off joins again when there is a place.
    ///
    /// # Errors
    /// The controller does not answer, or refuses it.
    pub async fn ready(&mut self, shared: &Shared) -> Result<Ready> {
        loop {
            let ready = self.sides.iter_mut().map(|side| side.ready(shared));
            let (why, is_over) = match try_join_all(ready).await {
                // A row and a column begin with the job's first operation.
                Ok(starts) => {
                    let start = starts.first().copied().context("a rank without a job")?;
                    return Ok(Ready::Begins(start));
                }
                Err(Unready::LeftOut(why)) => (why, false),
                Err(Unready::Over(why)) => (why, true),
            };
            let Some(side) = self.sides.pop() else {
                bail!("a rank without a job: {why}");
            };
            // Rows and columns keep their members; and what there is of a trace says which epoch it is of.
            let is_alone = self.sides.is_empty() && shared.options.trace.is_none();
            if is_over && is_alone && side.never_was(&shared.client).await? {
                self.waits = true;
                self.sides.push(side.join_again(shared, &why).await?);
                self.waits = false;
                continue;
            }
            let Membership { job, rank, .. } = &side.membership;
            let no_place = format!("rank {rank} of job {job} has no place any more: {why}");
            side.end();
            give_up(&shared.client, &side.membership).await;
            self.leave(&shared.client).await;
            return Ok(Ready::NoPlace(no_place));
        }
    }

    /// Whether it waits for a place to join again.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Gives the rank back.
    pub async fn leave(&self, client: &Client) {
        for membership in self.memberships() {
            give_up(client, membership).await;
        }
    }

    /// Does its work.
    pub async fn run(self, work: Work) -> Result<Done> {
        let mut sides = self.sides;
        let averager = match (self.grid, sides.pop(), sides.pop()) {
            (Some(grid), Some(column), Some(row)) => {
                let memberships = Box::new([&row, &column].map(|side| side.membership.clone()));
                let attending = [row.attending(), column.attending()];
                let both = Hierarchical::new(grid, row.collective, column.collective)?;
                Averager::Grid {
                    both: Box::new(both),
                    memberships,
                    attending,
                }
            }
            (_, Some(side), _) => Averager::Flat(Box::new(side)),
            _ => bail!("a rank without a job"),
        };
        tokio::task::spawn_blocking(move || rank::run(work, averager)).await?
    }
}

/// A rank's configuration as the command line has it.
pub fn configure(options: &Options, config: Config) -> Config {
    Config {
        slot_bytes: options.slot_bytes.unwrap_or(config.slot_bytes),
        coding: match options.no_hadamard {
            true => Coding::Identity,
            false => Coding::default(),
        },
        t_s: options.flush.unwrap_or(config.t_s),
        timeouts: options.timeouts,
        element: options.element,
        estimation: options.estimator,
        recycling: options.recycle.then(Recycling::default),
        pacing: (options.rate)
            .map(|bits_per_second| Pacing {
                bits_per_second,
                burst: PACING_BURST,
                policy: options.rate_control,
            })
            .or(config.pacing),
        incast: options.incast,
        gather_start: options.gather_start,
        answers: options.answers,
        early: EarlyBounds {
            operations: EARLY_OPERATIONS,
            ..config.early
        },
        ..config
    }
}
