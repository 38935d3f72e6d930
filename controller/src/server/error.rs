//! Error types of the controller: why it does not start, and why it refuses a request. The gRPC
//! codes are in `status`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ultima_api::Line;
use ultima_api::address::Listen;
use ultima_grpc::tls::TlsError;
use ultima_planner::fabric::{Fabric, UnknownElement};
use ultima_planner::job::{Job, Member, Rank, Refusal, by_rank};
use ultima_planner::names::some_of;
use ultima_planner::program::ProgramError;
use ultima_planner::update::Untranslatable;

use super::seats::Seat;
use super::sessions::Mismatch;
use crate::p4rt::{Cause, ConnectError, RpcError};
use crate::store::StoreError;

/// The reason why a controller does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ServeError {
    /// The address of the control API, or of metrics, is not usable.
    #[error("cannot listen on {listen}: {source}; choose another address with {option}")]
    Listen {
        listen: Listen,
        /// The option that has it.
        option: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The address is not loopback, and nothing protects it.
    #[error(
        "--listen {listen} would let every client that reaches it control the switches; pass --tls-cert, --tls-key and --tls-client-ca (`ultima certs --help` makes them), or --insecure for a private network"
    )]
    Open { listen: Listen },
    /// A Unix socket with certificates.
    #[error(
        "--listen {listen}: a Unix socket has no TLS; leave --tls-cert, --tls-key and --tls-client-ca out, or choose a TCP address"
    )]
    TlsOnUnix { listen: Listen },
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The path of the control API's socket exists and is not a socket.
    #[error(
        "cannot listen on unix:{0}: {0} exists and is not a socket; move it, or choose another path with --listen",
        path.display()
    )]
    NotASocket { path: PathBuf },
    /// The program is unusable.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The fabric exceeds a limit of a switch.
    #[error(transparent)]
    Limit(#[from] Refusal),
    /// A switch cannot be brought up.
    #[error(transparent)]
    Switch(#[from] BringUpError),
    /// The store cannot be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The initial state cannot be stored.
    #[error(transparent)]
    Keep(StoreError),
}

/// The reason why a switch is not in use by this controller.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum BringUpError {
    /// The connection failed, or another client is primary.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The switch refused the program.
    #[error("switch {switch} refused the program: {error}")]
    Pipeline {
        switch: String,
        /// Its answer.
        error: RpcError,
    },
    /// Another client has installed another program.
    #[error("switch {switch} runs another program; reconnecting")]
    OtherProgram { switch: String },
    /// Its entries cannot be read.
    #[error("cannot read the entries of switch {switch}: {error}")]
    Read {
        switch: String,
        /// Its answer.
        error: RpcError,
    },
    /// The program lacks a table, action or field.
    #[error(transparent)]
    Untranslatable(#[from] Untranslatable),
    /// A write failed.
    #[error("switch {switch} {cause}")]
    Write { switch: String, cause: Cause },
}

impl BringUpError {
    /// See [`ConnectError::is_silence`].
    pub fn is_silence(&self) -> bool {
        matches!(self, BringUpError::Connect(error) if error.is_silence())
    }

    /// True if a reroute interrupted the request.
    pub fn is_abandoned(&self) -> bool {
        match self {
            BringUpError::Pipeline { error, .. } | BringUpError::Read { error, .. } => {
                error.is_abandoned()
            }
            BringUpError::Write { cause, .. } => cause.is_abandoned(),
            BringUpError::Connect(_)
            | BringUpError::OtherProgram { .. }
            | BringUpError::Untranslatable(_) => false,
        }
    }

    /// True if the switch refused an entry.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            BringUpError::Write {
                cause: Cause::Refused { .. },
                ..
            }
        )
    }

    /// See [`ConnectError::is_break`].
    pub fn is_break(&self) -> bool {
        matches!(self, BringUpError::Connect(error) if error.is_break())
    }

    /// True if a retry with a new connection may succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            BringUpError::Connect(error) => error.may_pass(),
            BringUpError::Pipeline { error, .. } | BringUpError::Read { error, .. } => {
                error.is_uncertain()
            }
            BringUpError::OtherProgram { .. } => true,
            BringUpError::Untranslatable(_) => false,
            BringUpError::Write { cause, .. } => cause.may_pass(),
        }
    }

    /// True if other switches are not affected: the program is right, and no other controller
    /// leads.
    pub fn is_of_one_switch(&self) -> bool {
        !matches!(
            self,
            BringUpError::Untranslatable(_)
                | BringUpError::Connect(ConnectError::Superseded { .. })
        )
    }

    /// True if the switch's entries differed from those that the write assumed.
    pub fn is_outdated(&self) -> bool {
        matches!(self, BringUpError::Write { cause, .. } if cause.is_outdated())
    }

    /// True if the switch works, and another controller is its primary, or has jobs or a program
    /// there.
    pub fn is_anothers(&self) -> bool {
        use ConnectError::{NotPrimary, Superseded};
        let primary = matches!(
            self,
            BringUpError::Connect(NotPrimary { .. } | Superseded { .. })
        );
        primary || self.is_foreign()
    }

    /// True if the switch has jobs of another store, or a program that is not Ultima's.
    pub fn is_foreign(&self) -> bool {
        use ConnectError::{Foreign, ForeignProgram};
        matches!(
            self,
            BringUpError::Connect(Foreign { .. } | ForeignProgram { .. })
        )
    }
}

