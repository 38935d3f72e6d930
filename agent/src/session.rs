//! A rank's session: its place in one epoch of a job, its socket, and its contact with the controller. A flat job's rank
//! has one, a grid's rank one in its row and one in its column.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backon::{ConstantBuilder, ExponentialBuilder, Retryable as _};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::Attendance;
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Collective, Config};

use crate::{
    Epochs, Follower, Held, JoinError, Membership, Metrics, Probes, Quiet, Settings, SocketError,
    WatchedRank,
};

/// The pause before a session contacts a lost controller again, or joins again after a cancelled change.
const AGAIN: Duration = Duration::from_secs(1);
/// The first pause before a rank asks again for its place in a job that is not ready. Each is twice the one before, up to
/// [`AGAIN`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The state that all sessions of a process share.
#[derive(Clone)]
pub struct Context {
    /// The controller.
    pub client: Client,
    /// The fabric's name for this host.
    pub host: Arc<str>,
    /// The settings of this process's ranks.
    pub settings: Settings,
    /// Further settings that must be equal at all ranks, by name: the controller refuses a rank that differs.
    pub shared: Vec<(&'static str, String)>,
    /// The metrics that show their counters.
    pub metrics: Arc<Metrics>,
    /// Their memberships.
    pub held: Held,
    /// Prints a line for the user: warnings, and changes of epoch.
    pub notice: fn(&str),
}

/// The link that carries a session's packets.
#[derive(Debug)]
pub enum Link {
    /// A kernel UDP socket on the rank's address.
    Udp,
    /// A port of a virtual switch. It serves one epoch.
    Port(OwnedFd),
}

/// The reason that a session does not open.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The controller gives no rank.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The controller gave no rank in time, because the job is not ready or no controller leads.
    #[error("timed out: {0}")]
    NotReady(ClientError),
    /// The controller does not answer, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The rank has no socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The settings do not fit together, or the link fails.
    #[error(transparent)]
    Collective(#[from] ultima_host::Error),
    /// A grid lacks rows, columns or members.
    #[error("the jobs {name}.* are not a complete grid; delete it and create it again")]
    IncompleteGrid {
        /// The grid's name.
        name: String,
    },
    /// The host is not in the grid.
    #[error("host {host} is in no group of the grid")]
    NoGroup {
        /// The host's name.
        host: String,
    },
    /// A host's ranks are in several groups.
    #[error(
        "{job} gave host {host} a rank of another group; all ranks of a host must be in one group"
    )]
    OtherGroup {
        /// The column.
        job: String,
        /// The host's name.
        host: String,
    },
    /// No member has an address of this machine.
    #[error(
        "no member has an address of this machine ({addresses}); the job's members are {members}: on one of these hosts, pass its name"
    )]
    NotAMember {
        /// This machine's addresses.
        addresses: String,
        /// The hosts of the members, at most eight.
        members: String,
    },
}

/// Makes a rank's configuration from the controller's.
pub type Configure = Arc<dyn Fn(Config) -> Config + Send + Sync>;

/// A rank's part in one epoch of one job.
pub struct Session {
    /// The rank and its peers.
    pub membership: Membership,
    /// The collective of this epoch.
    pub collective: Collective,
    /// Pauses that checks ask for.
    pub quiet: Quiet,
    /// In which epoch an operation is.
    pub epochs: Epochs<Box<Session>>,
    /// The ranks that this one does not hear, for the controller.
    pub suspects: watch::Sender<Vec<u32>>,
    here: watch::Receiver<bool>,
    first: watch::Receiver<Option<u32>>,
    configure: Configure,
    /// Until it attends.
    unattended: Option<Unattended>,
    attending: Option<JoinHandle<()>>,
    watched: Option<WatchedRank>,
}

/// The controller's counterpart of a session, before it runs.
struct Unattended {
    attendance: Attendance,
    probes: Probes,
    follower: Follower<Box<Session>>,
}

/// A rank's start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The first operation.
    pub first: u32,
    /// True if all ranks start with it: then they meet first.
    pub together: bool,
}

/// The reason that a rank has no more operations.
#[derive(Debug)]
pub enum Departure {
    /// The job continues without it, or the controller refuses it, for this reason.
    LeftOut(String),
    /// Its epoch is over or was cancelled, for this reason.
    Ended(String),
    /// Operations cannot begin, because a member was refused or has left.
    CannotBegin(String),
}

impl Departure {
    /// The reason.
    pub fn reason(&self) -> &str {
        match self {
            Departure::LeftOut(why) | Departure::Ended(why) | Departure::CannotBegin(why) => why,
        }
    }
}

