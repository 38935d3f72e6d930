//! The jobs that there are, and the numbers that are still free.
//!
//! While a job's members change it is there twice, by two numbers: in the epoch that it is in, and in the one that comes or that has
//! been. Switches hold both; whoever asks for it by name means the epoch that it is in.

mod epochs;
mod refit;

pub use epochs::{next_spec, seats_of};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ultima_p4runtime::names::Names;

use super::error::{JobRequestError, RestoreError};
use super::losses::{Losses, Told};
use super::plan::Trial;
use super::sample::Sample;
use super::seats::{Attempt, Seat, Seats};
use super::tail_drops::TailDrops;
use crate::fabric::{Fabric, SwitchId};
use crate::job::{Job, JobId, JobSpec, Rank};
use crate::ledger::{Ledger, Refitted, Refusal};
use crate::membership::{Change, Origin, Suspicion};
use crate::plan::JobPlan;
use crate::routing::Routes;
use crate::store::{JobRecord, OriginRecord, SeatRecord, Stored};

/// One installed job.
#[derive(Debug)]
pub struct Record {
    pub job: Arc<Job>,
    pub plan: Arc<JobPlan>,
    pub seats: Seats,
    /// They go with their job: another may get its number.
    pub losses: Losses,
    /// What its switches have counted for it.
    pub sample: Arc<Sample>,
    /// What of it its switches' queues have dropped.
    pub tail_drops: Arc<TailDrops>,
    /// Members that some others cannot reach while parts of the fabric are down, in rank order: their ways are kept.
    pub cut_off: Vec<Rank>,
    /// Why it was not moved off what is down or drained.
    pub stays: Option<Refusal>,
    /// The switches for whose sake its plan has old ways still beside the new ones: nobody knows that they have the new ones.
    pub lingers: BTreeSet<SwitchId>,
    /// Whether the job is in this epoch.
    pub stage: Stage,
    /// How this epoch came to be; none of a job's first.
    pub origin: Option<Origin>,
    /// The change that makes it the job's, until that is over.
    pub change: Option<Change>,
    /// Which of its members are suspected.
    pub suspicion: Suspicion,
    /// Why its members are the same although they should be others.
    pub unchanged: Option<String>,
    /// When suspects are evicted at the earliest, where it was refused before.
    pub evict_not_before: Option<Instant>,
    /// Whether suspects are being evicted.
    pub is_evicting: bool,
}

/// How a job stands to one of its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is in it.
    Current,
    /// It may come to be in it.
    Coming,
    /// It has been in it, and some members may still be.
    Leaving,
}

/// What all switches are to hold.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub routes: Arc<Routes>,
    pub plans: Vec<Arc<JobPlan>>,
    pub jobs: Vec<Arc<Job>>,
}

/// The routes, and all installed jobs.
#[derive(Debug)]
pub struct Registry {
    routes: Arc<Routes>,
    jobs: BTreeMap<JobId, Record>,
    /// By an epoch's number the one of the epoch that it changes into, as long as that is under way: numbers are given out anew.
    following: BTreeMap<JobId, JobId>,
    /// By a job's name the numbers of its epochs.
    epochs: HashMap<String, BTreeSet<JobId>>,
    ledger: Ledger,
}

impl Registry {
    /// No jobs in a fabric.
    pub fn new(fabric: &Fabric, routes: Routes) -> Self {
        Registry {
            jobs: BTreeMap::new(),
            following: BTreeMap::new(),
            epochs: HashMap::new(),
            ledger: Ledger::new(fabric, &routes),
            routes: Arc::new(routes),
        }
    }

    /// The routes.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// What all jobs have taken.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The jobs as they may become.
    pub fn trial(&self) -> Trial {
        let jobs = self.jobs.values().map(|record| (&record.job, &record.plan));
        Trial::new(Arc::clone(&self.routes), self.ledger.clone(), jobs)
    }

    /// Numbers and places for `spec`, and what it needs on the switches. Nothing is taken yet.
    pub fn propose(
        &self,
        fabric: &Fabric,
        names: &Names,
        spec: &JobSpec,
    ) -> Result<(Job, JobPlan), JobRequestError> {
        let name = || spec.name.clone();
        if self.named(&spec.name).is_ok() {
            return Err(JobRequestError::Exists { name: name() });
        }
        let proposed = self
            .ledger
            .propose(fabric, &self.routes, names, spec, rand::random());
        proposed.map_err(|refusal| JobRequestError::Refused {
            name: name(),
            refusal: Box::new(refusal),
        })
    }

