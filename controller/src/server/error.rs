//! What can go wrong when a controller starts, and when it is asked for something.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::journal::KeepError;
use super::listen::Listen;
use crate::fabric::UnknownPart;
use crate::install::{InstallError, Untranslatable};
use crate::job::Line;
use crate::ledger::Refusal;
use crate::names::some_of;
use crate::p4rt::{ConnectError, RpcError, Term};
use crate::plan::LimitError;
use crate::program::ProgramError;
use crate::store::{StoreError, Unfit};

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The control API's address.
    #[error("cannot listen on {listen}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        listen: Listen,
        /// What the system said.
        source: io::Error,
    },
    /// Something that is not ours to remove is where the control API's socket was to be.
    #[error(
        "cannot listen on unix:{0}: {0} is there and is no socket; move it away, or choose another path with --listen",
        path.display()
    )]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The fabric has more hosts than a switch has room for.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A switch.
    #[error(transparent)]
    Switch(#[from] BringUpError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A job in it.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// What the controller begins with cannot be kept.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// It has stood by for others.
    #[error(
        "this controller was one of several; name the others with --peers, or let it lead alone with --lead-anyway, by which promises may be lost"
    )]
    OfAGroup,
    /// More copies than there are others to make them.
    #[error(
        "--copies {copies}: there are {peers} other controllers; name more with --peers, or ask for fewer"
    )]
    Copies {
        /// How many were asked for.
        copies: usize,
        /// How many others there are.
        peers: usize,
    },
    /// Another controller's address.
    #[error("--peers {address}: expected HOST:PORT or unix:PATH")]
    Peer {
        /// What was given.
        address: String,
    },
    /// A controller's address that counts already.
    #[error("--peers {address}: name each of the other controllers once, and not this one")]
    PeerAgain {
        /// What was given.
        address: String,
    },
    /// Most switches have another primary again.
    #[error("primary at {led} of {switches} switches, of which more than half are needed")]
    NoMajority {
        /// At how many.
        led: usize,
        /// Of how many.
        switches: usize,
    },
}

/// Why a job that was kept cannot be again.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The fabric is another one.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It has no place there any more.
    #[error(
        "job {name} was kept and does not fit the fabric any more: {refusal}; give it the room that it had, or start with another --state"
    )]
    Refused {
        /// The job's name.
        name: String,
        /// What is in the way.
        refusal: Box<Refusal>,
    },
}

/// Why a switch is not at work for us.
#[derive(Debug, thiserror::Error)]
pub enum BringUpError {
    /// No connection, or not as primary.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It refuses the program.
    #[error("switch {switch} refused the program: {error}")]
    Pipeline {
        /// The switch's name.
        switch: String,
        /// What it said.
        error: RpcError,
    },
    /// Somebody has given it another program.
    #[error("switch {switch} has another program by now, and is given ours again")]
    OtherProgram {
        /// The switch's name.
        switch: String,
    },
    /// It cannot be asked what it holds.
    #[error("switch {switch} didn't say what it holds: {error}")]
    Read {
        /// The switch's name.
        switch: String,
        /// What it said.
        error: RpcError,
    },
    /// The program lacks what we need.
    #[error(transparent)]
    Untranslatable(#[from] Untranslatable),
    /// It refuses what belongs there.
    #[error("switch {switch} {cause}")]
    Write {
        /// The switch's name.
        switch: String,
        /// What happened.
        cause: crate::install::Cause,
    },
}

impl BringUpError {
    /// As [`ConnectError::is_silence`].
    pub fn is_silence(&self) -> bool {
        matches!(self, BringUpError::Connect(error) if error.is_silence())
    }

    /// Whether the switch was not waited for, as trees had to move.
    pub fn is_given_up(&self) -> bool {
        match self {
            BringUpError::Pipeline { error, .. } | BringUpError::Read { error, .. } => {
                error.is_given_up()
            }
            BringUpError::Write { cause, .. } => cause.is_given_up(),
            BringUpError::Connect(_)
            | BringUpError::OtherProgram { .. }
            | BringUpError::Untranslatable(_) => false,
        }
    }

