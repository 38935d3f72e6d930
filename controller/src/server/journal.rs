//! What a primary promises: it is on its own disk, and on as many others' as were asked for.

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::group::Shape;
use crate::p4rt::Term;
use crate::store::{Change, History, Store, StoreError, Stored};

/// How long those who follow may take to store a change.
const PATIENCE: Duration = Duration::from_secs(3);
/// Changes that may wait for one who follows; whoever is further behind begins anew.
const WAITING: usize = 1024;

/// Why a change is not promised.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too few others follow. Nothing was written.
    #[error(
        "{following} of {copies} other controllers are there to store it after {} s; start them", PATIENCE.as_secs()
    )]
    Followers {
        /// How many do.
        following: usize,
        /// How many are to.
        copies: usize,
    },
    /// Too few others have stored it.
    #[error("{stored} of {copies} other controllers have stored it in time; start them")]
    Copies {
        /// How many have.
        stored: usize,
        /// How many were to.
        copies: usize,
    },
    /// Others had not stored it yet when somebody waited who cannot.
    #[error(
        "{stored} of {copies} other controllers had stored it when trees had to move; ask again"
    )]
    GivenUp {
        /// How many had.
        stored: usize,
        /// How many were to.
        copies: usize,
    },
    /// Another controller leads, or may. Nothing was written.
    #[error("this controller is not the primary any more; ask the one that is")]
    NotPrimary,
    /// It is written here, and who leads next may have it or not.
    #[error(
        "another controller may have taken over before it had this; ask the one that is primary what there is"
    )]
    Unknown,
}

impl KeepError {
    /// Whether the change may stand all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, KeepError::Unknown)
    }
}

/// Why somebody does not follow.
#[derive(Debug, thiserror::Error)]
pub enum FollowRefusal {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// As many follow as there are.
    #[error(
        "{followers} others follow already, which are all of this group; name this one with --peers, too, or wait until one has gone"
    )]
    Crowded {
        /// How many do.
        followers: usize,
    },
    /// Another controller leads, or may.
    #[error("it is not primary")]
    NotPrimary,
}

/// Under what a controller leads.
pub struct Lead {
    /// Since when.
    pub term: Term,
    /// How many controllers there are, and how many others are to have stored what it promises.
    pub group: Shape,
    /// Whether it leads only while it is primary at more than half of the switches.
    pub by_majority: bool,
    /// A later term, as soon as one is known.
    pub outranked: watch::Sender<Option<Term>>,
}

impl Lead {
    /// One controller leads, as nobody stands by.
    pub fn alone(term: Term) -> Self {
        Lead {
            term,
            group: Shape {
                controllers: 1,
                ..Shape::default()
            },
            by_majority: false,
            outranked: watch::Sender::new(None),
        }
    }
}

/// A change on its way to who follows.
#[derive(Debug)]
pub struct Entry {
    /// How far a store is that has made it.
    pub at: History,
    /// The change.
    pub change: Change,
}

/// Somebody who follows, by the queue that it reads.
struct Follower {
    queue: mpsc::Sender<Arc<Entry>>,
    /// What it says that it has stored.
    stored: Option<History>,
}

/// What is needed to catch up, and what comes then.
pub struct Feed {
    /// All that there is; none for who has it.
    pub all: Option<(History, Stored)>,
    /// Every change since.
    pub changes: mpsc::Receiver<Arc<Entry>>,
}

/// The primary's store, and those who follow it.
pub struct Journal {
    store: Arc<Store>,
    pub lead: Lead,
    /// Whether it leads at switches.
    leads: Box<dyn Fn() -> bool + Send + Sync>,
    /// Held from making a change until it is on its way to all who follow, so that they get them in order.
    order: AsyncMutex<()>,
    followers: Mutex<BTreeMap<u32, Follower>>,
    /// That somebody has stored something, or it is closed.
    news: watch::Sender<()>,
    closed: AtomicBool,
}

