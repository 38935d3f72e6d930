//! Jobs come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tracing::Span;

use super::changes::Changes;
use super::controller::{Controller, JobState, state_of};
use super::error::JobRequestError;
use super::journal::KeepError;
use crate::api::CallOffEpoch;
use crate::api::attend_response::Order as Word;
use crate::api::membership_event::Kind;
use crate::fabric::SwitchId;
use crate::install::{self, Clients, InstallError, Prepared, WrittenOn};
use crate::job::{Job, JobId, JobSpec};
use crate::plan::JobPlan;
use crate::store::{Change, JobRecord, SeatRecord};

/// Says how long the parts of something took.
struct Phases(Instant);

impl Phases {
    fn begin() -> Self {
        Phases(Instant::now())
    }

    /// One has ended, and the next begins.
    fn ended(&mut self, phase: &str) {
        tracing::debug!(phase, took = ?self.0.elapsed(), "ended");
        self.0 = Instant::now();
    }
}

/// The span that we are in, which says now that it is of this epoch.
pub(super) fn epoch_in_span(job: &Job) -> Span {
    let span = Span::current();
    span.record("id", job.id.0).record("epoch", job.epoch.0);
    span
}

/// Why none of several jobs was created.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JobsRefused {
    /// The one that it is about, by its place in the request; none where it is about all of them, or something else.
    pub at: Option<usize>,
    /// Why.
    pub error: Box<JobRequestError>,
}

impl From<JobRequestError> for JobsRefused {
    fn from(error: JobRequestError) -> Self {
        let error = Box::new(error);
        JobsRefused { at: None, error }
    }
}

/// What errors call jobs that are installed together.
fn names_of(all: &[(&Job, &JobPlan)]) -> String {
    called(all.iter().map(|(job, _)| job.name.as_str()))
}

/// What errors and spans call jobs that are created together.
fn called<'a>(mut names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let first = names.next().unwrap_or_default();
    match names.len() {
        0 => first.to_owned(),
        others => format!("{first} and {others} more"),
    }
}

impl Controller {
    /// Creates a job: on all switches that it needs, or on none.
    ///
    /// # Errors
    /// See [`JobRequestError`].
    pub async fn create_job(&self, spec: &JobSpec) -> Result<JobState, JobRequestError> {
        let created = self.create_jobs(slice::from_ref(spec)).await;
        let mut created = created.map_err(|refused| *refused.error)?;
        Ok(created.pop().expect("as many as were asked for"))
    }

