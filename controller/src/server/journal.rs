//! The commit queue: changes reach the store one at a time, in the order of the calls, while the
//! controller leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::p4rt::ELECTION_ID;
use crate::store::etcd::Leadership;
use crate::store::{Change, Store, StoreError, Stored};

/// The reason why a controller may change switches and the store.
pub enum Lead {
    /// No other controller uses its store.
    Alone,
    /// It was elected among the controllers that share etcd.
    Elected(Leadership),
}

impl Lead {
    /// The election id at the switches.
    pub fn election_id(&self) -> u128 {
        match self {
            Lead::Alone => ELECTION_ID,
            Lead::Elected(leadership) => leadership.election_id(),
        }
    }

    /// The etcd revision that elected it; 0 if it is alone.
    pub fn revision(&self) -> u64 {
        match self {
            Lead::Alone => 0,
            Lead::Elected(leadership) => leadership.revision(),
        }
    }

    fn holds(&self) -> bool {
        match self {
            Lead::Alone => true,
            Lead::Elected(leadership) => leadership.holds(),
        }
    }
}

/// A change and its result's receiver.
type Queued = (Change, oneshot::Sender<Result<(), StoreError>>);

/// The commit queue. A change in it is applied even if its caller is cancelled.
pub struct Journal {
    store: Arc<dyn Store>,
    lead: Arc<Lead>,
    /// Every caller waits for its result, so callers bound its length.
    queue: mpsc::UnboundedSender<Queued>,
    closed: Arc<AtomicBool>,
}

impl Journal {
    /// A queue for this store. Must be called within a runtime.
    pub fn new(store: Arc<dyn Store>, lead: Lead) -> Self {
        let (queue, mut queued) = mpsc::unbounded_channel::<Queued>();
        let (lead, closed) = (Arc::new(lead), Arc::new(AtomicBool::new(false)));
        // The journal closes the store.
        let weak = Arc::downgrade(&store);
        let journal = Journal {
            store,
            lead: Arc::clone(&lead),
            queue,
            closed: Arc::clone(&closed),
        };
        tokio::spawn(async move {
            while let Some((change, result)) = queued.recv().await {
                let leads = !closed.load(Ordering::Acquire) && lead.holds();
                let applied = match weak.upgrade().filter(|_| leads) {
                    Some(store) => store.apply(&change).await,
                    None => Err(StoreError::NotLeader),
                };
                // The caller may have been cancelled.
                let _ = result.send(applied);
            }
        });
        journal
    }

    /// True while changes may be committed.
    pub fn leads(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.lead.holds()
    }

    /// Why it leads.
    pub fn lead(&self) -> &Lead {
        &self.lead
    }

    /// Commits a change.
    ///
    /// # Errors
    /// The store has not applied it, or it is not known whether it has.
    pub async fn write(&self, change: Change) -> Result<(), StoreError> {
        let (result, applied) = oneshot::channel();
        // The queue's task ends with the journal.
        let _ = self.queue.send((change, result));
        applied.await.unwrap_or(Err(StoreError::NotLeader))
    }

    /// The store's content.
    pub async fn read(&self) -> Result<Stored, StoreError> {
        self.store.load().await
    }

    /// Stops commits.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! A store for tests that waits, and counts.

    use tokio::sync::{Semaphore, watch};

    use super::*;

    /// A store that applies each change with a permit, and has no content.
    #[derive(Debug)]
    pub struct Gated {
        pub permits: Semaphore,
        /// The changes that have reached it.
        pub asked: watch::Sender<usize>,
        pub applied: std::sync::Mutex<Vec<Change>>,
    }

    impl Gated {
        /// A store that applies this many changes.
        pub fn with(permits: usize) -> Arc<Self> {
            Arc::new(Gated {
                permits: Semaphore::new(permits),
                asked: watch::Sender::new(0),
                applied: Default::default(),
            })
        }

        /// Waits until this many changes have reached it.
        pub async fn asked(&self, count: usize) {
            let mut asked = self.asked.subscribe();
            asked.wait_for(|asked| *asked >= count).await.unwrap();
        }
    }

    #[tonic::async_trait]
    impl Store for Gated {
        async fn load(&self) -> Result<Stored, StoreError> {
            Ok(Stored::default())
        }

        async fn apply(&self, change: &Change) -> Result<(), StoreError> {
            self.asked.send_modify(|asked| *asked += 1);
            self.permits.acquire().await.unwrap().forget();
            self.applied.lock().unwrap().push(change.clone());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::testing::Gated;
    use super::*;

    #[tokio::test]
    async fn a_closed_journal_applies_nothing() {
        let store = Gated::with(0);
        let journal = Journal::new(Arc::<Gated>::clone(&store), Lead::Alone);
        let mut first = Box::pin(journal.write(Change::Remove(vec![1])));
        assert!(first.as_mut().now_or_never().is_none());
        store.asked(1).await;
        let mut second = Box::pin(journal.write(Change::Remove(vec![2])));
        assert!(second.as_mut().now_or_never().is_none());
        journal.close();
        assert!(!journal.leads());
        store.permits.add_permits(2);
        // The first change is with the store.
        first.await.unwrap();
        let error = second.await.unwrap_err();
        assert!(matches!(error, StoreError::NotLeader), "{error}");
        assert_eq!(store.applied.lock().unwrap().len(), 1);
    }
}
