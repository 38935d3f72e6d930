//! Claiming a term: enough other controllers accept it, and the claimant copies what they have
//! stored.

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

/// The reason why a controller does not lead although the switches have no primary.
#[derive(Debug, thiserror::Error)]
pub enum NotClaimed {
    /// Another controller leads: the switches' answers are outdated, or it is about to notice.
    #[error("the controller at {address} leads; stop that one first")]
    Led {
        /// Its address.
        address: String,
    },
    /// Two controllers have the same number: one is named twice, this one is its own peer, or a
    /// store was copied.
    #[error(
        "the controller at {address} has the same number as {other}; name each other controller once with --peers, and give each controller its own --state"
    )]
    SameNumber {
        /// The first controller's address.
        address: String,
        /// The second controller.
        other: String,
    },
    /// Another controller has another number of controllers or copies, or another fabric or
    /// program.
    #[error("the controller at {address} is not of this group: {refusal}")]
    OtherGroup {
        /// Its address.
        address: String,
        /// The difference.
        refusal: String,
    },
    /// Too few controllers agree.
    #[error(
        "only {granted} of {quorum} controllers agree that this one leads{refusals}; start the others, or pass --force-lead (changes that only they have stored are lost)"
    )]
    Quorum {
        /// Controllers that agree, including this one.
        granted: usize,
        /// Controllers that are needed.
        quorum: usize,
        /// The answers of the others.
        refusals: String,
    },
    /// The switches had a primary, but all controllers that agree have empty stores: their disks
    /// are new.
    #[error(
        "this controller's store and those of all that answer are empty, but the switches already had a primary; start all others, among them the previous primary, or pass --force-lead (its jobs are lost)"
    )]
    New,
    /// A later primary may have committed changes that no store here has.
    #[error(
        "the switches had a primary of term {latest}, whose changes are not stored here; start that controller, or pass --force-lead (its changes are lost)"
    )]
    Unknown {
        /// That primary's term.
        latest: Term,
    },
    /// Another controller has claimed a term meanwhile.
    #[error("another controller has claimed term {accepted}")]
    Late {
        /// Its term.
        accepted: Term,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Another controller's vote: true if its store was ever changed, or why it does not agree.
type Vote = Result<bool, String>;

/// The claimant's conditions for counting votes.
struct Poll {
    /// True if its own store was ever changed.
    knows: bool,
    /// True if another controller has led.
    others_led: bool,
    lead_anyway: bool,
}

impl Member {
    /// Claims the next term. On success the store has every committed change.
    pub(super) async fn claim(&self, lookout: &Lookout) -> Result<Term, NotClaimed> {
        let store = &self.store;
        let (accepted, history) = (store.accepted()?, store.history()?);
        let seen = lookout.latest();
        // A forged term: its primary keeps that switch whatever this group claims.
        let seen = seen.filter(|latest| !latest.is_leap_from(accepted));
        let poll = Poll {
            knows: !history.is_new(),
            others_led: seen.is_some_and(|latest| latest.by != store.controller()),
            lead_anyway: self.lead_anyway.load(Ordering::Acquire),
        };
        // Before any of them accepts a term: a term without a leader would depose the leader for
        // nothing.
        let standings = peer::standings(&self.peers).await;
        self.check_numbers(&standings)?;
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
            tracing::info!(%at, "copying a newer store from another controller");
            let replace = move |store: &crate::store::Store| store.replace(term, at, &stored);
            self.in_store(replace).await?;
        }
        // Without copies, only the last leader may have its changes.
        let known = store.history()?.term;
        let is_known = self.group.copies > 0 || latest <= known;
        match is_known || poll.lead_anyway {
            true => Ok(term),
            false => Err(NotClaimed::Unknown { latest }),
        }
    }

    /// Refuses two controllers with the same number: they would count twice here and once
    /// elsewhere.
    fn check_numbers(&self, standings: &[Result<Standing, Status>]) -> Result<(), NotClaimed> {
        let mut known = BTreeMap::from([(self.store.controller(), "this one".to_owned())]);
        for (peer, standing) in self.peers.iter().zip(standings) {
            let Ok(standing) = standing else { continue };
            let other = format!("the one at {}", peer.address);
            if let Some(other) = known.insert(standing.controller, other) {
                let address = peer.address.clone();
                return Err(NotClaimed::SameNumber { address, other });
            }
        }
        Ok(())
    }

    /// Derives a vote from another controller's standing.
    fn vote_of(&self, peer: &Peer, standing: &Standing) -> Result<Vote, NotClaimed> {
        let address = || peer.address.clone();
        if standing.is_leader {
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

    /// Checks for a quorum.
    ///
    /// An empty store may be on a replaced disk, so it does not vouch for earlier commits. It
    /// counts if no other controller has led, or if the whole group agrees.
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
                Ok(_) => Some(refusal(peer, "its store is empty")),
                Err(refusal) => Some(refusal.clone()),
            });
        Err(NotClaimed::Quorum {
            granted,
            quorum,
            refusals: refusals.collect(),
        })
    }

    /// Accesses the store on a thread for blocking work.
    pub(super) async fn in_store<T: Send + 'static>(
        &self,
        use_it: impl FnOnce(&crate::store::Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let used = tokio::task::spawn_blocking(move || use_it(&store)).await;
        used.expect("the store does not panic, and nobody cancels it")
    }
}

/// One part of [`NotClaimed::Quorum`]'s list.
fn refusal(peer: &Peer, why: impl std::fmt::Display) -> String {
    format!("; {}: {why}", peer.address)
}
