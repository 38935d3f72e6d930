//! The leader's commit log: a change is committed once it is in the leader's store and in as many
//! others as the group demands.

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

/// Default of [`Lead::ack_timeout`].
pub const ACK_TIMEOUT: Duration = Duration::from_secs(3);
/// Changes that may wait for a follower. One that is further behind starts again from a snapshot.
const WAITING: usize = 1024;

/// The reason why a change is not committed.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too few controllers follow. Nothing was written.
    #[error(
        "only {following} of {copies} other controllers follow after {} s, so the change could not be stored; start the others", after.as_secs_f64()
    )]
    Followers {
        /// Controllers that follow.
        following: usize,
        /// Controllers that are needed.
        copies: usize,
        /// The time that they had.
        after: Duration,
    },
    /// Too few followers have stored the change.
    #[error(
        "only {stored} of {copies} other controllers have stored the change in time; start the others"
    )]
    Copies {
        /// Followers that have stored it.
        stored: usize,
        /// Followers that are needed.
        copies: usize,
    },
    /// A reroute interrupted the wait for followers.
    #[error(
        "{stored} of {copies} other controllers had stored the change when a reroute interrupted it; try again"
    )]
    GivenUp {
        /// Followers that had stored it.
        stored: usize,
        /// Followers that are needed.
        copies: usize,
    },
    /// Another controller leads, or may. Nothing was written.
    #[error("this controller no longer leads; ask the leader")]
    NotLeader,
    /// It is written here. The next leader may or may not have it.
    #[error(
        "another controller may have taken over without this change; ask the leader whether it has it"
    )]
    Unknown,
}

impl KeepError {
    /// True if the change may be committed all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, KeepError::Unknown)
    }
}

/// The reason why a controller cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum FollowRefusal {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// As many controllers follow as the group has.
    #[error(
        "all {followers} other controllers of this group already follow; name this one with --peers on all of them, or stop one"
    )]
    Crowded {
        /// Controllers that follow.
        followers: usize,
    },
    /// The controller does not lead.
    #[error("the controller does not lead")]
    NotLeader,
}

/// The conditions under which a controller leads.
pub struct Lead {
    /// Its term.
    pub term: Term,
    /// The number of controllers, and of the copies that a commit needs.
    pub group: Shape,
    /// How long followers may take to store a change.
    pub ack_timeout: Duration,
    /// True if it leads only while it is primary at more than half of the switches.
    pub by_majority: bool,
    /// A later term, as soon as one is known.
    pub outranked: watch::Sender<Option<Term>>,
}

impl Lead {
    /// Leads alone, without standbys.
    pub fn alone(term: Term) -> Self {
        Lead {
            term,
            group: Shape {
                controllers: 1,
                ..Shape::default()
            },
            ack_timeout: ACK_TIMEOUT,
            by_majority: false,
            outranked: watch::Sender::new(None),
        }
    }
}

/// A change on its way to the followers.
#[derive(Debug)]
pub struct Entry {
    /// The position of the store after it.
    pub at: History,
    /// The change.
    pub change: Change,
}

/// A follower.
struct Follower {
    queue: mpsc::Sender<Arc<Entry>>,
    /// The position up to which it has stored changes.
    stored: Option<History>,
}

/// What a new follower reads.
pub struct Feed {
    /// A snapshot; none if the follower's store is up to date.
    pub all: Option<(History, Stored)>,
    /// The changes since.
    pub changes: mpsc::Receiver<Arc<Entry>>,
}

/// The leader's store and its followers.
pub struct Journal {
    store: Arc<Store>,
    pub lead: Lead,
    /// True while the controller is primary at enough switches.
    leads: Box<dyn Fn() -> bool + Send + Sync>,
    /// Held from the commit of a change until it is in all queues, which keeps the order.
    order: AsyncMutex<()>,
    followers: Mutex<BTreeMap<u32, Follower>>,
    /// Notified when a follower has stored a change, and when the journal closes.
    changed: watch::Sender<()>,
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
            changed: watch::Sender::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// True while changes may be committed: no later term is known, and the switches accept this
    /// leader.
    pub fn leads(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
            && self.lead.outranked.borrow().is_none()
            && (self.leads)()
    }

    /// Records a later term, after which nothing is committed. Ignores terms so high that they must
    /// be forged.
    pub fn outrank(&self, later: Term) {
        if later > self.lead.term && !later.is_leap_from(self.lead.term) {
            self.lead.outranked.send_if_modified(|known| {
                let is_new = known.is_none_or(|known| later > known);
                if is_new {
                    *known = Some(later);
                }
                is_new
            });
            self.changed.send_replace(());
        }
    }

