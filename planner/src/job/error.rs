//! Errors of jobs: in their files, and in their placement.

use ultima_link::units::counted;

use crate::membership::Eviction;
use crate::yaml::LoadError;

/// Error in a job file.
pub type JobError = LoadError<JobProblem>;

/// A problem of a job on any fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobProblem {
    /// A name with invalid characters.
    #[error(
        "invalid name {0:?}; use 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit"
    )]
    Name(String),
    /// Fewer than two members, or more than there are ranks.
    #[error("{0} members; a job has 2 to 65535: list their hosts in rank order, such as [h1, h2]")]
    Members(usize),
    /// A number of groups that does not divide the members into groups of two or more.
    #[error(
        "cannot divide {ranks} members into {groups} equal groups; a grid has 2 or more groups of 2 or more ranks each"
    )]
    Groups {
        /// The number of groups.
        groups: usize,
        /// The number of members.
        ranks: usize,
    },
    /// A host with ranks in several groups. Its ranks in a column job could not be told apart.
    #[error("host {0} has ranks in several groups; put all ranks of a host in one group")]
    Scattered(String),
    /// A weight out of range.
    #[error("weight {0} is out of range; use 1 to 100")]
    Weight(u32),
    /// A gather mode that the API does not have.
    #[error("unknown gather mode {0}; use GATHER_MULTICAST or GATHER_UNICAST")]
    Gather(i32),
    /// An eviction timeout that is too long.
    #[error(
        "{0} s is out of range; use 1 to {most}, or 0 to never evict",
        most = Eviction::MOST
    )]
    Eviction(u32),
    /// Eviction in a grid, whose rows and columns have fixed members.
    #[error("the members of a grid cannot change; leave evict_after_s out")]
    GridEviction,
}

impl JobProblem {
    /// The field in files and requests.
    pub fn field(&self) -> &'static str {
        match self {
            JobProblem::Name(_) => "name",
            JobProblem::Members(_) | JobProblem::Scattered(_) => "members",
            JobProblem::Groups { .. } => "groups",
            JobProblem::Weight(_) => "weight",
            JobProblem::Gather(_) => "gather",
            JobProblem::Eviction(_) | JobProblem::GridEviction => "evict_after_s",
        }
    }
}

/// Error in the placement of a job's members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A problem on any fabric.
    #[error(transparent)]
    Job(#[from] JobProblem),
    /// A host that the fabric does not have.
    #[error("members[{index}]: unknown host {host:?} (the fabric has {known})")]
    UnknownHost {
        /// The member's index in the list.
        index: usize,
        /// The name in the job.
        host: String,
        /// The fabric's hosts.
        known: String,
    },
    /// A host that is listed more often than it has room for ranks.
    #[error(
        "members[{index}]: host {host} has room for {} of a job (`ranks` in the fabric's file); list another host",
        counted(*.ranks, "rank")
    )]
    NoRoom {
        /// The member's index in the list.
        index: usize,
        /// The host.
        host: String,
        /// The host's room for ranks.
        ranks: u16,
    },
    /// A host whose UDP ports are all taken by other jobs.
    #[error(
        "members[{index}]: host {host} has no free UDP port from {first} up; delete a job, or lower the host's udp_port in the fabric's file"
    )]
    NoPort {
        /// The member's index in the list.
        index: usize,
        /// The host.
        host: String,
        /// The UDP port of the host's first rank.
        first: u16,
    },
}

impl PlacementError {
    /// The field of the error, such as `members[2]`.
    pub fn field(&self) -> String {
        match self {
            PlacementError::Job(problem) => problem.field().to_owned(),
            PlacementError::UnknownHost { index, .. }
            | PlacementError::NoRoom { index, .. }
            | PlacementError::NoPort { index, .. } => format!("members[{index}]"),
        }
    }
}