    /// As [`ConnectError::is_break`].
    pub fn is_break(&self) -> bool {
        matches!(self, BringUpError::Connect(error) if error.is_break())
    }

    /// Whether the same may succeed when it is tried again with a new connection.
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

    /// Whether it says nothing of other switches: the program is right, and nobody else leads.
    pub fn is_of_one_switch(&self) -> bool {
        !matches!(self, BringUpError::Untranslatable(_)) && self.superseded().is_none()
    }

    /// Whether the switch holds something else than it was asked to change.
    pub fn is_outdated(&self) -> bool {
        matches!(self, BringUpError::Write { cause, .. } if cause.is_outdated())
    }

    /// Whether the switch works, and answers to another controller.
    pub fn is_anothers(&self) -> bool {
        use ConnectError::{NotPrimary, Superseded};
        matches!(
            self,
            BringUpError::Connect(NotPrimary { .. } | Superseded { .. })
        )
    }

    /// The term of the controller that has led it since, if that is why.
    pub fn superseded(&self) -> Option<Term> {
        match self {
            BringUpError::Connect(ConnectError::Superseded { term, .. }) => Some(*term),
            _ => None,
        }
    }
}

/// Why a part of the fabric is not drained, or drained still.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// There is none of that name.
    #[error(transparent)]
    Unknown(#[from] UnknownPart),
    /// A job could not move.
    #[error("{part} was not changed, as job {job} has no room then where it would be: {refusal}")]
    NoRoom {
        /// The part.
        part: String,
        /// The job's name.
        job: String,
        /// What is in the way.
        refusal: Box<Refusal>,
    },
    /// It could not be kept, and so is not promised.
    #[error("nothing was changed, as that could not be kept: {0}")]
    Store(#[from] KeepError),
    /// The controller is being stopped, or does not lead.
    #[error(transparent)]
    Stopping(JobRequestError),
}

impl From<JobRequestError> for DrainError {
    fn from(error: JobRequestError) -> Self {
        match error {
            JobRequestError::Unfollowed(error) => DrainError::Store(error),
            error => DrainError::Stopping(error),
        }
    }
}

/// Why a request about a job is refused.
#[derive(Debug, thiserror::Error)]
pub enum JobRequestError {
    /// The name is taken.
    #[error("job {name} exists already; delete it first, or choose another name")]
    Exists {
        /// The job's name.
        name: String,
    },
    /// There is no such job.
    #[error("there is no job {name:?}; {}", known_jobs(.known))]
    NoJob {
        /// The name that was asked for.
        name: String,
        /// The jobs that there are.
        known: Vec<String>,
    },
    /// There is no place for it.
    #[error("job {name}: {refusal}")]
    Refused {
        /// The job's name.
        name: String,
        /// Why not.
        refusal: Box<Refusal>,
    },
    /// A switch that it needs is not connected.
    #[error("switch {switch} is not connected: {problem}; try again when it is")]
    NotConnected {
        /// The switch's name.
        switch: String,
        /// Why not.
        problem: String,
    },
    /// What a switch holds is not known since a write failed, and it does not let it be put right.
    #[error(
        "what switch {switch} holds is in doubt since a write failed, and it cannot be put right: {error}"
    )]
    InDoubt {
        /// The switch's name.
        switch: String,
        /// What happened.
        error: Box<BringUpError>,
    },
    /// A switch stopped the installation.
    #[error("job {name}: {error}")]
    Install {
        /// The job's name.
        name: String,
        /// What happened.
        error: Box<InstallError>,
    },
    /// A switch does not let it have its part of the ports that it shares with others.
    #[error("job {name}: {error}; nothing of it was installed")]
    Divide {
        /// The job's name.
        name: String,
        /// What happened.
        error: Box<BringUpError>,
    },
    /// A member says that it runs on a host that the fabric does not have.
    #[error("the fabric has no host {host:?}; say the name that the fabric file gives this host")]
    NoHost {
        /// What it said.
        host: String,
    },
    /// None of the job's ranks sits there.
    #[error("job {name} has no member on host {host}; its members sit on {hosts}")]
    NotAMember {
        /// The job's name.
        name: String,
        /// The host.
        host: String,
        /// The hosts of the job.
        hosts: String,
    },
    /// All ranks on the host are taken.
    #[error(
        "all {ranks} of job {name}'s ranks on host {host} are taken; {}",
        anew(name, *.all_left)
    )]
    Taken {
        /// The job's name.
        name: String,
        /// The host.
        host: String,
        /// How many ranks sit there.
        ranks: usize,
        /// Whether all of the job's members have left.
        all_left: bool,
    },
    /// Not everybody came.
    #[error("job {name}: after {} s {} of {members} members had not joined: {missing}", waited.as_secs_f32(), count)]
    Missing {
        /// The job's name.
        name: String,
        /// How long was waited.
        waited: Duration,
        /// The job's members.
        members: usize,
        /// How many are missing.
        count: usize,
        /// Who, by rank and host.
        missing: String,
    },
    /// The job went away while a member waited.
    #[error("job {name} was deleted while its members were joining")]
    Deleted {
        /// The job's name.
        name: String,
    },
    /// A member leaves that has not joined.
    #[error("rank {rank} of job {name} has not joined in epoch {epoch}")]
    NotJoined {
        /// The job's name.
        name: String,
        /// The rank.
        rank: u32,
        /// The epoch.
        epoch: u32,
    },
    /// Its members change already.
    #[error(
        "job {name} is changing to epoch {epoch}; wait until it has (`ultima job watch {name}`), or call it off (`ultima job resize {name} --call-off`)"
    )]
    Changing {
        /// The job's name.
        name: String,
        /// The epoch that comes.
        epoch: u16,
    },
    /// There is no change to call off.
    #[error(
        "job {name} is in epoch {epoch}, and no such change of it is on its way; one that is decided stays"
    )]
    NotChanging {
        /// The job's name.
        name: String,
        /// The epoch that it is in.
        epoch: u32,
    },
    /// A change is to be called off, and is not yet.
    #[error(
        "the change of job {name} is not called off yet, as it is being decided or that is not stored; it goes on to be, unless it is decided: `ultima job watch {name}`"
    )]
    CallingOff {
        /// The job's name.
        name: String,
    },
    /// A change of it was called off, and it was not deleted.
    #[error("job {name} was not deleted, but its change to epoch {epoch} is called off: {error}")]
    DeletedInPart {
        /// The job's name.
        name: String,
        /// The epoch that was to come.
        epoch: u16,
        /// What happened.
        error: KeepError,
    },
    /// It is about others than its members are now.
    #[error(
        "job {name} is in epoch {epoch}, with other members than those that this is about; nothing was changed: look at them with `ultima job show {name}` and ask again"
    )]
    OtherEpoch {
        /// The job's name.
        name: String,
        /// The epoch that it is in.
        epoch: u16,
    },
    /// More members than can be let send to each other.
    #[error("job {name} has {members} members; jobs of up to {most} can be checked")]
    TooManyToCheck {
        /// The job's name.
        name: String,
        /// How many it has.
        members: usize,
        /// How many it may have.
        most: usize,
    },
    /// It has those members already.
    #[error("job {name} has these members, in this order, already; nothing was changed")]
    SameMembers {
        /// The job's name.
        name: String,
    },
    /// Nobody could say which operation would be the new epoch's first.
    #[error(
        "job {name} is running, and none of its members would stay to say how far it is; keep one, or delete the job and create it with others"
    )]
    NobodyStays {
        /// The job's name.
        name: String,
    },
    /// Rows and columns would not fit each other any more.
    #[error(
        "job {name} is a part of grid {grid}, which keeps its members; delete the grid and create it with others"
    )]
    Grid {
        /// The job's name.
        name: String,
        /// The grid's.
        grid: String,
    },
    /// A member is to go that there is not.
    #[error("job {name} has no rank {rank}; it has {ranks}, from 0 on")]
    NoRank {
        /// The job's name.
        name: String,
        /// The rank.
        rank: u32,
        /// How many it has.
        ranks: usize,
    },
    /// It is not said which of a host's members is to go.
    #[error("job {name} has {ranks} ranks on host {host}; say which by its number")]
    SeveralRanks {
        /// The job's name.
        name: String,
        /// The host.
        host: String,
        /// How many sit there.
        ranks: usize,
    },
    /// Epochs have 16 bits.
    #[error("job {name} has had all 65535 epochs; delete it and create it again")]
    LastEpoch {
        /// The job's name.
        name: String,
    },
    /// A member of an epoch that the job is not in any more.
    #[error("rank {rank} was of epoch {epoch} of job {name}, which is in epoch {now}{}; {}", since(.first), what_became(.fate))]
    OverEpoch {
        /// The job's name.
        name: String,
        /// The rank in the old epoch.
        rank: u32,
        /// The old epoch.
        epoch: u32,
        /// The epoch that it is in.
        now: u16,
        /// Its first operation.
        first: Option<u32>,
        /// Why the rank has no place there, where that is known.
        fate: Option<String>,
    },
    /// The controller is on its way out.
    #[error("the controller is being stopped; ask again when it is back")]
    Stopping,
    /// Another controller leads, or may: this one is not primary at more than half of the switches.
    #[error(
        "this controller is not the primary at most of the switches at present; ask the one that is"
    )]
    NotPrimary,
    /// What it asks for could not be kept, and so was not begun.
    #[error("nothing was changed: {0}")]
    Unfollowed(KeepError),
    /// It could not be kept, and so is not promised.
    #[error("job {name} {}: {error}", verdict(error))]
    Store {
        /// The job's name.
        name: String,
        /// What happened.
        error: KeepError,
    },
    /// The program's counters are others.
    #[error(transparent)]
    Program(#[from] crate::plan::SchemaError),
}

