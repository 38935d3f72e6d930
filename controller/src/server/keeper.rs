//! Storing the seats of jobs' members.

use std::sync::{Arc, Mutex};

use tokio::sync::Mutex as AsyncMutex;
use ultima_planner::fabric::Fabric;
use ultima_planner::job::{JobId, JobPolicy};

use super::error::JobRequestError;
use super::journal::Journal;
use super::lock::lock;
use super::registry::Registry;
use crate::store::{Change, JobRecord, StoreError};

/// Writes seats to the store, on tasks of its own: a caller may be cancelled.
#[derive(Clone)]
pub struct SeatKeeper {
    fabric: Arc<Fabric>,
    registry: Arc<Mutex<Registry>>,
    journal: Arc<Journal>,
    /// Held from reading the registry until the record is stored, so that records are stored in
    /// order.
    keeping: Arc<AsyncMutex<()>>,
}

impl SeatKeeper {
    pub fn new(fabric: Arc<Fabric>, registry: Arc<Mutex<Registry>>, journal: Arc<Journal>) -> Self {
        SeatKeeper {
            fabric,
            registry,
            journal,
            keeping: Arc::default(),
        }
    }

    /// Stores a job's seats in their present or a later state. One write serves many concurrent
    /// calls.
    pub async fn keep(&self, id: JobId) -> Result<(), JobRequestError> {
        let keeper = self.clone();
        let kept = tokio::spawn(async move { keeper.keep_now(id).await });
        kept.await
            .expect("the store does not panic, and nothing cancels it")
    }

    /// The same without waiting for the result.
    pub fn keep_later(&self, id: JobId) {
        let keeper = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = keeper.keep_now(id).await {
                    tracing::warn!(%error, "cannot store that a rank was given up");
                }
            });
        }
    }

    /// Stores the seats and trees of these jobs.
    pub async fn keep_jobs(&self, ids: impl Iterator<Item = JobId>) -> Result<(), StoreError> {
        let (keeper, ids) = (self.clone(), ids.collect::<Vec<_>>());
        let kept = tokio::spawn(async move { keeper.update(&ids, |_| {}, |_| {}).await });
        kept.await
            .expect("the store does not panic, and nothing cancels it")
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

    async fn keep_now(&self, id: JobId) -> Result<(), JobRequestError> {
        let asked = match self.with_registry(|registry| Some(registry.get(id)?.seats.changes())) {
            Some(asked) => asked,
            None => return Ok(()),
        };
        let _keeping = self.keeping.lock().await;
        let now = self.with_registry(|registry| {
            let seats = &registry.get(id)?.seats;
            let stale = seats.kept() < asked;
            stale.then(|| Some((registry.record(&self.fabric, id)?, seats.changes())))?
        });
        let Some((record, change)) = now else {
            return Ok(());
        };
        let name = record.name.clone();
        let written = self.journal.write(Change::Update(vec![record])).await;
        written.map_err(|error| JobRequestError::Store { name, error })?;
        self.with_registry(|registry| {
            if let Some(record) = registry.get_mut(id) {
                record.seats.keep(change);
            }
        });
        Ok(())
    }

    fn with_registry<T>(&self, look: impl FnOnce(&mut Registry) -> T) -> T {
        look(&mut lock(&self.registry))
    }
}
