//! Events of jobs' members, for watchers.

use std::sync::{Arc, Mutex};

use tokio::sync::broadcast;
use ultima_api::v1::MembershipEvent;

use super::super::lock::lock;

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
        let events = lock(&self.0);
        events.as_ref().map(broadcast::Sender::subscribe)
    }

    /// Ends all subscriptions.
    pub fn end(&self) {
        lock(&self.0).take();
    }

    /// Sends an event to all subscribers.
    pub fn publish(&self, event: Event) {
        if let Some(events) = &*lock(&self.0) {
            // An error means that there is no subscriber.
            let _ = events.send(event);
        }
    }
}
