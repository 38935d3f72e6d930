//! Jobs: their members, and the numbers that identify them in packets and on switches.
//!
//! A [`JobSpec`] is a user's request ([`load`] reads it from YAML). [`place`] assigns hosts and UDP
//! ports to its ranks. A [`Job`] has all resources that it needs.

mod file;
mod grid;
pub(crate) mod key;
mod placement;
mod refusal;
#[cfg(test)]
mod tests;
mod written;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;

use ultima_api::v1::{self, CreateJobRequest};
use ultima_wire::Key;

pub use grid::GridSpec;
pub use placement::{Member, host_of, place};
pub use refusal::{Refusal, RefusalKind};
pub use written::WrittenJob;

use crate::fabric::SwitchPort;
use crate::membership::Eviction;
use crate::tree::JobTree;
use crate::yaml::{self, LoadError};

/// A job's id in its fabric and its packets, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u16);

/// A job's membership epoch, from 1. Switches drop packets of other epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u16);

/// A member's number in its job, from 0. Also the RID of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u16);

/// A job's index in every counter array, from 1; 0 counts packets of unknown jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterIndex(pub u16);

/// The index of a job's counters, meter and operations at one port of one switch, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareIndex(pub u16);

/// The index of a source's loss counters on its host's switch, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceIndex(pub u16);

/// A multicast group's id on every switch, from 1; 0 is no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// Pairs items with ranks; a job has at most as many as there are ranks.
pub fn by_rank<I: IntoIterator>(of: I) -> impl Iterator<Item = (Rank, I::Item)> {
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

/// The delivery of aggregates to the other members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// One packet to the job's group, which the switches replicate.
    #[default]
    Multicast,
    /// One packet to each member; the job needs no multicast group.
    Unicast,
}

impl From<Gather> for v1::Gather {
    fn from(gather: Gather) -> Self {
        match gather {
            Gather::Multicast => v1::Gather::Multicast,
            Gather::Unicast => v1::Gather::Unicast,
        }
    }
}

/// The settings of a job that can change while its members run: members do not know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPolicy {
    /// Losses of one operation at one hop at which the switch reports it, once; 0 for never.
    pub loss_threshold: u32,
    /// The job's share of ports that it shares with other jobs.
    pub weight: Weight,
    /// When a suspected member is evicted.
    pub eviction: Eviction,
}

impl Default for JobPolicy {
    fn default() -> Self {
        JobPolicy {
            loss_threshold: DEFAULT_LOSS_THRESHOLD,
            weight: Weight::default(),
            eviction: Eviction::default(),
        }
    }
}

/// Values that a request or a file gives; none for those that it leaves out.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // As in `CreateJobRequest`.
pub struct PolicyChange {
    pub loss_threshold: Option<u32>,
    pub weight: Option<u32>,
    pub evict_after_s: Option<u32>,
}

impl From<&v1::UpdateJobRequest> for PolicyChange {
    fn from(request: &v1::UpdateJobRequest) -> Self {
        PolicyChange {
            loss_threshold: request.loss_threshold,
            weight: request.weight,
            evict_after_s: request.evict_after_s,
        }
    }
}

impl JobPolicy {
    /// This policy with other values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn with(self, change: PolicyChange) -> Result<Self, Refusal> {
        let PolicyChange {
            loss_threshold,
            weight,
            evict_after_s,
        } = change;
        let weight = weight.map(Weight::try_from).transpose()?;
        let eviction = evict_after_s.map(Eviction::try_from).transpose()?;
        Ok(JobPolicy {
            loss_threshold: loss_threshold.unwrap_or(self.loss_threshold),
            weight: weight.unwrap_or(self.weight),
            eviction: eviction.unwrap_or(self.eviction),
        })
    }
}

