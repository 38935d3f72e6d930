//! The installed jobs and the ids in use. It knows nothing of connections or of the store's file.
//!
//! While a job's members change it has two records: its current epoch, and the next or the previous
//! one. Switches have both; a job's name stands for its current epoch.

pub mod epochs;
pub mod record;
pub mod refit;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ultima_p4runtime::names::Names;
use ultima_planner::fabric::{Fabric, SwitchId};
use ultima_planner::job::{Epoch, Job, JobId, JobPolicy, JobSpec, by_rank};
use ultima_planner::ledger::Ledger;
use ultima_planner::membership::{Change, MemberTimers, Origin, Suspicion};
use ultima_planner::moves::Planned;
use ultima_planner::plan::{Entity, JobPlan};
use ultima_planner::routing::Routes;

use self::record::{PlanStatus, Record, Stage, Wanted};
use super::error::JobRequestError;
use super::losses::{Losses, Report};
use super::seats::{Attempt, Seat, Seats};
use crate::store::{JobRecord, OriginRecord, SeatRecord, Stored, Unfit};

/// The routes, and all installed jobs.
#[derive(Debug)]
pub struct Registry {
    routes: Arc<Routes>,
    jobs: BTreeMap<JobId, Record>,
    /// From a job's name to the ids of its epochs.
    epochs: HashMap<String, BTreeSet<JobId>>,
    ledger: Ledger,
    timers: MemberTimers,
    /// Stored jobs that do not fit the fabric, by name.
    stranded: BTreeMap<String, Stranded>,
    /// Epochs whose records are being committed: they have their resources, and no entries.
    reserved: BTreeMap<JobId, PlanStatus>,
}

/// A stored job that does not fit the fabric: it is on no switch, and keeps its name, ids and indices.
#[derive(Clone, Debug)]
pub struct Stranded {
    /// Its epochs, by id.
    pub records: Vec<JobRecord>,
    /// Why it does not fit, on one line.
    pub reason: String,
}

