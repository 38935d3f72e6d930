//! Joining and leaving: members take and give up the ranks of a job.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;
use tracing::Span;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::HostId;
use ultima_planner::job::{Job, JobId, Rank};
use ultima_planner::names::some_of;

use super::controller::{Controller, JobState, state_alone};
use super::error::{JobRequestError, free_a_rank};
use super::membership::change::begin_next_epoch;
use super::membership::departure;
use super::proof::{Proof, check_member};
use super::registry::Registry;
use super::registry::epochs::EpochRef;
use super::registry::record::{Record, Stage};
use super::report::{record_key, report_installed};
use super::seats::{Attempt, Joiner, NoSeat, Taken};

/// The shortest wait of a join for the switches, or for an epoch that replaces another one: most take
/// milliseconds.
const LEAST_WAIT: Duration = Duration::from_secs(1);

impl Controller {
    /// Takes the next free rank of a job on a host, or the rank that the same `attempt` (0 for
    /// none) was given before. If all members have left, or a former member knows the key of the only free rank, the
    /// job gets another epoch, and so a new key. With `wait` it waits that long for all others to join; a member that
    /// stops waiting has not joined. Returns the rank, the job, and the token of the seat.
    ///
    /// # Errors
    /// See [`JobRequestError`].
    #[tracing::instrument(name = "join", skip_all, fields(job = name, host = host, epoch, rank))]
    pub async fn join(
        self: &Arc<Self>,
        name: &str,
        host: &str,
        attempt: u64,
        wait: Option<Duration>,
    ) -> Result<(Rank, JobState, Attempt), JobRequestError> {
        self.open()?;
        // Every seat has a token, also that of a member that never retries.
        let attempt = match attempt {
            0 => Attempt(rand::random_range(1..=u64::MAX)),
            attempt => Attempt(attempt),
        };
        let host_id = self
            .fabric
            .host_named(host)
            .ok_or_else(|| JobRequestError::no_host(&self.fabric, host))?;
        let joiner = Joiner {
            host: host_id,
            attempt,
        };
        let begun = Instant::now();
        let limit = wait.unwrap_or_default().max(LEAST_WAIT);
        let joining = loop {
            let (joining, job, mut complete) = self.take_open_rank(name, joiner, limit).await?;
            let Some(wait) = wait else { break joining };
            let all = async { complete.wait_for(|complete| *complete).await.map(|_| ()) };
            let rest = wait.saturating_sub(begun.elapsed());
            let waited = tokio::select! {
                waited = timeout(rest, all) => waited,
                () = self.stopped() => return Err(JobRequestError::Stopping),
            };
            match waited {
                Ok(Ok(())) => break joining,
                Ok(Err(_)) => {
                    self.open()?;
                    // The job may go on in another epoch, because a member left while others waited.
                    let goes_on = |now: &Record| {
                        let is_of = |it: &Job| (it.seed, it.created_at);
                        is_of(&now.job) == is_of(&job)
                    };
                    if !self.registry().named(name).is_ok_and(goes_on) {
                        return Err(JobRequestError::Deleted {
                            name: name.to_owned(),
                        });
                    }
                    self.until_replaced(&job, wait.saturating_sub(begun.elapsed()))
                        .await;
                }
                // The last member may have joined just now.
                Err(_) if *complete.borrow() => break joining,
                Err(_) => return Err(self.missing(name, wait)),
            }
        };
        // By id: another job may have the name by now.
        let state = self.registry().get_mut(joining.job).map(|record| {
            record.seats.join(joining.taken.rank);
            state_alone(record)
        });
        let state = state.ok_or_else(|| JobRequestError::Deleted {
            name: name.to_owned(),
        })?;
        self.seats.keep(&[joining.job]).await?;
        let (job, rank) = (joining.job, joining.taken.rank);
        record_key(self, &state.job, rank);
        if joining.done() {
            report_installed(self, job, Some(rank), Kind::Joined, "");
        }
        Ok((rank, state, attempt))
    }

    /// Takes a rank on a host, in the next epoch if it must have another key. Waits at most `limit` for an epoch that is
    /// ready.
    async fn take_open_rank(
        self: &Arc<Self>,
        name: &str,
        joiner: Joiner,
        limit: Duration,
    ) -> Result<(Joining<'_>, Arc<Job>, watch::Receiver<bool>), JobRequestError> {
        let deadline = Instant::now() + limit;
        let rest = || deadline.saturating_duration_since(Instant::now());
        loop {
            self.until_open(name, joiner, rest()).await;
            match self.take_rank(name, joiner) {
                Err(JobRequestError::Taken {
                    next_epoch: true, ..
                }) if !rest().is_zero() => {}
                taken => return taken,
            }
            match self.renew_next_epoch(name, joiner.host) {
                Some(known) => self.until_replaced(&known, rest()).await,
                None => {
                    let (id, pause) = {
                        let registry = self.registry();
                        let record = registry.named(name)?;
                        let absent = registry.absent(&self.sessions, record);
                        let Some(at) = record.rejoins_at(joiner.host, &absent) else {
                            continue;
                        };
                        (record.job.id, record.pause_before_next_epoch(at))
                    };
                    if pause > rest() {
                        return Err(JobRequestError::Paused {
                            name: name.to_owned(),
                            host: self.fabric.host(joiner.host).name.clone(),
                            pause,
                        });
                    }
                    let is_over = |registry: &Registry| {
                        registry.named(name).map_or(true, |now| now.job.id != id)
                    };
                    self.wait(pause, is_over).await;
                    self.open()?;
                    // The job may be in another epoch by now, which has a pause of its own.
                    if self.registry().named(name)?.job.id != id {
                        continue;
                    }
                    match begin_next_epoch(self, name, joiner.host).await {
                        Err(JobRequestError::Changing { .. }) => {
                            let is_over = |registry: &Registry| {
                                registry.named(name).map_or(true, |now| {
                                    now.change.is_none() && registry.next_of(now.job.id).is_none()
                                })
                            };
                            self.wait(rest(), is_over).await;
                        }
                        begun => begun?,
                    }
                }
            }
        }
    }