/// The reason why a request about a job, or a drain, is refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum JobRequestError {
    /// The name is taken.
    #[error("job {name} already exists; delete it first, or choose another name")]
    Exists { name: String },
    /// No job has that name.
    #[error("there is no job {name:?}; {}", known_jobs(.known))]
    NoJob { name: String, known: Vec<String> },
    /// The stored job does not fit the fabric, so that it is on no switch.
    #[error("{reason}")]
    Unfit {
        /// Why it does not fit.
        reason: String,
    },
    /// The job does not fit.
    #[error("job {name}: {refusal}")]
    Refused { name: String, refusal: Box<Refusal> },
    /// The client has as many jobs as it may have.
    #[error(
        "{client} has {has} jobs of at most {most}; delete one first, or start the controller with a larger --jobs-per-client"
    )]
    Quota {
        /// Its role and name.
        client: String,
        /// The number of its jobs.
        has: usize,
        most: usize,
    },
    /// The request's key belongs to a request for another job.
    #[error(
        "job {name}: this idempotency key has created job {created} with other settings; use a new key for another job"
    )]
    OtherRequest {
        name: String,
        /// The name of the other job.
        created: String,
    },
    /// The program lacks something that the job's entries need.
    #[error(transparent)]
    Unsupported(#[from] Untranslatable),
    /// The job is not ready, so no member may join yet.
    #[error("job {name} is not ready: {missing}; `ultima job list` shows when it is")]
    NotReady {
        name: String,
        /// The switches that do not have it, and why; or that another epoch is being committed.
        missing: String,
    },
    /// A rank that a member left is not given out again yet.
    #[error(
        "job {name}: a rank on host {host} is given out again in {} s",
        pause.as_secs() + 1
    )]
    Paused {
        name: String,
        host: String,
        /// The remaining time.
        pause: Duration,
    },
    /// A member names a host that the fabric lacks.
    #[error("unknown host {host:?} (the fabric has {known})")]
    NoHost { host: String, known: String },
    /// The job has no rank on the host.
    #[error("job {name} has no member on host {host}; its members are on {hosts}")]
    NotAMember {
        name: String,
        host: String,
        hosts: String,
    },
    /// All ranks on the host are taken.
    #[error("job {name} has no free rank on host {host} ({ranks} taken); {advice}")]
    Taken {
        name: String,
        host: String,
        ranks: usize,
        /// True if a member on the host gets a rank in the next epoch, which its join begins.
        next_epoch: bool,
        /// See [`free_a_rank`].
        advice: String,
    },
    /// Members have not joined in time.
    #[error("job {name}: after {} s {} of {members} members had not joined: {missing}", waited.as_secs_f32(), count)]
    Missing {
        name: String,
        /// The time that the caller waited.
        waited: Duration,
        members: usize,
        /// The number of missing members.
        count: usize,
        /// The missing members, by rank and host.
        missing: String,
    },
    /// The job was deleted while a request waited.
    #[error("job {name} was deleted meanwhile")]
    Deleted { name: String },
    /// The rank has not joined.
    #[error("rank {rank} of job {name} has not joined in epoch {epoch}")]
    NotJoined { name: String, rank: u32, epoch: u32 },
    /// The caller is not the member that has the rank.
    #[error(
        "rank {rank} of job {name} belongs to another member: the request has another token or host; join the job to get a rank"
    )]
    NotThatMember { name: String, rank: u16 },
    /// The key of a sealed job would cross a network in plain text.
    #[error(
        "job {name} is sealed, and its key crosses no network in plain text: serve and join with TLS (`ultima certs --help`), or create the job with `sealed: false`"
    )]
    KeyInPlainText { name: String },
    /// A member's settings differ from the others'.
    #[error(
        "rank {rank} of job {name} has {} {}, its other members have {}: start all ranks with the same settings",
        mismatch.field, mismatch.has, mismatch.expected
    )]
    Settings {
        name: String,
        rank: u16,
        /// The difference.
        mismatch: Mismatch,
    },
    /// The job's members are changing.
    #[error(
        "job {name} is changing to epoch {epoch}; wait for it (`ultima job watch {name}`), or cancel it (`ultima job resize {name} --cancel`)"
    )]
    Changing { name: String, epoch: u16 },
    /// There is no change to cancel.
    #[error(
        "job {name} is in epoch {epoch}: there is no such change to cancel; a decided change cannot be cancelled"
    )]
    NotChanging { name: String, epoch: u32 },
    /// A cancellation is pending.
    #[error(
        "cancellation pending: the change of job {name} is being decided, or the cancellation is not stored yet; follow it with `ultima job watch {name}`"
    )]
    CancelPending { name: String },
    /// The job's members have changed since the client read them.
    #[error(
        "job {name} is in epoch {epoch}, and its members have changed since they were read; nothing was changed: check them with `ultima job show {name}` and try again"
    )]
    OtherEpoch { name: String, epoch: u16 },
    /// The job has too many members for a check.
    #[error("job {name} has {members} members; jobs of up to {most} can be checked")]
    TooManyToCheck {
        name: String,
        members: usize,
        most: usize,
    },
    /// The job already has these members.
    #[error("job {name} already has these members in this order; nothing was changed")]
    SameMembers { name: String },
    /// No current member would remain, so none could decide the new epoch's first operation.
    #[error(
        "job {name} is running: at least one current member must remain; keep one, or delete the job and create it with others"
    )]
    NobodyStays { name: String },
    /// The job is a part of a grid, whose rows and columns must match.
    #[error(
        "job {name} is a part of grid {grid}, whose members cannot change; delete the grid and create it with others"
    )]
    Grid { name: String, grid: String },
    /// The job has no such rank.
    #[error("job {name} has no rank {rank}; it has ranks 0 to {}", .ranks.saturating_sub(1))]
    NoRank {
        name: String,
        rank: u32,
        ranks: usize,
    },
    /// The host has several ranks of the job.
    #[error("job {name} has {ranks} ranks on host {host}; name one by its number")]
    SeveralRanks {
        name: String,
        host: String,
        ranks: usize,
    },
    /// The epoch number, of 16 bits, cannot grow.
    #[error("job {name} has used all 65535 epochs; delete it and create it again")]
    LastEpoch { name: String },
    /// The member's epoch is over.
    #[error("epoch {epoch} of job {name} is over for rank {rank}: the job is in epoch {now}{}; {}", since(.first), place_in_next(.fate))]
    OverEpoch {
        name: String,
        /// The rank in the old epoch.
        rank: u32,
        epoch: u32,
        now: u16,
        /// The current epoch's first operation.
        first: Option<u32>,
        /// Why the rank has no place in the current epoch, if known.
        fate: Option<String>,
    },
    /// Too many requests wait for others.
    #[error("{most} requests wait to change jobs or drains; nothing was changed: try again later")]
    TooManyWait { most: usize },
    /// The client has gone before its request began.
    #[error("the client has gone; nothing was changed")]
    ClientGone,
    /// The controller is stopping.
    #[error("the controller is stopping; try again when it is back")]
    Stopping,
    /// Another controller leads, or may.
    #[error("this controller no longer leads; ask the leader")]
    NotLeader,
    /// The change could not be stored.
    #[error("job {name} {}: {error}", verdict(error))]
    Store { name: String, error: StoreError },
    /// The fabric has no such element to drain.
    #[error(transparent)]
    UnknownElement(#[from] UnknownElement),
    /// A job cannot be rerouted for a drain.
    #[error("{element} is unchanged: job {job} would have no room: {refusal}")]
    NoRoom {
        element: String,
        job: String,
        refusal: Box<Refusal>,
    },
    /// A drain could not be stored.
    #[error("the store has not confirmed the change: {0}")]
    DrainNotStored(StoreError),
    /// The program lacks a counter.
    #[error(transparent)]
    Program(#[from] ultima_planner::plan::SchemaError),
}

impl JobRequestError {
    /// The error for an unknown host, with the fabric's hosts.
    pub(super) fn no_host(fabric: &Fabric, host: &str) -> Self {
        JobRequestError::NoHost {
            host: host.to_owned(),
            known: some_of(fabric.hosts().iter().map(|host| &host.name)),
        }
    }
}

fn verdict(error: &StoreError) -> &'static str {
    match matches!(error, StoreError::Unknown) {
        true => "may or may not have been changed",
        false => "was not changed: the change could not be stored",
    }
}