impl Session {
    /// Takes the next free rank of `job` on the context's host, opens its link, and contacts the controller. Waits until
    /// `until` for a job that is not ready.
    ///
    /// # Errors
    /// [`SessionError`]; the rank is given back.
    pub async fn join(
        context: &Context,
        job: &str,
        link: Link,
        configure: &Configure,
        until: Instant,
    ) -> Result<Self, SessionError> {
        let client = &context.client;
        let membership = Self::take_rank(context, job, until).await?;
        // Before the first message of the session: the process may end meanwhile.
        context.held.add(client, &membership);
        match Self::open(context, &membership, link, configure) {
            Ok(mut session) => {
                let Membership { job, rank, .. } = &session.membership;
                let observer = session.collective.observer();
                session.watched = Some(context.metrics.watch(job, *rank, observer));
                session.attend(context);
                Ok(session)
            }
            Err(error) => {
                give_up(client, &membership).await;
                Err(error)
            }
        }
    }

    /// Takes the next free rank of a job as soon as the job is ready. A notice says once what the rank waits for.
    async fn take_rank(
        context: &Context,
        job: &str,
        until: Instant,
    ) -> Result<Membership, SessionError> {
        let join = || Membership::join(&context.client, job, &context.host, Duration::ZERO);
        let pauses = ExponentialBuilder::new()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(AGAIN)
            .without_max_times();
        let is_for_now =
            |error: &JoinError| matches!(error, JoinError::Client(error) if error.is_for_now());
        let joined = join.retry(pauses).when(is_for_now);
        let joined = joined.adjust(|_, pause| {
            let left = until.checked_duration_since(Instant::now())?;
            Some(pause?.min(left))
        });
        let mut is_first = true;
        let joined = joined.notify(|why, _| {
            if std::mem::take(&mut is_first) {
                (context.notice)(&format!("waiting for a rank on {}: {why}", context.host));
            }
        });
        joined.await.map_err(|error| match error {
            JoinError::Client(error) if error.is_for_now() => SessionError::NotReady(error),
            error => error.into(),
        })
    }