/// A user's request for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// The job's name, unique in its fabric.
    pub name: String,
    /// The hosts' names in rank order. A host with room for several ranks may be listed several
    /// times.
    pub members: Vec<String>,
    /// The delivery of aggregates to the members.
    pub gather: Gather,
    /// Seed of everything random that members must agree on; by default the controller draws one.
    pub seed: Option<u64>,
    /// The settings that can change later.
    pub policy: JobPolicy,
    /// True if members seal their packets.
    pub sealed: bool,
    /// When the controller took the request, in seconds of Unix time; clients do not say.
    pub created_at: u64,
    /// The request's idempotency key: a repeated request with the same key is the same job. 0 for none.
    pub request: u64,
    /// As in [`Job`]. Clients do not say.
    pub uid: u64,
    /// The role and name of the client whose request it was; empty without TLS. Clients do not say.
    pub client: String,
}

impl JobSpec {
    /// A job on these hosts, in rank order, with the defaults of a job file.
    pub fn new(
        name: impl Into<String>,
        members: impl IntoIterator<Item = impl Into<String>>,
    ) -> JobSpec {
        JobSpec {
            name: name.into(),
            members: members.into_iter().map(Into::into).collect(),
            gather: Gather::default(),
            seed: None,
            policy: JobPolicy::default(),
            sealed: DEFAULT_SEALED,
            created_at: 0,
            request: 0,
            uid: 0,
            client: String::new(),
        }
    }
}

impl From<&JobSpec> for CreateJobRequest {
    fn from(spec: &JobSpec) -> Self {
        CreateJobRequest {
            name: spec.name.clone(),
            members: spec.members.clone(),
            gather: v1::Gather::from(spec.gather).into(),
            seed: spec.seed,
            loss_threshold: Some(spec.policy.loss_threshold),
            weight: Some(spec.policy.weight.get().into()),
            evict_after_s: spec.policy.eviction.seconds(),
            sealed: Some(spec.sealed),
            idempotency_key: spec.request,
            wait_ms: None,
        }
    }
}

impl JobRequest {
    /// The requested jobs. `seed` is for the jobs of a grid whose file has none.
    pub fn jobs(&self, seed: u64) -> Vec<JobSpec> {
        match self {
            JobRequest::Job(spec) => vec![spec.clone()],
            JobRequest::Grid(grid) => grid.jobs(grid.seed().unwrap_or(seed)),
        }
    }

    /// The names of the requested jobs.
    pub fn names(&self) -> Vec<String> {
        match self {
            JobRequest::Job(spec) => vec![spec.name.clone()],
            JobRequest::Grid(grid) => grid.names().collect(),
        }
    }

    /// True if a job of that name is one of them.
    pub fn stands_for(&self, job: &str) -> bool {
        match self {
            JobRequest::Job(spec) => spec.name == job,
            JobRequest::Grid(grid) => grid.stands_for(job),
        }
    }

    /// The seed in the file.
    pub fn seed(&self) -> Option<u64> {
        match self {
            JobRequest::Job(spec) => spec.seed,
            JobRequest::Grid(grid) => grid.seed(),
        }
    }
}

/// The content of a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobRequest {
    /// One job.
    Job(JobSpec),
    /// The jobs of a grid, if the file has `groups`.
    Grid(GridSpec),
}

/// A job's share of a port with a rate, in proportion to the weights of other jobs: 1 to 100, by
/// default 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u8);

impl Weight {
    /// The weight as a number.
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
    type Error = Refusal;

    fn try_from(weight: u32) -> Result<Self, Refusal> {
        match u8::try_from(weight) {
            Ok(weight @ 1..=100) => Ok(Weight(weight)),
            _ => {
                let message = format!("{weight} is out of range; use a weight of 1 to 100");
                Err(Refusal::invalid("weight", message))
            }
        }
    }
}

/// Converts a number of seconds; 0 for never.
impl TryFrom<u32> for Eviction {
    type Error = Refusal;

    fn try_from(seconds: u32) -> Result<Self, Refusal> {
        match seconds {
            0 => Ok(Eviction::Never),
            1..=Self::MOST => Ok(Eviction::After(seconds)),
            _ => {
                let most = Self::MOST;
                let message =
                    format!("{seconds} s is out of range; use 1 to {most}, or 0 to never evict");
                Err(Refusal::invalid("evict_after_s", message))
            }
        }
    }
}