impl JobRequestError {
    /// What to do, where the error itself does not say it.
    pub(super) fn advice(&self) -> Option<&'static str> {
        match self {
            error if error.is_given_up() => Some("ask again"),
            JobRequestError::InDoubt { .. } => Some("try again, or restart the switch"),
            _ => None,
        }
    }

    /// Whether a switch was not waited for, as trees had to move: the same may be granted in a moment.
    pub(super) fn is_given_up(&self) -> bool {
        match self {
            JobRequestError::Install { error, .. } => error.is_given_up(),
            JobRequestError::Divide { error, .. } | JobRequestError::InDoubt { error, .. } => {
                error.is_given_up()
            }
            _ => false,
        }
    }
}

fn verdict(error: &KeepError) -> &'static str {
    match error.is_unknown() {
        true => "may have been changed, or not",
        false => "was not changed, as that could not be kept",
    }
}

/// How somebody else, or the same one again, gets a place that was taken. Where all members have left, nobody can say where the job is.
pub(super) fn anew(job: &str, all_left: bool) -> String {
    match Line::of(job) {
        Some((grid, _)) => format!("delete grid {grid} and create it again to start over"),
        None if all_left => {
            format!("all of its members have left: delete job {job} and create it again")
        }
        None => format!(
            "`ultima job evict {job}` takes the place of a member that is lost, and `ultima job resize {job} --members ...` with all hosts gives places anew"
        ),
    }
}

fn since(first: &Option<u32>) -> String {
    first.map_or_else(String::new, |first| format!(" since operation {first}"))
}

fn what_became(why: &Option<String>) -> String {
    match why {
        Some(why) => format!("it has no place there: {why}"),
        None => "join again if its host has a free rank there".to_owned(),
    }
}

fn known_jobs(known: &[String]) -> String {
    match known {
        [] => "there are none yet".to_owned(),
        [one] => format!("there is {one}"),
        many => format!("there are {}", some_of(many)),
    }
}
