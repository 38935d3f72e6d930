//! What files of jobs ask for, against the jobs that there are.

use std::collections::HashSet;

use anyhow::{Result, bail};
use ultima_controller::api;
use ultima_controller::job::{Gather, JobRequest, JobSpec, WrittenJob};

use crate::document::{Action, Applied};

/// A job of which only the members are others.
pub struct Resized {
    pub name: String,
    /// The number of the epoch whose members the file's were compared with.
    pub number: u32,
    /// The file's.
    pub members: Vec<String>,
}

impl Resized {
    /// As the controller is asked for it, or for what it would do.
    pub fn request(&self) -> api::ResizeJobRequest {
        api::ResizeJobRequest {
            job: self.name.clone(),
            members: self.members.clone(),
            job_id: self.number,
            ..api::ResizeJobRequest::default()
        }
    }
}

/// What files ask for against what is there.
pub struct Compared {
    /// Those that are there, and are as files say, or differ in more than their members.
    pub found: Vec<Applied>,
    /// Those that are not.
    pub missing: Vec<JobSpec>,
    /// Those with other members.
    pub resized: Vec<Resized>,
}

impl Compared {
    /// What would be done about each.
    pub fn forecast(self) -> (Vec<Applied>, Vec<Resized>, Vec<JobSpec>) {
        let mut all = self.found;
        let resized = self.resized.iter().map(|it| &it.name);
        all.extend(resized.map(|name| Applied::new(name, Action::WouldBeResized)));
        let missing = self.missing.iter().map(|it| &it.name);
        all.extend(missing.map(|name| Applied::new(name, Action::WouldBeCreated)));
        (all, self.resized, self.missing)
    }
}

/// Whether no job stands in the files twice.
///
/// # Errors
/// One does; with the place of the second.
pub fn check_names(written: &[WrittenJob]) -> Result<()> {
    let mut names = HashSet::new();
    for written in written {
        for name in written.request.names() {
            if let Some(name) = names.replace(name) {
                bail!(
                    "{}: name: job {name} stands in the files twice; names are unique",
                    written.place_of("name"),
                );
            }
        }
    }
    Ok(())
}

/// Compares what files ask for with the jobs that are `there`. Those of a grid that are missing get the seed that others of it have.
pub fn compare(written: &[WrittenJob], there: &[api::Job]) -> Compared {
    let mut compared = Compared {
        found: Vec::new(),
        missing: Vec::new(),
        resized: Vec::new(),
    };
    let named = |name: &str| there.iter().find(|job| job.name == name);
    for written in written {
        let request = &written.request;
        let parts = request.names();
        let known = parts.iter().find_map(|name| named(name));
        let seed = known.map_or_else(rand::random, |job| job.seed);
        // A job alone gets its seed from the controller.
        for spec in request.jobs(seed) {
            let Some(job) = named(&spec.name) else {
                compared.missing.push(spec);
                continue;
            };
            let differs = differences(&spec, request.seed(), job);
            let members = members(&spec, job);
            // A grid keeps its members.
            let is_alone = matches!(request, JobRequest::Job(_));
            if members.is_some() && is_alone && differs.is_empty() {
                compared.resized.push(Resized {
                    name: spec.name,
                    number: job.id,
                    members: spec.members,
                });
                continue;
            }
            let differs = differs.into_iter().chain(members);
            let differs =
                differs.map(|it| format!("{}: {}", written.place_of(it.field), it.text()));
            let differs: Vec<String> = differs.collect();
            let action = match differs.is_empty() {
                true => Action::Unchanged,
                false => Action::Differs,
            };
            let name = spec.name;
            compared.found.push(Applied {
                name,
                action,
                differs,
            });
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
    fn text(&self) -> String {
        let Differs { field, is, wanted } = self;
        format!("{field} is {is}, and the file says {wanted}")
    }
}

fn differs(field: &'static str, is: String, wanted: String) -> Option<Differs> {
    (is != wanted).then_some(Differs { field, is, wanted })
}

/// In what a job's members are others than its file says, now and in the epoch that comes.
fn members(spec: &JobSpec, job: &api::Job) -> Option<Differs> {
    let list = |hosts: &[&str]| format!("[{}]", hosts.join(", "));
    let coming = job.next.as_ref().map_or(&job.members, |next| &next.members);
    let hosts: Vec<&str> = coming.iter().map(|it| it.host.as_str()).collect();
    let wanted: Vec<&str> = spec.members.iter().map(String::as_str).collect();
    differs("members", list(&hosts), list(&wanted))
}

/// In which other fields a job is another than its file says.
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
