//! A job's YAML form.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_yaml::Spanned;

use super::{
    DEFAULT_LOSS_THRESHOLD, Gather, GridSpec, JobError, JobProblem, JobRequest, JobSpec, Weight,
};
use crate::membership::Eviction;
use crate::yaml;

/// A job of Ultima: who takes part, and how.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima job")]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    /// Its name, unique in the fabric.
    #[schemars(with = "String", regex(pattern = yaml::NAME))]
    name: Spanned<String>,
    /// The members' hosts in rank order; a host may stand here as often as it has room for ranks.
    #[schemars(with = "Vec<String>", length(min = 2, max = 65535))]
    members: Spanned<Vec<Spanned<String>>>,
    /// How aggregates reach the members: by a multicast group, or one packet to each.
    #[serde(default)]
    gather: GatherFile,
    /// Of all that is random and that members must agree on; drawn where it is not said.
    seed: Option<u64>,
    /// Packets of one operation lost at one place that are worth a word; 0 for never.
    #[serde(default = "default_loss_threshold")]
    loss_threshold: u32,
    /// Its part of links with a rate that other jobs use, too, in proportion to theirs; 1 where it is not said.
    #[schemars(with = "Option<u32>", range(min = 1, max = 100))]
    weight: Option<Spanned<u32>>,
    /// Seconds after which a suspected member loses its place; 0, and where it is not said, for never.
    #[schemars(with = "Option<u32>", range(max = Eviction::MOST))]
    evict_after_s: Option<Spanned<u32>>,
    /// Whether members seal what they send under a key that the controller gives them, and refuse what is not sealed.
    #[serde(default)]
    sealed: bool,
    /// Makes it a grid: a job of each of so many groups of equal size, and of each place in groups.
    #[schemars(with = "Option<u16>", range(min = 2))]
    groups: Option<Spanned<u16>>,
}

fn default_loss_threshold() -> u32 {
    DEFAULT_LOSS_THRESHOLD
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GatherFile {
    #[default]
    Multicast,
    Unicast,
}

/// Checks what can be checked without the fabric.
pub(super) fn check(file: JobFile, source: &str) -> Result<JobRequest, JobError> {
    let weight = file.weight.as_ref().map(|given| {
        Weight::try_from(given.value)
            .map_err(|problem| yaml::invalid(source, given, "weight", problem))
    });
    let eviction = file.evict_after_s.as_ref().map(|given| {
        let eviction = Eviction::of_seconds(given.value);
        eviction.ok_or_else(|| {
            let problem = JobProblem::Eviction(given.value);
            yaml::invalid(source, given, "evict_after_s", problem)
        })
    });
    let spec = JobSpec {
        name: file.name.value.clone(),
        members: file
            .members
            .value
            .iter()
            .map(|member| member.value.clone())
            .collect(),
        gather: match file.gather {
            GatherFile::Multicast => Gather::Multicast,
            GatherFile::Unicast => Gather::Unicast,
        },
        seed: file.seed,
        loss_threshold: file.loss_threshold,
        weight: weight.transpose()?.unwrap_or_default(),
        eviction: eviction.transpose()?.unwrap_or_default(),
        sealed: file.sealed,
    };
    let checked = spec.check().and_then(|()| match &file.groups {
        Some(groups) => GridSpec::new(spec, groups.value).map(JobRequest::Grid),
        None => Ok(JobRequest::Job(spec)),
    });
    checked.map_err(|problem| match (&problem, &file.groups) {
        (JobProblem::Name(_), _) => yaml::invalid(source, &file.name, "name", problem),
        (JobProblem::Groups { .. } | JobProblem::GridEviction, Some(groups)) => {
            yaml::invalid(source, groups, "groups", problem)
        }
        _ => yaml::invalid(source, &file.members, "members", problem),
    })
}
