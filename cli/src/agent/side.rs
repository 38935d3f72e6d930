//! A rank in one job, with its socket open: a flat job's, or a grid's row or column.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use tonic::Code;
use ultima_agent::{
    Epochs, Follower, Go, JoinError, Membership, Metrics, Next, Probes, Quiet, WatchedRank,
};
use ultima_controller::api::Attendance;
use ultima_controller::client::{Client, ClientError};
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Collective, Config, Pacing};

use super::options::Options;

/// The pause before a rank that lost the controller tries to attend again, or one whose epoch is not to be to join again.
const AGAIN: Duration = Duration::from_secs(1);

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

/// Why a rank does not begin.
#[derive(Debug)]
pub enum Unready {
    /// It is told that it has no place in its job from the first operation on, for this reason.
    LeftOut(String),
    /// Its epoch is over, or is not to be, for this reason.
    Over(String),
}

/// How long a rank sends in one AllReduce of so many values: its contributions to the other shards, and its own shard once.
fn sending(values: u32, pacing: Pacing) -> Duration {
    let bits = f64::from(values) * 32.0;
    Duration::from_secs_f64(bits / pacing.bits_per_second as f64)
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
        let mut config = configure(membership.config(shared.options.deadline));
        if shared.options.slot_bytes.is_none() {
            // What recycles needs more room.
            config.slot_bytes = membership.limits.slot_bytes(&config);
        }
        for line in membership.limits.exceeded(&config) {
            let Membership { job, rank, .. } = membership;
            eprintln!("warning: rank {rank} of {job}: {line}");
        }
        let values = shared.options.allreduce.get();
        if let Some(took) = config.pacing.map(|pacing| sending(values, pacing))
            && took > config.t_b
        {
            let Membership { job, rank, .. } = membership;
            eprintln!(
                "warning: rank {rank} of {job}: {values} values take {took:.1?} to send at this rate, longer than the deadline of \
                 {:?}: use fewer with --allreduce, or a longer --deadline",
                config.t_b
            );
        }
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
                    Err(error) if is_of_nothing(&error) => {
                        epochs.end(format!("job {} was deleted", attendance.job));
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
    pub async fn ready(&mut self, shared: &Shared) -> Result<Start, Unready> {
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
                    Go::Over(Next::LeftOut(why)) => return Err(Unready::LeftOut(why)),
                    Go::Nowhere(why) => return Err(Unready::Over(why)),
                    Go::Begin => {}
                },
            }
        }
    }

    /// Whether this one's epoch was called off before it was the job's.
    pub async fn never_was(&self, client: &Client) -> Result<bool> {
        let Membership { job, id, epoch, .. } = &self.membership;
        let now = client.job(job).await?;
        // Another one may have its place among epochs.
        Ok(now.epoch < u32::from(*epoch)
            || now.epoch == u32::from(*epoch) && now.id != u32::from(*id))
    }

    /// Joins again, before anything has begun, in the place of one whose change was called off: it may be made again without members that were lost, or be
    /// asked for again. Waits until there is a place.
    ///
    /// # Errors
    /// The job is gone, or the new rank has no socket.
    pub async fn join_again(self, shared: &Shared, why: &str) -> Result<Self> {
        let Side {
            membership,
            collective,
            configure,
            watched,
            ..
        } = self;
        // Its socket first: the new rank may have the same UDP port.
        drop(collective);
        let Membership {
            job, rank, epoch, ..
        } = &membership;
        eprintln!("rank {rank} of epoch {epoch} waits for a place to join again: {why}");
        let client = &shared.client;
        let membership = loop {
            match Membership::join(client, job, &shared.host, Duration::ZERO).await {
                Ok(membership) => break membership,
                Err(error) if is_gone(&error) => return Err(error.into()),
                Err(error) => tracing::debug!(%error, "there is no place yet"),
            }
            sleep(AGAIN).await;
        };
        let Membership {
            rank, epoch, seats, ..
        } = &membership;
        let ranks = seats.len();
        eprintln!("it joins again as rank {rank} of {ranks} in epoch {epoch}");
        match Self::open(shared, &membership, &configure) {
            Ok(mut side) => {
                side.watch_on(watched, shared);
                side.attend(client);
                Ok(side)
            }
            Err(error) => {
                give_up(client, &membership).await;
                Err(error)
            }
        }
    }

    /// Metrics go on with what this one does.
    fn watch_on(&mut self, watched: Option<WatchedRank>, shared: &Shared) {
        self.watched = watched;
        if let Some(watched) = watched {
            let observer = self.collective.observer();
            let rank = self.membership.rank;
            shared.metrics.watch_on(watched, rank, observer);
        }
    }

    /// Becomes this rank in the next epoch, which begins for it with `operation`; returns what it was. What it carries goes along.
    pub fn go_over(&mut self, mut next: Box<Side>, operation: u32, shared: &Shared) -> Side {
        next.collective.inherit(&mut self.collective);
        next.epochs.starts_at(operation);
        next.attend(&shared.client);
        next.watch_on(self.watched, shared);
        let Membership { rank, epoch, .. } = &next.membership;
        eprintln!(
            "rank {} of epoch {} is rank {rank} of {} in epoch {epoch} from operation {operation} on",
            self.membership.rank,
            self.membership.epoch,
            next.membership.seats.len()
        );
        let before = std::mem::replace(self, *next);
        before.end();
        before
    }

    /// Ends its attendance.
    pub fn end(&self) {
        if let Some(attending) = &self.attending {
            attending.abort();
        }
    }

    /// What ends its attendance.
    pub fn attending(&self) -> Option<AbortHandle> {
        self.attending.as_ref().map(JoinHandle::abort_handle)
    }
}

/// Whether there is nothing to join any more.
fn is_gone(error: &JoinError) -> bool {
    matches!(error, JoinError::Client(error) if is_of_nothing(error))
}

/// Whether the controller says that what was asked for is not there.
fn is_of_nothing(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Refused {
            code: Code::NotFound,
            ..
        }
    )
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
