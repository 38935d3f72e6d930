//! The control API's watches of jobs' members.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use ultima_api::v1 as api;
use ultima_api::v1::membership_event::Kind;

use super::controller::Controller;
use super::error::JobRequestError;
use super::membership::events::Event;
use super::messages::job_of;
use super::streams;

/// A message of a watch.
pub(super) type JobWatch = Result<api::WatchJobResponse, Status>;

/// Starts a watch of a job's members.
pub fn watch_job(
    controller: &Arc<Controller>,
    name: String,
) -> Result<ReceiverStream<JobWatch>, Status> {
    // Before the job is encoded, which is expensive with many members.
    let place = controller.job_watches.take()?;
    // Subscribed first, to miss no event after the job is read.
    let events = controller
        .events
        .listen()
        .ok_or(JobRequestError::Stopping)?;
    let job = job_of(controller.fabric(), &controller.job(&name)?);
    let (answers, stream) = mpsc::channel(1);
    let controller = Arc::clone(controller);
    tokio::spawn(async move {
        let _place = place;
        let stopped = controller.stopped();
        let job_now = || {
            let state = controller.job(&name).ok()?;
            Some(job_of(controller.fabric(), &state))
        };
        let telling = send_events(&name, job_now, (job, events), &answers);
        streams::run(&answers, stopped, telling).await;
    });
    Ok(ReceiverStream::new(stream))
}

/// True for events that change a job's epochs.
fn is_of_epochs(event: &api::MembershipEvent) -> bool {
    matches!(
        event.kind(),
        Kind::Installed | Kind::Decided | Kind::Cancelled | Kind::Fenced
    )
}

/// The last event of a job, in its last known epoch.
fn deleted_in(epoch: u32) -> api::MembershipEvent {
    api::MembershipEvent {
        kind: Kind::Deleted.into(),
        epoch,
        ..api::MembershipEvent::default()
    }
}

/// True if a job of the same name is not the one that had this epoch and id.
fn is_another(job: &api::Job, (epoch, id): (u32, u32)) -> bool {
    job.epoch < epoch || job.epoch == epoch && job.id != id
}

/// Sends the job and then its members' events, until it is deleted. The job, which is large, is
/// sent again only when its epochs have changed or the client missed events. A client that missed
/// the deletion receives a deletion event all the same.
async fn send_events(
    name: &str,
    job_now: impl Fn() -> Option<api::Job>,
    (job, mut events): (api::Job, broadcast::Receiver<Event>),
    answers: &mpsc::Sender<JobWatch>,
) {
    let mut known = (job.epoch, job.id);
    let mut now = api::WatchJobResponse {
        job: Some(job),
        event: None,
    };
    while answers.send(Ok(now)).await.is_ok() {
        let event = loop {
            match events.recv().await {
                Ok((of, event)) if *of == *name => break Some(event),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break None,
                Err(RecvError::Closed) => return,
            }
        };
        let job = match event.as_ref().is_none_or(is_of_epochs) {
            true => job_now(),
            false => None,
        };
        let is_gone = || job.as_ref().is_none_or(|job| is_another(job, known));
        let event = match event {
            None if is_gone() => Some(deleted_in(known.0)),
            event => event,
        };
        let is_over = (event.as_ref()).is_some_and(|event| event.kind() == Kind::Deleted);
        let job = job.filter(|_| !is_over);
        known = job.as_ref().map_or(known, |job| (job.epoch, job.id));
        now = api::WatchJobResponse { job, event };
        if is_over {
            let _ = answers.send(Ok(now)).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn job(epoch: u32, id: u32) -> api::Job {
        api::Job {
            epoch,
            id,
            ..api::Job::default()
        }
    }

    /// The messages to a client that watches the job `before`, misses all events, and then finds
    /// `after`.
    async fn messages_of(before: api::Job, after: Option<api::Job>) -> Vec<api::WatchJobResponse> {
        let events = broadcast::Sender::new(2);
        let listening = events.subscribe();
        for id in 0..9 {
            let of_another = (Arc::from("other"), deleted_in(id));
            events.send(of_another).expect("one listens");
        }
        drop(events);
        let (answers, mut messages) = mpsc::channel(9);
        let job_now = || after.clone();
        send_events("train", job_now, (before, listening), &answers).await;
        drop(answers);
        let mut all = Vec::new();
        while let Some(answer) = messages.recv().await {
            all.push(answer.expect("no error"));
        }
        all
    }

    #[tokio::test]
    async fn a_slow_client_learns_that_a_job_is_deleted() {
        let as_it_is = |job| api::WatchJobResponse {
            job: Some(job),
            event: None,
        };
        let last = |epoch| api::WatchJobResponse {
            job: None,
            event: Some(deleted_in(epoch)),
        };
        let first = || as_it_is(job(2, 7));
        assert_eq!(messages_of(job(2, 7), None).await, [first(), last(2)]);
        // Another job of that name was created.
        for another in [job(1, 8), job(2, 8)] {
            assert_eq!(
                messages_of(job(2, 7), Some(another)).await,
                [first(), last(2)]
            );
        }
        for same in [job(2, 7), job(3, 8)] {
            let messages = messages_of(job(2, 7), Some(same.clone())).await;
            assert_eq!(messages, [first(), as_it_is(same)]);
        }
    }
}