    fn open(
        context: &Context,
        membership: &Membership,
        link: Link,
        configure: &Configure,
    ) -> Result<Self, SessionError> {
        let settings = &context.settings;
        let mut config = configure(settings.apply(membership.config(settings.t_b)));
        if settings.slot_bytes.is_none() {
            // The settings may need room in each packet: recycling does.
            config.slot_bytes = membership.limits.slot_bytes(&config);
        }
        for line in membership.limits.exceeded(&config) {
            let Membership { job, rank, .. } = membership;
            (context.notice)(&format!("warning: rank {rank} of {job}: {line}"));
        }
        let mut attendance = membership.attendance(&config);
        let shared = context.shared.iter();
        (attendance.settings)
            .extend(shared.map(|(name, value)| ((*name).to_owned(), value.clone())));
        let collective = match link {
            Link::Udp => Collective::over_udp(config, membership.udp()?)?,
            Link::Port(fd) => Collective::over_port(config, membership.port(fd))?,
        };
        let probes = Probes::new(collective.prober());
        let departures = collective.departures();
        let epochs = Epochs::new();
        let again = (context.clone(), configure.clone());
        let follower = Follower::new(
            membership,
            epochs.clone(),
            Box::new(move |membership| {
                let (context, configure) = &again;
                let opened = Self::open(context, &membership, Link::Udp, configure);
                opened.map(Box::new).map_err(|error| error.to_string())
            }),
            move |ranks| {
                // Fails if the collective has ended.
                let _ = departures.left(ranks);
            },
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
            unattended: Some(Unattended {
                attendance,
                probes,
                follower,
            }),
            attending: None,
            watched: None,
        })
    }

    /// Creates the trace file `path` and writes this session's packets to it. `source` names the run in the file's head.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn trace_to(&mut self, path: &Path, source: &str) -> io::Result<TraceFile> {
        let head = Head::new(self.collective.config(), Clock::Real, source);
        let file = TraceFile::create(path, &head, WhenFull::Drop)?;
        self.collective.trace(Box::new(file.sink()));
        Ok(file)
    }

    /// Keeps in contact with the controller from now on.
    fn attend(&mut self, context: &Context) {
        let Some(Unattended {
            attendance,
            mut probes,
            mut follower,
        }) = self.unattended.take()
        else {
            return;
        };
        context.held.add(&context.client, &self.membership);
        let (client, epochs) = (context.client.clone(), self.epochs.clone());
        self.attending = Some(tokio::spawn(async move {
            // Not a retry of one call: a contact that ends without an error is opened again, too.
            loop {
                let attended = client.attend(attendance.clone(), &mut probes, &mut follower);
                match attended.await {
                    Err(error) if error.is_over() => {
                        epochs.end(error.to_string());
                        return;
                    }
                    // A repetition would be refused, too.
                    Err(error) if error.is_invalid() => {
                        epochs.refuse(error.to_string());
                        return;
                    }
                    Err(error) if error.is_not_found() => {
                        epochs.end(format!("job {} was deleted", attendance.job));
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "no contact with the controller"),
                    Ok(()) => {}
                }
                sleep(AGAIN).await;
            }
        }));
    }

    /// Waits until operations may start: all members have their sockets open, or a running job admits this rank. The job's
    /// members may change before that.
    ///
    /// # Errors
    /// [`Departure`].
    pub async fn ready(&mut self, context: &Context) -> Result<Start, Departure> {
        loop {
            let (mut here, mut first) = (self.here.clone(), self.first.clone());
            let epochs = self.epochs.clone();
            tokio::select! {
                // A member may leave soon after operations have begun.
                biased;
                // A channel without a sender means that the epoch is over, which the last branch reports.
                Ok(_) = here.wait_for(|here| *here) => {
                    return Ok(Start { first: 0, together: true });
                }
                Ok(first) = first.wait_for(Option::is_some) => {
                    let first = first.unwrap_or_default();
                    return Ok(Start { first, together: false });
                }
                next = epochs.over_before_it_began() => drop(self.go_over(next?, 0, context)),
            }
        }
    }

    /// True if this session's epoch was cancelled before it became the job's.
    ///
    /// # Errors
    /// The controller does not answer, or the job is deleted.
    pub async fn never_was(&self, client: &Client) -> Result<bool, ClientError> {
        let Membership { job, id, epoch, .. } = &self.membership;
        let now = client.job(job).await?;
        // Another change may have taken the epoch's number.
        Ok(now.epoch < u32::from(*epoch)
            || now.epoch == u32::from(*epoch) && now.id != u32::from(*id))
    }

    /// Joins again after a cancelled change, before any operation: the change may be repeated without lost members. Waits until
    /// the job has a place.
    ///
    /// # Errors
    /// The job is deleted, or the new rank has no socket.
    pub async fn join_again(self, context: &Context, why: &str) -> Result<Self, SessionError> {
        let Session {
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
        (context.notice)(&format!(
            "rank {rank} of epoch {epoch} waits for a place to join again: {why}"
        ));
        let client = &context.client;
        let join = || Membership::join(client, job, &context.host, Duration::ZERO);
        let pauses = ConstantBuilder::new().with_delay(AGAIN).without_max_times();
        let is_deleted =
            |error: &JoinError| matches!(error, JoinError::Client(error) if error.is_not_found());
        let membership = join.retry(pauses).when(|error| !is_deleted(error));
        let membership = membership.notify(|error, _| tracing::debug!(%error, "no place yet"));
        let membership = membership.await?;
        let Membership {
            rank, epoch, seats, ..
        } = &membership;
        (context.notice)(&format!(
            "it joins again as rank {rank} of {} in epoch {epoch}",
            seats.len()
        ));
        match Self::open(context, &membership, Link::Udp, &configure) {
            Ok(mut session) => {
                session.watch_on(watched, context);
                session.attend(context);
                Ok(session)
            }
            Err(error) => {
                give_up(client, &membership).await;
                Err(error)
            }
        }
    }

    /// Continues the metrics of the session before it.
    fn watch_on(&mut self, watched: Option<WatchedRank>, context: &Context) {
        self.watched = watched;
        if let Some(watched) = watched {
            let observer = self.collective.observer();
            let rank = self.membership.rank;
            context.metrics.watch_on(watched, rank, observer);
        }
    }

    /// Replaces this session by the one of the next epoch, whose first operation is `operation`; returns the old one. Residuals
    /// move to the new one.
    pub fn go_over(&mut self, mut next: Box<Session>, operation: u32, context: &Context) -> Self {
        next.collective.inherit(&mut self.collective);
        next.epochs.starts_at(operation);
        next.attend(context);
        next.watch_on(self.watched, context);
        let Membership { rank, epoch, .. } = &next.membership;
        (context.notice)(&format!(
            "rank {} of epoch {} is rank {rank} of {} in epoch {epoch} from operation {operation} on",
            self.membership.rank,
            self.membership.epoch,
            next.membership.seats.len()
        ));
        let before = std::mem::replace(self, *next);
        before.end();
        before
    }

    /// Ends the contact with the controller.
    pub fn end(&self) {
        if let Some(attending) = &self.attending {
            attending.abort();
        }
    }

    /// A handle that ends the contact with the controller.
    pub fn attending(&self) -> Option<AbortHandle> {
        self.attending.as_ref().map(JoinHandle::abort_handle)
    }
}

/// Gives a rank back.
pub async fn give_up(client: &Client, membership: &Membership) {
    let rank = membership.rank;
    let left = client.leave(membership.leaving()).await;
    if let Err(error) = left {
        // The job may be deleted already.
        tracing::debug!(%error, rank, "cannot leave the job");
    }
}
