//! Who may change what switches should hold: one at a time, and a move before all others, also one that only comes.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, MutexGuard};

use super::journal::{Journal, KeepError};
use crate::install::Clients;
use crate::p4rt::{Hurry, Queue, SwitchClient};
use crate::store::Change;

/// The right to change what switches should hold. Requests wait for it in the order in which they ask, a move only for whoever has it, and asks
/// that one to hurry.
#[derive(Default)]
pub struct ChangeLock {
    /// Held by whoever is next of all but moves: no more than one of them stands before a move.
    turn: Mutex<()>,
    changes: Mutex<()>,
    /// Moves that wait, and when the next one comes.
    moves: Queue,
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
    /// Waits for all who have asked before, and for the move that is [expected](Self::expect).
    pub async fn take(&self) -> Changes<'_> {
        let next = self.turn.lock().await;
        let changes = loop {
            self.moves.calm().await;
            let changes = self.changes.lock().await;
            // Another move may have gone on meanwhile.
            if self.moves.is_calm() {
                break changes;
            }
        };
        let turn = Turn {
            _next: Some(next),
            _changes: changes,
        };
        let hurry = self.moves.hurry();
        Changes { turn, hurry }
    }

    /// A move comes at that time, or none does, whatever was said before. What is under way has until then; what has not begun waits for it.
    pub fn expect(&self, at: Option<Instant>) {
        self.moves.expect(at.map(Into::into));
    }

    /// For a move, which waits for as long as a change may take that somebody waits for, and is taken back then, [at
    /// most](crate::p4rt::HURRIED), and makes way for nobody. One that was [expected](Self::expect) waits only for what is taken back.
    pub async fn take_for_move(&self) -> Turn<'_> {
        let _waiting = self.moves.wait();
        Turn {
            _next: None,
            _changes: self.changes.lock().await,
        }
    }
}

impl Changes<'_> {
    /// The same connection, whose calls are given up, all at one time, where a move waits for them.
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

    /// Waits for something, as long as no move waits; none where it is given up.
    pub async fn unless_hurried<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = wait => Some(done),
            () = self.hurry.gives_up() => None,
        }
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
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;
    use crate::server::journal::testing::primary_of_two;
    use crate::store::History;

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

    /// Who has the turn goes on, and is the last one before the move.
    #[tokio::test]
    async fn nobody_begins_before_a_move_that_is_expected() {
        let lock = ChangeLock::default();
        let held = lock.take().await;
        let mut next = Box::pin(lock.take());
        assert!(next.as_mut().now_or_never().is_none());
        let comes = Instant::now() + Duration::from_secs(3600);
        lock.expect(Some(comes));
        drop(held);
        assert!(next.as_mut().now_or_never().is_none());
        let moving = lock.take_for_move().now_or_never();
        assert!(moving.is_some(), "nobody has begun");
        drop(moving);
        assert!(next.as_mut().now_or_never().is_none());
        // It is called off, or has been made.
        lock.expect(None);
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_move_that_is_given_up_hurries_nobody() {
        let lock = ChangeLock::default();
        let held = lock.take().await;
        let mut moves = Box::pin(lock.take_for_move());
        assert!(moves.as_mut().now_or_never().is_none());
        assert_eq!(lock.moves.count(), 1);
        drop(moves);
        assert_eq!(lock.moves.count(), 0);
        drop(held);
    }

    /// One follows and stores nothing: what waits for its copy is refused as soon as a move waits for that.
    #[tokio::test]
    async fn a_copy_that_does_not_come_holds_up_no_move() {
        let journal = primary_of_two(|| true);
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