    /// Replaces a job's next epoch by another one, with another key, for a member on a host: the one that had its rank
    /// knows the key. Returns the replaced epoch; none if the job has no such epoch.
    fn renew_next_epoch(&self, name: &str, host: HostId) -> Option<Arc<Job>> {
        let mut registry = self.registry();
        let next = registry.next_of(registry.named(name).ok()?.job.id)?;
        let is_known =
            next.stage == Stage::Coming && next.rejoins_at(host, &BTreeMap::new()).is_some();
        let next = is_known.then(|| Arc::clone(&next.job))?;
        registry.get_mut(next.id)?.change.as_mut()?.renew();
        drop(registry);
        self.sessions.notify(next.id);
        Some(next)
    }

    /// Waits at most `limit` until an epoch has begun or is gone, and then briefly for the one that may come in its
    /// place.
    async fn until_replaced(&self, known: &Job, limit: Duration) {
        let deadline = Instant::now() + limit;
        let is_waiting = |registry: &Registry| {
            (registry.get(known.id)).is_some_and(|it| it.stage == Stage::Coming)
        };
        self.wait(limit, |registry| !is_waiting(registry)).await;
        let goes_on = |registry: &Registry| {
            registry.named(&known.name).map_or(true, |now| {
                now.job.epoch >= known.epoch || registry.next_of(now.job.id).is_some()
            })
        };
        let rest = deadline.saturating_duration_since(Instant::now());
        self.wait(rest.min(LEAST_WAIT), goes_on).await;
    }

    /// Waits at most `limit` until the epoch that a member would join gives out ranks.
    async fn until_open(&self, name: &str, joiner: Joiner, limit: Duration) {
        let is_over = |registry: &Registry| {
            (registry.open_to(name, joiner)).map_or(true, |it| registry.gives_ranks(it, joiner))
        };
        self.wait(limit, is_over).await;
    }

    /// Takes a rank of a job on a host. The channel becomes true when all ranks are taken.
    fn take_rank(
        &self,
        name: &str,
        joiner: Joiner,
    ) -> Result<(Joining<'_>, Arc<Job>, watch::Receiver<bool>), JobRequestError> {
        let mut registry = self.registry();
        let Joiner { host, attempt } = joiner;
        let record = registry.open_to(name, joiner)?;
        if !registry.gives_ranks(record, joiner) {
            let missing = match record.is_ready {
                true => "another epoch is being committed".to_owned(),
                false => self.unwritten(&self.state_of(&registry, record)),
            };
            let name = name.to_owned();
            return Err(JobRequestError::NotReady { name, missing });
        }
        let id = record.job.id;
        let record = registry.get_mut(id).expect("found just now");
        let taken = record.seats.take(host, attempt);
        let taken = taken.map_err(|refusal| {
            let record = registry.get(id).expect("found just now");
            self.no_seat(&registry, record, host, refusal)
        })?;
        let record = registry.get(id).expect("found just now");
        let joining = Joining {
            controller: self,
            job: record.job.id,
            taken,
            attempt,
        };
        let span = Span::current();
        span.record("epoch", record.job.epoch.0)
            .record("rank", joining.taken.rank.0);
        Ok((joining, Arc::clone(&record.job), record.seats.complete()))
    }

    /// The error for a host whose next member gets no rank.
    fn no_seat(
        &self,
        registry: &Registry,
        record: &Record,
        host: HostId,
        refusal: NoSeat,
    ) -> JobRequestError {
        let name = record.job.name.clone();
        let at = self.fabric.host(host).name.clone();
        match refusal {
            NoSeat::NotAMember => JobRequestError::NotAMember {
                name,
                host: at,
                hosts: self.hosts_of(&record.job),
            },
            NoSeat::Taken { ranks } => {
                let absent = registry.absent(&self.sessions, record);
                let lost: Vec<Rank> = absent.keys().copied().collect();
                JobRequestError::Taken {
                    name,
                    host: at,
                    ranks,
                    next_epoch: record.rejoins_at(host, &absent).is_some(),
                    advice: free_a_rank(&self.fabric, &record.job, record.seats.states(), &lost),
                }
            }
        }
    }

