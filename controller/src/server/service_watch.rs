//! The control API: what happens to a job's members.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::controller::Controller;
use super::error::JobRequestError;
use super::membership::Event;
use super::messages::job_of;
use super::streams;
use crate::api;
use crate::api::membership_event::Kind;

/// How many may watch jobs at once: one for each job that a switch has room for.
pub(super) const WATCHES: usize = 1024;

/// What one who watches a job is told.
pub(super) type Happened = Result<api::WatchJobResponse, Status>;

impl Controller {
    /// Starts to tell somebody what happens to a job's members.
    pub(super) fn watch_job(
        self: &Arc<Self>,
        name: String,
    ) -> Result<ReceiverStream<Happened>, Status> {
        // First, so that nothing is missed between the job as it is and what happens to it.
        let events = self.events.listen().ok_or(JobRequestError::Stopping)?;
        let now = api::WatchJobResponse {
            job: Some(job_of(self.fabric(), &self.job(&name)?)),
            event: None,
        };
        let place = Arc::clone(&self.job_watches).try_acquire_owned();
        let place = place.map_err(|_| {
            Status::resource_exhausted(format!("{WATCHES} watch jobs already; stop one of them"))
        })?;
        let (answers, stream) = mpsc::channel(1);
        let controller = Arc::clone(self);
        tokio::spawn(async move {
            let _place = place;
            let stopped = controller.stopped();
            let telling = tell_of_members(&controller, &name, (now, events), &answers);
            streams::tell(&answers, stopped, telling).await;
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// Whether a job has other epochs than before.
fn is_of_epochs(event: &api::MembershipEvent) -> bool {
    matches!(
        event.kind(),
        Kind::Installed | Kind::Decided | Kind::CalledOff | Kind::Fenced
    )
}

/// Says how a job is now, and then what happens to its members, until it is deleted. The job is long, and is said only where it is another or the client
/// may not know it.
async fn tell_of_members(
    controller: &Controller,
    name: &str,
    (mut now, mut events): (api::WatchJobResponse, broadcast::Receiver<Event>),
    answers: &mpsc::Sender<Happened>,
) {
    while answers.send(Ok(now)).await.is_ok() {
        let event = loop {
            match events.recv().await {
                Ok((of, event)) if *of == *name => break Some(event),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break None,
                Err(RecvError::Closed) => return,
            }
        };
        let is_over = |event: &api::MembershipEvent| event.kind() == Kind::Deleted;
        if event.as_ref().is_some_and(is_over) {
            // The last word.
            let _ = answers
                .send(Ok(api::WatchJobResponse { job: None, event }))
                .await;
            return;
        }
        let job = match event.as_ref().is_none_or(is_of_epochs) {
            true => controller.job(name).ok(),
            false => None,
        };
        if job.is_none() && event.is_none() {
            return;
        }
        let job = job.map(|state| job_of(controller.fabric(), &state));
        now = api::WatchJobResponse { job, event };
    }
}
