//! The jobs that there are, and the numbers that are still free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::JobRequestError;
use super::losses::{Losses, Told};
use super::seats::Seats;
use crate::fabric::Fabric;
use crate::job::{CounterIndex, Epoch, Gather, GroupId, Job, JobId, JobSpec, place};
use crate::plan::{self, JobPlan};

/// One installed job.
#[derive(Debug)]
pub struct Record {
    pub job: Arc<Job>,
    pub plan: Arc<JobPlan>,
    pub seats: Seats,
    /// They go with their job: another may get its number.
    pub losses: Losses,
}

/// All installed jobs.
#[derive(Debug, Default)]
pub struct Registry {
    jobs: BTreeMap<JobId, Record>,
    /// The last id given out. Ids are given in turn, so that late packets of a deleted job meet
    /// no other.
    last_id: u16,
}

impl Registry {
    /// Numbers and places for `spec`, and what it needs on the switches. Nothing is taken yet.
    pub fn propose(
        &self,
        fabric: &Fabric,
        spec: &JobSpec,
    ) -> Result<(Job, JobPlan), JobRequestError> {
        if self.named(&spec.name).is_ok() {
            return Err(JobRequestError::Exists {
                name: spec.name.clone(),
            });
        }
        let others = self.jobs.values().flat_map(|record| &record.job.members);
        let members = place(fabric, spec, others).map_err(|error| JobRequestError::Placement {
            name: spec.name.clone(),
            error,
        })?;

        let ids = (self.last_id.saturating_add(1)..=u16::MAX).chain(1..=self.last_id);
        let id = ids.map(JobId).find(|id| !self.jobs.contains_key(id));
        let jobs = || self.jobs.values().map(|record| &record.job);
        let counter = lowest_free(jobs().map(|job| job.counter.0));
        let group = lowest_free(jobs().filter_map(|job| job.group).map(|group| group.0));
        let numbers = plan::number(fabric, &members, jobs().map(|job| &**job));
        let (Some(id), Some(counter), Some(group), Some(numbers)) = (id, counter, group, numbers)
        else {
            return Err(JobRequestError::TooManyJobs {
                jobs: self.jobs.len(),
            });
        };

        let job = Job {
            id,
            name: spec.name.clone(),
            epoch: Epoch(1),
            seed: spec.seed.unwrap_or_else(rand::random),
            counter: CounterIndex(counter),
            group: (spec.gather == Gather::Multicast).then_some(GroupId(group)),
            loss_threshold: spec.loss_threshold,
            weight: spec.weight,
            members,
            shares: numbers.shares,
            sources: numbers.sources,
        };
        let plan = plan::of_job(fabric, &job);
        Ok((job, plan))
    }

    /// A job that is installed.
    pub fn add(&mut self, job: Job, plan: JobPlan) -> &Record {
        let (id, seats) = (job.id, Seats::new(&job));
        self.last_id = id.0;
        let record = Record {
            job: Arc::new(job),
            plan: Arc::new(plan),
            seats,
            losses: Losses::default(),
        };
        self.jobs.entry(id).or_insert(record)
    }

    /// Forgets a job. Members who wait for others are told.
    pub fn remove(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }

    pub fn named(&self, name: &str) -> Result<&Record, JobRequestError> {
        self.jobs
            .values()
            .find(|record| record.job.name == name)
            .ok_or_else(|| JobRequestError::NoJob {
                name: name.to_owned(),
                known: self.names(),
            })
    }

    pub fn named_mut(&mut self, name: &str) -> Result<&mut Record, JobRequestError> {
        let id = self.named(name)?.job.id;
        Ok(self.jobs.get_mut(&id).expect("found by name just now"))
    }

    pub fn get(&self, id: JobId) -> Option<&Record> {
        self.jobs.get(&id)
    }

    pub fn get_mut(&mut self, id: JobId) -> Option<&mut Record> {
        self.jobs.get_mut(&id)
    }

    /// Keeps what a switch told of one of its job's operations; false if it is of no job that there is. A switch may
    /// tell late, of one that was deleted.
    pub fn told(&mut self, told: Told) -> bool {
        let record = self.jobs.get_mut(&told.loss.job);
        let record = record.filter(|record| record.job.epoch == told.loss.epoch);
        record.map(|record| record.losses.add(told)).is_some()
    }

    /// All jobs, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.jobs.values()
    }

    fn names(&self) -> Vec<String> {
        self.jobs
            .values()
            .map(|record| record.job.name.clone())
            .collect()
    }

    /// All jobs themselves, by id.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        let records = self.jobs.values();
        records.map(|record| Arc::clone(&record.job)).collect()
    }

    /// What all jobs need.
    pub fn plans(&self) -> Vec<Arc<JobPlan>> {
        self.jobs
            .values()
            .map(|record| Arc::clone(&record.plan))
            .collect()
    }
}

/// The lowest number from 1 that is not taken.
fn lowest_free(taken: impl Iterator<Item = u16>) -> Option<u16> {
    let taken: BTreeSet<u16> = taken.collect();
    (1..=u16::MAX).find(|number| !taken.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use crate::job::{DEFAULT_LOSS_THRESHOLD, Weight};
    use crate::server::losses::tests::told;

    #[test]
    fn only_jobs_that_there_are_have_losses() {
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let mut registry = Registry::default();
        let add = |registry: &mut Registry| {
            let spec = JobSpec {
                name: "train".into(),
                members: ["h1", "h2"].map(String::from).to_vec(),
                gather: Gather::Multicast,
                seed: None,
                loss_threshold: DEFAULT_LOSS_THRESHOLD,
                weight: Weight::default(),
            };
            let (job, plan) = registry.propose(&fabric, &spec).unwrap();
            let record = registry.add(job, plan);
            (record.job.id, record.job.epoch)
        };
        let (id, epoch) = add(&mut registry);
        assert!(registry.told(told(id, epoch, 1)));
        assert!(!registry.told(told(id, Epoch(epoch.0 + 1), 1)));
        assert!(!registry.told(told(JobId(id.0 + 1), epoch, 1)));
        assert_eq!(registry.get(id).unwrap().losses.iter().count(), 1);

        registry.remove(id);
        assert!(!registry.told(told(id, epoch, 1)));
        // All other ids have been given out meanwhile.
        registry.last_id = id.0 - 1;
        assert_eq!(add(&mut registry), (id, epoch));
        assert_eq!(registry.get(id).unwrap().losses.iter().count(), 0);
    }
}