/// The advice for a host where all ranks of a job are taken. `lost` members have no session or are suspected.
pub(super) fn free_a_rank(
    fabric: &Fabric,
    job: &Job,
    seats: impl Iterator<Item = Seat>,
    lost: &[Rank],
) -> String {
    let name = &job.name;
    if let Some((grid, _)) = Line::of(name) {
        return format!(
            "stop all members of this row or column and start them again, or delete grid {grid} and create it again"
        );
    }
    let host = |member: &Member| fabric.host(member.host).name.as_str();
    let of_rank =
        |rank: Rank| format!("rank {rank} on {}", host(&job.members[usize::from(rank.0)]));
    let hosts: Vec<&str> = job.members.iter().map(host).collect();
    let resize = format!("`ultima job resize {name} --members {}`", hosts.join(","));
    let (left, here): (Vec<_>, Vec<_>) = by_rank(seats)
        .filter(|(rank, _)| !lost.contains(rank))
        .partition(|(_, seat)| *seat == Seat::Left);
    if here.is_empty() {
        return "start all ranks again: they get places in another epoch".to_owned();
    }
    let here = some_of(here.into_iter().map(|(rank, _)| of_rank(rank)));
    let again = format!("stop the members that still run ({here}) and start all again");
    match lost.first() {
        Some(rank) => format!(
            "{} is lost: {again}, or replace it in the running job with {resize}",
            of_rank(*rank)
        ),
        None if left.is_empty() => again,
        None => format!("{again}, or replace those that left with {resize}"),
    }
}

fn since(first: &Option<u32>) -> String {
    first.map_or_else(String::new, |first| format!(" since operation {first}"))
}

fn place_in_next(why: &Option<String>) -> String {
    match why {
        Some(why) => format!("the rank has no place there: {why}"),
        None => "join again if the host has a free rank".to_owned(),
    }
}

fn known_jobs(known: &[String]) -> String {
    match known {
        [] => "there are none yet".to_owned(),
        [one] => format!("there is {one}"),
        many => format!("there are {}", some_of(many)),
    }
}
