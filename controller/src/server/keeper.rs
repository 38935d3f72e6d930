//! Keeping in the store how a job's members stand.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use super::error::JobRequestError;
use super::journal::{Journal, KeepError};
use super::registry::Registry;
use crate::fabric::Fabric;
use crate::job::JobId;
use crate::store::Change;

/// Writes seats to the store, on tasks of its own: whoever asks for it may go away meanwhile.
#[derive(Clone)]
pub struct SeatKeeper {
    fabric: Arc<Fabric>,
    registry: Arc<Mutex<Registry>>,
    journal: Arc<Journal>,
    /// Held from looking at what is to be kept until it is, so that the latest is kept.
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

    /// Keeps them as they are now, or later. Many who ask at once are served by one write.
    pub async fn keep(&self, id: JobId) -> Result<(), JobRequestError> {
        let keeper = self.clone();
        let kept = tokio::spawn(async move { keeper.keep_now(id).await });
        kept.await
            .expect("the store does not panic, and nobody cancels it")
    }

    /// The same where nobody waits for it.
    pub fn keep_later(&self, id: JobId) {
        let keeper = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = keeper.keep_now(id).await {
                    tracing::warn!(%error, "a rank that was given up is not kept so");
                }
            });
        }
    }

    /// Keeps these jobs as they are now, seats and trees. Nothing of that is promised to anybody, so that nobody waits for copies of it.
    pub async fn keep_jobs(&self, ids: impl Iterator<Item = JobId>) -> Result<(), KeepError> {
        let (keeper, ids) = (self.clone(), ids.collect::<Vec<_>>());
        let kept = tokio::spawn(async move {
            let _keeping = keeper.keeping.lock().await;
            let records = keeper.with_registry(|registry| {
                let of = |id: &JobId| registry.record(&keeper.fabric, *id);
                ids.iter().filter_map(of).collect()
            });
            let kept = keeper.journal.commit(Change::Update(records)).await;
            kept.map(|_| ())
        });
        kept.await
            .expect("the store does not panic, and nobody cancels it")
    }

    /// Nothing is kept from now on, until this is dropped.
    pub async fn hold(&self) -> MutexGuard<'_, ()> {
        self.keeping.lock().await
    }

    /// Keeps `first` as the first operation of an epoch that comes, whose job is in it from then on. Seats that are kept at the same time
    /// know of it.
    pub async fn decide(&self, id: JobId, first: u32) -> Result<(), KeepError> {
        let _keeping = self.keeping.lock().await;
        let record = self.with_registry(|registry| registry.record(&self.fabric, id));
        let Some(mut record) = record else {
            return Ok(());
        };
        if let Some(origin) = &mut record.origin {
            origin.first_operation = Some(first);
        }
        self.journal.write(Change::Update(vec![record])).await?;
        self.with_registry(|registry| registry.decide(id, first));
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
        // Nothing panics while it holds the lock, and no change has a half.
        look(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::routing::Routes;
    use crate::server::journal::testing::primary_of_two;

    /// Trees that follow a failure are no promise: they do not wait for who stands by.
    #[tokio::test]
    async fn jobs_are_kept_also_where_nobody_makes_copies() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = Arc::new(crate::fabric::parse(text, "two.yaml").unwrap());
        let routes = Routes::new(&fabric, Default::default());
        let registry = Arc::new(Mutex::new(Registry::new(&fabric, routes)));
        let journal = primary_of_two(|| true);
        let keeper = SeatKeeper::new(fabric, registry, Arc::clone(&journal));
        // What is put back with a job that could not be removed is what was kept last.
        let held = keeper.hold().await;
        let mut kept = Box::pin(keeper.keep_jobs(std::iter::empty()));
        assert!(timeout(Duration::from_millis(50), &mut kept).await.is_err());
        assert_eq!(journal.history().unwrap().changes, 0);
        drop(held);
        kept.await.unwrap();
        assert_eq!(journal.history().unwrap().changes, 1);
    }
}
