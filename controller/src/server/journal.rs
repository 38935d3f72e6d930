//! The commit queue: changes reach the store one at a time, in the order of the calls, while the
//! controller leads.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::p4rt::ELECTION_ID;
use crate::store::etcd::Leadership;
use crate::store::{Change, Store, StoreError, Stored};

/// The reason why a change is not committed.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store has not applied it, or it is not known whether it has.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A reroute interrupted the request while the store was busy. It is rolled back.
    #[error("the store was busy when a reroute interrupted the request; try again")]
    GivenUp,
}

impl KeepError {
    /// True if the store has refused the change: it is not committed, and the controller leads on.
    pub fn is_final(&self) -> bool {
        match self {
            KeepError::Store(error) => {
                !matches!(error, StoreError::NotLeader | StoreError::Unknown)
            }
            KeepError::GivenUp => false,
        }
    }

    /// True if the change may be committed all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, KeepError::Store(StoreError::Unknown))
    }
}

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
    /// See [`KeepError`].
    pub async fn write(&self, change: Change) -> Result<(), KeepError> {
        self.write_until(change, pending()).await
    }

    /// The same, but [given up](KeepError::GivenUp) when `end` completes, if the store is on other
    /// machines: it may apply the change later, before all changes that are queued after it.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub async fn write_until(
        &self,
        change: Change,
        end: impl Future<Output = ()>,
    ) -> Result<(), KeepError> {
        let (result, applied) = oneshot::channel();
        // The queue's task ends with the journal.
        let _ = self.queue.send((change, result));
        tokio::select! {
            biased;
            applied = applied => Ok(applied.unwrap_or(Err(StoreError::NotLeader))?),
            () = end, if self.store.is_remote() => Err(KeepError::GivenUp),
        }
    }

    /// Rolls back a change that `failed`, by its opposite. Returns the error for the client. If the
    /// rollback fails too, the change may stand; the next leader has it whole or not at all.
    pub async fn roll_back(&self, opposite: Change, failed: KeepError) -> KeepError {
        let mut rolled_back = std::pin::pin!(self.write(opposite));
        let is_urgent = matches!(failed, KeepError::GivenUp);
        // Queued by the first poll. A reroute waits, so this does not wait for a busy store.
        let rolled_back = tokio::select! {
            biased;
            rolled_back = &mut rolled_back => rolled_back,
            () = std::future::ready(()), if is_urgent => return failed,
        };
        if let Err(reason) = rolled_back {
            tracing::warn!(%reason, error = %failed, "a change that failed may be stored all the same");
        }
        failed
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

        fn is_remote(&self) -> bool {
            true
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
    async fn an_interrupted_change_is_rolled_back_in_order() {
        let store = Gated::with(0);
        let journal = Journal::new(Arc::<Gated>::clone(&store), Lead::Alone);
        let error = journal
            .write_until(Change::Remove(vec![1]), std::future::ready(()))
            .await
            .unwrap_err();
        assert!(matches!(error, KeepError::GivenUp), "{error}");
        // The rollback does not wait for the store, and no later change overtakes it.
        let rolled_back = journal.roll_back(Change::Remove(vec![2]), error);
        assert!(rolled_back.now_or_never().is_some());
        let mut last = Box::pin(journal.write(Change::Remove(vec![3])));
        assert!(last.as_mut().now_or_never().is_none());
        store.permits.add_permits(3);
        last.await.unwrap();
        let applied = store.applied.lock().unwrap().clone();
        assert_eq!(applied, [1, 2, 3].map(|id| Change::Remove(vec![id])));
    }

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
        assert!(
            matches!(error, KeepError::Store(StoreError::NotLeader)),
            "{error}"
        );
        assert_eq!(store.applied.lock().unwrap().len(), 1);
    }
}
