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

/// A job to resize: only its members differ from its file.
pub struct Resized {
    pub name: String,
    /// The number of the epoch whose members were compared.
    pub number: u32,
    /// The members in the file.
    pub members: Vec<String>,
}

impl Resized {
    /// The request to the controller, also for a plan.
    pub fn request(&self) -> api::ResizeJobRequest {
        api::ResizeJobRequest {
            job: self.name.clone(),
            members: self.members.clone(),
            job_id: self.number,
            ..api::ResizeJobRequest::default()
        }
    }
}

/// The result of a comparison.
pub struct Compared {
    /// Existing jobs that match their files, or differ in more than their members.
    pub found: Vec<Applied>,
    /// Jobs that do not exist.
    pub missing: Vec<JobSpec>,
    /// Existing jobs whose members alone differ.
    pub resized: Vec<Resized>,
}

impl Compared {
    /// The action that `apply` would take for each job.
    pub fn forecast(self) -> (Vec<Applied>, Vec<Resized>, Vec<JobSpec>) {
        let mut all = self.found;
        let resized = self.resized.iter().map(|it| &it.name);
        all.extend(resized.map(|name| Applied::new(name, Action::WouldBeResized)));
        let missing = self.missing.iter().map(|it| &it.name);
        all.extend(missing.map(|name| Applied::new(name, Action::WouldBeCreated)));
        (all, self.resized, self.missing)
    }
}

/// The jobs of files. A folder stands for the YAML and JSON files in it.
///
/// # Errors
/// A file cannot be read or has an error, with its place; a folder has no such file.
pub fn read(files: &[PathBuf]) -> Result<Vec<WrittenJob>> {
    let mut written = Vec::new();
    for path in files {
        for file in in_folder(path)? {
            written.extend(job::parse_all(
                &input::read_text(&file)?,
                &input::name_of(&file),
            )?);
        }
    }
    Ok(written)
}

/// The files of a folder by name; the path itself if it is no folder.
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
                bail!(
                    "{}: name: duplicate job {name}; job names must be unique",
                    written.place_of("name"),
                );
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
        resized: Vec::new(),
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
            let differs = differences(&spec, request.seed(), job);
            let members = members(&spec, job);
            // The members of a grid are fixed, and those of a job that is on no switch.
            let is_resizable = matches!(request, JobRequest::Job(_)) && job.unfit.is_empty();
            if members.is_some() && is_resizable && differs.is_empty() {
                compared.resized.push(Resized {
                    name: spec.name,
                    number: job.id,
                    members: spec.members,
                });
                continue;
            }
            let differs = differs.into_iter().chain(members);
            let differs = differs.map(|it| it.text(written));
            let differs: Vec<String> = differs.collect();
            let action = match differs.is_empty() {
                true => Action::Unchanged,
                false => Action::Differs,
            };
            compared.found.push(Applied {
                differs,
                ..Applied::new(&spec.name, action)
            });
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
    fn text(&self, written: &WrittenJob) -> String {
        let Differs { field, is, wanted } = self;
        let place = written.place_of(field);
        match written.has(field) {
            true => format!("{place}: {field} is {is}, but the file has {wanted}"),
            false => format!("{place}: {field} is {is}, but the default is {wanted}"),
        }
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

/// The differences in all other fields.
fn differences(spec: &JobSpec, seed: Option<u64>, job: &api::Job) -> Vec<Differs> {
    let gather = |gather| match gather {
        Gather::Multicast => "multicast".to_owned(),
        Gather::Unicast => "unicast".to_owned(),
    };
    let is = match job.gather() {
        api::Gather::Unicast => Gather::Unicast,
        api::Gather::Multicast | api::Gather::Unspecified => Gather::Multicast,
    };
    let number = |field, is: u64, wanted: u64| differs(field, is.to_string(), wanted.to_string());
    let (threshold, weight) = (spec.loss_threshold.into(), spec.weight.get().into());
    let all = [
        differs("gather", gather(is), gather(spec.gather)),
        seed.and_then(|seed| number("seed", job.seed, seed)),
        number("loss_threshold", job.loss_threshold.into(), threshold),
        number("weight", job.weight.into(), weight),
        number(
            "evict_after_s",
            job.evict_after_s.into(),
            spec.eviction.seconds().into(),
        ),
        differs("sealed", job.sealed.to_string(), spec.sealed.to_string()),
    ];
    all.into_iter().flatten().collect()
}
