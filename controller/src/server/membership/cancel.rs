//! Cancelling a change of members on request.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;
use ultima_api::v1::membership_event::Kind;

use super::super::controller::{Controller, JobState};
use super::super::error::JobRequestError;
use super::super::registry::record::Stage;
use super::events::Event;

/// Time limit for a request to cancel: a decision in progress and the store need time.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The reason that members and watchers receive.
const REASON: &str = "requested by a client";

/// Cancels a job's change to `epoch` (0 for any), also if the controller has begun it again
/// without members that did not answer. The job stays in its current epoch.
///
/// # Errors
/// There is no such change, or it is decided. [`JobRequestError::CancelPending`]: it is not
/// cancelled in time, but will be unless it is decided first.
pub async fn cancel_change(
    controller: &Controller,
    name: &str,
    epoch: u32,
) -> Result<JobState, JobRequestError> {
    // First, to miss no event.
    let events = controller
        .events
        .listen()
        .ok_or(JobRequestError::Stopping)?;
    if !request_cancel(controller, name, epoch)? {
        let state = controller.job(name)?;
        return Err(not_changing(name, state.job.epoch.0.into()));
    }
    let cancelled = timeout(
        CANCEL_TIMEOUT,
        until_cancelled(controller, name, epoch, events),
    );
    cancelled.await.unwrap_or_else(|_| {
        let name = name.to_owned();
        Err(JobRequestError::CancelPending { name })
    })
}

async fn until_cancelled(
    controller: &Controller,
    name: &str,
    epoch: u32,
    mut events: broadcast::Receiver<Event>,
) -> Result<JobState, JobRequestError> {
    loop {
        let event = match events.recv().await {
            Ok((of, _)) if *of != *name => continue,
            Ok((_, event)) => Some(event),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return Err(JobRequestError::Stopping),
        };
        match event.as_ref().map(|event| event.kind()) {
            Some(Kind::Cancelled) => return controller.job(name),
            Some(Kind::Decided) => {
                return Err(not_changing(name, event.unwrap_or_default().epoch));
            }
            // The controller may have begun another change in its place.
            Some(_) => drop(request_cancel(controller, name, epoch)?),
            None if request_cancel(controller, name, epoch)? => {}
            // The event was missed.
            None => return controller.job(name),
        }
    }
}

/// Requests the cancellation. Returns false if there is no such change.
fn request_cancel(
    controller: &Controller,
    name: &str,
    epoch: u32,
) -> Result<bool, JobRequestError> {
    let mut registry = controller.registry();
    let current = registry.named(name)?.job.id;
    let is_meant = |it: u16| epoch == 0 || epoch == u32::from(it);
    let coming = registry
        .next_of(current)
        .filter(|next| next.stage == Stage::Coming);
    let coming = coming
        .filter(|next| is_meant(next.job.epoch.0))
        .map(|next| next.job.id);
    let change = coming.and_then(|id| registry.get_mut(id)?.change.as_mut());
    let Some(change) = change else {
        return Ok(false);
    };
    change.request_cancel(REASON);
    drop(registry);
    controller.sessions.notify(current);
    Ok(true)
}

fn not_changing(name: &str, epoch: u32) -> JobRequestError {
    let name = name.to_owned();
    JobRequestError::NotChanging { name, epoch }
}
