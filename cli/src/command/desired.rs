//! The jobs of files, and how they differ from the jobs at the controller.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ultima_api::v1 as api;
use ultima_console::input;
use ultima_planner::job::{self, Gather, JobRequest, JobSpec, WrittenJob};

use ultima_api::document::{Action, Applied};

use crate::exit::{Exit, InputErrors as _};

/// A job to change: it differs from its file only in fields that can change.
pub struct Changed {
    pub name: String,
    /// The number of the epoch whose members were compared.
    pub number: u32,
    /// The members in the file, if they differ.
    pub members: Option<Vec<String>>,
    /// The settings in the file, if any differs.
    pub update: Option<api::UpdateJobRequest>,
    /// The settings that differ, with both values.
    changes: Vec<String>,
}

impl Changed {
    /// The request for other members, for a plan.
    pub fn resize(&self) -> Option<api::ResizeJobRequest> {
        Some(api::ResizeJobRequest {
            job: self.name.clone(),
            members: self.members.clone()?,
            job_id: self.number,
            ..api::ResizeJobRequest::default()
        })
    }

    /// The action that changes the job, or that would.
    pub fn applied(&self, is_done: bool) -> Applied {
        let action = match (&self.members, is_done) {
            (Some(_), true) => Action::Resized,
            (Some(_), false) => Action::WouldBeResized,
            (None, true) => Action::Changed,
            (None, false) => Action::WouldBeChanged,
        };
        Applied {
            changes: self.changes.clone(),
            ..Applied::new(&self.name, action)
        }
    }
}

/// The result of a comparison.
pub struct Compared {
    /// Existing jobs that match their files, or differ in fields that cannot change.
    pub found: Vec<Applied>,
    /// Jobs that do not exist.
    pub missing: Vec<JobSpec>,
    /// Existing jobs that can be changed to match their files.
    pub changed: Vec<Changed>,
}

impl Compared {
    /// The action that `apply` would take for each job.
    pub fn forecast(&self) -> Vec<Applied> {
        let changed = self.changed.iter().map(|it| it.applied(false));
        let missing = self.missing.iter().map(|it| &it.name);
        let missing = missing.map(|name| Applied::new(name, Action::WouldBeCreated));
        let found = self.found.iter().cloned();
        found.chain(changed).chain(missing).collect()
    }

    /// The request for a plan in which these jobs are deleted first.
    pub fn plan(&self, deleted: &[String]) -> api::PlanJobsRequest {
        api::PlanJobsRequest {
            delete: deleted.to_vec(),
            create: self.missing.iter().map(Into::into).collect(),
            resize: self.changed.iter().filter_map(Changed::resize).collect(),
            update: (self.changed.iter())
                .filter_map(|it| it.update.clone())
                .collect(),
        }
    }
}

/// The jobs of files. A folder stands for the YAML and JSON files in it.
///
/// # Errors
/// A file cannot be read or has an error, with its place; a folder has no such file.
pub fn read(files: &[PathBuf]) -> Result<Vec<WrittenJob>> {
    Ok(read_each(files)?.into_iter().flatten().collect())
}

/// The same, apart for each file. No file is without a job.
///
/// # Errors
/// As [`read`].
pub fn read_each(files: &[PathBuf]) -> Result<Vec<Vec<WrittenJob>>> {
    let mut written = Vec::new();
    for path in files {
        for file in in_folder(path).input()? {
            let text = input::read_text(&file).input()?;
            written.push(job::parse_all(&text, &input::name_of(&file)).input()?);
        }
    }
    Ok(written)
}

/// The YAML and JSON files of a folder, sorted by name; the path itself if it is no folder.
///
/// # Errors
/// The folder cannot be read, or has no such file.
fn in_folder(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let name = || input::name_of(path);
    let entries = fs::read_dir(path).with_context(name)?;
    let entries = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = (entries.collect::<io::Result<Vec<PathBuf>>>()).with_context(name)?;
    let is_wanted = |it: &str| ["yaml", "yml", "json"].contains(&it);
    files.retain(|file| {
        file.extension()
            .and_then(|it| it.to_str())
            .is_some_and(is_wanted)
    });
    if files.is_empty() {
        bail!("{}: the folder has no .yaml, .yml or .json file", name());
    }
    files.sort();
    Ok(files)
}

/// Checks that the files contain each job name only once.
///
/// # Errors
/// A name occurs again, with its second place.
pub fn check_names(written: &[WrittenJob]) -> Result<()> {
    let mut names = HashSet::new();
    for written in written {
        for name in written.request.names() {
            if let Some(name) = names.replace(name) {
                bail!(Exit::InvalidInput.because(format!(
                    "{}: name: duplicate job {name}; job names must be unique",
                    written.place_of("name"),
                )));
            }
        }
    }
    Ok(())
}

