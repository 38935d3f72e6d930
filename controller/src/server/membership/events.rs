//! What happens to jobs' members, for whoever wants to know.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;

use super::super::controller::Controller;
use crate::api::MembershipEvent;
use crate::api::membership_event::Kind;
use crate::job::{Job, JobId, Rank};

/// How many events wait for one who listens slowly; who misses some is told how things are instead.
const WAITING: usize = 64;

/// What happened to which job.
pub type Event = (Arc<str>, MembershipEvent);

/// Passes on what happens, until the controller stops.
#[derive(Debug)]
pub struct Events(Mutex<Option<broadcast::Sender<Event>>>);

impl Default for Events {
    fn default() -> Self {
        Events(Mutex::new(Some(broadcast::Sender::new(WAITING))))
    }
}

impl Events {
    /// What happens from now on; none any more where the controller is being stopped.
    pub fn listen(&self) -> Option<broadcast::Receiver<Event>> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.as_ref().map(broadcast::Sender::subscribe)
    }

    /// Nothing happens any more.
    pub fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody may listen.
            let _ = events.send(event);
        }
    }
}

impl Controller {
    /// Something happened to a member of an epoch that is on switches.
    pub(in super::super) fn tell_of_member(&self, id: JobId, rank: Rank, kind: Kind, reason: &str) {
        let job = self
            .registry()
            .get(id)
            .map(|record| Arc::clone(&record.job));
        if let Some(job) = job {
            self.tell_of(&job, kind, Some(rank), None, reason.to_owned());
        }
    }

    /// Something happened to such an epoch.
    pub(super) fn tell_of_epoch(&self, id: JobId, kind: Kind, first: Option<u32>, reason: String) {
        let job = self
            .registry()
            .get(id)
            .map(|record| Arc::clone(&record.job));
        if let Some(job) = job {
            self.tell_of(&job, kind, None, first, reason);
        }
    }

    /// The same where it may be gone already.
    pub(in super::super) fn tell_of(
        &self,
        job: &Job,
        kind: Kind,
        rank: Option<Rank>,
        first: Option<u32>,
        reason: String,
    ) {
        let member = rank.and_then(|rank| job.members.get(usize::from(rank.0)));
        let event = MembershipEvent {
            kind: kind.into(),
            epoch: job.epoch.0.into(),
            rank: rank.map(|rank| rank.0.into()),
            host: member.map_or_else(String::new, |it| self.fabric.host(it.host).name.clone()),
            first_operation: first,
            reason,
        };
        self.events.tell((job.name.as_str().into(), event));
        self.attendants.tell_news(job.id);
    }
}
