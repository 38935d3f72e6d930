//! Before it leads, a controller lets as many others as needed accept its term, and learns from them what was promised.

use std::sync::Arc;

use futures_util::future::join_all;

use super::lookout::Lookout;
use super::member::Member;
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
        let latest = lookout.latest();
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
            let claimed = peer.claim(term, history).await;
            claimed.map_err(|error| format!("; {}: {error}", peer.address))
        });
        let (granted, refused): (Vec<_>, Vec<_>) =
            join_all(claims).await.into_iter().partition(Result::is_ok);
        let (granted_by, quorum) = (granted.len() + 1, self.group.quorum());
        if granted_by < quorum && !self.group.lead_anyway {
            return Err(NotClaimed::Quorum {
                granted: granted_by,
                quorum,
                refusals: refused.into_iter().filter_map(Result::err).collect(),
            });
        }
        let theirs = granted.into_iter().filter_map(Result::ok).flatten();
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