/// Compares the jobs of files with the `existing` jobs. Missing jobs of a grid get the seed of its existing ones.
pub fn compare(written: &[WrittenJob], existing: &[api::Job]) -> Compared {
    let mut compared = Compared {
        found: Vec::new(),
        missing: Vec::new(),
        changed: Vec::new(),
    };
    let named = |name: &str| existing.iter().find(|job| job.name == name);
    for written in written {
        let request = &written.request;
        let parts = request.names();
        let known = parts.iter().find_map(|name| named(name));
        let seed = known.map_or_else(rand::random, |job| job.seed);
        let others = compared.found.len();
        let complete = compared.missing.len();
        // A job that is not part of a grid gets its seed from the controller.
        for spec in request.jobs(seed) {
            let Some(job) = named(&spec.name) else {
                compared.missing.push(spec);
                continue;
            };
            let (members, settings) = (members(&spec, job), settings(&spec, job));
            let is_grid = matches!(request, JobRequest::Grid(_));
            let fixed = differences(&spec, request.seed(), job).into_iter();
            let mut fixed: Vec<String> = fixed
                .map(|it| it.text(written, "members agree on it when they join"))
                .collect();
            let off_switches = |it: &Differs| it.text(written, "the job is on no switch");
            if !job.unfit.is_empty() {
                fixed.extend(members.iter().chain(&settings).map(off_switches));
            } else if let Some(members) = members.as_ref().filter(|_| is_grid) {
                fixed.push(members.text(written, "the members of a grid are fixed"));
            }
            if !fixed.is_empty() {
                compared.found.push(Applied {
                    differs: fixed,
                    ..Applied::new(&spec.name, Action::Differs)
                });
            } else if members.is_none() && settings.is_empty() {
                let unchanged = Applied::new(&spec.name, Action::Unchanged);
                compared.found.push(unchanged);
            } else {
                let update = || api::UpdateJobRequest {
                    job: spec.name.clone(),
                    loss_threshold: Some(spec.policy.loss_threshold),
                    weight: Some(spec.policy.weight.get().into()),
                    evict_after_s: Some(spec.policy.eviction.seconds()),
                };
                compared.changed.push(Changed {
                    number: job.id,
                    update: (!settings.is_empty()).then(update),
                    members: members.map(|_| spec.members),
                    changes: settings.iter().map(Differs::change).collect(),
                    name: spec.name,
                });
            }
        }
        // The jobs of a grid are equal.
        if compared.found[others..]
            .iter()
            .any(|job| job.action == Action::Differs)
        {
            let missing = compared.missing.drain(complete..);
            let left_out = missing.map(|spec| Applied {
                differs: vec![
                    "the grid's other jobs differ from the file; delete the grid first".to_owned(),
                ],
                ..Applied::new(&spec.name, Action::Differs)
            });
            compared.found.extend(left_out);
        }
    }
    compared
}

/// A field in which a job differs from its file.
struct Differs {
    field: &'static str,
    is: String,
    wanted: String,
}

impl Differs {
    /// The difference, and why it stays.
    fn text(&self, written: &WrittenJob, why: &str) -> String {
        let Differs { field, is, wanted } = self;
        let place = written.place_of(field);
        let source = match written.has(field) {
            true => "the file has",
            false => "the default is",
        };
        format!("{place}: {field} is {is}, but {source} {wanted}, and cannot change: {why}")
    }

    fn change(&self) -> String {
        let Differs { field, is, wanted } = self;
        format!("{field}: {is} -> {wanted}")
    }
}

fn differs(field: &'static str, is: String, wanted: String) -> Option<Differs> {
    (is != wanted).then_some(Differs { field, is, wanted })
}

/// The difference in members, against the next epoch if one is being installed.
fn members(spec: &JobSpec, job: &api::Job) -> Option<Differs> {
    let list = |hosts: &[&str]| format!("[{}]", hosts.join(", "));
    let coming = job.next.as_ref().map_or(&job.members, |next| &next.members);
    let hosts: Vec<&str> = coming.iter().map(|it| it.host.as_str()).collect();
    let wanted: Vec<&str> = spec.members.iter().map(String::as_str).collect();
    differs("members", list(&hosts), list(&wanted))
}

/// The differences in fields that cannot change, except members.
fn differences(spec: &JobSpec, seed: Option<u64>, job: &api::Job) -> Vec<Differs> {
    let gather = |gather| match gather {
        Gather::Multicast => "multicast".to_owned(),
        Gather::Unicast => "unicast".to_owned(),
    };
    let is = match job.gather() {
        api::Gather::Unicast => Gather::Unicast,
        api::Gather::Multicast | api::Gather::Unspecified => Gather::Multicast,
    };
    let all = [
        differs("gather", gather(is), gather(spec.gather)),
        seed.and_then(|seed| differs("seed", job.seed.to_string(), seed.to_string())),
        differs("sealed", job.sealed.to_string(), spec.sealed.to_string()),
    ];
    all.into_iter().flatten().collect()
}

/// The differences in settings that can change.
fn settings(spec: &JobSpec, job: &api::Job) -> Vec<Differs> {
    let policy = spec.policy;
    let all = [
        ("loss_threshold", job.loss_threshold, policy.loss_threshold),
        ("weight", job.weight, policy.weight.get().into()),
        (
            "evict_after_s",
            job.evict_after_s,
            policy.eviction.seconds(),
        ),
    ];
    let each = all.into_iter();
    each.filter_map(|(field, is, wanted)| differs(field, is.to_string(), wanted.to_string()))
        .collect()
}
