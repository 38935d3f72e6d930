//! Carrying out a change of members, from its installation to the removal of the old epoch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use backon::{ConstantBuilder, Retryable as _};
use tokio::time::sleep_until;
use ultima_api::v1::CancelEpoch;
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::HostId;
use ultima_planner::job::{Job, JobId, Rank};
use ultima_planner::membership::{ChangeAction, ChangeOptions, Phase};

use super::super::controller::Controller;
use super::super::error::JobRequestError;
use super::super::jobs::epoch_in_span;
use super::super::notify::pause_after_scan;
use super::super::registry::record::Record;
use super::super::report::{report, report_installed};
use super::departure::report_obstacle;
use super::member_messages::{Unmade, beginning, meet, prepare};
use super::preparation::Preparation;
use crate::store::StoreError;

/// A change that begins again, after its epoch was removed.
pub struct Again {
    /// The current epoch.
    pub of: JobId,
    /// The removed epoch.
    pub removed: Arc<Job>,
    /// The hosts of the members of the next one.
    pub hosts: Vec<HostId>,
    /// Current members without a place there, and why.
    pub gone: Vec<(Rank, String)>,
    pub options: ChangeOptions,
}

/// The pauses before a change is stored again.
fn pauses(controller: &Controller) -> ConstantBuilder {
    let pauses = ConstantBuilder::new().with_delay(controller.timers.retry);
    pauses.without_max_times()
}

/// The continuation after a step.
enum Then {
    /// Take the next steps at once.
    Again,
    /// Wait for an event.
    Wait,
    /// End: the change is over, or begins again.
    Over(Option<Again>),
}

/// The message for members of an epoch, with that epoch's id.
type Prepared = (Arc<Preparation>, JobId);

