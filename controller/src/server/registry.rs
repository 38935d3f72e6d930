//! The jobs that there are, and the numbers that are still free.

use std::collections::BTreeMap;
use std::sync::Arc;

use ultima_p4runtime::names::Names;

use super::error::{JobRequestError, RestoreError};
use super::losses::{Losses, Told};
use super::seats::{Seat, Seats};
use crate::fabric::{Fabric, Health};
use crate::job::{Job, JobId, JobSpec, Rank};
use crate::ledger::{self, Ledger, Refusal};
use crate::moves::Moved;
use crate::plan::JobPlan;
use crate::routing::Routes;
use crate::store::{JobRecord, SeatRecord, Stored};

/// One installed job.
#[derive(Debug)]
pub struct Record {
    pub job: Arc<Job>,
    pub plan: Arc<JobPlan>,
    pub seats: Seats,
    /// They go with their job: another may get its number.
    pub losses: Losses,
    /// Members that some others cannot reach while parts of the fabric are down: their ways are kept.
    pub cut_off: Vec<Rank>,
    /// Why it keeps what it had although all reach each other.
    pub stays: Option<Refusal>,
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
    ledger: Ledger,
}

impl Registry {
    /// No jobs in a fabric.
    pub fn new(fabric: &Fabric, routes: Routes) -> Self {
        Registry {
            jobs: BTreeMap::new(),
            ledger: Ledger::new(fabric, &routes),
            routes: Arc::new(routes),
        }
    }

    /// The routes.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
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
        self.insert(job, plan, seats)
    }

    fn insert(&mut self, job: Job, plan: JobPlan, seats: Seats) -> &Record {
        let id = job.id;
        let (cut_off, stays) = (Vec::new(), None);
        let record = Record {
            job: Arc::new(job),
            plan: Arc::new(plan),
            seats,
            losses: Losses::default(),
            cut_off,
            stays,
        };
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
        for ((job, plan), record) in restored.into_iter().zip(&stored.jobs) {
            let seats = Seats::restored(&job, record.seats().map(Seat::from));
            registry.insert(job, plan, seats);
        }
        for record in registry.jobs.values_mut() {
            record.cut_off = cut_off(fabric, &registry.routes, &record.job);
        }
        Ok(registry)
    }

    /// What the store keeps of all jobs.
    pub fn records(&self, fabric: &Fabric) -> Vec<JobRecord> {
        let of = |id: &JobId| self.record(fabric, *id);
        self.jobs.keys().filter_map(of).collect()
    }

    /// Plans everything anew for what is up now. Jobs that cannot move [keep](Ledger::hold) what they can, and say why. Returns those that have something else than before.
    pub fn refit_all(&mut self, fabric: &Fabric, names: &Names, health: Health) -> Vec<Moved> {
        self.routes = Arc::new(Routes::new(fabric, health));
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        let mut moved: Vec<Moved> = (ids.iter())
            .filter_map(|id| self.refit(fabric, names, *id))
            .collect();
        // What others have left may be the room that one lacked.
        let waiting = |record: &&Record| record.stays.is_some();
        let waiting = self.jobs.values().filter(waiting);
        let waiting: Vec<JobId> = waiting.map(|record| record.job.id).collect();
        moved.extend((waiting.iter()).filter_map(|id| self.refit(fabric, names, *id)));
        moved
    }

    /// What becomes of one job on the routes as they are; none if nothing does.
    fn refit(&mut self, fabric: &Fabric, names: &Names, id: JobId) -> Option<Moved> {
        let record = self.jobs.get_mut(&id)?;
        record.cut_off = cut_off(fabric, &self.routes, &record.job);
        record.stays = None;
        let had = (&*record.job, &*record.plan);
        let refitted = match record.cut_off.is_empty() {
            true => self.ledger.refit(fabric, &self.routes, names, had),
            false => self.ledger.hold(fabric, &self.routes, names, had),
        };
        let (job, plan) = match refitted {
            Ok(refitted) => refitted,
            Err(refusal) => {
                record.stays = Some(refusal);
                return None;
            }
        };
        if (&job, &plan) == had {
            return None;
        }
        let after = (Arc::new(job), Arc::new(plan));
        let before = (Arc::clone(&record.job), Arc::clone(&record.plan));
        (record.job, record.plan) = after.clone();
        Some(Moved { before, after })
    }

    /// Whether some job would move if it had room.
    pub fn is_waiting(&self) -> bool {
        self.jobs.values().any(|record| record.stays.is_some())
    }

    /// What the store keeps of a job; none if it is gone.
    pub fn record(&self, fabric: &Fabric, id: JobId) -> Option<JobRecord> {
        let Record { job, seats, .. } = self.jobs.get(&id)?;
        let seats = seats.states().map(SeatRecord::from);
        Some(JobRecord::new(fabric, job, seats))
    }

    /// Forgets a job. Members who wait for others are told.
    pub fn remove(&mut self, fabric: &Fabric, id: JobId) {
        if let Some(Record { job, plan, .. }) = self.jobs.remove(&id) {
            self.ledger.remove(fabric, &job, &plan);
        }
    }

    /// Whoever waits for others to join waits in vain.
    pub fn end_waiting(&mut self) {
        self.jobs.values_mut().for_each(|record| record.seats.end());
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

    /// What all switches are to hold.
    pub fn wanted(&self) -> Wanted {
        let plans = self.jobs.values().map(|record| Arc::clone(&record.plan));
        Wanted {
            routes: Arc::clone(&self.routes),
            plans: plans.collect(),
            jobs: self.jobs(),
        }
    }
}

fn cut_off(fabric: &Fabric, routes: &Routes, job: &Job) -> Vec<Rank> {
    let cut_off = ledger::cut_off(fabric, routes, &job.members);
    cut_off.into_iter().map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use crate::job::{DEFAULT_LOSS_THRESHOLD, Epoch, Gather, Weight};
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
            let spec = JobSpec {
                name: "train".into(),
                members: ["h1", "h2"].map(String::from).to_vec(),
                gather: Gather::Multicast,
                seed: None,
                loss_threshold: DEFAULT_LOSS_THRESHOLD,
                weight: Weight::default(),
            };
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
        assert_eq!(registry.get(id).unwrap().losses.iter().count(), 1);

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
        assert_eq!(registry.get(id).unwrap().losses.iter().count(), 0);
    }
}