    /// Creates jobs: all of them, each on all switches that it needs, or none.
    ///
    /// # Errors
    /// The first that is refused, and why.
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
            let seats = job.members.iter().map(|_| SeatRecord::Free);
            JobRecord::new(&self.fabric, job, seats)
        };
        let records = all.iter().map(record).collect();
        self.put_on_switches(&changes, &all, records).await?;
        tracing::info!("created");
        let mut registry = self.registry();
        let added = proposed.into_iter().map(|(job, plan)| {
            let id = registry.add(&self.fabric, job, plan).job.id;
            state_of(&registry, registry.get(id).expect("added just now"))
        });
        Ok(added.collect())
    }

    /// Numbers and places for jobs, and what each needs on the switches beside those before it. Nothing is taken yet.
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
        // Nobody else changes what there is meanwhile.
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

    /// Puts jobs, or another epoch of one, on all their switches and then in the store, or in none.
    pub(super) async fn put_on_switches(
        &self,
        changes: &Changes<'_>,
        all: &[(&Job, &JobPlan)],
        records: Vec<JobRecord>,
    ) -> Result<(), JobRequestError> {
        let clients = changes.clients(&self.clients(all.iter().flat_map(|(_, plan)| plan.keys()))?);
        match self.install(&clients, all).await {
            // Something was done late, or by somebody else, after the switch was looked at.
            Err(error) if self.is_mended(&error) => self.install(&clients, all).await?,
            installed => installed?,
        }
        let mut phases = Phases::begin();
        if let Err(error) = changes.write(&self.journal, Change::Put(records)).await {
            let written = self.written(all.iter().map(|(_, plan)| *plan));
            let clients = install::undoing(&clients);
            let pending = install::remove(&clients, written).await;
            self.doubt(&pending);
            self.divide_again(&clients).await;
            let ids = all.iter().map(|(job, _)| job.id.0).collect();
            let error = self.take_back(Change::Remove(ids), error).await;
            return Err(JobRequestError::Store {
                name: names_of(all),
                error,
            });
        }
        phases.ended("kept");
        Ok(())
    }

    /// Whether an installation was stopped by what a switch should not hold, and which is put right before the next one.
    fn is_mended(&self, error: &JobRequestError) -> bool {
        let JobRequestError::Install { error, .. } = error else {
            return false;
        };
        let Some(switch) = error.outdated().map(|id| &self.switches[id.0]) else {
            return false;
        };
        if self.repair {
            switch.doubt();
        }
        switch.may_differ()
    }

    /// Puts jobs on all their switches, or on none.
    async fn install(
        &self,
        clients: &Clients,
        all: &[(&Job, &JobPlan)],
    ) -> Result<(), JobRequestError> {
        let mut phases = Phases::begin();
        self.mend(clients).await?;
        // First, so that they take nothing of the others' parts, and meet no meter of an earlier job.
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
                self.doubt(&undone.left);
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

    /// Their names.
    pub(super) fn names_of_jobs(&self) -> Vec<String> {
        self.registry().names()
    }

    /// One job.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn job(&self, name: &str) -> Result<JobState, JobRequestError> {
        let registry = self.registry();
        registry
            .named(name)
            .map(|record| state_of(&registry, record))
    }

    /// Deletes a job; returns the switches on which something of it is left until they are back.
    ///
    /// # Errors
    /// There is none of that name.
    #[tracing::instrument(name = "delete", skip_all, fields(job = name))]
    pub async fn delete_job(&self, name: &str) -> Result<Vec<SwitchId>, JobRequestError> {
        let changes = self.change().await?;
        let (job, epochs) = {
            let registry = self.registry();
            let job = Arc::clone(&registry.named(name)?.job);
            (job, registry.epochs_of(name))
        };
        // The epoch that it is in last: what is left of a job whose deletion is cut short is a job.
        let mut pending = BTreeSet::new();
        let mut called_off = None;
        for id in epochs {
            let next = self.registry().coming(id);
            let left = self.take_off(&changes, id).await;
            if left.is_err() && self.registry().next_of(job.id).is_none() {
                // Who has pledged for a change that went before waits for its end.
                self.attendants
                    .tell_all(job.id, &Word::CallOff(CallOffEpoch {}));
            }
            pending.extend(left.map_err(|error| self.not_deleted(&job, called_off.take(), error))?);
            called_off = next;
        }
        self.tell_of(&job, Kind::Deleted, None, None, String::new());
        Ok(pending.into_iter().collect())
    }

    /// Why a job is still there, of which an epoch that was to come may be gone already.
    fn not_deleted(
        &self,
        job: &Job,
        called_off: Option<Arc<Job>>,
        error: KeepError,
    ) -> JobRequestError {
        let name = job.name.clone();
        let Some(next) = called_off else {
            return JobRequestError::Store { name, error };
        };
        let reason = format!("the job was to be deleted: {error}");
        self.tell_of_no_change(job.id, &next, reason);
        JobRequestError::DeletedInPart {
            name,
            epoch: next.epoch.0,
            error,
        }
    }

    /// Takes a job in one of its epochs out of the store and off its switches; returns those on which something of it is left until they
    /// are back.
    ///
    /// # Errors
    /// That cannot be promised: the job is as it was.
    pub(super) async fn take_off(
        &self,
        changes: &Changes<'_>,
        id: JobId,
    ) -> Result<Vec<SwitchId>, KeepError> {
        let plan = self.plan_of(id).unwrap_or_default();
        // What is kept of it meanwhile would be lost, where it is put back.
        let Some(kept) = changes.unless_hurried(self.seats.hold()).await else {
            return Err(self.journal.given_up());
        };
        let stored = self.registry().record(&self.fabric, id);
        let removal = Change::Remove(vec![id.0]);
        if let Err(error) = changes.write(&self.journal, removal).await {
            return Err(match stored {
                Some(stored) => self.take_back(Change::Restore(stored), error).await,
                None => error,
            });
        }
        drop(kept);
        let written = self.written([&*plan]);
        let reachable = |id: &SwitchId| {
            let client = self.switches[id.0].client().ok()?;
            Some((*id, changes.client(&client)))
        };
        // It is promised: where that took all the time that there was, there is as much again for it.
        let clients: Clients = plan.keys().filter_map(reachable).collect();
        let clients = install::undoing(&clients);
        let pending = install::remove(&clients, written).await;
        self.doubt(&pending);
        self.registry().remove(&self.fabric, id);
        self.divide_again(&clients).await;
        self.attendants.end(id);
        // There may be room now for one that could not move.
        self.try_again();
        tracing::info!("deleted");
        Ok(pending)
    }

    /// Undoes a change that could not be promised, by what it returns. Where that fails too the change may be kept: whoever leads then has it
    /// whole.
    pub(super) async fn take_back(&self, change: Change, error: KeepError) -> KeepError {
        match self.journal.commit(change).await {
            Ok(_) => error,
            Err(reason) => {
                tracing::warn!(%reason, %error, "a change that was not promised may be kept");
                match error {
                    // Nothing was written.
                    error @ (KeepError::Store(_)
                    | KeepError::Followers { .. }
                    | KeepError::NotPrimary) => error,
                    KeepError::Copies { .. } | KeepError::GivenUp { .. } | KeepError::Unknown => {
                        KeepError::Unknown
                    }
                }
            }
        }
    }

    /// What is on switches of plans that were installed.
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

    /// Looks at those of these switches that may hold something else than they should, all at once, before they get more.
    async fn mend(&self, clients: &Clients) -> Result<(), JobRequestError> {
        let may_differ = |(id, _): &(&SwitchId, _)| self.switches[id.0].may_differ();
        let doubtful: Vec<_> = clients.iter().filter(may_differ).collect();
        if doubtful.is_empty() {
            return Ok(());
        }
        let desired = &self.desired();
        let mended = join_all(doubtful.into_iter().map(|(id, client)| async move {
            let switch = &self.switches[id.0];
            let mended = switch.reconcile(client, desired).await;
            mended.map(drop).map_err(|error| JobRequestError::InDoubt {
                switch: switch.name().to_owned(),
                error: Box::new(error),
            })
        }));
        let mended = mended.await;
        self.try_again();
        mended.into_iter().collect()
    }
}
