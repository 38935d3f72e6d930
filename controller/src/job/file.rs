//! A job's YAML form.

use serde::Deserialize;
use serde_yaml::Spanned;

use super::{DEFAULT_LOSS_THRESHOLD, Gather, JobError, JobProblem, JobSpec};
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
pub(super) fn check(file: JobFile, source: &str) -> Result<JobSpec, JobError> {
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
    };
    match spec.check() {
        Ok(()) => Ok(spec),
        Err(problem @ JobProblem::Name(_)) => {
            Err(yaml::invalid(source, &file.name, "name", problem))
        }
        Err(problem @ JobProblem::Members(_)) => {
            Err(yaml::invalid(source, &file.members, "members", problem))
        }
    }
}