impl Journal {
    pub fn new(
        store: Arc<Store>,
        lead: Lead,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Journal {
            store,
            lead,
            leads: Box::new(leads),
            order: AsyncMutex::default(),
            followers: Mutex::default(),
            news: watch::Sender::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether what it writes may be promised: nobody is known to lead since, and switches obey.
    pub fn leads(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
            && self.lead.outranked.borrow().is_none()
            && (self.leads)()
    }

    /// A later term is known: nothing is promised any more.
    pub fn outrank(&self, later: Term) {
        if later > self.lead.term && !later.is_leap_from(self.lead.term) {
            self.lead.outranked.send_if_modified(|known| {
                let is_new = known.is_none_or(|known| later > known);
                if is_new {
                    *known = Some(later);
                }
                is_new
            });
            self.news.send_replace(());
        }
    }

    /// Makes a change and waits until it may be promised. What is not promised may be kept all the same, by some or all.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub async fn write(&self, change: Change) -> Result<(), KeepError> {
        self.write_until(change, pending()).await
    }

    /// The same, unless `end` comes first: then it is [given up](KeepError::GivenUp).
    ///
    /// # Errors
    /// See [`KeepError`].
    pub async fn write_until(
        &self,
        change: Change,
        end: impl Future<Output = ()>,
    ) -> Result<(), KeepError> {
        let at = self.commit(change).await?;
        self.copied(at, end).await
    }

    /// Waits until as many follow as are to store what is promised. Who asks first begins nothing that cannot be promised, as far as is known.
    ///
    /// # Errors
    /// There are too few.
    pub async fn followed(&self) -> Result<(), KeepError> {
        let deadline = Instant::now() + PATIENCE;
        let mut news = self.news.subscribe();
        let mut is_over = false;
        loop {
            let copies = self.lead.group.copies as usize;
            let following = self.following().len();
            // One that does not lead promises nothing anyhow. Nobody tells that it does not: it is looked at in the end, too.
            if following >= copies || !self.leads() {
                return Ok(());
            }
            if is_over {
                return Err(KeepError::Followers { following, copies });
            }
            is_over = timeout_at(deadline, news.changed()).await.is_err();
        }
    }

    /// Why a change is not promised of which nothing was written, as somebody waited who cannot.
    pub fn given_up(&self) -> KeepError {
        KeepError::GivenUp {
            stored: 0,
            copies: self.lead.group.copies as usize,
        }
    }

    /// All that is stored.
    pub fn read(&self) -> Result<Stored, StoreError> {
        self.store.read()
    }

    /// Makes a change without waiting for others to store it.
    ///
    /// # Errors
    /// It cannot be written, or another controller leads.
    pub async fn commit(&self, change: Change) -> Result<History, KeepError> {
        let _order = self.order.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(KeepError::NotPrimary);
        }
        let (store, term) = (Arc::clone(&self.store), self.lead.term);
        let committed = tokio::task::spawn_blocking(move || {
            let at = store.commit(term, &change)?;
            Ok(Entry { at, change })
        });
        let committed = committed
            .await
            .expect("the store does not panic, and nobody cancels it");
        let entry = match committed {
            Ok(entry) => Arc::new(entry),
            Err(StoreError::Outdated { accepted, .. }) => {
                self.outrank(accepted);
                return Err(KeepError::NotPrimary);
            }
            Err(error) => return Err(KeepError::Store(error)),
        };
        // Who does not read in time, or has gone, begins anew.
        self.followers()
            .retain(|_, follower| follower.queue.try_send(Arc::clone(&entry)).is_ok());
        Ok(entry.at)
    }

    async fn copied(&self, at: History, end: impl Future<Output = ()>) -> Result<(), KeepError> {
        let mut end = pin!(timeout(PATIENCE, end));
        let mut news = self.news.subscribe();
        loop {
            let copies = self.lead.group.copies as usize;
            let stored = self.copies_of(at);
            if !self.leads() {
                return Err(KeepError::Unknown);
            }
            if stored >= copies {
                return Ok(());
            }
            tokio::select! {
                // What has been stored by the end counts.
                biased;
                // The sender is ours.
                _ = news.changed() => {}
                ended = &mut end => return Err(match ended {
                    Ok(()) => KeepError::GivenUp { stored, copies },
                    Err(_) => KeepError::Copies { stored, copies },
                }),
            }
        }
    }

    /// How many others have stored what was made at `at`.
    fn copies_of(&self, at: History) -> usize {
        let followers = self.followers();
        let have = |follower: &&Follower| follower.stored.is_some_and(|stored| stored >= at);
        followers.values().filter(have).count()
    }

    /// Somebody follows from now on. A second time it takes the place of the first: it has lost its connection.
    ///
    /// # Errors
    /// The store cannot be read, as many follow as there are others, or another controller leads.
    pub async fn follow(&self, controller: u32, known: History) -> Result<Feed, FollowRefusal> {
        let _order = self.order.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(FollowRefusal::NotPrimary);
        }
        let following = self.following();
        let others = following.iter().filter(|(who, _)| *who != controller);
        let (followers, all) = (others.count(), self.lead.group.controllers as usize);
        if followers + 1 >= all {
            return Err(FollowRefusal::Crowded { followers });
        }
        let store = Arc::clone(&self.store);
        let read = tokio::task::spawn_blocking(move || match store.history()? == known {
            true => Ok::<_, StoreError>(None),
            false => store.snapshot().map(Some),
        });
        let all = read
            .await
            .expect("the store does not panic, and nobody cancels it")?;
        let (queue, changes) = mpsc::channel(WAITING);
        let stored = all.is_none().then_some(known);
        let follower = Follower { queue, stored };
        self.followers().insert(controller, follower);
        self.news.send_replace(());
        Ok(Feed { all, changes })
    }

    /// Who follows has stored everything up to `at`.
    pub fn stored(&self, controller: u32, at: History) {
        if let Some(follower) = self.followers().get_mut(&controller) {
            follower.stored = Some(at);
        }
        self.news.send_replace(());
    }

    /// How far the primary's own store is.
    pub fn history(&self) -> Result<History, StoreError> {
        self.store.history()
    }

    /// The primary's number.
    pub fn controller(&self) -> u32 {
        self.store.controller()
    }

    /// Who follows, and what each has stored.
    pub fn following(&self) -> Vec<(u32, Option<History>)> {
        let mut followers = self.followers();
        followers.retain(|_, follower| !follower.queue.is_closed());
        let stored = followers.iter().map(|(who, it)| (*who, it.stored));
        stored.collect()
    }

    /// Writes nothing any more; who follows is told by the end of its stream.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.followers().clear();
        self.news.send_replace(());
    }

    fn followers(&self) -> MutexGuard<'_, BTreeMap<u32, Follower>> {
        // Nothing panics while it holds the lock.
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
