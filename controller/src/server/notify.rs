//! Notifications that something has happened to a job's members.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use ultima_planner::job::JobId;

use super::lock::lock;

/// Pauses after a scan that has taken `took`. Every event of a member triggers a scan of its
/// whole job, so a burst of events would otherwise trigger mostly useless scans.
pub async fn pause_after_scan(took: Duration) {
    sleep(4 * took).await;
}

/// Notifies listeners about jobs. A listener learns which jobs have changed, each once, however
/// often. The state is one number for each job.
#[derive(Debug, Default)]
pub struct Notifier {
    /// The number of all events.
    count: watch::Sender<u64>,
    last: Arc<Mutex<Last>>,
}

/// The last event of each job, by the id of one of its epochs.
#[derive(Debug, Default)]
struct Last {
    of: BTreeMap<JobId, u64>,
    by_count: BTreeMap<u64, JobId>,
}

/// A subscriber.
#[derive(Debug)]
pub struct Listener {
    count: watch::Receiver<u64>,
    last: Arc<Mutex<Last>>,
    /// The last event that was delivered.
    heard: u64,
}

impl Notifier {
    /// Records an event. Returns a unique number.
    pub fn notify(&self, job: JobId) -> u64 {
        let mut last = lock(&self.last);
        let mut number = 0;
        self.count.send_modify(|count| {
            *count += 1;
            number = *count;
        });
        if let Some(before) = last.of.insert(job, number) {
            last.by_count.remove(&before);
        }
        last.by_count.insert(number, job);
        number
    }

    /// Subscribes to events from now on.
    pub fn listen(&self) -> Listener {
        let count = self.count.subscribe();
        let heard = *count.borrow();
        Listener {
            count,
            last: Arc::clone(&self.last),
            heard,
        }
    }
}

impl Listener {
    /// Waits for an event. Returns the jobs that have changed; none if the sender is gone.
    pub async fn next(&mut self) -> Option<Vec<JobId>> {
        let heard = self.heard;
        let next = self.count.wait_for(|count| *count > heard).await;
        drop(next.ok()?);
        let last = lock(&self.last);
        // A concurrent event waits for this lock.
        let jobs: Vec<JobId> = last
            .by_count
            .range(heard + 1..)
            .map(|(_, job)| *job)
            .collect();
        if let Some((count, _)) = last.by_count.last_key_value() {
            self.heard = *count;
        }
        Some(jobs)
    }

    /// Waits for an event of one of these jobs. Returns false if the sender is gone.
    pub async fn next_of(&mut self, jobs: &[JobId]) -> bool {
        while let Some(changed) = self.next().await {
            if changed.iter().any(|job| jobs.contains(job)) {
                return true;
            }
        }
        false
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
        assert_eq!(heard, Some(vec![JobId(2), JobId(1), JobId(3)]));
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