    /// Gives up a member's rank in an epoch.
    ///
    /// # Errors
    /// No job has that name, the rank has not joined in that epoch, or another member has it.
    #[tracing::instrument(name = "leave", skip_all, fields(job = name, epoch = epoch.epoch, rank = rank))]
    pub async fn leave(
        &self,
        name: &str,
        epoch: EpochRef,
        rank: u32,
        proof: Proof<'_>,
    ) -> Result<(), JobRequestError> {
        let left = {
            let mut registry = self.registry();
            registry.named(name)?;
            let rank = u16::try_from(rank).ok().map(Rank);
            let record = registry.numbered(name, epoch);
            if let (Some(record), Some(rank)) = (record, rank) {
                check_member(&self.fabric, record, rank, proof)?;
            }
            let id = record.map(|record| record.job.id);
            id.zip(rank).filter(|(id, rank)| {
                let Some(record) = registry.get_mut(*id) else {
                    return false;
                };
                let has_begun = record.stage != Stage::Coming && record.seats.is_complete();
                let knows_key = record.job.key.is_some();
                record.seats.leave(*rank, knows_key, has_begun)
            })
        };
        match left {
            Some((job, rank)) => {
                departure::left(self, &mut self.registry(), job, rank);
                // A member that leaves before the new epoch begins loses its place there too.
                let becomes = {
                    let mut registry = self.registry();
                    let next = registry.next_of(job);
                    let becomes = next.and_then(|next| {
                        Some((next.job.id, next.origin.as_ref()?.succession.becomes(rank)?))
                    });
                    becomes.filter(|(next, becomes)| {
                        let next = registry.get_mut(*next);
                        next.is_some_and(|next| {
                            let has_begun = next.seats.is_complete();
                            let knows_key = next.job.key.is_some();
                            next.seats.leave(*becomes, knows_key, has_begun)
                        })
                    })
                };
                self.sessions.remove(job, rank);
                report_installed(self, job, Some(rank), Kind::Left, "");
                let next = becomes.map(|(next, _)| next);
                self.seats
                    .keep(&next.into_iter().chain([job]).collect::<Vec<JobId>>())
                    .await
            }
            None => Err(JobRequestError::NotJoined {
                name: name.to_owned(),
                rank,
                epoch: epoch.epoch,
            }),
        }
    }

    /// Checks that a job has a member on a host, for an agent that may act only there.
    ///
    /// # Errors
    /// It has none, or no job has that name.
    pub(super) fn has_member_on(&self, name: &str, host: &str) -> Result<(), Status> {
        let registry = self.registry();
        let members = &registry.named(name)?.job.members;
        let is_there = (members.iter()).any(|it| self.fabric.host(it.host).name == host);
        match is_there {
            true => Ok(()),
            false => Err(Status::permission_denied(format!(
                "job {name} has no member on host {host}, whose agent asks"
            ))),
        }
    }

    /// The first few hosts of a job's members, each once, in rank order.
    pub(super) fn hosts_of(&self, job: &Job) -> String {
        let mut known = HashSet::new();
        let hosts = job.members.iter().map(|member| member.host);
        let each = hosts.filter(|host| known.insert(*host));
        some_of(each.map(|host| self.fabric.host(host).name.as_str()))
    }

    /// The error that names the members that have not joined.
    fn missing(&self, name: &str, waited: Duration) -> JobRequestError {
        let registry = self.registry();
        let Ok(record) = registry.named(name) else {
            return JobRequestError::Deleted {
                name: name.to_owned(),
            };
        };
        let (job, seats) = (&record.job, &record.seats);
        let host = |rank: Rank| &self.fabric.host(job.members[usize::from(rank.0)].host).name;
        let missing = (seats.awaited()).map(|rank| format!("rank {rank} on {}", host(rank)));
        JobRequestError::Missing {
            name: name.to_owned(),
            waited,
            members: job.members.len(),
            count: seats.awaited().count(),
            missing: some_of(missing),
        }
    }
}

/// A rank that is taken while its member does not know it yet. Dropping it before
/// [`done`](Self::done) frees the rank, unless another call for it is in progress.
struct Joining<'a> {
    controller: &'a Controller,
    job: JobId,
    taken: Taken,
    attempt: Attempt,
}

impl Joining<'_> {
    /// Confirms the rank for its member. Returns false if another call has given it.
    fn done(mut self) -> bool {
        self.taken.call = None;
        let mut registry = self.controller.registry();
        let record = registry.get_mut(self.job);
        record.is_some_and(|record| record.seats.answer(self.taken.rank, self.attempt))
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        let Taken { rank, call } = self.taken;
        let Some(call) = call else { return };
        if let Some(record) = self.controller.registry().get_mut(self.job)
            && record.seats.end_call(rank, call)
        {
            // No member knows this rank, so no operation can have begun with it.
            record.seats.withdraw(rank);
        }
        self.controller.seats.keep_later([self.job]);
    }
}