/// The default loss threshold: every lossy operation is reported.
pub const DEFAULT_LOSS_THRESHOLD: u32 = 1;
/// The default of [`JobSpec::sealed`].
pub const DEFAULT_SEALED: bool = true;

/// A job's multicast group and tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// The group.
    pub group: GroupId,
    /// The trunks of the group's packets, chosen when the job was created and kept while they are
    /// up.
    pub tree: JobTree,
}

/// A job with all resources that it needs to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job's id.
    pub id: JobId,
    /// The job's name.
    pub name: String,
    /// The job's membership epoch.
    pub epoch: Epoch,
    /// Seed of everything random that members must agree on.
    pub seed: u64,
    /// The index of the job's counters.
    pub counter: CounterIndex,
    /// The multicast group and tree; none if the job gathers by unicast.
    pub multicast: Option<Multicast>,
    /// As in [`JobSpec`].
    pub policy: JobPolicy,
    /// As in [`JobSpec`].
    pub created_at: u64,
    /// The idempotency key of its request; 0 for none.
    pub request: u64,
    /// A random number that identifies the job, in all its epochs, among all jobs that the store ever had.
    pub uid: u64,
    /// As in [`JobSpec`].
    pub client: String,
    /// The key of this epoch; none if the job is not sealed.
    pub key: Option<Key>,
    /// The members in rank order.
    pub members: Vec<Member>,
    /// The index of the job's counters at each of its egress ports.
    pub shares: BTreeMap<SwitchPort, ShareIndex>,
    /// The index of each member's loss counters on its host's switch, in rank order.
    pub sources: Vec<SourceIndex>,
}

impl Job {
    /// The delivery of aggregates to the members.
    pub fn gather(&self) -> Gather {
        match self.multicast {
            Some(_) => Gather::Multicast,
            None => Gather::Unicast,
        }
    }

    /// The multicast group; none if the job gathers by unicast.
    pub fn group(&self) -> Option<GroupId> {
        self.multicast.as_ref().map(|multicast| multicast.group)
    }

    /// The multicast tree; none if the job gathers by unicast.
    pub fn tree(&self) -> Option<&JobTree> {
        self.multicast.as_ref().map(|multicast| &multicast.tree)
    }

    /// The destination address of multicast aggregates.
    pub fn group_address(&self) -> Ipv4Addr {
        ultima_wire::group_address(self.id.0)
    }

    /// The members with their ranks.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = (Rank, &Member)> {
        // Placement rejects jobs with more members than ranks.
        self.members
            .iter()
            .enumerate()
            .map(|(rank, member)| (Rank(rank as u16), member))
    }
}

/// Reads the job in the YAML file at `path`.
///
/// # Errors
/// The file cannot be read, or is invalid.
pub fn load(path: &Path) -> Result<JobRequest, LoadError> {
    parse(&yaml::read(path)?, &path.display().to_string())
}

/// Reads the jobs in `text`, one per YAML document or in a list. Errors call the text `source`.
///
/// # Errors
/// The text has no job; or as [`load`], for the first invalid job.
pub fn parse_all(text: &str, source: &str) -> Result<Vec<WrittenJob>, LoadError> {
    let documents = yaml::documents(text);
    let mut jobs = Vec::new();
    for text in documents {
        jobs.extend(WrittenJob::parse(&text, source)?);
    }
    match jobs.is_empty() {
        true => {
            let problem =
                "the file has no job; expected at least { name: train, members: [h1, h2] }";
            Err(LoadError::at(
                &yaml::FilePosition::whole(source),
                "",
                problem,
            ))
        }
        false => Ok(jobs),
    }
}

/// Reads the job in `text`. Errors call the text `source`.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, source: &str) -> Result<JobRequest, LoadError> {
    let mut jobs = WrittenJob::parse(text, source)?;
    match (jobs.pop(), jobs.is_empty()) {
        (Some(job), true) => Ok(job.request),
        _ => Err(LoadError::at(
            &yaml::FilePosition::whole(source),
            "",
            "expected one job",
        )),
    }
}

/// The JSON schema of the YAML form.
pub fn schema() -> serde_json::Value {
    yaml::schema::<file::JobFile>()
}
