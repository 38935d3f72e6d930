//! A rank in one job, with its socket open: a flat job's, or a grid's row or column.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use ultima_agent::{Epochs, Follower, Go, Membership, Metrics, Next, Probes, Quiet, WatchedRank};
use ultima_controller::api::Attendance;
use ultima_controller::client::Client;
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Collective, Config};

use super::options::Options;
use crate::exit::NoPlace;

/// The pause before a rank that lost the controller tries to attend again, or one that lost its place to join again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a rank whose epoch is not to be tries to join again: the next one takes as long to install as switches need for it.
const JOINS: u32 = 5;

/// What ranks of a process share.
#[derive(Clone)]
pub struct Shared {
    pub client: Client,
    pub options: Arc<Options>,
    /// The fabric's name for this host.
    pub host: Arc<str>,
    pub metrics: Arc<Metrics>,
}

/// What makes a rank's configuration of what the controller said.
pub type Configure = Arc<dyn Fn(Config) -> Config + Send + Sync>;

/// A rank's part in one epoch of one job.
pub struct Side {
    pub membership: Membership,
    pub collective: Collective,
    pub quiet: Quiet,
    pub epochs: Epochs<Box<Side>>,
    /// Where the controller is told of whom this rank hears nothing.
    pub suspects: watch::Sender<Vec<u32>>,
    here: watch::Receiver<bool>,
    first: watch::Receiver<Option<u32>>,
    configure: Configure,
    /// Until it attends.
    word: Option<Word>,
    attending: Option<JoinHandle<()>>,
    watched: Option<WatchedRank>,
}

/// What attends for it.
struct Word {
    attendance: Attendance,
    probes: Probes,
    follower: Follower<Box<Side>>,
}

/// How a rank begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// With which operation.
    pub first: u32,
    /// Whether all ranks do: then they meet.
    pub together: bool,
}

impl Side {
    /// Takes the next free rank of `job` on this host.
    pub async fn join(
        shared: &Shared,
        job: &str,
        trace: &mut Option<TraceFile>,
        configure: &Configure,
    ) -> Result<Self> {
        let client = &shared.client;
        let membership = Membership::join(client, job, &shared.host, Duration::ZERO).await?;
        let opened = Self::open(shared, &membership, configure)
            .and_then(|side| side.traced(&shared.options, trace));
        match opened {
            Ok(mut side) => {
                let Membership { job, rank, .. } = &side.membership;
                let observer = side.collective.observer();
                side.watched = Some(shared.metrics.watch(job, *rank, observer));
                side.attend(client);
                Ok(side)
            }
            Err(error) => {
                give_up(client, &membership).await;
                Err(error)
            }
        }
    }

    fn open(shared: &Shared, membership: &Membership, configure: &Configure) -> Result<Self> {
        let config = configure(membership.config(shared.options.deadline));
        let udp = membership.udp()?;
        let attendance = membership.attendance(config.slot_bytes);
        let collective = Collective::over_udp(config, udp)?;
        let probes = Probes::new(collective.prober());
        let epochs = Epochs::new();
        let again = (shared.clone(), configure.clone());
        let follower = Follower::new(
            membership,
            epochs.clone(),
            Box::new(move |membership| {
                let (shared, configure) = &again;
                let opened = Self::open(shared, &membership, configure);
                opened.map(Box::new).map_err(|error| format!("{error:#}"))
            }),
        );
        Ok(Self {
            membership: membership.clone(),
            collective,
            quiet: probes.quiet(),
            epochs,
            suspects: follower.suspects(),
            here: probes.all_here(),
            first: follower.first(),
            configure: configure.clone(),
            word: Some(Word {
                attendance,
                probes,
                follower,
            }),
            attending: None,
            watched: None,
        })
    }

    /// The first one begins the trace, which has what all of them do.
    fn traced(mut self, options: &Options, trace: &mut Option<TraceFile>) -> Result<Self> {
        if let (Some(path), None) = (&options.trace, &trace) {
            let job = format!("job {}", self.membership.job);
            let head = Head::new(self.collective.config(), Clock::Real, &job);
            let file = TraceFile::create(path, &head, WhenFull::Drop);
            *trace = Some(file.with_context(|| path.display().to_string())?);
        }
        if let Some(trace) = trace {
            self.collective.trace(Box::new(trace.sink()));
        }
        Ok(self)
    }

    /// Stays in touch with the controller from now on.
    fn attend(&mut self, client: &Client) {
        let Some(word) = self.word.take() else {
            return;
        };
        let Word {
            attendance,
            mut probes,
            mut follower,
        } = word;
        let (client, epochs) = (client.clone(), self.epochs.clone());
        self.attending = Some(tokio::spawn(async move {
            loop {
                let attended = client.attend(attendance.clone(), &mut probes, &mut follower);
                match attended.await {
                    Err(error) if error.is_over() => {
                        epochs.end(error.to_string());
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "not in touch with the controller"),
                    Ok(()) => {}
                }
                sleep(AGAIN).await;
            }
        }));
    }