    /// A job that is installed.
    pub fn add(&mut self, fabric: &Fabric, job: Job, plan: JobPlan) -> &Record {
        self.ledger.add(fabric, &job, &plan);
        let seats = Seats::new(&job);
        self.insert((job, plan), seats, None)
    }

    fn insert(
        &mut self,
        (job, plan): (Job, JobPlan),
        seats: Seats,
        origin: Option<Origin>,
    ) -> &Record {
        let id = job.id;
        let is_coming = origin.as_ref().is_some_and(|origin| origin.first.is_none());
        if let Some(origin) = &origin {
            self.following.insert(origin.of, id);
        }
        let record = Record {
            job: Arc::new(job),
            plan: Arc::new(plan),
            seats,
            losses: Losses::default(),
            sample: Arc::default(),
            tail_drops: Arc::default(),
            cut_off: Vec::new(),
            stays: None,
            lingers: BTreeSet::new(),
            stage: match is_coming {
                true => Stage::Coming,
                false => Stage::Current,
            },
            change: origin.as_ref().map(|origin| origin.change(Instant::now())),
            origin,
            suspicion: Suspicion::default(),
            unchanged: None,
            evict_not_before: None,
            is_evicting: false,
        };
        let name = record.job.name.clone();
        self.epochs.entry(name).or_default().insert(id);
        self.jobs.entry(id).or_insert(record)
    }

    /// The jobs that a store has kept, on the fabric and the routes as they are now.
    ///
    /// # Errors
    /// A job has no place in the fabric any more.
    pub fn restore(
        fabric: &Fabric,
        routes: Routes,
        names: &Names,
        stored: &Stored,
    ) -> Result<Self, RestoreError> {
        let mut registry = Registry::new(fabric, routes);
        let jobs = stored.jobs.iter().map(|record| record.job(fabric));
        let jobs: Vec<Job> = jobs.collect::<Result<_, _>>()?;
        let last = JobId(stored.last_id);
        let restored = registry
            .ledger
            .restore(fabric, &registry.routes, names, (&jobs, last));
        let restored = restored.map_err(|(at, refusal)| RestoreError::Refused {
            name: jobs[at].name.clone(),
            refusal: Box::new(refusal),
        })?;
        for (refitted, record) in restored.into_iter().zip(&stored.jobs) {
            let Refitted {
                job,
                plan,
                cut_off,
                stays,
            } = refitted;
            let id = job.id;
            let seats = (record.members.iter())
                .map(|member| (Seat::from(member.seat), Attempt(member.attempt)));
            let seats = Seats::restored(&job, seats);
            let origin = record.origin.as_ref().map(Origin::from);
            registry.insert((job, plan), seats, origin);
            if let Some(record) = registry.jobs.get_mut(&id) {
                (record.cut_off, record.stays) = (cut_off, stays);
            }
        }
        registry.find_leaving();
        Ok(registry)
    }

    /// What the store keeps of all jobs.
    pub fn records(&self, fabric: &Fabric) -> Vec<JobRecord> {
        let of = |id: &JobId| self.record(fabric, *id);
        self.jobs.keys().filter_map(of).collect()
    }

    /// What the store keeps of a job; none if it is gone.
    pub fn record(&self, fabric: &Fabric, id: JobId) -> Option<JobRecord> {
        let Record {
            job, seats, origin, ..
        } = self.jobs.get(&id)?;
        let states = seats.states().map(SeatRecord::from);
        let mut record = JobRecord {
            origin: origin.as_ref().map(OriginRecord::from),
            ..JobRecord::new(fabric, job, states)
        };
        for (member, attempt) in record.members.iter_mut().zip(seats.attempts()) {
            member.attempt = attempt.0;
        }
        Some(record)
    }

