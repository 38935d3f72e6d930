//! Creating and deleting jobs: planning, installation on switches, and storing.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tracing::Span;
use ultima_api::v1::CancelEpoch;
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::membership_event::Kind;

use super::changes::Changes;
use super::controller::{Controller, JobState, state_of};
use super::error::JobRequestError;
use super::journal::KeepError;
use crate::fabric::SwitchId;
use crate::install::{self, Clients, InstallError, Prepared, WrittenOn};
use crate::job::{Job, JobId, JobSpec};
use crate::plan::JobPlan;
use crate::store::{Change, JobRecord, SeatRecord};

/// Logs how long each phase of a request took.
struct Phases(Instant);

impl Phases {
    fn begin() -> Self {
        Phases(Instant::now())
    }

    /// Logs the phase that has ended and begins the next.
    fn ended(&mut self, phase: &str) {
        tracing::debug!(phase, took = ?self.0.elapsed(), "ended");
        self.0 = Instant::now();
    }
}

/// The current span, with this epoch recorded in it.
pub(super) fn epoch_in_span(job: &Job) -> Span {
    let span = Span::current();
    span.record("id", job.id.0).record("epoch", job.epoch.0);
    span
}

/// The reason why none of several jobs was created.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JobsRefused {
    /// The index of the refused job in the request; none if the reason is not one job's.
    pub at: Option<usize>,
    /// The reason.
    pub error: Box<JobRequestError>,
}

impl From<JobRequestError> for JobsRefused {
    fn from(error: JobRequestError) -> Self {
        let error = Box::new(error);
        JobsRefused { at: None, error }
    }
}

/// The name for jobs that are installed together, in errors.
fn names_of(all: &[(&Job, &JobPlan)]) -> String {
    called(all.iter().map(|(job, _)| job.name.as_str()))
}

/// The name for jobs that are created together, in errors and spans.
fn called<'a>(mut names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let first = names.next().unwrap_or_default();
    match names.len() {
        0 => first.to_owned(),
        others => format!("{first} and {others} more"),
    }
}

impl Controller {
    /// Creates a job on all switches that it needs, or on none.
    ///
    /// # Errors
    /// See [`JobRequestError`].
    pub async fn create_job(&self, spec: &JobSpec) -> Result<JobState, JobRequestError> {
        let created = self.create_jobs(slice::from_ref(spec)).await;
        let mut created = created.map_err(|refused| *refused.error)?;
        Ok(created.pop().expect("as many as were asked for"))
    }

