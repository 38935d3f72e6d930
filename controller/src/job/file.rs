//! A job's YAML form.

use serde::Deserialize;
use serde_yaml::Spanned;

use super::{
    DEFAULT_LOSS_THRESHOLD, Gather, GridSpec, JobError, JobProblem, JobRequest, JobSpec, Weight,
};
use crate::membership::Eviction;
use crate::yaml;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    name: Spanned<String>,
    members: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    gather: GatherFile,
    seed: Option<u64>,
    #[serde(default = "default_loss_threshold")]
    loss_threshold: u32,
    weight: Option<Spanned<u32>>,
    evict_after_s: Option<Spanned<u32>>,
    groups: Option<Spanned<u16>>,
}

fn default_loss_threshold() -> u32 {
    DEFAULT_LOSS_THRESHOLD
}

#[derive(Debug, Default, Deserialize)]
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
