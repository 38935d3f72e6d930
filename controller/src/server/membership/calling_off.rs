//! Calling off a change that somebody does not want any more.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::super::controller::{Controller, JobState};
use super::super::error::JobRequestError;
use super::super::registry::Stage;
use super::Event;
use crate::api::membership_event::Kind;

/// How long it is waited for: what is being decided at that moment has its time, and so has a disk, here or on another controller.
const PATIENCE: Duration = Duration::from_secs(10);
/// Why, for members and watchers.
const REASON: &str = "somebody asked for that";

impl Controller {
    /// Calls off the change of a job that is on its way, if that is to `epoch` (0 for any), also where it is made again meanwhile without members that
    /// did not answer. The job goes on in the epoch that it is in.
    ///
    /// # Errors
    /// There is no such change, or it is decided; it is not called off in time, but will be unless it is decided first.
    pub async fn call_off_change(
        &self,
        name: &str,
        epoch: u32,
    ) -> Result<JobState, JobRequestError> {
        // First, so that nothing is missed.
        let events = self.events.listen().ok_or(JobRequestError::Stopping)?;
        if !self.want_no_change(name, epoch)? {
            let state = self.job(name)?;
            return Err(not_changing(name, state.job.epoch.0.into()));
        }
        let called_off = timeout(PATIENCE, self.until_called_off(name, epoch, events));
        called_off.await.unwrap_or_else(|_| {
            let name = name.to_owned();
            Err(JobRequestError::CallingOff { name })
        })
    }

    async fn until_called_off(
        &self,
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
                Some(Kind::CalledOff) => return self.job(name),
                Some(Kind::Decided) => {
                    return Err(not_changing(name, event.unwrap_or_default().epoch));
                }
                // Another one may come in its place.
                Some(_) => drop(self.want_no_change(name, epoch)?),
                None if self.want_no_change(name, epoch)? => {}
                // That was missed.
                None => return self.job(name),
            }
        }
    }

    /// Whether there is such a change, which is to be called off.
    fn want_no_change(&self, name: &str, epoch: u32) -> Result<bool, JobRequestError> {
        let mut registry = self.registry();
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
        change.unwanted(REASON);
        drop(registry);
        self.attendants.tell_news(current);
        Ok(true)
    }
}

fn not_changing(name: &str, epoch: u32) -> JobRequestError {
    let name = name.to_owned();
    JobRequestError::NotChanging { name, epoch }
}