    /// Commits a change. A change that fails may still be stored, here or by followers.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub async fn write(&self, change: Change) -> Result<(), KeepError> {
        self.write_until(change, pending()).await
    }

    /// The same, but [given up](KeepError::GivenUp) when `end` completes.
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

    /// Waits until enough controllers follow. A request that waits first does not begin a change
    /// that cannot be committed.
    ///
    /// # Errors
    /// Too few follow.
    pub async fn followed(&self) -> Result<(), KeepError> {
        let after = self.lead.ack_timeout;
        let deadline = Instant::now() + after;
        let mut changed = self.changed.subscribe();
        let mut is_over = false;
        loop {
            let copies = self.lead.group.copies as usize;
            let following = self.following().len();
            // A controller that does not lead commits nothing anyway. The loss of switches sends
            // no notification, so it is also checked at the deadline.
            if following >= copies || !self.leads() {
                return Ok(());
            }
            if is_over {
                return Err(KeepError::Followers {
                    following,
                    copies,
                    after,
                });
            }
            is_over = timeout_at(deadline, changed.changed()).await.is_err();
        }
    }

    /// The error for a change that a reroute interrupted before anything was written.
    pub fn given_up(&self) -> KeepError {
        KeepError::GivenUp {
            stored: 0,
            copies: self.lead.group.copies as usize,
        }
    }

    /// The store's content.
    pub fn read(&self) -> Result<Stored, StoreError> {
        self.store.read()
    }

    /// Writes a change without waiting for followers.
    ///
    /// # Errors
    /// It cannot be written, or another controller leads.
    pub async fn commit(&self, change: Change) -> Result<History, KeepError> {
        let _order = self.order.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(KeepError::NotLeader);
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
                return Err(KeepError::NotLeader);
            }
            Err(error) => return Err(KeepError::Store(error)),
        };
        // A follower that has gone or reads too slowly starts again.
        self.followers()
            .retain(|_, follower| follower.queue.try_send(Arc::clone(&entry)).is_ok());
        Ok(entry.at)
    }

    async fn copied(&self, at: History, end: impl Future<Output = ()>) -> Result<(), KeepError> {
        let mut end = pin!(timeout(self.lead.ack_timeout, end));
        let mut changed = self.changed.subscribe();
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
                // A copy that arrives at the deadline counts.
                biased;
                // The sender is a field of `self`.
                _ = changed.changed() => {}
                ended = &mut end => return Err(match ended {
                    Ok(()) => KeepError::GivenUp { stored, copies },
                    Err(_) => KeepError::Copies { stored, copies },
                }),
            }
        }
    }

    /// The number of followers that have stored everything up to `at`.
    fn copies_of(&self, at: History) -> usize {
        let followers = self.followers();
        let have = |follower: &&Follower| follower.stored.is_some_and(|stored| stored >= at);
        followers.values().filter(have).count()
    }

    /// Adds a follower. A second call for the same controller replaces the first: it has lost its
    /// connection.
    ///
    /// # Errors
    /// The store cannot be read, the group has no further controller, or another controller leads.
    pub async fn follow(&self, controller: u32, known: History) -> Result<Feed, FollowRefusal> {
        let _order = self.order.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(FollowRefusal::NotLeader);
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
        self.changed.send_replace(());
        Ok(Feed { all, changes })
    }

    /// Records that a follower has stored everything up to `at`.
    pub fn stored(&self, controller: u32, at: History) {
        if let Some(follower) = self.followers().get_mut(&controller) {
            follower.stored = Some(at);
        }
        self.changed.send_replace(());
    }

    /// The position of the leader's store.
    pub fn history(&self) -> Result<History, StoreError> {
        self.store.history()
    }

    /// The leader's number.
    pub fn controller(&self) -> u32 {
        self.store.controller()
    }

    /// The followers, and the position of each.
    pub fn following(&self) -> Vec<(u32, Option<History>)> {
        let mut followers = self.followers();
        followers.retain(|_, follower| !follower.queue.is_closed());
        let stored = followers.iter().map(|(who, it)| (*who, it.stored));
        stored.collect()
    }

    /// Stops commits and ends the followers' streams.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.followers().clear();
        self.changed.send_replace(());
    }

    fn followers(&self) -> MutexGuard<'_, BTreeMap<u32, Follower>> {
        // No thread panics while it holds the lock.
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
