//! A job's YAML form.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_yaml::{Location, Spanned};

use super::{
    DEFAULT_LOSS_THRESHOLD, DEFAULT_SEALED, Gather, GridSpec, JobProblem, JobRequest, JobSpec,
    Weight,
};
use crate::membership::Eviction;
use crate::yaml;

/// A job of Ultima: its members and its options.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima job")]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    /// The job's name, unique in the fabric.
    #[schemars(with = "String", regex(pattern = yaml::NAME))]
    name: Spanned<String>,
    /// The members' hosts in rank order. A host may be listed as often as it has room for ranks.
    #[schemars(with = "Vec<String>", length(min = 2, max = 65535))]
    members: Spanned<Vec<Spanned<String>>>,
    /// How aggregates reach the members: by a multicast group, or as one packet to each member.
    #[serde(default = "unsaid::<GatherFile>")]
    #[schemars(with = "GatherFile")]
    gather: Spanned<GatherFile>,
    /// Seed of everything random that members must agree on. Default: random.
    #[schemars(with = "Option<u64>")]
    seed: Option<Spanned<u64>>,
    /// Report an operation after this many losses at one hop; 0 for never.
    #[serde(default = "default_loss_threshold")]
    #[schemars(with = "u32")]
    loss_threshold: Spanned<u32>,
    /// The job's share of links with a rate, in proportion to the weights of other jobs. Default:
    /// 1.
    #[schemars(with = "Option<u32>", range(min = 1, max = 100))]
    weight: Option<Spanned<u32>>,
    /// Seconds after which a suspected member is evicted. Default: 0, never.
    #[schemars(with = "Option<u32>", range(max = Eviction::MOST))]
    evict_after_s: Option<Spanned<u32>>,
    /// True if members seal their packets with a key from the controller and reject unsealed
    /// packets. Default: true.
    #[serde(default = "default_sealed")]
    #[schemars(with = "bool")]
    sealed: Spanned<bool>,
    /// Makes the job a grid: one job for each of this many groups of equal size, and one for each
    /// position in the groups.
    #[schemars(with = "Option<u16>", range(min = 2))]
    groups: Option<Spanned<u16>>,
}

fn default_loss_threshold() -> Spanned<u32> {
    nowhere(DEFAULT_LOSS_THRESHOLD)
}

fn default_sealed() -> Spanned<bool> {
    nowhere(DEFAULT_SEALED)
}

/// The default of a field that the file does not have.
fn unsaid<T: Default>() -> Spanned<T> {
    nowhere(T::default())
}

fn nowhere<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GatherFile {
    #[default]
    Multicast,
    Unicast,
}

impl JobFile {
    /// The place of a field, such as `weight` or `members[2]`; unknown if the file does not have
    /// it.
    pub(super) fn location(&self, field: &str) -> Location {
        fn of<T>(given: &Option<Spanned<T>>) -> Location {
            given.as_ref().map_or(Location::UNKNOWN, |it| it.referenced)
        }
        match field {
            "name" => self.name.referenced,
            "members" => self.members.referenced,
            "gather" => self.gather.referenced,
            "seed" => of(&self.seed),
            "loss_threshold" => self.loss_threshold.referenced,
            "weight" => of(&self.weight),
            "evict_after_s" => of(&self.evict_after_s),
            "sealed" => self.sealed.referenced,
            "groups" => of(&self.groups),
            field => {
                let member = member(field).and_then(|index| self.members.value.get(index));
                member.map_or(Location::UNKNOWN, |it| it.referenced)
            }
        }
    }
}

/// The index of a member in a field's path, such as `members[2]`.
pub(super) fn member(field: &str) -> Option<usize> {
    let index = field.strip_prefix("members[")?.strip_suffix(']')?;
    index.parse().ok()
}

/// Checks everything that does not depend on the fabric.
pub(super) fn check(file: &JobFile) -> Result<JobRequest, JobProblem> {
    let JobFile {
        name,
        members,
        gather,
        seed,
        loss_threshold,
        weight,
        evict_after_s,
        sealed,
        groups,
    } = file;
    let given = |given: &Spanned<u32>| given.value;
    let weight = weight.as_ref().map(given).map(Weight::try_from);
    let eviction = evict_after_s.as_ref().map(given).map(Eviction::try_from);
    let spec = JobSpec {
        name: name.value.clone(),
        members: (members.value.iter())
            .map(|member| member.value.clone())
            .collect(),
        gather: match gather.value {
            GatherFile::Multicast => Gather::Multicast,
            GatherFile::Unicast => Gather::Unicast,
        },
        seed: seed.as_ref().map(|seed| seed.value),
        loss_threshold: loss_threshold.value,
        weight: weight.transpose()?.unwrap_or_default(),
        eviction: eviction.transpose()?.unwrap_or_default(),
        sealed: sealed.value,
        created_at: 0,
        request: 0,
        client: String::new(),
    };
    match groups {
        Some(groups) => GridSpec::new(spec, groups.value).map(JobRequest::Grid),
        None => spec.check().map(|()| JobRequest::Job(spec)),
    }
}
