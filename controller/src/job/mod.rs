//! Jobs: who takes part, and the numbers that stand for a job in packets and on switches.
//!
//! A [`JobSpec`] is what a user asks for ([`load`] reads it from YAML); [`place`] gives its ranks
//! hosts and UDP ports; a [`Job`] is one that has been given everything.

mod error;
mod file;
mod grid;
pub(crate) mod key;
mod placement;
#[cfg(test)]
mod tests;
mod written;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use ultima_wire::Key;

pub use error::{JobError, JobProblem, PlacementError};
pub use grid::{GridSpec, Line};
pub(crate) use placement::host_of;
pub use placement::{Member, place, place_in};
pub use written::WrittenJob;

use crate::fabric::SwitchPort;
use crate::membership::Eviction;
use crate::tree::JobTree;
use crate::yaml;

/// A job's number in its fabric and in its packets, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u16);

/// A job's membership epoch, from 1: packets of another epoch are not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u16);

/// A member's number in its job, from 0. Also the RID of the copies for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u16);

/// Where a job's counts stand in every counter array, from 1; 0 counts packets of unknown jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterIndex(pub u16);

/// Where the counts, meter and operations of a job at one port of one switch stand, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareIndex(pub u16);

/// Where the losses of a source stand on the switch that its host is linked to, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceIndex(pub u16);

/// A multicast group's number on every switch, from 1; 0 is no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// What is there for each rank of a job, which has no more of them than ranks have numbers.
pub(crate) fn by_rank<I: IntoIterator>(of: I) -> impl Iterator<Item = (Rank, I::Item)> {
    (0..=u16::MAX).map(Rank).zip(of)
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How an owner's aggregates reach the other members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// One packet to the job's group, which the switches copy.
    #[default]
    Multicast,
    /// One packet to each member; the job needs no group on any switch.
    Unicast,
}

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// The job's name, unique in its fabric.
    pub name: String,
    /// The hosts' names in rank order; a host with room for several ranks may stand here as often.
    pub members: Vec<String>,
    /// How aggregates reach the members.
    pub gather: Gather,
    /// Seed of everything random that the members must agree on; without it the controller draws one.
    pub seed: Option<u64>,
    /// Packets of one operation lost at one place at which the controller is told of it, once; 0 for never.
    pub loss_threshold: u32,
    /// What it may take of ports that it shares with other jobs.
    pub weight: Weight,
    /// When a member that is suspected loses its place.
    pub eviction: Eviction,
    /// Whether its members seal what they send.
    pub sealed: bool,
}

impl JobSpec {
    /// An open job of these hosts, in rank order, with what a file that says no more gets.
    pub fn new(
        name: impl Into<String>,
        members: impl IntoIterator<Item = impl Into<String>>,
    ) -> JobSpec {
        JobSpec {
            name: name.into(),
            members: members.into_iter().map(Into::into).collect(),
            gather: Gather::default(),
            seed: None,
            loss_threshold: DEFAULT_LOSS_THRESHOLD,
            weight: Weight::default(),
            eviction: Eviction::default(),
            sealed: false,
        }
    }
}

impl JobRequest {
    /// The jobs that it stands for; `seed` is for those of a grid whose file says none.
    pub fn jobs(&self, seed: u64) -> Vec<JobSpec> {
        match self {
            JobRequest::Job(spec) => vec![spec.clone()],
            JobRequest::Grid(grid) => grid.jobs(grid.seed().unwrap_or(seed)),
        }
    }

    /// The names of those.
    pub fn names(&self) -> Vec<String> {
        match self {
            JobRequest::Job(spec) => vec![spec.name.clone()],
            JobRequest::Grid(grid) => grid.names().collect(),
        }
    }

    /// Whether the job of that name is one of those.
    pub fn stands_for(&self, job: &str) -> bool {
        match self {
            JobRequest::Job(spec) => spec.name == job,
            JobRequest::Grid(grid) => grid.stands_for(job),
        }
    }

    /// The seed that the file says.
    pub fn seed(&self) -> Option<u64> {
        match self {
            JobRequest::Job(spec) => spec.seed,
            JobRequest::Grid(grid) => grid.seed(),
        }
    }
}

/// What a job file asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobRequest {
    /// One job.
    Job(JobSpec),
    /// The jobs of a grid: the file says `groups`.
    Grid(GridSpec),
}

/// A job's part of a port with a rate that several share, in proportion to the others': 1 to 100, by default 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u8);

