//! Before it leads, a controller lets as many others as needed accept its term, and learns from them what was promised.

use std::sync::Arc;

use futures_util::future::join_all;

use super::lookout::Lookout;
use super::member::Member;
use super::peer::ClaimError;
use crate::p4rt::Term;
use crate::store::{History, StoreError, Stored};

/// Why a controller does not lead although switches have no primary.
#[derive(Debug, thiserror::Error)]
pub enum NotClaimed {
    /// Too few others answer.
    #[error(
        "{granted} of {quorum} controllers have agreed that it leads{refusals}; start the others, or say --lead-anyway, by which promises may be lost"
    )]
    Quorum {
        /// How many, itself included.
        granted: usize,
        /// How many are needed.
        quorum: usize,
        /// What those said that did not.
        refusals: String,
    },
    /// Somebody has led, and nothing of that is known here or to those that have agreed: their disks are new.
    #[error(
        "switches have had a primary, and this controller's store is as new as those of the others that answer; start all others, among them the one that led, or say --lead-anyway, by which all that it promised is lost"
    )]
    New,
    /// A later primary has promised something that nobody here knows.
    #[error(
        "switches have had a primary of term {latest}, and what it promised is not known here; start that controller, or say --lead-anyway, by which that is lost"
    )]
    Unknown {
        /// Its term.
        latest: Term,
    },
    /// Another one has claimed a term meanwhile.
    #[error("another controller has claimed term {accepted}")]
    Late {
        /// That.
        accepted: Term,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Member {
    /// Claims the next term. If that is granted the store has whatever was promised before.
    pub(super) async fn claim(&self, lookout: &Lookout) -> Result<Term, NotClaimed> {
        let store = &self.store;
        let latest_seen = lookout.latest();
        let latest = latest_seen.unwrap_or_default();
        let term = Term {
            number: store.accepted()?.number.max(latest.number) + 1,
            by: store.controller(),
        };
        if !self.in_store(move |store| store.accept(term)).await? {
            let accepted = store.accepted()?;
            return Err(NotClaimed::Late { accepted });
        }
        let history = store.history()?;
        let claims = self.peers.iter().map(|peer| async move {
            let refused = |error: ClaimError| format!("; {}: {error}", peer.address);
            // Before, so that it had at least that when it was asked.
            let standing = peer
                .standing()
                .await
                .map_err(|error| refused(error.into()))?;
            let theirs = peer.claim(term, history).await.map_err(refused)?;
            Ok::<_, String>((peer, !standing.history.is_new(), theirs))
        });
        let (granted, refused): (Vec<_>, Vec<_>) =
            join_all(claims).await.into_iter().partition(Result::is_ok);
        let granted: Vec<_> = granted.into_iter().filter_map(Result::ok).collect();
        // A store in which nothing was ever changed may be on a disk that has replaced another one: it does not vouch for what was
        // promised. That does not matter where no other controller has led, or where all of the group agree.
        let others_led = latest_seen.is_some_and(|latest| latest.by != store.controller());
        let is_any_as_good = granted.len() == self.peers.len() || !others_led && history.is_new();
        let counts = |knows: bool| knows || is_any_as_good;
        let ours = counts(!history.is_new());
        let (granted, new): (Vec<_>, Vec<_>) = granted
            .into_iter()
            .partition(|(_, knows, _)| counts(*knows));
        let granted_by = granted.len() + usize::from(ours);
        let quorum = self.group.quorum();
        if granted_by == 0 && !self.group.lead_anyway {
            return Err(NotClaimed::New);
        }
        if granted_by < quorum && !self.group.lead_anyway {
            return Err(NotClaimed::Quorum {
                granted: granted_by,
                quorum,
                refusals: (refused.into_iter().filter_map(Result::err))
                    .chain(
                        (new.iter())
                            .map(|(peer, ..)| format!("; {}: its store is new", peer.address)),
                    )
                    .collect(),
            });
        }
        let theirs = granted.into_iter().filter_map(|(_, _, theirs)| theirs);
        let newest: Option<(History, Stored)> = theirs.max_by_key(|(at, _)| *at);
        if let Some((at, stored)) = newest {
            tracing::info!(%at, "taking what another controller has stored");
            let replace = move |store: &crate::store::Store| store.replace(Some(term), at, &stored);
            self.in_store(replace).await?;
        }
        // Where nothing is promised to be on others' disks, the last primary may be the only one that knows.
        let known = store.history()?.term;
        let is_known = self.group.copies > 0 || latest <= known;
        match is_known || self.group.lead_anyway {
            true => Ok(term),
            false => Err(NotClaimed::Unknown { latest }),
        }
    }

    /// Uses the store off the threads that others wait for.
    pub(super) async fn in_store<T: Send + 'static>(
        &self,
        use_it: impl FnOnce(&crate::store::Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let used = tokio::task::spawn_blocking(move || use_it(&store)).await;
        used.expect("the store does not panic, and nobody cancels it")
    }
}
