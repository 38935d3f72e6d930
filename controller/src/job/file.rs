//! A job's YAML form.

use serde::Deserialize;
use serde_yaml::Spanned;

use super::{Gather, JobError, JobProblem, JobSpec};
use crate::yaml;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    name: Spanned<String>,
    members: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    gather: GatherFile,
    seed: Option<u64>,
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
