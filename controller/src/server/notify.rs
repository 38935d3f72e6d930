//! Notifications that something has happened to a job's members.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use ultima_planner::job::JobId;

/// Pauses after a scan that has taken `took`. Every event of a member triggers a scan of its
/// whole job, so a burst of events would otherwise trigger mostly useless scans.
pub async fn pause_after_scan(took: Duration) {
    sleep(4 * took).await;
}

/// Notifies listeners about jobs. A listener learns which jobs have changed, each once, however
/// often. The state is one number for each job.
#[derive(Debug, Default)]
pub struct Notifier(watch::Sender<Events>);

/// The events so far.
#[derive(Debug, Default)]
struct Events {
    /// The number of all events.
    count: u64,
    /// The number of each job's last event, by the id of one of its epochs.
    last: BTreeMap<JobId, u64>,
}

/// A subscriber.
#[derive(Debug)]
pub struct Listener {
    events: watch::Receiver<Events>,
    /// The last event that was delivered.
    heard: u64,
}

impl Notifier {
    /// Records an event. Returns a unique number.
    pub fn notify(&self, job: JobId) -> u64 {
        let mut number = 0;
        self.0.send_modify(|events| {
            events.count += 1;
            number = events.count;
            events.last.insert(job, number);
        });
        number
    }

    /// Subscribes to events from now on.
    pub fn listen(&self) -> Listener {
        let events = self.0.subscribe();
        let heard = events.borrow().count;
        Listener { events, heard }
    }
}

impl Listener {
    /// Waits for an event. Returns the jobs that have changed, by id; none if the sender is gone.
    pub async fn next(&mut self) -> Option<Vec<JobId>> {
        let heard = self.heard;
        let events = self.events.wait_for(|events| events.count > heard).await;
        let events = events.ok()?;
        self.heard = events.count;
        let changed = events.last.iter().filter(|(_, number)| **number > heard);
        Some(changed.map(|(job, _)| *job).collect())
    }

    /// Waits for an event of one of these jobs. Returns false if the sender is gone.
    pub async fn next_of(&mut self, jobs: &[JobId]) -> bool {
        let heard = self.heard;
        let is_new = |events: &Events| {
            let mut last = jobs.iter().filter_map(|job| events.last.get(job));
            last.any(|number| *number > heard)
        };
        let Ok(events) = self.events.wait_for(is_new).await else {
            return false;
        };
        self.heard = events.count;
        true
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn each_changed_job_is_delivered_once() {
        let notifier = Notifier::default();
        notifier.notify(JobId(9));
        let mut listener = notifier.listen();
        assert_eq!(
            listener.next().now_or_never(),
            None,
            "the event was before the subscription"
        );
        let numbers = [1, 2, 1, 1, 3].map(|job| notifier.notify(JobId(job)));
        assert!(numbers.is_sorted_by(|one, next| one < next));
        let heard = listener.next().now_or_never().flatten();
        assert_eq!(heard, Some(vec![JobId(1), JobId(2), JobId(3)]));
        assert_eq!(listener.next().now_or_never(), None);
        notifier.notify(JobId(2));
        assert_eq!(listener.next().now_or_never(), Some(Some(vec![JobId(2)])));
    }

    #[test]
    fn a_listener_for_one_job_is_not_woken_by_another() {
        let notifier = Notifier::default();
        let mut listener = notifier.listen();
        let jobs = [JobId(4), JobId(5)];
        let mut waiting = Box::pin(listener.next_of(&jobs));
        notifier.notify(JobId(6));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        notifier.notify(JobId(6));
        notifier.notify(JobId(5));
        assert_eq!(waiting.as_mut().now_or_never(), Some(true));
        drop(waiting);
        let mut waiting = Box::pin(listener.next_of(&jobs));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        drop(notifier);
        assert_eq!(waiting.as_mut().now_or_never(), Some(false));
    }
}