    /// Waits until operations may begin: all members have their sockets open, or the job has been running and this rank comes in. Before
    /// that its members may change.
    ///
    /// # Errors
    /// [`NoPlace`] where it has none any more.
    pub async fn ready(&mut self, shared: &Shared) -> Result<Start> {
        loop {
            let (mut here, mut first) = (self.here.clone(), self.first.clone());
            let epochs = self.epochs.clone();
            tokio::select! {
                // Where what attends has ended, the epoch is over.
                Ok(_) = here.wait_for(|here| *here) => {
                    return Ok(Start { first: 0, together: true });
                }
                Ok(first) = first.wait_for(Option::is_some) => {
                    let first = first.unwrap_or_default();
                    return Ok(Start { first, together: false });
                }
                over = epochs.over_before_it_began() => match over {
                    Go::Over(Next::Place(next)) => drop(self.go_over(next, 0, shared)),
                    Go::Over(Next::LeftOut(why)) => return Err(self.without_place(&why).into()),
                    Go::Nowhere(why) => self.join_again(shared, &why).await?,
                    Go::Begin => {}
                },
            }
        }
    }

    /// Takes another rank on this host before anything has begun in its epoch: where a change is called off that had brought this one a place, it may be
    /// made again without members that were lost, with places for newcomers as before.
    async fn join_again(&mut self, shared: &Shared, why: &str) -> Result<()> {
        // What there is of a trace says which epoch it is of.
        let joins = match shared.options.trace {
            Some(_) => 0,
            None => JOINS,
        };
        let Membership {
            job, rank, epoch, ..
        } = &self.membership;
        let mut joined = None;
        for _ in 0..joins {
            match Membership::join(&shared.client, job, &shared.host, Duration::ZERO).await {
                Ok(membership) => {
                    joined = Some(membership);
                    break;
                }
                Err(error) => tracing::debug!(%error, "there is no place yet"),
            }
            sleep(AGAIN).await;
        }
        let Some(membership) = joined else {
            return Err(self.without_place(why).into());
        };
        eprintln!(
            "rank {rank} of epoch {epoch} joins again as rank {} of {} in epoch {}: {why}",
            membership.rank,
            membership.seats.len(),
            membership.epoch
        );
        match Self::open(shared, &membership, &self.configure) {
            Ok(next) => {
                drop(self.give_way_to(next, shared));
                Ok(())
            }
            Err(error) => {
                give_up(&shared.client, &membership).await;
                Err(error)
            }
        }
    }

    fn without_place(&self, why: &str) -> NoPlace {
        if let Some(attending) = &self.attending {
            attending.abort();
        }
        let Membership { job, rank, .. } = &self.membership;
        NoPlace(format!(
            "rank {rank} of job {job} has no place any more: {why}"
        ))
    }

    /// Becomes this rank in the next epoch, which begins for it with `operation`; returns what it was. What it carries goes along.
    pub fn go_over(&mut self, mut next: Box<Side>, operation: u32, shared: &Shared) -> Side {
        next.collective.inherit(&mut self.collective);
        next.epochs.starts_at(operation);
        let Membership { rank, epoch, .. } = &next.membership;
        eprintln!(
            "rank {} of epoch {} is rank {rank} of {} in epoch {epoch} from operation {operation} on",
            self.membership.rank,
            self.membership.epoch,
            next.membership.seats.len()
        );
        self.give_way_to(*next, shared)
    }

    fn give_way_to(&mut self, mut next: Side, shared: &Shared) -> Side {
        next.attend(&shared.client);
        next.watched = self.watched;
        if let Some(watched) = next.watched {
            let observer = next.collective.observer();
            shared
                .metrics
                .watch_on(watched, next.membership.rank, observer);
        }
        let before = std::mem::replace(self, next);
        if let Some(attending) = &before.attending {
            attending.abort();
        }
        before
    }

    /// What ends its attendance.
    pub fn attending(&self) -> Option<AbortHandle> {
        self.attending.as_ref().map(JoinHandle::abort_handle)
    }
}

/// Gives a rank back.
pub async fn give_up(client: &Client, membership: &Membership) {
    let Membership {
        job,
        id,
        epoch,
        rank,
        ..
    } = membership;
    let epoch = ((*epoch).into(), (*id).into());
    let left = client.leave(job, epoch, (*rank).into()).await;
    if let Err(error) = left {
        // The job may have been deleted meanwhile.
        tracing::debug!(%error, rank, "not left");
    }
}
