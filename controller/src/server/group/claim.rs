//! Before it leads, a controller lets as many others as needed accept its term, and learns from them what was promised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tonic::Status;

use super::lookout::Lookout;
use super::member::Member;
use super::peer::{self, Peer, Standing};
use crate::p4rt::Term;
use crate::store::{History, StoreError, Stored};

/// Why a controller does not lead although switches have no primary.
#[derive(Debug, thiserror::Error)]
pub enum NotClaimed {
    /// Another one leads: what switches say is not so any more, or it is about to notice.
    #[error("the controller at {address} is primary; stop that one first")]
    Led {
        /// Where that is.
        address: String,
    },
    /// Two controllers have the same number, or one is named twice, or this one asks itself.
    #[error(
        "the controller at {address} has the same number as {other}; name each of the others once with --peers, and give none a copy of another one's --state"
    )]
    Twin {
        /// Where the one is.
        address: String,
        /// Which is the other.
        other: String,
    },
    /// Another one counts otherwise, or has another fabric or program.
    #[error("the controller at {address} says: {refusal}")]
    OtherGroup {
        /// Where that is.
        address: String,
        /// In what.
        refusal: String,
    },
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

/// What one of the others says: whether anything was ever kept in its store, or why it does not agree.
type Vote = Result<bool, String>;

/// What this controller goes by when it counts votes.
struct Poll {
    /// Whether anything was ever kept in its own store.
    knows: bool,
    /// Whether another controller has led.
    others_led: bool,
    lead_anyway: bool,
}

impl Member {
    /// Claims the next term. If that is granted the store has whatever was promised before.
    pub(super) async fn claim(&self, lookout: &Lookout) -> Result<Term, NotClaimed> {
        let store = &self.store;
        let (accepted, history) = (store.accepted()?, store.history()?);
        let seen = lookout.latest();
        // Whoever bids so high is none of us, and leads at that switch whatever we claim.
        let seen = seen.filter(|latest| !latest.is_leap_from(accepted));
        let poll = Poll {
            knows: !history.is_new(),
            others_led: seen.is_some_and(|latest| latest.by != store.controller()),
            lead_anyway: self.lead_anyway.load(Ordering::Acquire),
        };
        // Asked before they are to accept anything: a term in which nobody leads then costs the primary its own.
        let standings = peer::standings(&self.peers).await;
        self.tell_apart(&standings)?;
        let votes = (self.peers.iter().zip(&standings)).map(|(peer, standing)| match standing {
            Ok(standing) => self.vote_of(peer, standing),
            Err(status) => Ok(Err(refusal(peer, status.message()))),
        });
        let votes = votes.collect::<Result<Vec<Vote>, _>>()?;
        self.count(&poll, &votes)?;

        let latest = seen.unwrap_or_default();
        let term = Term {
            number: accepted.number.max(latest.number).saturating_add(1),
            by: store.controller(),
        };
        if !self.in_store(move |store| store.accept(term)).await? {
            let accepted = store.accepted()?;
            return Err(NotClaimed::Late { accepted });
        }
        let asked = self.peers.iter().zip(votes);
        let granted = join_all(asked.map(|(peer, vote)| async move {
            let knows = vote?;
            let claimed = peer.claim(term, history, self.shape).await;
            let theirs = claimed.map_err(|error| refusal(peer, &error))?;
            Ok((knows, theirs))
        }))
        .await;
        let (votes, theirs): (Vec<Vote>, Vec<_>) = (granted.into_iter())
            .map(|granted: Result<_, String>| match granted {
                Ok((knows, theirs)) => (Ok(knows), theirs),
                Err(refusal) => (Err(refusal), None),
            })
            .unzip();
        self.count(&poll, &votes)?;
        let theirs = theirs.into_iter().flatten();
        let newest: Option<(History, Stored)> = theirs.max_by_key(|(at, _)| *at);
        if let Some((at, stored)) = newest {
            tracing::info!(%at, "taking what another controller has stored");
            let replace = move |store: &crate::store::Store| store.replace(term, at, &stored);
            self.in_store(replace).await?;
        }
        // Where nothing is promised to be on others' disks, the last primary may be the only one that knows.
        let known = store.history()?.term;
        let is_known = self.group.copies > 0 || latest <= known;
        match is_known || poll.lead_anyway {
            true => Ok(term),
            false => Err(NotClaimed::Unknown { latest }),
        }
    }

    /// Two with one number would count as one here, and as two there.
    fn tell_apart(&self, standings: &[Result<Standing, Status>]) -> Result<(), NotClaimed> {
        let mut known = BTreeMap::from([(self.store.controller(), "this one".to_owned())]);
        for (peer, standing) in self.peers.iter().zip(standings) {
            let Ok(standing) = standing else { continue };
            let other = format!("the one at {}", peer.address);
            if let Some(other) = known.insert(standing.controller, other) {
                let address = peer.address.clone();
                return Err(NotClaimed::Twin { address, other });
            }
        }
        Ok(())
    }

    /// What is made of how another one stands.
    fn vote_of(&self, peer: &Peer, standing: &Standing) -> Result<Vote, NotClaimed> {
        let address = || peer.address.clone();
        if standing.is_primary {
            return Err(NotClaimed::Led { address: address() });
        }
        if let Some(refusal) = standing.shape.refusal_of(self.shape) {
            return Err(NotClaimed::OtherGroup {
                address: address(),
                refusal,
            });
        }
        Ok(Ok(!standing.history.is_new()))
    }

    /// Whether so many agree as are needed.
    ///
    /// A store in which nothing was ever changed may be on a disk that has replaced another one: it does not vouch for what was
    /// promised. That does not matter where no other controller has led, or where all of the group agree.
    fn count(&self, poll: &Poll, votes: &[Vote]) -> Result<(), NotClaimed> {
        let agree = votes.iter().filter(|vote| vote.is_ok()).count();
        let is_any_as_good = agree == self.peers.len() || !poll.others_led && !poll.knows;
        let counts = |knows: bool| knows || is_any_as_good;
        let others = votes.iter().flatten().filter(|knows| counts(**knows));
        let granted = others.count() + usize::from(counts(poll.knows));
        let quorum = self.group.quorum();
        if poll.lead_anyway || granted >= quorum {
            return Ok(());
        }
        if granted == 0 {
            return Err(NotClaimed::New);
        }
        let refusals = self
            .peers
            .iter()
            .zip(votes)
            .filter_map(|(peer, vote)| match vote {
                Ok(knows) if counts(*knows) => None,
                Ok(_) => Some(refusal(peer, "its store is new")),
                Err(refusal) => Some(refusal.clone()),
            });
        Err(NotClaimed::Quorum {
            granted,
            quorum,
            refusals: refusals.collect(),
        })
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

/// As one of those in [`NotClaimed::Quorum`].
fn refusal(peer: &Peer, why: impl std::fmt::Display) -> String {
    format!("; {}: {why}", peer.address)
}