impl Weight {
    /// As a number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight(1)
    }
}

impl TryFrom<u32> for Weight {
    type Error = JobProblem;

    fn try_from(weight: u32) -> Result<Self, JobProblem> {
        match u8::try_from(weight) {
            Ok(weight @ 1..=100) => Ok(Weight(weight)),
            _ => Err(JobProblem::Weight(weight)),
        }
    }
}

/// Of a number of seconds, 0 for never.
impl TryFrom<u32> for Eviction {
    type Error = JobProblem;

    fn try_from(seconds: u32) -> Result<Self, JobProblem> {
        match seconds {
            0 => Ok(Eviction::Never),
            1..=Self::MOST => Ok(Eviction::After(seconds)),
            _ => Err(JobProblem::Eviction(seconds)),
        }
    }
}

/// The loss threshold of jobs that say nothing: every operation that loses anything is told.
pub const DEFAULT_LOSS_THRESHOLD: u32 = 1;

/// How a job's packets reach all of its members at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Its group.
    pub group: GroupId,
    /// The trunks that the group's packets cross. It was chosen when the job was created and is kept while it is up.
    pub tree: JobTree,
}

/// A job with everything that it needs to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Its membership epoch.
    pub epoch: Epoch,
    /// Seed of everything random that the members must agree on.
    pub seed: u64,
    /// Where its counts stand.
    pub counter: CounterIndex,
    /// How its aggregates are multicast; none if it gathers by unicast.
    pub multicast: Option<Multicast>,
    /// As in [`JobSpec`].
    pub loss_threshold: u32,
    /// As in [`JobSpec`].
    pub weight: Weight,
    /// As in [`JobSpec`].
    pub eviction: Eviction,
    /// What its members seal packets with in this epoch; none if it is not sealed.
    pub key: Option<Key>,
    /// Its members in rank order.
    pub members: Vec<Member>,
    /// Where its counts stand for each port that it leaves switches by.
    pub shares: BTreeMap<SwitchPort, ShareIndex>,
    /// Where each member's losses stand, in rank order, on the switch of its host.
    pub sources: Vec<SourceIndex>,
}

impl Job {
    /// How its aggregates reach the members.
    pub fn gather(&self) -> Gather {
        match self.multicast {
            Some(_) => Gather::Multicast,
            None => Gather::Unicast,
        }
    }

    /// Its group; none if it gathers by unicast.
    pub fn group(&self) -> Option<GroupId> {
        self.multicast.as_ref().map(|multicast| multicast.group)
    }

    /// The tree of its group; none if it gathers by unicast.
    pub fn tree(&self) -> Option<&JobTree> {
        self.multicast.as_ref().map(|multicast| &multicast.tree)
    }

    /// The address that members send to if they gather by multicast.
    pub fn group_address(&self) -> Ipv4Addr {
        ultima_wire::group_address(self.id.0)
    }

    /// Its members with their ranks.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = (Rank, &Member)> {
        // Placement refuses jobs with more members than ranks have numbers.
        self.members
            .iter()
            .enumerate()
            .map(|(rank, member)| (Rank(rank as u16), member))
    }
}

/// Reads the job in the YAML file at `path`.
///
/// # Errors
/// Each is one line with the file, the line and the field; see [`JobProblem`].
pub fn load(path: &Path) -> Result<JobRequest, JobError> {
    parse(&yaml::read(path)?, &path.display().to_string())
}

/// Reads the jobs in `text`, a YAML document each, one at least, which errors call `source`.
///
/// # Errors
/// There is none; as [`load`], for the first that is wrong.
pub fn parse_all(text: &str, source: &str) -> Result<Vec<WrittenJob>, JobError> {
    let documents = yaml::documents(text);
    let jobs: Vec<WrittenJob> = documents
        .map(|text| WrittenJob::parse(&text, source))
        .collect::<Result<_, _>>()?;
    match jobs.is_empty() {
        true => Err(JobError::Form {
            place: yaml::Place::whole(source),
            field: String::new(),
            message: "there is no job in it; expected at least { name: train, members: [h1, h2] }"
                .into(),
        }),
        false => Ok(jobs),
    }
}

/// Reads the job in `text`, which errors call `source`.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, source: &str) -> Result<JobRequest, JobError> {
    WrittenJob::parse(text, source).map(|job| job.request)
}

/// The JSON schema of the YAML form.
pub fn schema() -> serde_json::Value {
    yaml::schema::<file::JobFile>()
}