/// Waits until all switches have the next epoch, but only until the change is cancelled. Cancels it
/// if that takes longer than new members may take to join.
async fn until_installed(controller: &Controller, id: JobId, is_new: bool) {
    let begun = Instant::now();
    // A cancellation is reported for the epoch that it keeps.
    let of = (controller.registry().get(id)).and_then(|record| Some(record.origin.as_ref()?.of));
    let ids = [id, of.unwrap_or(id)];
    let mut changed = controller.switches_changed.subscribe();
    let mut events = controller.sessions.listen();
    let is_installed = loop {
        changed.borrow_and_update();
        let late = {
            let mut registry = controller.registry();
            let is_ready = registry.get(id).is_some_and(|record| record.is_ready);
            let missing = registry
                .get(id)
                .filter(|record| !record.is_ready)
                .map(|record| controller.unwritten(&controller.state_of(&registry, record)));
            let record = registry.get_mut(id);
            let Some(change) = record.and_then(|record| record.change.as_mut()) else {
                return;
            };
            let is_decided = matches!(change.phase(), Phase::Decided(_));
            let waits = !is_decided && !change.is_cancel_requested();
            let Some(missing) = missing.filter(|_| waits) else {
                change.begin(Instant::now());
                break is_ready;
            };
            let limit = change.options().join;
            if begun.elapsed() >= limit {
                let waited = limit.as_secs_f32();
                change.request_cancel(&format!("not on all switches after {waited} s: {missing}"));
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
        report_installed(controller, id, None, Kind::Installed, "");
    }
}

/// Carries out a change, by the id of the next epoch; `is_new` if it has not been installed before. Returns the change that
/// begins in its place.
pub async fn follow(controller: &Arc<Controller>, id: JobId, is_new: bool) -> Option<Again> {
    until_installed(controller, id, is_new).await;
    let mut events = controller.sessions.listen();
    loop {
        let now = Instant::now();
        let looked = {
            let mut registry = controller.registry();
            let view = registry
                .get(id)
                .map(|next| registry.view(&controller.sessions, next));
            let record = registry.get_mut(id);
            record.and_then(|record| {
                let (change, of) = (record.change.as_mut()?, record.origin.as_ref()?.of);
                Some((change.steps(now, &view?), change.due(now), of))
            })
        };
        let (steps, due, of) = looked?;
        let took = now.elapsed();
        let mut then = Then::Wait;
        let mut announced = None;
        for step in steps {
            then = take(controller, id, step, &mut announced).await;
            if let Then::Over(again) = then {
                return again;
            }
        }
        if let Then::Again = then {
            continue;
        }
        pause_after_scan(took).await;
        let epochs = [id, of];
        tokio::select! {
            happens = events.next_of(&epochs) => if !happens { return None },
            () = sleep_until(due.into()) => {}
        }
    }
}

/// Takes a step. `announced` caches the message that all members of the old epoch receive in this
/// round.
async fn take(
    controller: &Arc<Controller>,
    id: JobId,
    step: ChangeAction,
    announced: &mut Option<Prepared>,
) -> Then {
    match step {
        ChangeAction::Prepare(rank) => {
            if announced.is_none() {
                let known = of_next(controller, id, |next| {
                    Some((Unmade::of(next)?, next.origin.as_ref()?.of))
                });
                *announced = known.map(|(unmade, of)| (Arc::new(prepare(controller, unmade)), of));
            }
            if let Some((preparation, of)) = announced {
                controller.sessions.prepare(*of, rank, preparation);
            }
        }
        ChangeAction::Begin(rank) => {
            let known = of_next(controller, id, |next| {
                Some((next.origin.as_ref()?.of, beginning(next)?))
            });
            if let Some((of, message)) = known {
                controller.sessions.send(of, rank, Message::Begin(message));
            }
        }
        ChangeAction::Welcome(rank) => {
            if let Some(message) = of_next(controller, id, beginning) {
                controller.sessions.send(id, rank, Message::Begin(message));
            }
        }
        ChangeAction::Decide(first) => return decide(controller, id, first).await,
        ChangeAction::LeaveOut(ranks) => {
            return Then::Over(leave_out(controller, id, ranks).await);
        }
        ChangeAction::Cancel(reason) => {
            cancel(controller, id, reason).await;
            return Then::Over(None);
        }
        ChangeAction::Fence => {
            fence(controller, id).await;
            return Then::Over(None);
        }
    }
    Then::Wait
}

/// Records this epoch in the current span.
fn in_span_of(controller: &Controller, id: JobId) {
    if let Some(next) = controller.registry().get(id) {
        in_span(&next.job);
    }
}

fn of_next<T>(
    controller: &Controller,
    id: JobId,
    look: impl FnOnce(&Record) -> Option<T>,
) -> Option<T> {
    controller.registry().get(id).and_then(look)
}

#[tracing::instrument(name = "decide", skip_all, fields(job, id, epoch, first))]
async fn decide(controller: &Arc<Controller>, id: JobId, first: u32) -> Then {
    in_span_of(controller, id);
    // A failed write may be in the store of the next leader. Then the change can be neither
    // announced nor cancelled.
    let mut may_be_kept = false;
    let decide = || controller.seats.decide(id, first);
    let decided = decide.retry(pauses(controller)).when(|error| {
        may_be_kept |= !error.is_final();
        may_be_kept
    });
    let decided = decided.notify(|error, _| {
        tracing::warn!(%error, "cannot store the decision for a new epoch; retrying");
    });
    if let Err(error) = decided.await {
        let reason = format!("the decision could not be stored: {error}");
        cancel(controller, id, reason).await;
        return Then::Over(None);
    }
    controller.switches_changed.send_replace(());
    let announced = {
        let mut registry = controller.registry();
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
        return Then::Over(None);
    };
    tracing::info!(
        job = job.name,
        epoch = job.epoch.0,
        first,
        "a new epoch is decided"
    );
    controller.metrics.changed(true);
    meet(controller, id);
    report(
        controller,
        &job,
        Kind::Decided,
        None,
        Some(first),
        String::new(),
    );
    for (rank, why) in left_out {
        report_installed(controller, of, Some(rank), Kind::LeftOut, &why);
    }
    Then::Again
}

/// Cancels a change: removes the next epoch. The current one continues.
#[tracing::instrument(name = "cancel", skip_all, fields(job, id, epoch))]
async fn cancel(controller: &Controller, id: JobId, reason: String) {
    in_span_of(controller, id);
    let Some(of) = withdraw(controller, id).await else {
        return;
    };
    let (before, next) = of;
    tracing::warn!(
        job = next.name,
        epoch = next.epoch.0,
        reason,
        "change cancelled"
    );
    report_cancelled(controller, before, &next, reason);
}

/// Records and reports a cancelled change: in the job's state and to its watchers.
pub fn report_cancelled(controller: &Controller, before: JobId, next: &Job, reason: String) {
    let mut registry = controller.registry();
    if let Some(record) = registry.get_mut(before) {
        record.unchanged = Some(format!("epoch {} was cancelled: {reason}", next.epoch.0));
        record.evict_not_before = Some(Instant::now() + controller.timers.eviction_retry);
    }
    // Found while the change was in progress.
    report_obstacle(controller, &registry, before);
    drop(registry);
    controller.metrics.changed(false);
    controller.sessions.notify(before);
    report(controller, next, Kind::Cancelled, None, None, reason);
}

/// Removes the next epoch. Returns the change without the members that did not answer.
async fn leave_out(controller: &Controller, id: JobId, ranks: Vec<Rank>) -> Option<Again> {
    let origin = of_next(controller, id, |next| next.origin.clone())?;
    let (of, removed) = withdraw(controller, id).await?;
    let why = |rank: &Rank| {
        (
            *rank,
            "it did not answer when the members changed".to_owned(),
        )
    };
    let mut gone: Vec<(Rank, String)> = ranks.iter().map(why).collect();
    let ranks: BTreeSet<Rank> = ranks.into_iter().collect();
    let places = removed.members.iter().zip(origin.succession.was());
    let stays = places.filter(|(_, was)| was.is_none_or(|was| !ranks.contains(&was)));
    let hosts: Vec<HostId> = stays.map(|(member, _)| member.host).collect();
    let left_out = origin.succession.left_out().iter();
    gone.extend(left_out.map(|(rank, why)| (*rank, why.clone())));
    let options = origin.options;
    Some(Again {
        of,
        removed,
        hosts,
        gone,
        options,
    })
}

/// Removes an undecided epoch from the switches and notifies the members, however long that
/// takes. Returns the previous epoch's id and the removed epoch; none if it is gone.
async fn withdraw(controller: &Controller, id: JobId) -> Option<(JobId, Arc<Job>)> {
    let withdraw = || try_to_withdraw(controller, id);
    let withdrawn = withdraw.retry(pauses(controller)).notify(|error, _| {
        tracing::warn!(id = id.0, %error, "cannot remove a cancelled epoch; retrying");
    });
    // It never ends with an error.
    withdrawn.await.ok().flatten()
}

async fn try_to_withdraw(
    controller: &Controller,
    id: JobId,
) -> Result<Option<(JobId, Arc<Job>)>, JobRequestError> {
    let changes = controller.change().await?;
    let known = of_next(controller, id, |next| {
        let is_decided = (next.change.as_ref())
            .is_some_and(|change| matches!(change.phase(), Phase::Decided(_)));
        let of = next.origin.as_ref()?.of;
        (!is_decided).then(|| (of, Arc::clone(&next.job)))
    });
    let Some((of, job)) = known else {
        return Ok(None);
    };
    let switches = controller.remove_epochs(&[id]).await;
    let switches = switches.map_err(|error| unkept(&job, error))?;
    drop(changes);
    controller
        .sessions
        .send_to_all(of, &Message::Cancel(CancelEpoch {}));
    controller.until_removed(&[id], switches).await;
    Ok(Some((of, job)))
}

/// Removes the old epoch from the switches, which then drop its packets, however long that
/// takes.
#[tracing::instrument(name = "fence", skip_all, fields(job, id, epoch))]
async fn fence(controller: &Controller, id: JobId) {
    let fence = || try_to_fence(controller, id);
    let fenced = fence.retry(pauses(controller)).notify(|error, _| {
        tracing::warn!(id = id.0, %error, "cannot remove an epoch that is over; retrying");
    });
    // It never ends with an error.
    let _ = fenced.await;
}

async fn try_to_fence(controller: &Controller, id: JobId) -> Result<(), JobRequestError> {
    let changes = controller.change().await?;
    let of = {
        let registry = controller.registry();
        let origin = registry.get(id).and_then(|next| next.origin.as_ref());
        let of = origin.and_then(|origin| registry.get(origin.of));
        of.map(|of| Arc::clone(&of.job))
    };
    let removed = match &of {
        Some(of) => {
            in_span(of);
            let switches = controller.remove_epochs(&[of.id]).await;
            Some((of.id, switches.map_err(|error| unkept(of, error))?))
        }
        None => None,
    };
    controller.registry().end_change(id);
    // Joins may wait for this end.
    controller.switches_changed.send_replace(());
    drop(changes);
    if let Some((of, switches)) = removed {
        controller.until_removed(&[of], switches).await;
    }
    controller.sessions.notify(id);
    if let Some(of) = of {
        tracing::info!(job = of.name, epoch = of.epoch.0, "an epoch is over");
        report(controller, &of, Kind::Fenced, None, None, String::new());
    }
    Ok(())
}

/// Records this epoch and its job in the current span.
pub(super) fn in_span(job: &Job) {
    epoch_in_span(job).record("job", &job.name);
}

fn unkept(job: &Job, error: StoreError) -> JobRequestError {
    let name = job.name.clone();
    JobRequestError::Store { name, error }
}
