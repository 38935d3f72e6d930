//! Storing the seats of jobs' members.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use ultima_planner::fabric::Fabric;
use ultima_planner::job::{JobId, JobPolicy};

use super::error::JobRequestError;
use super::journal::Journal;
use super::lock::lock;
use super::registry::Registry;
use crate::store::{Change, JobRecord, StoreError};

/// Writes seats to the store. A caller may be cancelled: a write that has begun is completed, and
/// one that waits is done later. While the store hangs there are two tasks at most: one that
/// writes, and one for all later writes.
#[derive(Clone)]
pub struct SeatKeeper {
    fabric: Arc<Fabric>,
    registry: Arc<Mutex<Registry>>,
    journal: Arc<Journal>,
    /// Held from reading the registry until the record is stored, so that records are stored in
    /// order.
    keeping: Arc<AsyncMutex<()>>,
    /// Jobs whose callers were cancelled or do not wait. A task waits to store them.
    later: Arc<Mutex<BTreeSet<JobId>>>,
}

/// Jobs whose caller waits to store them. If it is cancelled, they are stored later.
struct Waiting<'a> {
    keeper: &'a SeatKeeper,
    ids: Vec<JobId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.keeper.keep_later(mem::take(&mut self.ids));
    }
}

impl SeatKeeper {
    pub fn new(fabric: Arc<Fabric>, registry: Arc<Mutex<Registry>>, journal: Arc<Journal>) -> Self {
        SeatKeeper {
            fabric,
            registry,
            journal,
            keeping: Arc::default(),
            later: Arc::default(),
        }
    }

    /// Stores the seats of jobs in their present or a later state, all or none. One write serves many concurrent
    /// calls.
    pub async fn keep(&self, ids: &[JobId]) -> Result<(), JobRequestError> {
        let asked: Vec<(JobId, u64)> = self.with_registry(|registry| {
            let now = |id: &JobId| Some((*id, registry.get(*id)?.seats.changes()));
            ids.iter().filter_map(now).collect()
        });
        if asked.is_empty() {
            return Ok(());
        }
        let keeping = self.until_free(ids.to_vec()).await;
        let stale = self.with_registry(|registry| {
            let is_stale = |(id, asked): &(JobId, u64)| {
                let record = registry.get(*id)?;
                (record.seats.kept() < *asked).then(|| record.job.name.clone())
            };
            asked.iter().find_map(is_stale)
        });
        let Some(name) = stale else {
            return Ok(());
        };
        let stored = self.store(keeping, ids.to_vec()).await;
        stored.map_err(|error| JobRequestError::Store { name, error })
    }

    /// Stores the seats and trees of these jobs without a wait for the result.
    pub fn keep_later(&self, ids: impl IntoIterator<Item = JobId>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let begins = {
            let mut later = lock(&self.later);
            let was_empty = later.is_empty();
            later.extend(ids);
            was_empty && !later.is_empty()
        };
        if !begins {
            return;
        }
        let keeper = self.clone();
        runtime.spawn(async move {
            let _keeping = keeper.keeping.lock().await;
            let ids: Vec<JobId> = mem::take(&mut *lock(&keeper.later)).into_iter().collect();
            if let Err(error) = keeper.write(&ids).await {
                tracing::warn!(%error, "cannot store ranks, suspected members and trees of jobs");
            }
        });
    }

    /// Stores the seats and trees of these jobs.
    pub async fn keep_jobs(&self, ids: impl Iterator<Item = JobId>) -> Result<(), StoreError> {
        let ids: Vec<JobId> = ids.collect();
        let keeping = self.until_free(ids.clone()).await;
        self.store(keeping, ids).await
    }

    /// Waits until no other call stores.
    async fn until_free(&self, ids: Vec<JobId>) -> OwnedMutexGuard<()> {
        let mut waiting = Waiting { keeper: self, ids };
        let keeping = Arc::clone(&self.keeping).lock_owned().await;
        waiting.ids.clear();
        keeping
    }

    /// Stores jobs as they are now, on a task of its own: the caller may be cancelled.
    async fn store(&self, keeping: OwnedMutexGuard<()>, ids: Vec<JobId>) -> Result<(), StoreError> {
        let keeper = self.clone();
        let stored = tokio::spawn(async move {
            let _keeping = keeping;
            keeper.write(&ids).await
        });
        stored
            .await
            .expect("the store does not panic, and nothing cancels it")
    }

    async fn write(&self, ids: &[JobId]) -> Result<(), StoreError> {
        let (records, changes): (Vec<_>, Vec<_>) = self.with_registry(|registry| {
            let now = |id: &JobId| {
                let changes = registry.get(*id)?.seats.changes();
                Some((registry.record(&self.fabric, *id)?, (*id, changes)))
            };
            ids.iter().filter_map(now).unzip()
        });
        // The jobs may be gone.
        if records.is_empty() {
            return Ok(());
        }
        self.journal.write(Change::Update(records)).await?;
        self.with_registry(|registry| {
            for (id, change) in changes {
                if let Some(record) = registry.get_mut(id) {
                    record.seats.keep(change);
                }
            }
        });
        Ok(())
    }