    /// Creates several jobs, each on all switches that it needs, or none of them.
    ///
    /// # Errors
    /// The first job that is refused, and the reason.
    #[tracing::instrument(
        name = "create",
        skip_all,
        fields(job = called(specs.iter().map(|spec| spec.name.as_str())), id, epoch, switches)
    )]
    pub async fn create_jobs(&self, specs: &[JobSpec]) -> Result<Vec<JobState>, JobsRefused> {
        let begun = Instant::now();
        let created = self.create(specs).await;
        self.metrics.created(begun, created.is_ok());
        created
    }

    async fn create(&self, specs: &[JobSpec]) -> Result<Vec<JobState>, JobsRefused> {
        let mut phases = Phases::begin();
        let changes = self.change().await?;
        phases.ended("waited");
        let proposed = self.propose(specs)?;
        let all: Vec<(&Job, &JobPlan)> = proposed.iter().map(|(job, plan)| (job, plan)).collect();
        let switches: BTreeSet<&SwitchId> = all.iter().flat_map(|(_, plan)| plan.keys()).collect();
        Span::current().record("switches", switches.len());
        if let [(job, _)] = all[..] {
            epoch_in_span(job);
        }
        phases.ended("planned");
        let record = |(job, _): &(&Job, &JobPlan)| {
            let seats = job.members.iter().map(|_| (SeatRecord::Free, 0));
            JobRecord::new(&self.fabric, job, seats)
        };
        let records = all.iter().map(record).collect();
        self.put_on_switches(&changes, &all, records).await?;
        tracing::info!("job created");
        let mut registry = self.registry();
        let added = proposed.into_iter().map(|(job, plan)| {
            let id = registry.add(&self.fabric, job, plan).job.id;
            state_of(&registry, registry.get(id).expect("added just now"))
        });
        Ok(added.collect())
    }

    /// Allocates ids for jobs and plans their entries, each job after those before it. Reserves
    /// nothing.
    fn propose(&self, specs: &[JobSpec]) -> Result<Vec<(Job, JobPlan)>, JobsRefused> {
        let (fabric, program) = (&self.fabric, self.program());
        let refused = |at| {
            move |error| JobsRefused {
                at: Some(at),
                error: Box::new(error),
            }
        };
        if let [spec] = specs {
            let proposed = self.registry().propose(fabric, program.names(), spec);
            return Ok(vec![proposed.map_err(refused(0))?]);
        }
        // The caller holds the change lock, so the registry stays as it is.
        let mut trial = self.registry().trial();
        let proposed = specs.iter().enumerate().map(|(at, spec)| {
            let created = trial.create(fabric, program, spec, rand::random());
            created.map_err(refused(at))
        });
        let proposed: Vec<_> = proposed.collect::<Result<_, _>>()?;
        drop(trial);
        let own = |(job, plan)| (Arc::unwrap_or_clone(job), Arc::unwrap_or_clone(plan));
        Ok(proposed.into_iter().map(own).collect())
    }

    /// Installs jobs, or a new epoch of one, on all their switches, and then stores them; or
    /// neither.
    pub(super) async fn put_on_switches(
        &self,
        changes: &Changes<'_>,
        all: &[(&Job, &JobPlan)],
        records: Vec<JobRecord>,
    ) -> Result<(), JobRequestError> {
        let clients = changes.clients(&self.clients(all.iter().flat_map(|(_, plan)| plan.keys()))?);
        match self.install(&clients, all).await {
            // Another client, or a late write, has changed the switch since it was read.
            Err(error) if self.may_retry(&error) => self.install(&clients, all).await?,
            installed => installed?,
        }
        let mut phases = Phases::begin();
        if let Err(error) = changes.write(&self.journal, Change::Put(records)).await {
            let written = self.written(all.iter().map(|(_, plan)| *plan));
            let clients = install::undoing(&clients);
            let pending = install::remove(&clients, written).await;
            self.mark_dirty(&pending);
            self.divide_again(&clients).await;
            let ids = all.iter().map(|(job, _)| job.id.0).collect();
            let error = self.journal.roll_back(Change::Remove(ids), error).await;
            return Err(JobRequestError::Store {
                name: names_of(all),
                error,
            });
        }
        phases.ended("stored");
        Ok(())
    }

    /// True if an installation failed on entries that the switch should not have, and which the
    /// next attempt resyncs first.
    fn may_retry(&self, error: &JobRequestError) -> bool {
        let JobRequestError::Install { error, .. } = error else {
            return false;
        };
        let Some(switch) = error.outdated().map(|id| &self.switches[id.0]) else {
            return false;
        };
        if self.repair {
            switch.mark_dirty();
        }
        switch.may_differ()
    }

    /// Installs jobs on all their switches, or on none.
    async fn install(
        &self,
        clients: &Clients,
        all: &[(&Job, &JobPlan)],
    ) -> Result<(), JobRequestError> {
        let mut phases = Phases::begin();
        self.resync_dirty(clients).await?;
        // Before the entries, so that the jobs take no bandwidth of others and meet no meter of an
        // earlier job.
        let jobs: Vec<&Job> = all.iter().map(|(job, _)| *job).collect();
        if let Err(error) = self.divide(clients, &jobs).await {
            self.divide_again(&install::undoing(clients)).await;
            return Err(JobRequestError::Divide {
                name: names_of(all),
                error: Box::new(error),
            });
        }
        phases.ended("divided");
        let plans = all.iter().map(|(_, plan)| *plan);
        if let Err(error) = install::install(clients, self.program().names(), plans).await {
            self.divide_again(&install::undoing(clients)).await;
            if let InstallError::Stopped { undone, .. } = &error {
                self.mark_dirty(&undone.left);
            }
            return Err(JobRequestError::Install {
                name: names_of(all),
                error: Box::new(error),
            });
        }
        phases.ended("installed");
        Ok(())
    }

    /// All jobs, by id.
    pub fn jobs(&self) -> Vec<JobState> {
        let registry = self.registry();
        let states = registry.iter().map(|record| state_of(&registry, record));
        states.collect()
    }

    /// The names of all jobs.
    pub(super) fn names_of_jobs(&self) -> Vec<String> {
        self.registry().names()
    }

    /// One job.
    ///
    /// # Errors
    /// No job has that name.
    pub fn job(&self, name: &str) -> Result<JobState, JobRequestError> {
        let registry = self.registry();
        registry
            .named(name)
            .map(|record| state_of(&registry, record))
    }

    /// Deletes a job. Returns the switches that still have entries of it until they reconnect.
    ///
    /// # Errors
    /// No job has that name, or the deletion cannot be stored.
    #[tracing::instrument(name = "delete", skip_all, fields(job = name))]
    pub async fn delete_job(&self, name: &str) -> Result<Vec<SwitchId>, JobRequestError> {
        let changes = self.change().await?;
        if let Some(ids) = self.stranded_ids(name) {
            let removed = changes.write(&self.journal, Change::Remove(ids)).await;
            removed.map_err(|error| JobRequestError::Store {
                name: name.to_owned(),
                error,
            })?;
            self.registry().forget_stranded(name);
            return Ok(Vec::new());
        }
        let (job, epochs) = {
            let registry = self.registry();
            let job = Arc::clone(&registry.named(name)?.job);
            (job, registry.epochs_of(name))
        };
        // The current epoch last: if the deletion is interrupted, the job still exists.
        let mut pending = BTreeSet::new();
        let mut cancelled = None;
        for id in epochs {
            let next = self.registry().coming(id);
            let left = self.take_off(&changes, id).await;
            if left.is_err() && self.registry().next_of(job.id).is_none() {
                // Members that have prepared for a change that is gone wait for its end.
                self.sessions
                    .tell_all(job.id, &Message::Cancel(CancelEpoch {}));
            }
            pending.extend(left.map_err(|error| self.not_deleted(&job, cancelled.take(), error))?);
            cancelled = next;
        }
        self.report(&job, Kind::Deleted, None, None, String::new());
        Ok(pending.into_iter().collect())
    }

    /// The ids of a stored job that does not fit the fabric; none if there is no such job.
    fn stranded_ids(&self, name: &str) -> Option<Vec<u16>> {
        let registry = self.registry();
        let stranded = registry.stranded().get(name)?;
        Some(stranded.records.iter().map(|record| record.id).collect())
    }

    /// The error for a job that was not deleted, although its next epoch may be gone.
    fn not_deleted(
        &self,
        job: &Job,
        cancelled: Option<Arc<Job>>,
        error: KeepError,
    ) -> JobRequestError {
        let name = job.name.clone();
        let Some(next) = cancelled else {
            return JobRequestError::Store { name, error };
        };
        let reason = format!("deleting the job failed: {error}");
        self.report_cancelled(job.id, &next, reason);
        JobRequestError::DeletedInPart {
            name,
            epoch: next.epoch.0,
            error,
        }
    }

    /// Removes one epoch of a job from the store and from its switches. Returns the switches that
    /// still have entries of it until they reconnect.
    ///
    /// # Errors
    /// The removal cannot be committed: the job is unchanged.
    pub(super) async fn take_off(
        &self,
        changes: &Changes<'_>,
        id: JobId,
    ) -> Result<Vec<SwitchId>, KeepError> {
        let plan = self.plan_of(id).unwrap_or_default();
        // A record that is written between the removal and its rollback would be lost.
        let Some(kept) = changes.unless_interrupted(self.seats.hold()).await else {
            return Err(KeepError::GivenUp);
        };
        let stored = self.registry().record(&self.fabric, id);
        let removal = Change::Remove(vec![id.0]);
        if let Err(error) = changes.write(&self.journal, removal).await {
            return Err(match stored {
                Some(stored) => self.journal.roll_back(Change::Restore(stored), error).await,
                None => error,
            });
        }
        drop(kept);
        let written = self.written([&*plan]);
        let reachable = |id: &SwitchId| {
            let client = self.switches[id.0].client().ok()?;
            Some((*id, changes.client(&client)))
        };
        // The removal is committed: a reroute that has used up this request's time does not stop
        // it.
        let clients: Clients = plan.keys().filter_map(reachable).collect();
        let clients = install::undoing(&clients);
        let pending = install::remove(&clients, written).await;
        self.mark_dirty(&pending);
        self.registry().remove(&self.fabric, id);
        self.divide_again(&clients).await;
        self.sessions.end(id);
        // Another job may have room for a reroute now.
        self.retry_waiting();
        tracing::info!("job removed");
        Ok(pending)
    }

    /// The entries of installed plans, by switch.
    fn written<'a>(&self, plans: impl IntoIterator<Item = &'a JobPlan>) -> WrittenOn {
        let names = self.program().names();
        let mut written = WrittenOn::new();
        for (id, plan) in plans.into_iter().flatten() {
            let entities = Prepared::all(plan.entities(), names);
            let entities = entities.expect("what was installed could be translated");
            written.entry(*id).or_default().extend(entities);
        }
        written
    }

    pub(super) fn clients<'a>(
        &self,
        switches: impl IntoIterator<Item = &'a SwitchId>,
    ) -> Result<Clients, JobRequestError> {
        let client = |id: &SwitchId| {
            let switch = &self.switches[id.0];
            let client = switch
                .client()
                .map_err(|problem| JobRequestError::NotConnected {
                    switch: switch.name().to_owned(),
                    problem,
                });
            Ok((*id, client?))
        };
        switches
            .into_iter()
            .map(client)
            .collect::<Result<BTreeMap<_, _>, _>>()
    }

    /// Resyncs those of these switches that may differ from the desired state, in parallel.
    async fn resync_dirty(&self, clients: &Clients) -> Result<(), JobRequestError> {
        let may_differ = |(id, _): &(&SwitchId, _)| self.switches[id.0].may_differ();
        let dirty: Vec<_> = clients.iter().filter(may_differ).collect();
        if dirty.is_empty() {
            return Ok(());
        }
        let desired = &self.desired();
        let resynced = join_all(dirty.into_iter().map(|(id, client)| async move {
            let switch = &self.switches[id.0];
            let resynced = switch.reconcile(client, desired).await;
            resynced
                .map(drop)
                .map_err(|error| JobRequestError::ResyncFailed {
                    switch: switch.name().to_owned(),
                    error: Box::new(error),
                })
        }));
        let resynced = resynced.await;
        self.retry_waiting();
        resynced.into_iter().collect()
    }
}
