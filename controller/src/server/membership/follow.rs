//! Carrying out a change of members, from its installation to the removal of the old epoch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::{sleep, sleep_until};
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::membership_event::Kind;
use ultima_api::v1::{BeginEpoch, CancelEpoch};
use ultima_planner::fabric::HostId;
use ultima_planner::job::{Job, JobId, Rank};
use ultima_planner::membership::{Phase, Step};

use super::super::controller::Controller;
use super::super::error::JobRequestError;
use super::super::jobs::epoch_in_span;
use super::super::registry::Record;
use super::pause_after_scan;
use super::preparation::{Preparation, Unmade};
use crate::store::StoreError;

/// What to do after a step.
#[derive(PartialEq, Eq)]
enum Then {
    /// Take the next steps at once.
    Again,
    /// Wait for an event.
    Wait,
    /// End: the change is over.
    Over,
}

/// The message for members of an epoch, with that epoch's id.
type Prepared = (Arc<Preparation>, JobId);

impl Controller {
    /// Continues all changes that were in progress when the controller stopped.
    pub(in super::super) fn follow_changes(self: &Arc<Self>) {
        let changing = self.registry().changing();
        changing
            .into_iter()
            .for_each(|id| self.follow_change(id, false));
    }

    /// Starts the task that carries out a change, by the id of the next epoch; `is_new` if it has not
    /// been installed before.
    pub(super) fn follow_change(self: &Arc<Self>, id: JobId, is_new: bool) {
        let controller = Arc::clone(self);
        self.in_background(async move { controller.follow_to_the_end(id, is_new).await });
    }

    /// Waits until all switches have the next epoch, but only until the change is cancelled. Cancels it
    /// if that takes longer than new members may take to join.
    async fn until_installed(&self, id: JobId, is_new: bool) {
        let begun = Instant::now();
        // A cancellation is reported for the epoch that it keeps.
        let of = (self.registry().get(id)).and_then(|record| Some(record.origin.as_ref()?.of));
        let ids = [id, of.unwrap_or(id)];
        let mut changed = self.switches_changed.subscribe();
        let mut events = self.sessions.listen();
        let is_installed = loop {
            changed.borrow_and_update();
            let late = {
                let mut registry = self.registry();
                let is_ready = registry.get(id).is_some_and(|record| record.is_ready);
                let missing = registry
                    .get(id)
                    .filter(|record| !record.is_ready)
                    .map(|record| self.unwritten(&self.state_of(&registry, record)));
                let record = registry.get_mut(id);
                let Some(change) = record.and_then(|record| record.change.as_mut()) else {
                    return;
                };
                let is_decided = matches!(change.phase(), Phase::Decided(_));
                let waits = !is_decided && !change.is_unwanted();
                let Some(missing) = missing.filter(|_| waits) else {
                    change.begin(Instant::now());
                    break is_ready;
                };
                let limit = change.terms().join;
                if begun.elapsed() >= limit {
                    let waited = limit.as_secs_f32();
                    change.unwanted(&format!("not on all switches after {waited} s: {missing}"));
                }
                begun + limit
            };
            tokio::select! {
                _ = changed.changed() => {}
                happens = events.next_of(&ids) => if !happens { return },
                () = sleep_until(late.into()) => {}
            }
        };
        if is_new && is_installed {
            self.report_epoch(id, Kind::Installed, None, String::new());
        }
    }

    async fn follow_to_the_end(self: Arc<Self>, id: JobId, is_new: bool) {
        self.until_installed(id, is_new).await;
        let mut events = self.sessions.listen();
        loop {
            let now = Instant::now();
            let looked = {
                let mut registry = self.registry();
                let view = registry
                    .get(id)
                    .map(|next| registry.view(&self.sessions, next));
                let record = registry.get_mut(id);
                record.and_then(|record| {
                    let (change, of) = (record.change.as_mut()?, record.origin.as_ref()?.of);
                    Some((change.steps(now, &view?), change.due(now), of))
                })
            };
            let Some((steps, due, of)) = looked else {
                return;
            };
            let took = now.elapsed();
            let mut then = Then::Wait;
            let mut announced = None;
            for step in steps {
                then = self.take(id, step, &mut announced).await;
                if then == Then::Over {
                    return;
                }
            }
            if then == Then::Again {
                continue;
            }
            pause_after_scan(took).await;
            let epochs = [id, of];
            tokio::select! {
                happens = events.next_of(&epochs) => if !happens { return },
                () = sleep_until(due.into()) => {}
            }
        }
    }

