//! What can be wrong with a job.

use crate::membership::Eviction;
use crate::yaml::LoadError;

/// Why a job file was not accepted.
pub type JobError = LoadError<JobProblem>;

/// What is wrong with a job whatever the fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobProblem {
    /// A name with characters that names cannot have.
    #[error(
        "{0:?} is no name; one has 1 to 63 letters, digits, '-', '_' or '.' and starts with a letter or digit"
    )]
    Name(String),
    /// Too few members to send each other anything, or more than ranks have numbers.
    #[error(
        "a job has 2 to 65535 members, not {0}; list their hosts in rank order, such as [h1, h2]"
    )]
    Members(usize),
    /// Groups that differ in size, or are too small or too few for a grid.
    #[error(
        "{ranks} members do not make {groups} groups of equal size; 2 or more groups of 2 or more ranks each are needed"
    )]
    Groups {
        /// Groups asked for.
        groups: usize,
        /// Members.
        ranks: usize,
    },
    /// Ranks of a host that could not tell which of a column's they are.
    #[error("host {0} has ranks in several groups; a host's ranks are of one group")]
    Scattered(String),
    /// A weight that is none.
    #[error("a job's weight is 1 to 100, not {0}")]
    Weight(u32),
    /// A way to gather that is none of the API's.
    #[error("gather {0} is unknown; use GATHER_MULTICAST or GATHER_UNICAST")]
    Gather(i32),
    /// A wait that is too long.
    #[error(
        "suspected members are evicted after at most {most} s, not {0}; say 0 for never",
        most = Eviction::MOST
    )]
    Eviction(u32),
    /// Rows and columns that would not fit each other any more.
    #[error("a grid keeps its members, so that nobody can be evicted; leave evict_after_s out")]
    GridEviction,
}

impl JobProblem {
    /// The field that it is about, as files and requests call it.
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

/// Why a job's members cannot be placed on the fabric's hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Wrong whatever the fabric.
    #[error(transparent)]
    Job(#[from] JobProblem),
    /// A host that the fabric does not have.
    #[error("members[{index}]: the fabric has no host {host:?}; it has {known}")]
    UnknownHost {
        /// The member's place in the list.
        index: usize,
        /// What the job says.
        host: String,
        /// The hosts there are.
        known: String,
    },
    /// A host that stands in the list more often than it has room.
    #[error(
        "members[{index}]: host {host} has room for {ranks} of a job's ranks (its `ranks` in the fabric), not for one more"
    )]
    NoRoom {
        /// The member's place in the list.
        index: usize,
        /// The host.
        host: String,
        /// How many ranks may sit there.
        ranks: u16,
    },
    /// Other jobs' ranks on that host have all UDP ports up to the last.
    #[error(
        "members[{index}]: host {host} has no UDP port left from {first} up; delete a job or lower its udp_port"
    )]
    NoPort {
        /// The member's place in the list.
        index: usize,
        /// The host.
        host: String,
        /// The port of the host's first rank.
        first: u16,
    },
}

impl PlacementError {
    /// The field that it is about, such as `members[2]`.
    pub fn field(&self) -> String {
        match self {
            PlacementError::Job(problem) => problem.field().to_owned(),
            PlacementError::UnknownHost { index, .. }
            | PlacementError::NoRoom { index, .. }
            | PlacementError::NoPort { index, .. } => format!("members[{index}]"),
        }
    }
}
