//! Errors of a job, from its rendezvous to its end.

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::OperationId;

use super::parts::BUCKETS;
use crate::SessionError;
use crate::rank::ReadyError;

/// The reason that a job cannot start, or that an operation has no result. `Debug` writes the same sentence as `Display`,
/// because `main` prints an error by `Debug`.
#[derive(thiserror::Error)]
pub enum JobError {
    /// An environment variable is missing or invalid.
    #[error("environment variable {name} {problem}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// The fault, and what would be right.
        problem: String,
    },
    /// The builder has no rendezvous.
    #[error(
        "the job has no rendezvous: call JobBuilder::rendezvous, or Job::from_env under torchrun"
    )]
    NoRendezvous,
    /// Multicast in a job without a group.
    #[error(
        "the job has no multicast group: expected unicast, or a controller's job that gathers by multicast"
    )]
    NoGroup,
    /// The number of ranks, or this rank, is out of range.
    #[error(
        "rank {rank} of a job with {ranks} ranks: expected 2 to 65535 ranks and a rank below that"
    )]
    Rank {
        /// This rank.
        rank: usize,
        /// Ranks of the job.
        ranks: usize,
    },
    /// An IPv6 address.
    #[error(
        "{what} is the IPv6 address {address}: Ultima sends over IPv4 only; expected an IPv4 address"
    )]
    Ipv6 {
        /// The owner of the address.
        what: String,
        /// The address, or the name that has no other.
        address: String,
    },
    /// A name without an address.
    #[error(
        "cannot resolve {what} {name}: {error}; expected an IPv4 address or a name that has one"
    )]
    Resolve {
        /// The owner of the name.
        what: &'static str,
        /// The name.
        name: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// The interface has no IPv4 address.
    #[error("interface {name} has no IPv4 address; this host has {present}")]
    Interface {
        /// The interface's name.
        name: String,
        /// Interfaces with an IPv4 address.
        present: String,
    },
    /// Port 0, to which nothing can connect.
    #[error("{what} has port 0: expected a port from 1 to 65535")]
    Port {
        /// The owner of the port.
        what: String,
    },
    /// The rank has no socket.
    #[error(
        "cannot open a {what} socket on {address}: {error}; check that this machine has the address and that \
         the port is free"
    )]
    Socket {
        /// UDP or TCP.
        what: &'static str,
        /// The address.
        address: SocketAddrV4,
        /// The kernel's error.
        error: io::Error,
    },
    /// The rendezvous store does not answer, or not as expected.
    #[error("the rendezvous store at {address}: {problem}")]
    Store {
        /// The store's host and port.
        address: String,
        /// The fault, and what would be right.
        problem: String,
    },
    /// The ranks do not agree, or some are missing.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Ranks whose packets do not arrive.
    #[error(
        "no UDP packets came from {} within {waited:.1?}: check that firewalls pass UDP between all ranks; a switch with \
         Ultima's program passes only jobs of its controller (ULTIMA_CONTROLLER, ULTIMA_JOB)",
        Ranks(ranks)
    )]
    Unreachable {
        /// The ranks, with their addresses.
        ranks: Vec<(u16, SocketAddrV4)>,
        /// The time for which this rank sent and listened.
        waited: Duration,
    },
    /// The controller does not answer.
    #[error("the controller at {address} does not answer: {reason}; {advice}")]
    NoController {
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// The controller's job has another number of members than the training has ranks.
    #[error(
        "job {job} has {members} members, this training {ranks} ranks: start as many processes as the job has members"
    )]
    Members {
        /// The job's name.
        job: String,
        /// Its members.
        members: usize,
        /// The caller's ranks.
        ranks: usize,
    },
    /// Members of the controller's job have not joined in time.
    #[error(
        "job {job}: {late}; check that all ranks run, or allow more time (timeout, ULTIMA_TIMEOUT)"
    )]
    Late {
        /// The job's name.
        job: String,
        /// The missing members, and the time that this rank waited.
        late: ReadyError,
    },
    /// The controller gives no rank, or its socket cannot be opened.
    #[error(transparent)]
    Session(#[from] Box<SessionError>),
    /// The operation or the link failed.
    #[error(transparent)]
    Collective(#[from] Box<ultima_host::Error>),
    /// The job has ended, or the controller has removed this rank.
    #[error("the job has ended: {0}")]
    Ended(String),
    /// Packets of another rank did not fit an AllReduce, so its result lacks them.
    #[error(
        "{id}: packets of rank {rank} belong to another operation; all ranks must make the same calls in the same order, with \
         arrays of the same length"
    )]
    OtherOperation {
        /// The AllReduce.
        id: OperationId,
        /// The other rank.
        rank: u16,
    },
    /// The bucket's number is too large.
    #[error("bucket {0}: expected a number below {BUCKETS}")]
    Bucket(u16),
    /// The result does not fit the caller's buffer.
    #[error("the result has {is} values, the buffer {buffer}: expected the same length")]
    Length {
        /// Values of the result.
        is: usize,
        /// Values of the caller's buffer.
        buffer: usize,
    },
    /// The result was returned before.
    #[error("the operation's result was already returned")]
    Taken,
    /// The kernel refused something else.
    #[error("cannot {what}: {error}")]
    Io {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

/// The reason that rank 0 refuses the job. Every rank gets the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Two ranks differ in a setting.
    #[error(
        "rank {rank} has {field} {has}, rank 0 has {expected}: start all ranks with the same settings"
    )]
    Mismatch {
        /// The differing rank.
        rank: u16,
        /// The setting.
        field: String,
        /// The rank's value.
        has: String,
        /// Rank 0's value.
        expected: String,
    },
    /// A seed in a job of a controller, which draws its own.
    #[error(
        "rank {rank} has seed {has}, but the controller drew {drawn} for the job: set no seed (seed, ULTIMA_SEED)"
    )]
    Seed {
        /// The rank.
        rank: u16,
        /// Its seed.
        has: u64,
        /// The job's seed.
        drawn: u64,
    },
    /// Ranks that did not come.
    #[error(
        "{} of {ranks} did not join within {waited:?}: start them, check their logs, and that they reach the \
         rendezvous, or allow more time (timeout, ULTIMA_TIMEOUT)",
        Numbers(missing)
    )]
    Missing {
        /// The missing ranks.
        missing: Vec<u16>,
        /// Ranks of the job.
        ranks: u16,
        /// The time that rank 0 waited.
        waited: Duration,
    },
    /// Rank 0 published nothing.
    #[error(
        "rank 0 published no list of ranks within {waited:?}: check that rank 0 runs and creates the same jobs in the \
         same order"
    )]
    NoRoster {
        /// The time that this rank waited.
        waited: Duration,
    },
    /// Some ranks use loopback addresses, others do not.
    #[error(
        "rank {rank} has the loopback address {address}, but rank {other} is on another host: set ULTIMA_INTERFACE, or \
         make MASTER_ADDR resolve to an address that all hosts reach"
    )]
    Loopback {
        /// The rank on loopback.
        rank: u16,
        /// Its address.
        address: SocketAddrV4,
        /// A rank elsewhere.
        other: u16,
    },
    /// Packets with a full slot are longer than a rank's MTU.
    #[error(
        "slots of {slot_bytes} bytes make packets of {packet} bytes, but rank {rank}'s interface has an MTU of {mtu}: set \
         slot_bytes to at most {most}, or raise the MTU"
    )]
    Slot {
        /// The rank with the smallest MTU.
        rank: u16,
        /// Its MTU.
        mtu: u32,
        /// The job's slot size.
        slot_bytes: usize,
        /// Bytes of the longest packet.
        packet: usize,
        /// The largest slot that the MTU carries.
        most: usize,
    },
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ultima_host::Error> for JobError {
    fn from(error: ultima_host::Error) -> Self {
        JobError::Collective(Box::new(error))
    }
}

impl From<SessionError> for JobError {
    fn from(error: SessionError) -> Self {
        JobError::Session(Box::new(error))
    }
}

/// Ranks in a sentence.
struct Numbers<'a>(&'a [u16]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.0.iter().map(u16::to_string).collect();
        match &ranks[..] {
            [one] => write!(f, "rank {one}"),
            many => write!(f, "ranks {}", many.join(", ")),
        }
    }
}

/// Ranks with their addresses in a sentence.
struct Ranks<'a>(&'a [(u16, SocketAddrV4)]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.0.iter();
        let ranks: Vec<String> = ranks
            .map(|(rank, address)| format!("rank {rank} ({address})"))
            .collect();
        f.write_str(&ranks.join(", "))
    }
}