    /// Takes a step. `announced` caches the message that all members of the old epoch receive in this
    /// round.
    async fn take(
        self: &Arc<Self>,
        id: JobId,
        step: Step,
        announced: &mut Option<Prepared>,
    ) -> Then {
        match step {
            Step::Prepare(rank) => {
                if announced.is_none() {
                    let known = self.of_next(id, |next| {
                        Some((Unmade::of(next)?, next.origin.as_ref()?.of))
                    });
                    *announced = known.map(|(unmade, of)| (Arc::new(unmade.make(self)), of));
                }
                if let Some((preparation, of)) = announced {
                    self.sessions.prepare(*of, rank, preparation);
                }
            }
            Step::Begin(rank) => {
                let known = self.of_next(id, |next| {
                    Some((next.origin.as_ref()?.of, beginning(next)?))
                });
                if let Some((of, message)) = known {
                    self.sessions.tell(of, rank, Message::Begin(message));
                }
            }
            Step::Welcome(rank) => {
                if let Some(message) = self.of_next(id, beginning) {
                    self.sessions.tell(id, rank, Message::Begin(message));
                }
            }
            Step::Decide(first) => return self.decide(id, first).await,
            Step::LeaveOut(ranks) => {
                self.leave_out(id, ranks).await;
                return Then::Over;
            }
            Step::Cancel(reason) => {
                self.cancel(id, reason).await;
                return Then::Over;
            }
            Step::Fence => {
                self.fence(id).await;
                return Then::Over;
            }
        }
        Then::Wait
    }

    /// Records this epoch in the current span.
    fn in_span_of(&self, id: JobId) {
        if let Some(next) = self.registry().get(id) {
            in_span(&next.job);
        }
    }

    fn of_next<T>(&self, id: JobId, look: impl FnOnce(&Record) -> Option<T>) -> Option<T> {
        self.registry().get(id).and_then(look)
    }

    #[tracing::instrument(name = "decide", skip_all, fields(job, id, epoch, first))]
    async fn decide(self: &Arc<Self>, id: JobId, first: u32) -> Then {
        self.in_span_of(id);
        // A failed write may be in the store of the next leader. Then the change can be neither
        // announced nor cancelled.
        let mut may_be_kept = false;
        loop {
            match self.seats.decide(id, first).await {
                Ok(()) => break,
                Err(error) if error.is_final() && !may_be_kept => {
                    self.cancel(id, format!("the decision could not be stored: {error}"))
                        .await;
                    return Then::Over;
                }
                Err(error) => {
                    may_be_kept = true;
                    tracing::warn!(%error, "cannot store the decision for a new epoch; retrying");
                    sleep(self.timers.retry).await;
                }
            }
        }
        let announced = {
            let mut registry = self.registry();
            let record = registry.get_mut(id);
            record.and_then(|record| {
                let change = record.change.as_mut()?;
                change.decided(first, Instant::now());
                let left_out = change.succession().left_out().clone();
                Some((
                    Arc::clone(&record.job),
                    record.origin.as_ref()?.of,
                    left_out,
                ))
            })
        };
        let Some((job, of, left_out)) = announced else {
            return Then::Over;
        };
        tracing::info!(
            job = job.name,
            epoch = job.epoch.0,
            first,
            "a new epoch is decided"
        );
        self.metrics.changed(true);
        self.meet(id);
        self.report(&job, Kind::Decided, None, Some(first), String::new());
        for (rank, why) in left_out {
            self.report_member(of, rank, Kind::LeftOut, &why);
        }
        Then::Again
    }

    /// Cancels a change: removes the next epoch. The current one continues.
    #[tracing::instrument(name = "cancel", skip_all, fields(job, id, epoch))]
    async fn cancel(&self, id: JobId, reason: String) {
        self.in_span_of(id);
        let Some(of) = self.withdraw(id).await else {
            return;
        };
        let (before, next) = of;
        tracing::warn!(
            job = next.name,
            epoch = next.epoch.0,
            reason,
            "change cancelled"
        );
        self.report_cancelled(before, &next, reason);
    }

    /// Records and reports a cancelled change: in the job's state and to its watchers.
    pub(in super::super) fn report_cancelled(&self, before: JobId, next: &Job, reason: String) {
        if let Some(record) = self.registry().get_mut(before) {
            record.unchanged = Some(format!("epoch {} was cancelled: {reason}", next.epoch.0));
            record.evict_not_before = Some(Instant::now() + self.timers.eviction_retry);
        }
        self.metrics.changed(false);
        self.sessions.notify(before);
        self.report(next, Kind::Cancelled, None, None, reason);
    }