    /// Stores the first operation of the next epoch, which becomes the job's current one. Seats
    /// that are stored at the same time see the result.
    pub async fn decide(&self, id: JobId, first: u32) -> Result<(), StoreError> {
        let change = |record: &mut JobRecord| {
            if let Some(origin) = &mut record.origin {
                origin.first_operation = Some(first);
            }
        };
        let done = |registry: &mut Registry| registry.decide(id, first);
        self.update(&[id], change, done).await
    }

    /// Stores another policy of epochs of a job. Seats that are stored at the same time see the result.
    pub async fn set_policy(&self, ids: &[JobId], policy: JobPolicy) -> Result<(), StoreError> {
        let change = |record: &mut JobRecord| record.set_policy(policy);
        let done = |registry: &mut Registry| registry.set_policy(&self.fabric, ids, policy);
        self.update(ids, change, done).await
    }

    /// Stores changed records of epochs that are installed, and then does the same in the registry.
    async fn update(
        &self,
        ids: &[JobId],
        change: impl Fn(&mut JobRecord),
        done: impl FnOnce(&mut Registry),
    ) -> Result<(), StoreError> {
        let _keeping = self.keeping.lock().await;
        let records = self.with_registry(|registry| {
            let of = |id: &JobId| registry.record(&self.fabric, *id);
            let mut records: Vec<JobRecord> = ids.iter().filter_map(of).collect();
            records.iter_mut().for_each(change);
            records
        });
        self.journal.write(Change::Update(records)).await?;
        self.with_registry(done);
        Ok(())
    }

    fn with_registry<T>(&self, look: impl FnOnce(&mut Registry) -> T) -> T {
        look(&mut lock(&self.registry))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::runtime::Handle;
    use tokio::task::yield_now;
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::job::JobSpec;
    use ultima_planner::program::Program;
    use ultima_planner::routing::Routes;

    use super::*;
    use crate::server::journal::{Lead, testing::Gated};
    use crate::server::seats::Attempt;

    /// A controller's state with jobs of these names, and their ids.
    fn with_jobs<const N: usize>(
        names: [&str; N],
    ) -> (Arc<Fabric>, Arc<Mutex<Registry>>, [JobId; N]) {
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = Arc::new(fabric::parse(text, "star4.yaml").unwrap());
        let program = Program::v1model().unwrap();
        let mut registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let ids = names.map(|name| {
            let spec = JobSpec::new(name, ["h1", "h2"]);
            let proposed = registry.propose(&fabric, program.names(), &spec).unwrap();
            let id = registry.reserve(&fabric, proposed).0.id;
            registry.add(id, None);
            id
        });
        (fabric, Arc::new(Mutex::new(registry)), ids)
    }

    /// Joins a rank of a job, on the host of the same number.
    fn join(registry: &Mutex<Registry>, id: JobId, rank: usize) {
        let mut registry = lock(registry);
        let record = registry.get_mut(id).unwrap();
        let host = record.job.members[rank].host;
        let taken = record.seats.take(host, Attempt(7)).unwrap();
        record.seats.join(taken.rank);
    }

    /// Also if the caller is cancelled, the store never has one without the other.
    #[tokio::test]
    async fn seats_of_two_epochs_are_stored_together() {
        let (fabric, registry, ids) = with_jobs(["one", "two"]);
        let store = Gated::with(0);
        let journal = Arc::new(Journal::new(Arc::<Gated>::clone(&store), Lead::Alone));
        let keeper = SeatKeeper::new(fabric, Arc::clone(&registry), journal);
        ids.iter().for_each(|id| join(&registry, *id, 0));
        assert!(keeper.keep(&ids).now_or_never().is_none());
        store.asked(1).await;
        store.permits.add_permits(1);
        // The cancelled call's write serves these, too.
        for id in ids {
            keeper.keep(&[id]).await.unwrap();
        }
        let applied = store.applied.lock().unwrap();
        let [Change::Update(records)] = &applied[..] else {
            panic!("expected one change: {applied:?}");
        };
        assert_eq!(records.len(), 2);
    }

    #[tokio::test]
    async fn calls_that_are_cancelled_while_the_store_hangs_leave_one_task() {
        let (fabric, registry, [id]) = with_jobs(["train"]);
        let store = Gated::with(0);
        let journal = Arc::new(Journal::new(Arc::<Gated>::clone(&store), Lead::Alone));
        let keeper = SeatKeeper::new(Arc::clone(&fabric), Arc::clone(&registry), journal);
        join(&registry, id, 0);
        assert!(keeper.keep(&[id]).now_or_never().is_none());
        store.asked(1).await;
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        join(&registry, id, 1);
        for _ in 0..1000 {
            assert!(keeper.keep(&[id]).now_or_never().is_none());
            assert!(keeper.keep_jobs([id].into_iter()).now_or_never().is_none());
            keeper.keep_later([id]);
        }
        yield_now().await;
        assert_eq!(tasks(), before + 1);

        store.permits.add_permits(2);
        keeper.keep(&[id]).await.unwrap();
        let applied = store.applied.lock().unwrap();
        let [_, Change::Update(last)] = &applied[..] else {
            panic!("expected two changes: {applied:?}");
        };
        let now = lock(&registry).record(&fabric, id).unwrap();
        assert_eq!(last[..], [now]);
    }
}
