//! Creating and deleting jobs: a request is planned and committed, and then the switches' tasks write
//! the differences.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::discriminant;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Span;
use ultima_api::client::READY_WAIT;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::{Fabric, SwitchId};
use ultima_planner::job::{Job, JobId, JobPolicy, JobSpec, PolicyChange};
use ultima_planner::membership::Origin;
use ultima_planner::moves::Planned;
use ultima_planner::names::some_of;
use ultima_planner::plan::{Entity, JobPlan};
use ultima_planner::update::{self, Untranslatable};

use super::controller::{Controller, JobState};
use super::error::JobRequestError;
use super::membership::departure::report_obstacle;
use super::registry::{Registry, Stranded};
use super::report::{reason_of, report};
use crate::store::{Change, JobRecord, SeatRecord, StoreError};

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

impl JobsRefused {
    fn at(at: usize, error: JobRequestError) -> Self {
        JobsRefused {
            at: Some(at),
            error: Box::new(error),
        }
    }
}

impl From<JobRequestError> for JobsRefused {
    fn from(error: JobRequestError) -> Self {
        let error = Box::new(error);
        JobsRefused { at: None, error }
    }
}

/// The name for jobs that are created together, in errors and spans.
fn joint_name(specs: &[JobSpec]) -> String {
    match specs {
        [] => String::new(),
        [spec] => spec.name.clone(),
        [first, others @ ..] => format!("{} and {} more", first.name, others.len()),
    }
}

/// Checks that the program supports each kind of a plan's entities.
fn check_supported(
    plan: &JobPlan,
    names: &ultima_p4runtime::names::Names,
) -> Result<(), Untranslatable> {
    let mut kinds = HashSet::new();
    let all = plan.values().flat_map(|plan| plan.entities());
    let each = all.filter(|entity: &&Entity| kinds.insert(discriminant(*entity)));
    update::creations(each, names).map(drop)
}

/// Proposed epochs of jobs, which have their resources while they are being committed: a reroute
/// plans them, too. Those that are not committed return them in the end.
pub(super) struct Reserved<'a> {
    controller: &'a Controller,
    ids: Vec<JobId>,
}

impl<'a> Reserved<'a> {
    /// None. The caller holds the lock for changes.
    pub fn of(controller: &'a Controller) -> Self {
        let ids = Vec::new();
        Reserved { controller, ids }
    }

    /// Reserves the resources of an epoch that fits next to all others.
    pub fn add(
        &mut self,
        propose: impl FnOnce(&Registry) -> Result<(Job, JobPlan), JobRequestError>,
    ) -> Result<Planned, JobRequestError> {
        let mut registry = self.controller.registry();
        let proposed = propose(&registry)?;
        let planned = registry.reserve(&self.controller.fabric, proposed);
        self.ids.push(planned.0.id);
        Ok(planned)
    }

    /// Adds an epoch that is committed as it was planned first. Returns its switches.
    pub async fn committed(&self, (first, _): &Planned, origin: Option<Origin>) -> Vec<SwitchId> {
        let (job, plan) = {
            let mut registry = self.controller.registry();
            let Some(record) = registry.add(first.id, origin) else {
                return Vec::new();
            };
            record.planned()
        };
        if !Arc::ptr_eq(&job, first) {
            self.controller.store_trees([job.id]).await;
        }
        plan.keys().copied().collect()
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut registry = self.controller.registry();
        for id in &self.ids {
            let Some(not_committed) = registry.release(&self.controller.fabric, *id) else {
                continue;
            };
            // Found meanwhile.
            if let Ok(current) = registry.named(&not_committed.name) {
                report_obstacle(self.controller, &registry, current.job.id);
            }
        }
        drop(registry);
        // A waiting join may go on.
        self.controller.switches_changed.send_replace(());
    }
}