    /// Begins the change again without the members that did not answer.
    async fn leave_out(self: &Arc<Self>, id: JobId, ranks: Vec<Rank>) {
        let known = self.of_next(id, |next| next.origin.clone());
        let (Some(origin), Some((before, next))) = (known, self.withdraw(id).await) else {
            return;
        };
        let why = |rank: &Rank| {
            (
                *rank,
                "it did not answer when the members changed".to_owned(),
            )
        };
        let mut gone: Vec<(Rank, String)> = ranks.iter().map(why).collect();
        let ranks: BTreeSet<Rank> = ranks.into_iter().collect();
        let places = next.members.iter().zip(origin.succession.was());
        let stays = places.filter(|(_, was)| was.is_none_or(|was| !ranks.contains(&was)));
        let hosts: Vec<HostId> = stays.map(|(member, _)| member.host).collect();
        let left_out = origin.succession.left_out().iter();
        gone.extend(left_out.map(|(rank, why)| (*rank, why.clone())));
        let terms = origin.terms;
        if let Err(error) = self.change_again(before, hosts, gone, terms).await {
            self.report_cancelled(before, &next, error.to_string());
        }
    }

    /// Removes an undecided epoch from the switches and notifies the members, however long that
    /// takes. Returns the previous epoch's id and the removed epoch; none if it is gone.
    async fn withdraw(&self, id: JobId) -> Option<(JobId, Arc<Job>)> {
        loop {
            match self.try_to_withdraw(id).await {
                Ok(withdrawn) => return withdrawn,
                Err(error) => {
                    tracing::warn!(id = id.0, %error, "cannot remove a cancelled epoch; retrying");
                    sleep(self.timers.retry).await;
                }
            }
        }
    }

    async fn try_to_withdraw(
        &self,
        id: JobId,
    ) -> Result<Option<(JobId, Arc<Job>)>, JobRequestError> {
        let changes = self.change().await?;
        let known = self.of_next(id, |next| {
            let is_decided = (next.change.as_ref())
                .is_some_and(|change| matches!(change.phase(), Phase::Decided(_)));
            let of = next.origin.as_ref()?.of;
            (!is_decided).then(|| (of, Arc::clone(&next.job)))
        });
        let Some((of, job)) = known else {
            return Ok(None);
        };
        let switches = self.take_off(&[id]).await;
        let switches = switches.map_err(|error| unkept(&job, error))?;
        drop(changes);
        self.sessions.tell_all(of, &Message::Cancel(CancelEpoch {}));
        self.until_removed(&[id], switches).await;
        Ok(Some((of, job)))
    }

    /// Removes the old epoch from the switches, which then drop its packets, however long that
    /// takes.
    #[tracing::instrument(name = "fence", skip_all, fields(job, id, epoch))]
    async fn fence(&self, id: JobId) {
        while let Err(error) = self.try_to_fence(id).await {
            tracing::warn!(id = id.0, %error, "cannot remove an epoch that is over; retrying");
            sleep(self.timers.retry).await;
        }
    }

    async fn try_to_fence(&self, id: JobId) -> Result<(), JobRequestError> {
        let changes = self.change().await?;
        let of = {
            let registry = self.registry();
            let origin = registry.get(id).and_then(|next| next.origin.as_ref());
            let of = origin.and_then(|origin| registry.get(origin.of));
            of.map(|of| Arc::clone(&of.job))
        };
        let removed = match &of {
            Some(of) => {
                in_span(of);
                let switches = self.take_off(&[of.id]).await;
                Some((of.id, switches.map_err(|error| unkept(of, error))?))
            }
            None => None,
        };
        self.registry().end_change(id);
        drop(changes);
        if let Some((of, switches)) = removed {
            self.until_removed(&[of], switches).await;
        }
        self.sessions.notify(id);
        if let Some(of) = of {
            tracing::info!(job = of.name, epoch = of.epoch.0, "an epoch is over");
            self.report(&of, Kind::Fenced, None, None, String::new());
        }
        Ok(())
    }
}

/// Records this epoch and its job in the current span.
pub(super) fn in_span(job: &Job) {
    epoch_in_span(job).record("job", &job.name);
}

fn unkept(job: &Job, error: StoreError) -> JobRequestError {
    let name = job.name.clone();
    JobRequestError::Store { name, error }
}

/// The message with the epoch's first operation, once it is decided.
pub(super) fn beginning(next: &Record) -> Option<BeginEpoch> {
    Some(BeginEpoch {
        job_id: next.job.id.0.into(),
        first_operation: next.origin.as_ref()?.first?,
    })
}