impl Registry {
    /// A registry without jobs.
    pub fn new(fabric: &Fabric, routes: Routes) -> Self {
        Registry {
            jobs: BTreeMap::new(),
            epochs: HashMap::new(),
            ledger: Ledger::new(fabric, &routes),
            routes: Arc::new(routes),
            timers: MemberTimers::default(),
            stranded: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }

    /// The routes.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// The resources that all jobs have taken.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A copy with the same jobs and resources, without members, for forecasts.
    pub fn trial(&self) -> Registry {
        let mut trial = Registry {
            routes: Arc::clone(&self.routes),
            jobs: BTreeMap::new(),
            epochs: HashMap::new(),
            ledger: self.ledger.clone(),
            timers: self.timers,
            stranded: self.stranded.clone(),
            reserved: self.reserved.clone(),
        };
        for record in self.jobs.values() {
            let seats = Seats::new(&record.job);
            trial.insert(record.plan_status.clone(), seats, record.origin.clone());
        }
        trial.find_leaving();
        trial
    }

    /// Allocates ids for `spec` and plans its entries. Reserves nothing.
    pub fn propose(
        &self,
        fabric: &Fabric,
        names: &Names,
        spec: &JobSpec,
    ) -> Result<(Job, JobPlan), JobRequestError> {
        let name = || spec.name.clone();
        let is_stranded = self.stranded.contains_key(&spec.name);
        if self.named(&spec.name).is_ok() || is_stranded || self.is_committing(&spec.name) {
            return Err(JobRequestError::Exists { name: name() });
        }
        let proposed =
            self.ledger
                .propose(fabric, &self.routes, names, spec, Epoch(1), rand::random());
        proposed.map_err(|refusal| JobRequestError::Refused {
            name: name(),
            refusal: Box::new(refusal),
        })
    }

    /// Takes the resources of a proposed epoch, while its record is being committed.
    pub fn reserve(&mut self, fabric: &Fabric, (job, plan): (Job, JobPlan)) -> Planned {
        self.ledger.take(fabric, &job, &plan);
        let planned = (Arc::new(job), Arc::new(plan));
        let plan_status = PlanStatus::new(&planned);
        self.reserved.insert(planned.0.id, plan_status);
        planned
    }

    /// Gives the resources of a reserved epoch back that is not committed. Returns it; none if it is not reserved.
    pub fn release(&mut self, fabric: &Fabric, id: JobId) -> Option<Arc<Job>> {
        let PlanStatus { job, plan, .. } = self.reserved.remove(&id)?;
        self.ledger.remove(fabric, &job, &plan);
        Some(job)
    }

    /// Adds a reserved epoch, which is committed; none if it is not reserved. Members that stay in a
    /// job have their seats.
    pub fn add(&mut self, id: JobId, origin: Option<Origin>) -> Option<&Record> {
        let plan_status = self.reserved.remove(&id)?;
        self.ledger.give_out(id);
        let seats = match &origin {
            Some(origin) => self.seats_of(&plan_status.job, origin),
            None => Seats::new(&plan_status.job),
        };
        Some(self.insert(plan_status, seats, origin))
    }

    fn insert(
        &mut self,
        mut plan_status: PlanStatus,
        seats: Seats,
        origin: Option<Origin>,
    ) -> &Record {
        let id = plan_status.job.id;
        plan_status.degraded_from(plan_status.degraded_since);
        let is_coming = origin.as_ref().is_some_and(|origin| origin.first.is_none());
        let record = Record {
            plan_status,
            planned_at: SystemTime::now(),
            begun: Instant::now(),
            // Members have joined an epoch that was ready.
            is_ready: !is_coming && seats.states().any(|seat| seat != Seat::Free),
            seats,
            has_met: false,
            obstacle: None,
            losses: Losses::default(),
            sample: Arc::default(),
            tail_drops: Arc::default(),
            stage: match is_coming {
                true => Stage::Coming,
                false => Stage::Current,
            },
            change: origin
                .as_ref()
                .map(|origin| Change::new(origin, self.timers, Instant::now())),
            origin,
            suspicion: Suspicion::new(self.timers.suspicion),
            unchanged: None,
            evict_not_before: None,
            is_evicting: false,
        };
        let name = record.job.name.clone();
        self.epochs.entry(name).or_default().insert(id);
        self.jobs.entry(id).or_insert(record)
    }

    /// Restores the stored jobs that fit the present fabric and its routes. The others are
    /// [stranded](Self::stranded).
    pub fn restore_what_fits(
        fabric: &Fabric,
        routes: Routes,
        names: &Names,
        mut stored: Stored,
        timers: MemberTimers,
    ) -> Self {
        let mut stranded = BTreeMap::new();
        let mut registry = loop {
            let restored = Registry::restore(fabric, routes.clone(), names, &stored, timers);
            let (name, reason) = match restored {
                Ok(registry) => break registry,
                Err(Unfit { job, reason }) => (job, reason),
            };
            let (records, rest) = stored.jobs.into_iter().partition(|job| job.name == name);
            stored.jobs = rest;
            stranded.insert(name, Stranded { records, reason });
        };
        for record in stranded.values().flat_map(|it: &Stranded| &it.records) {
            registry.ledger.reserve(fabric, &record.reserved(fabric));
        }
        registry.stranded = stranded;
        registry
    }

    /// The stored jobs that do not fit the fabric, by name.
    pub fn stranded(&self) -> &BTreeMap<String, Stranded> {
        &self.stranded
    }

    /// Forgets a stranded job. Its ids and indices are free after the next start.
    pub fn forget_stranded(&mut self, name: &str) {
        self.stranded.remove(name);
    }

    /// Restores the stored jobs on the present fabric and its routes.
    ///
    /// # Errors
    /// A job does not fit the fabric.
    pub fn restore(
        fabric: &Fabric,
        routes: Routes,
        names: &Names,
        stored: &Stored,
        timers: MemberTimers,
    ) -> Result<Self, Unfit> {
        let mut registry = Registry {
            timers,
            ..Registry::new(fabric, routes)
        };
        let jobs = stored.jobs.iter().map(|record| record.job(fabric));
        let jobs: Vec<Job> = jobs.collect::<Result<_, _>>()?;
        let last = JobId(stored.last_id);
        let restored = registry
            .ledger
            .restore(fabric, &registry.routes, names, &jobs, last);
        let restored = restored.map_err(|(at, refusal)| {
            let job = jobs[at].name.clone();
            let reason = format!(
                "stored job {job} no longer fits the fabric: {refusal}; restore its capacity in the fabric file and restart, or delete the job"
            );
            Unfit { job, reason }
        })?;
        for (refitted, record) in restored.into_iter().zip(&stored.jobs) {
            let plan_status = PlanStatus::from(refitted);
            let seats = (record.members.iter())
                .map(|member| (Seat::from(member.seat), Attempt(member.attempt)));
            let seats = Seats::restored(&plan_status.job, seats);
            let origin = record.origin.as_ref().map(Origin::from);
            let id = registry.insert(plan_status, seats, origin).job.id;
            let joined = by_rank(&record.members)
                .filter(|(_, member)| member.seat == SeatRecord::Joined)
                .map(|(rank, member)| (rank, member.suspected));
            let suspicion = Suspicion::restored(timers, joined, Instant::now());
            if let Some(record) = registry.get_mut(id) {
                record.suspicion = suspicion;
            }
        }
        registry.find_leaving();
        Ok(registry)
    }

    /// The store's records of all jobs.
    pub fn records(&self, fabric: &Fabric) -> Vec<JobRecord> {
        let of = |id: &JobId| self.record(fabric, *id);
        self.jobs.keys().filter_map(of).collect()
    }

    /// The store's record of a job; none if the job is gone.
    pub fn record(&self, fabric: &Fabric, id: JobId) -> Option<JobRecord> {
        let record = self.jobs.get(&id)?;
        let mut stored = JobRecord::new(fabric, &record.job, record.seats.records());
        stored.origin = record.origin.as_ref().map(OriginRecord::from);
        for rank in record.suspicion.since().keys() {
            stored.members[usize::from(rank.0)].suspected = true;
        }
        Some(stored)
    }

    /// Removes an epoch of a job. Members that wait for others receive an error.
    pub fn remove(&mut self, fabric: &Fabric, id: JobId) {
        if let Some(record) = self.jobs.remove(&id) {
            let PlanStatus { job, plan, .. } = record.plan_status;
            if let Some(epochs) = self.epochs.get_mut(&job.name) {
                epochs.remove(&id);
                if epochs.is_empty() {
                    self.epochs.remove(&job.name);
                }
            }
            self.ledger.remove(fabric, &job, &plan);
        }
    }

    /// Records the committed policy of epochs of a job. [`plan_policy`](Self::plan_policy) follows.
    pub fn set_policy(&mut self, fabric: &Fabric, ids: &[JobId], policy: JobPolicy) {
        for id in ids {
            if let Some(record) = self.jobs.get_mut(id) {
                let job = Job {
                    policy,
                    ..Job::clone(&record.job)
                };
                self.ledger.remove(fabric, &record.job, &record.plan);
                self.ledger.take(fabric, &job, &record.plan);
                record.plan_status.job = Arc::new(job);
            }
        }
    }

    /// Plans epochs of a job with their policy. Returns their switches. No reroute is in progress.
    pub fn plan_policy(&mut self, ids: &[JobId]) -> BTreeSet<SwitchId> {
        let mut switches = BTreeSet::new();
        for id in ids {
            let Some(record) = self.jobs.get_mut(id) else {
                continue;
            };
            let mut plan = JobPlan::clone(&record.plan);
            for entity in plan.values_mut().flat_map(|it| &mut it.announce) {
                if let Entity::Job(row) = entity {
                    row.loss_threshold = record.plan_status.job.policy.loss_threshold;
                }
            }
            switches.extend(plan.keys());
            if plan != *record.plan {
                record.plan_status.plan = Arc::new(plan);
                record.planned_at = SystemTime::now();
            }
        }
        switches
    }

    pub fn named(&self, name: &str) -> Result<&Record, JobRequestError> {
        self.all_of(name)
            .find(|record| record.stage == Stage::Current)
            .ok_or_else(|| self.no_job(name))
    }

    /// All installed epochs of a job, by id.
    fn all_of(&self, name: &str) -> impl Iterator<Item = &Record> {
        let ids = self.epochs.get(name).into_iter().flatten();
        ids.filter_map(|id| self.jobs.get(id))
    }

    /// The error for a job that is not installed.
    pub fn no_job(&self, name: &str) -> JobRequestError {
        match self.stranded.get(name) {
            Some(Stranded { reason, .. }) => JobRequestError::Unfit {
                reason: reason.clone(),
            },
            None => JobRequestError::NoJob {
                name: name.to_owned(),
                known: self.names(),
            },
        }
    }

    pub fn get(&self, id: JobId) -> Option<&Record> {
        self.jobs.get(&id)
    }

    pub fn get_mut(&mut self, id: JobId) -> Option<&mut Record> {
        self.jobs.get_mut(&id)
    }

    /// Stores a reported loss. Returns false if its job is unknown: a report may arrive after the
    /// job was deleted.
    pub fn add_loss(&mut self, report: Report) -> bool {
        let of = report.loss.job;
        let record = self.jobs.get(&of);
        let is_known = record.is_some_and(|record| record.job.epoch == report.loss.epoch);
        let is_over = record.is_some_and(|record| record.stage == Stage::Leaving);
        // The losses of an earlier epoch count for the job.
        let next = is_over.then(|| self.next_of(of)).flatten();
        let keeper = next.map_or(of, |next| next.job.id);
        let record = self.jobs.get_mut(&keeper).filter(|_| is_known);
        record.map(|record| record.losses.add(report)).is_some()
    }

    /// The epochs that are not ready yet.
    pub fn unready(&mut self) -> impl Iterator<Item = &mut Record> {
        let records = self.jobs.values_mut();
        records.filter(|record| !record.is_ready)
    }

    /// All jobs in their current epochs, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let records = self.jobs.values();
        records.filter(|record| record.stage == Stage::Current)
    }