impl Controller {
    /// Creates several jobs, or none of them. Their switches get them later:
    /// [`until_ready`](Self::until_ready) waits for that. A job that was created by the same request
    /// before is not created again.
    ///
    /// # Errors
    /// The first job that is refused, and the reason.
    #[tracing::instrument(
        name = "create",
        skip_all,
        fields(job = joint_name(specs), id, epoch, switches)
    )]
    pub async fn create_jobs(&self, specs: &[JobSpec]) -> Result<Vec<JobId>, JobsRefused> {
        let begun = Instant::now();
        let created = self.create(specs).await;
        self.metrics.created(begun, created.is_ok());
        created
    }

    async fn create(&self, specs: &[JobSpec]) -> Result<Vec<JobId>, JobsRefused> {
        let _changes = self.change().await?;
        let names = self.program().names();
        let mut reserved = Reserved::of(self);
        let (mut ids, mut proposed) = (Vec::new(), Vec::new());
        for (at, spec) in specs.iter().enumerate() {
            let at = |error| JobsRefused::at(at, error);
            let spec = &JobSpec {
                uid: rand::random_range(1..=u64::MAX),
                ..spec.clone()
            };
            let known = self.created_before(spec).map_err(at)?;
            if known.is_none() {
                let more = proposed.len() + 1;
                self.check_quota(&spec.client, more).map_err(at)?;
                let propose = |registry: &Registry| registry.propose(&self.fabric, names, spec);
                let planned = reserved.add(propose).map_err(at)?;
                check_supported(&planned.1, names).map_err(|error| at(error.into()))?;
                proposed.push(planned);
            }
            ids.push(known);
        }
        let switches: BTreeSet<SwitchId> = proposed
            .iter()
            .flat_map(|(_, plan)| plan.keys().copied())
            .collect();
        Span::current().record("switches", switches.len());
        if let [(job, _)] = &proposed[..] {
            epoch_in_span(job);
        }
        if !proposed.is_empty() {
            let record = |(job, _): &Planned| {
                let seats = job.members.iter().map(|_| (SeatRecord::Free, 0));
                JobRecord::new(&self.fabric, job, seats)
            };
            let records = proposed.iter().map(record).collect();
            let kept = self.journal.write(Change::Put(records)).await;
            kept.map_err(|error| JobRequestError::Store {
                name: joint_name(specs),
                error,
            })?;
            tracing::info!("job created");
            for (job, plan) in &proposed {
                let switches = plan.keys().map(|id| self.fabric.switch(*id).name.as_str());
                let switches: Vec<&str> = switches.collect();
                let on = some_of(&switches);
                let mut message = format!("{} members; on {on}", job.members.len());
                if !job.client.is_empty() {
                    message += &format!("; by {}", job.client);
                }
                self.log.add_of_job(job, "Created", &message);
            }
        }
        for planned in &proposed {
            self.wake(reserved.committed(planned, None).await);
        }
        let mut new = proposed.iter().map(|(job, _)| job.id);
        let ids = ids.into_iter().map(|known| known.or_else(|| new.next()));
        Ok(ids.flatten().collect())
    }

    /// Checks that a client may have this many more jobs. Without TLS there is no limit.
    fn check_quota(&self, client: &str, more: usize) -> Result<(), JobRequestError> {
        let Some(most) = self.jobs_per_client.filter(|_| !client.is_empty()) else {
            return Ok(());
        };
        let registry = self.registry();
        let has = registry.iter().filter(|it| it.job.client == client).count();
        match has + more <= most {
            true => Ok(()),
            false => Err(JobRequestError::Quota {
                client: client.to_owned(),
                has,
                most,
            }),
        }
    }

    /// The job that an earlier request with the key of this one has created.
    ///
    /// # Errors
    /// That request was for another job.
    fn created_before(&self, spec: &JobSpec) -> Result<Option<JobId>, JobRequestError> {
        let registry = self.registry();
        let has_key = |job: &Job| spec.request != 0 && job.request == spec.request;
        let Some(record) = registry.iter().find(|record| has_key(&record.job)) else {
            return Ok(None);
        };
        match is_of(&self.fabric, &record.job, spec) {
            true => Ok(Some(record.job.id)),
            false => Err(JobRequestError::OtherRequest {
                name: spec.name.clone(),
                created: record.job.name.clone(),
            }),
        }
    }

    /// Waits at most `limit` until these jobs are ready. Returns them; their
    /// [status](JobState::status) says if they are.
    ///
    /// # Errors
    /// A job was deleted meanwhile.
    pub async fn until_ready(
        &self,
        ids: &[JobId],
        limit: Duration,
    ) -> Result<Vec<JobState>, JobRequestError> {
        let names: Vec<String> = {
            let registry = self.registry();
            let name = |id: &JobId| registry.get(*id).map(|record| record.job.name.clone());
            ids.iter().map(|id| name(id).unwrap_or_default()).collect()
        };
        let is_ready = |registry: &Registry, id: &JobId| {
            registry.get(*id).is_none_or(|record| record.is_ready)
        };
        self.wait(limit, |registry| {
            ids.iter().all(|id| is_ready(registry, id))
        })
        .await;
        self.open()?;
        let registry = self.registry();
        let states = ids
            .iter()
            .zip(names)
            .map(|(id, name)| match registry.get(*id) {
                Some(record) => Ok(self.state_of(&registry, record)),
                None => Err(JobRequestError::Deleted { name }),
            });
        states.collect()
    }

    /// One job.
    ///
    /// # Errors
    /// No job has that name.
    pub fn job(&self, name: &str) -> Result<JobState, JobRequestError> {
        let registry = self.registry();
        registry
            .named(name)
            .map(|record| self.state_of(&registry, record))
    }

    /// Changes the policy of a job in place. Answers when its connected switches have tried to take it.
    ///
    /// # Errors
    /// No job has that name, a value is out of range, or the change cannot be stored.
    #[tracing::instrument(name = "update", skip_all, fields(job = name))]
    pub async fn update_job(
        &self,
        name: &str,
        change: PolicyChange,
    ) -> Result<JobState, JobRequestError> {
        let changes = self.change().await?;
        let (job, epochs) = {
            let registry = self.registry();
            let job = Arc::clone(&registry.named(name)?.job);
            (job, registry.epochs_of(name))
        };
        let policy = policy_with(&job, change)?;
        if policy != job.policy {
            let stored = self.seats.set_policy(&epochs, policy).await;
            stored.map_err(|error| JobRequestError::Store {
                name: name.to_owned(),
                error,
            })?;
            drop(changes);
            let message = format!(
                "weight {}, loss_threshold {}, evict_after_s {}",
                policy.weight.get(),
                policy.loss_threshold,
                policy.eviction.seconds()
            );
            tracing::info!(message, "job changed");
            self.log.add_of_job(&job, "Changed", &message);
            let switches = {
                // It writes the entries that it has planned.
                let _no_reroute = self.changes.no_reroute().await;
                self.registry().plan_policy(&epochs)
            };
            // Suspected members may be overdue now.
            for id in &epochs {
                self.sessions.notify(*id);
            }
            self.until_attempted(&self.wake(switches)).await;
        }
        self.job(name)
    }

    /// Deletes a job. Returns the switches that still have entries of it: they are away, or refused.
    ///
    /// # Errors
    /// No job has that name, or the deletion cannot be stored.
    #[tracing::instrument(name = "delete", skip_all, fields(job = name))]
    pub async fn delete_job(&self, name: &str) -> Result<Vec<SwitchId>, JobRequestError> {
        let changes = self.change().await?;
        let not_stored = |error| JobRequestError::Store {
            name: name.to_owned(),
            error,
        };
        let stranded = self.registry().stranded().get(name).cloned();
        if let Some(Stranded { records, .. }) = stranded {
            let ids = records.iter().map(|record| record.id).collect();
            let removed = self.journal.write(Change::Remove(ids)).await;
            removed.map_err(not_stored)?;
            self.registry().forget_stranded(name);
            let uid = records.first().map_or(0, JobRecord::uid);
            let (reason, message) = (reason_of(Kind::Deleted), "it was on no switch");
            self.log.add(format!("job/{name}"), uid, reason, message);
            return Ok(Vec::new());
        }
        let (job, epochs) = {
            let registry = self.registry();
            let job = Arc::clone(&registry.named(name)?.job);
            (job, registry.epochs_of(name))
        };
        let switches = self.remove_epochs(&epochs).await;
        let switches = switches.map_err(not_stored)?;
        drop(changes);
        report(self, &job, Kind::Deleted, None, None, String::new());
        Ok(self.until_removed(&epochs, switches).await)
    }

    /// Removes epochs of a job from the store, and makes its switches remove them. Returns the
    /// switches and the numbers of these requests. The caller holds the lock for changes.
    ///
    /// # Errors
    /// The removal cannot be committed: the job is unchanged.
    pub(super) async fn remove_epochs(
        &self,
        ids: &[JobId],
    ) -> Result<BTreeMap<SwitchId, u64>, StoreError> {
        let removal = Change::Remove(ids.iter().map(|id| id.0).collect());
        self.journal.write(removal).await?;
        let mut switches = BTreeSet::new();
        {
            let mut registry = self.registry();
            for id in ids {
                let plan = registry.get(*id).map(|record| Arc::clone(&record.plan));
                switches.extend(plan.iter().flat_map(|plan| plan.keys().copied()));
                registry.remove(&self.fabric, *id);
            }
        }
        ids.iter().for_each(|id| self.sessions.end(*id));
        self.switches_changed.send_replace(());
        tracing::info!("job removed");
        Ok(self.wake(switches))
    }

    /// Waits until these switches have tried to remove epochs of jobs. Returns those that still have,
    /// or may have, entries of them.
    pub(super) async fn until_removed(
        &self,
        ids: &[JobId],
        switches: BTreeMap<SwitchId, u64>,
    ) -> Vec<SwitchId> {
        self.until_attempted(&switches).await;
        // Switches that are not done by then are returned.
        let has_any = |id: &SwitchId| self.switches[id.0].may_have_any(ids);
        switches.into_keys().filter(has_any).collect()
    }

    /// Waits, for [some time](READY_WAIT), until these requests to write have been served.
    async fn until_attempted(&self, switches: &BTreeMap<SwitchId, u64>) {
        let has_tried = |(id, asked): (&SwitchId, &u64)| self.switches[id.0].has_attempted(*asked);
        self.wait(READY_WAIT, |_| switches.iter().all(has_tried))
            .await;
    }
}

/// The policy that a job would have after a change.
///
/// # Errors
/// A value is out of range.
pub(super) fn policy_with(job: &Job, change: PolicyChange) -> Result<JobPolicy, JobRequestError> {
    let policy = job.policy.with(change);
    policy.map_err(|refusal| JobRequestError::Refused {
        name: job.name.clone(),
        refusal: Box::new(refusal),
    })
}

/// True if a job was created from this specification. Its members and its policy may have changed since.
fn is_of(fabric: &Fabric, job: &Job, spec: &JobSpec) -> bool {
    let members = job
        .members
        .iter()
        .map(|member| &fabric.host(member.host).name);
    let same = [
        job.name == spec.name,
        job.gather() == spec.gather,
        spec.seed.is_none_or(|seed| seed == job.seed),
        job.key.is_some() == spec.sealed,
        job.epoch.0 > 1 || members.eq(&spec.members),
    ];
    same.iter().all(|it| *it)
}
