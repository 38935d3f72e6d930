//! Who may change what switches should hold: one at a time, and a move before all others.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, watch};

use super::journal::{Journal, KeepError};
use crate::install::Clients;
use crate::p4rt::{Hurry, SwitchClient};
use crate::store::Change;

/// The right to change what switches should hold. Requests wait for it in the order in which they ask, a move only for whoever has it, and asks
/// that one to hurry.
#[derive(Default)]
pub struct ChangeLock {
    /// Held by whoever is next of all but moves: no more than one of them stands before a move.
    turn: Mutex<()>,
    changes: Mutex<()>,
    /// How many moves wait.
    moves: watch::Sender<usize>,
}

/// Held while what switches should hold is changed: one job at a time, and no switch comes back in between.
pub struct Turn<'a> {
    // Given back first: who is next then stands behind a move that waits.
    _next: Option<MutexGuard<'a, ()>>,
    _changes: MutexGuard<'a, ()>,
}

/// The turn of whoever makes way for moves.
pub struct Changes<'a> {
    turn: Turn<'a>,
    hurry: Hurry,
}

impl<'a> From<Changes<'a>> for Turn<'a> {
    fn from(changes: Changes<'a>) -> Self {
        changes.turn
    }
}

impl ChangeLock {
    /// Waits for all who have asked before.
    pub async fn take(&self) -> Changes<'_> {
        let next = self.turn.lock().await;
        Changes {
            turn: Turn {
                _next: Some(next),
                _changes: self.changes.lock().await,
            },
            hurry: Hurry::new(self.moves.subscribe()),
        }
    }

    /// For a move, which waits for as long as one switch that does not answer is waited for [at most](crate::p4rt::HURRIED), and makes way for
    /// nobody.
    pub async fn take_for_move(&self) -> Turn<'_> {
        let _waiting = Waiting::begin(&self.moves);
        Turn {
            _next: None,
            _changes: self.changes.lock().await,
        }
    }
}

/// A move that waits.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(moves: &'a watch::Sender<usize>) -> Self {
        moves.send_modify(|moves| *moves += 1);
        Waiting(moves)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|moves| *moves -= 1);
    }
}

impl Changes<'_> {
    /// The same connection, whose calls give up where a move waits for them.
    pub fn client(&self, client: &SwitchClient) -> Arc<SwitchClient> {
        Arc::new(client.hurried(self.hurry.clone()))
    }

    /// The same of several.
    pub fn clients(&self, clients: &Clients) -> Clients {
        let hurried = clients.iter();
        hurried
            .map(|(id, client)| (*id, self.client(client)))
            .collect()
    }

    /// Makes a change and waits until it may be promised, as long as no move waits.
    ///
    /// # Errors
    /// As [`Journal::write`].
    pub async fn write(&self, journal: &Journal, change: Change) -> Result<(), KeepError> {
        journal.write_until(change, self.hurry.gives_up()).await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;
    use crate::p4rt::Term;
    use crate::server::group::Shape;
    use crate::server::journal::Lead;
    use crate::store::{History, Store};

    #[tokio::test]
    async fn a_move_goes_before_requests_that_have_waited_longer() {
        let lock = ChangeLock::default();
        let held = lock.take().await;
        let mut first = Box::pin(lock.take());
        let mut second = Box::pin(lock.take());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        let mut moves = Box::pin(lock.take_for_move());
        assert!(moves.as_mut().now_or_never().is_none());
        drop(held);
        // Whoever is woken looks.
        assert!(first.as_mut().now_or_never().is_none());
        let moving = moves.as_mut().now_or_never().expect("it is first");
        assert!(first.as_mut().now_or_never().is_none());
        drop(moving);
        let held = first.as_mut().now_or_never().expect("it is next");
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_move_that_is_given_up_hurries_nobody() {
        let lock = ChangeLock::default();
        let held = lock.take().await;
        let mut moves = Box::pin(lock.take_for_move());
        assert!(moves.as_mut().now_or_never().is_none());
        assert_eq!(*lock.moves.borrow(), 1);
        drop(moves);
        assert_eq!(*lock.moves.borrow(), 0);
        drop(held);
    }

    /// One follows and stores nothing: what waits for its copy is refused as soon as a move waits for that.
    #[tokio::test]
    async fn a_copy_that_does_not_come_holds_up_no_move() {
        let lead = Lead {
            term: Term { number: 1, by: 1 },
            group: Shape {
                controllers: 2,
                copies: 1,
            },
            by_majority: true,
            outranked: watch::Sender::new(None),
        };
        let store = Arc::new(Store::in_memory().unwrap());
        let journal = Journal::new(store, lead, || true);
        let _feed = journal.follow(2, History::default()).await.unwrap();
        let lock = ChangeLock::default();
        // Where nobody waits the copy is waited for.
        let mut patient = Box::pin(journal.write(Change::Remove(vec![1])));
        while journal.history().unwrap().changes < 1 {
            assert!(patient.as_mut().now_or_never().is_none());
            yield_now().await;
        }
        let request = async {
            let changes = lock.take().await;
            changes.write(&journal, Change::Remove(vec![2])).await
        };
        let moves = async {
            while journal.history().unwrap().changes < 2 {
                yield_now().await;
            }
            drop(lock.take_for_move().await);
        };
        let both = async { tokio::join!(request, moves) };
        tokio::select! {
            biased;
            (refused, ()) = both => assert!(matches!(refused, Err(KeepError::GivenUp { .. }))),
            _ = patient => panic!("the copy is waited for, although a move waits"),
        }
    }
}