    /// Forgets a job. Members who wait for others are told.
    pub fn remove(&mut self, fabric: &Fabric, id: JobId) {
        self.end_change(id);
        if let Some(Record { job, plan, .. }) = self.jobs.remove(&id) {
            if let Some(epochs) = self.epochs.get_mut(&job.name) {
                epochs.remove(&id);
                if epochs.is_empty() {
                    self.epochs.remove(&job.name);
                }
            }
            self.ledger.remove(fabric, &job, &plan);
        }
    }

    /// Whoever waits for others to join waits in vain.
    pub fn end_waiting(&mut self) {
        self.jobs.values_mut().for_each(|record| record.seats.end());
    }

    pub fn named(&self, name: &str) -> Result<&Record, JobRequestError> {
        self.all_of(name)
            .find(|record| record.stage == Stage::Current)
            .ok_or_else(|| self.no_job(name))
    }

    /// A job in each of its epochs that are on switches, by number.
    fn all_of(&self, name: &str) -> impl Iterator<Item = &Record> {
        let ids = self.epochs.get(name).into_iter().flatten();
        ids.filter_map(|id| self.jobs.get(id))
    }

    /// That there is none of that name.
    pub fn no_job(&self, name: &str) -> JobRequestError {
        JobRequestError::NoJob {
            name: name.to_owned(),
            known: self.names(),
        }
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
        let of = told.loss.job;
        let record = self.jobs.get(&of);
        let is_known = record.is_some_and(|record| record.job.epoch == told.loss.epoch);
        let is_over = record.is_some_and(|record| record.stage == Stage::Leaving);
        // What an earlier epoch lost is still the job's.
        let next = is_over.then(|| self.next_of(of)).flatten();
        let keeper = next.map_or(of, |next| next.job.id);
        let record = self.jobs.get_mut(&keeper).filter(|_| is_known);
        record.map(|record| record.losses.add(told)).is_some()
    }

    /// All jobs, each in the epoch that it is in, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let records = self.jobs.values();
        records.filter(|record| record.stage == Stage::Current)
    }

    /// Their names, in the same order.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|record| record.job.name.clone()).collect()
    }

    /// The jobs that divide the ports of a switch, in all of their epochs, by id.
    pub fn jobs_on(&self, switch: SwitchId) -> Vec<Arc<Job>> {
        let records = self.ledger.jobs_on(switch);
        let records = records.filter_map(|id| self.jobs.get(&id));
        records.map(|record| Arc::clone(&record.job)).collect()
    }

    /// What all switches are to hold.
    pub fn wanted(&self) -> Wanted {
        let plans = self.jobs.values().map(|record| Arc::clone(&record.plan));
        let jobs = self.jobs.values().map(|record| Arc::clone(&record.job));
        Wanted {
            routes: Arc::clone(&self.routes),
            plans: plans.collect(),
            jobs: jobs.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{self, Health};
    use crate::job::Epoch;
    use crate::program::Program;
    use crate::server::losses::tests::told;

    #[test]
    fn only_jobs_that_there_are_have_losses() {
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let routes = Routes::new(&fabric, Health::default());
        let program = Program::v1model().unwrap();
        let mut registry = Registry::new(&fabric, routes);
        let propose = |registry: &Registry| {
            let spec = JobSpec::new("train", ["h1", "h2"]);
            registry.propose(&fabric, program.names(), &spec).unwrap()
        };
        let add = |registry: &mut Registry| {
            let (job, plan) = propose(registry);
            let record = registry.add(&fabric, job, plan);
            (record.job.id, record.job.epoch)
        };
        let (id, epoch) = add(&mut registry);
        assert!(registry.told(told(id, epoch, 1)));
        assert!(!registry.told(told(id, Epoch(epoch.0 + 1), 1)));
        assert!(!registry.told(told(JobId(id.0 + 1), epoch, 1)));
        assert_eq!(registry.get(id).unwrap().losses.since(0).count(), 1);

        registry.remove(&fabric, id);
        assert!(!registry.told(told(id, epoch, 1)));
        // After the last id comes the first.
        let (job, plan) = propose(&registry);
        let last = Job {
            id: JobId(u16::MAX),
            name: "last".into(),
            ..job
        };
        registry.add(&fabric, last, plan);
        assert_eq!(add(&mut registry), (id, epoch));
        assert_eq!(registry.get(id).unwrap().losses.since(0).count(), 0);
    }
}