    /// The names of the jobs on a switch.
    pub fn names_at(&self, switch: SwitchId) -> Vec<String> {
        let here = self.iter().filter(|it| it.plan.contains_key(&switch));
        here.map(|record| record.job.name.clone()).collect()
    }

    /// The names of all jobs.
    pub fn names(&self) -> Vec<String> {
        let stranded = self.stranded.keys().cloned();
        let installed = self.iter().map(|record| record.job.name.clone());
        installed.chain(stranded).collect()
    }

    /// The desired state of all switches.
    pub fn wanted(&self) -> Wanted {
        let jobs = self.jobs.values();
        Wanted {
            routes: Arc::clone(&self.routes),
            jobs: jobs.map(|record| record.planned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::program::Program;

    use super::*;
    use crate::server::losses::tests::report;

    #[test]
    fn only_installed_jobs_have_losses() {
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
            let (job, _) = registry.reserve(&fabric, propose(registry));
            registry.add(job.id, None);
            (job.id, job.epoch)
        };
        let (id, epoch) = add(&mut registry);
        assert!(registry.add_loss(report(id, epoch, 1)));
        assert!(!registry.add_loss(report(id, Epoch(epoch.0 + 1), 1)));
        assert!(!registry.add_loss(report(JobId(id.0 + 1), epoch, 1)));
        assert_eq!(registry.get(id).unwrap().losses.since(0).count(), 1);

        registry.remove(&fabric, id);
        assert!(!registry.add_loss(report(id, epoch, 1)));
        // After the last id, allocation starts again at the first.
        let (job, plan) = propose(&registry);
        let last = Job {
            id: JobId(u16::MAX),
            name: "last".into(),
            ..job
        };
        let (last, _) = registry.reserve(&fabric, (last, plan));
        registry.add(last.id, None);
        assert_eq!(add(&mut registry), (id, epoch));
        assert_eq!(registry.get(id).unwrap().losses.since(0).count(), 0);
    }
}
