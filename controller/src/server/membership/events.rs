//! Events of jobs' members, for watchers.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;
use ultima_api::v1::MembershipEvent;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::job::{Job, JobId, Rank};

use super::super::controller::Controller;
use super::super::event_log::reason_of;

/// Events that wait for a slow watcher. One that misses some receives the present state instead.
const WAITING: usize = 64;

/// A job's name and an event of its members.
pub type Event = (Arc<str>, MembershipEvent);

/// Distributes events until the controller stops.
#[derive(Debug)]
pub struct Events(Mutex<Option<broadcast::Sender<Event>>>);

impl Default for Events {
    fn default() -> Self {
        Events(Mutex::new(Some(broadcast::Sender::new(WAITING))))
    }
}

impl Events {
    /// Subscribes to events from now on; none if the controller is stopping.
    pub fn listen(&self) -> Option<broadcast::Receiver<Event>> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.as_ref().map(broadcast::Sender::subscribe)
    }

    /// Ends all subscriptions.
    pub fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // An error means that nobody is subscribed.
            let _ = events.send(event);
        }
    }
}

impl Controller {
    /// Reports an event of a member in an installed epoch.
    pub(in super::super) fn report_member(&self, id: JobId, rank: Rank, kind: Kind, reason: &str) {
        let job = self
            .registry()
            .get(id)
            .map(|record| Arc::clone(&record.job));
        if let Some(job) = job {
            self.report(&job, kind, Some(rank), None, reason.to_owned());
        }
    }

    /// Reports an event of an installed epoch.
    pub(super) fn report_epoch(&self, id: JobId, kind: Kind, first: Option<u32>, reason: String) {
        let job = self
            .registry()
            .get(id)
            .map(|record| Arc::clone(&record.job));
        if let Some(job) = job {
            self.report(&job, kind, None, first, reason);
        }
    }

    /// Reports an event of an epoch that may be gone.
    pub(in super::super) fn report(
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
        let mut message = format!("epoch {}", job.epoch.0);
        if let Some(rank) = rank {
            message = format!("rank {rank} on {}, {message}", event.host);
        }
        if !event.reason.is_empty() {
            message = format!("{message}: {}", event.reason);
        }
        let object = format!("job/{}", job.name);
        self.log.add(object, reason_of(kind), &message);
        self.events.tell((job.name.as_str().into(), event));
        self.sessions.notify(job.id);
    }
}
