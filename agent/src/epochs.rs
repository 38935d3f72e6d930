//! A rank's transition from one epoch of its job to the next, between the controller's messages and the
//! rank's operations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use ultima_api::member_session;
use ultima_api::operation_gate::{Admission, DECISION_TIMEOUT, OperationGate};
use ultima_api::v1::{BeginEpoch, PrepareEpoch, prepare_epoch};

use crate::{Departure, Membership, Token};

/// A rank's place in the next epoch.
#[derive(Debug)]
pub enum Next<T> {
    /// The resources that it opened for the new epoch.
    Place(T),
    /// It has no place there, for this reason.
    LeftOut(String),
}

/// The epoch of an operation.
#[derive(Debug)]
pub enum Go<T> {
    /// It starts in this epoch.
    Begin,
    /// It is the first operation of the new epoch.
    Over(Next<T>),
    /// It has no epoch, for this reason.
    Nowhere(String),
}

/// A rank's operations in one epoch, and its resources for the next one. Clones share their state.
#[derive(Debug)]
pub struct Epochs<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    /// Notifies of changes of the state.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State<T> {
    gate: OperationGate,
    /// With the number of the change that it belongs to.
    next: Option<(u16, Next<T>)>,
    /// The reason that the epoch has ended, if this rank was not notified before.
    over: Option<String>,
    /// True if the controller refuses this rank.
    refused: bool,
    /// The reason that the job's operations cannot begin.
    cannot_begin: Option<String>,
}

impl<T> Clone for Epochs<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Epochs<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Epochs<T> {
    /// Creates an epoch without operations.
    pub fn new() -> Self {
        let state = State {
            gate: OperationGate::default(),
            next: None,
            over: None,
            refused: false,
            cannot_begin: None,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            changed: watch::Sender::default(),
        }))
    }

    /// Sets the rank's first operation.
    pub fn starts_at(&self, operation: u32) {
        self.change(|state| state.gate.start_at(operation));
    }

    /// Returns the epoch of an operation, and blocks until it is known. Call it for operations in their
    /// order.
    ///
    /// # Panics
    /// Outside of the runtime, or on a thread of it that must not block.
    pub fn go(&self, operation: u32) -> Go<T> {
        let mut changed = self.0.changed.subscribe();
        loop {
            {
                let mut state = self.lock();
                match state.gate.admit(operation) {
                    Admission::Begin if state.over.is_none() => return Go::Begin,
                    Admission::NextEpoch => {
                        if let Some((_, next)) = state.next.take() {
                            return Go::Over(next);
                        }
                    }
                    Admission::Begin | Admission::Wait => {}
                }
                if let Some(reason) = &state.over {
                    return Go::Nowhere(reason.clone());
                }
            }
            let notified = Handle::current().block_on(timeout(DECISION_TIMEOUT, changed.changed()));
            if notified.is_err() {
                let waited = DECISION_TIMEOUT.as_secs();
                return Go::Nowhere(format!(
                    "the controller did not assign operation {operation} to an epoch within {waited} s"
                ));
            }
        }
    }

    /// Waits until the rank must leave the epoch, even if it has started no operation in it. Returns its place in the next one.
    ///
    /// # Errors
    /// It has none.
    pub async fn over_before_it_began(&self) -> Result<T, Departure> {
        let mut changed = self.0.changed.subscribe();
        loop {
            {
                let mut state = self.lock();
                if state.gate.is_over(0)
                    && let Some((_, next)) = state.next.take()
                {
                    return match next {
                        Next::Place(next) => Ok(next),
                        Next::LeftOut(why) => Err(Departure::LeftOut(why)),
                    };
                }
                if let Some(reason) = &state.over {
                    let departure = match state.refused {
                        true => Departure::LeftOut,
                        false => Departure::Ended,
                    };
                    return Err(departure(reason.clone()));
                }
                // The last: it does not matter to a rank with a place in the next epoch.
                if let Some(reason) = &state.cannot_begin {
                    return Err(Departure::CannotBegin(reason.clone()));
                }
            }
            // The sender is dropped with `self`.
            let _ = changed.changed().await;
        }
    }

    /// Ends the epoch by the controller's message. A rank that was notified of the next epoch continues
    /// there.
    pub fn end(&self, reason: String) {
        self.change(|state| {
            if !state.gate.is_decided() {
                state.over = Some(reason);
            }
        });
    }

    /// Ends the epoch because the controller refuses this rank, for this reason.
    pub fn refuse(&self, reason: String) {
        self.change(|state| state.refused = true);
        self.end(reason);
    }

    fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        let changed = change(&mut self.lock());
        self.0.changed.send_replace(());
        changed
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it holds the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a rank's resources for an epoch. The error is one line.
pub type Open<T> = Box<dyn FnMut(Membership) -> Result<T, String> + Send>;

/// Handles the controller's messages about changes, for
/// [`Client::attend`](ultima_api::client::Client::attend).
pub struct Follower<T> {
    job: String,
    /// The job's id in this epoch.
    id: u16,
    /// The token of the rank's seat, which it keeps in the next epoch.
    token: Token,
    epochs: Epochs<T>,
    open: Open<T>,
    /// This rank's first operation, if that is not the job's first.
    first: watch::Sender<Option<u32>>,
    suspects: watch::Sender<Vec<u32>>,
    /// Receives the ranks of this epoch that have left.
    left: Box<dyn Fn(Vec<u16>) + Send>,
}

impl<T> Follower<T> {
    /// Creates the follower of a rank with the operations `epochs`. `open` opens its resources for another
    /// epoch, `left` gets the ranks of this one that have left.
    pub fn new(
        membership: &Membership,
        epochs: Epochs<T>,
        open: Open<T>,
        left: impl Fn(Vec<u16>) + Send + 'static,
    ) -> Self {
        Self {
            job: membership.job.clone(),
            id: membership.id,
            token: membership.token,
            epochs,
            open,
            first: watch::Sender::default(),
            suspects: watch::Sender::default(),
            left: Box::new(left),
        }
    }

    /// This rank's first operation, once it is known, if that is not the job's first.
    pub fn first(&self) -> watch::Receiver<Option<u32>> {
        self.first.subscribe()
    }

    /// The sender for the ranks that this one suspects.
    pub fn suspects(&self) -> watch::Sender<Vec<u32>> {
        self.suspects.clone()
    }
}

impl<T: Send> member_session::Member for Follower<T> {
    fn prepare(&mut self, change: &PrepareEpoch) -> Result<u32, String> {
        let number =
            u16::try_from(change.job_id).map_err(|_| "the new job id does not fit into 16 bits")?;
        let is_open = |state: &mut State<T>| matches!(&state.next, Some((of, _)) if *of == number);
        if !self.epochs.change(is_open) {
            let next = match &change.place {
                Some(prepare_epoch::Place::Seat(seat)) => {
                    let membership = Membership::read(&self.job, seat);
                    let membership = membership.map_err(|error| error.to_string())?;
                    let token = self.token;
                    Next::Place((self.open)(Membership {
                        token,
                        ..membership
                    })?)
                }
                Some(prepare_epoch::Place::LeftOut(reason)) => Next::LeftOut(reason.clone()),
                None => {
                    return Err("the request has neither a place nor a reason for this rank".into());
                }
            };
            self.epochs.change(|state| {
                // The resources for a decided change stay.
                if !state.gate.is_decided() {
                    state.next = Some((number, next));
                }
            });
        }
        let acknowledged = self.epochs.change(|state| state.gate.acknowledge(number));
        acknowledged.ok_or_else(|| "this rank has not entered the previous epoch yet".into())
    }

    fn begin(&mut self, decided: &BeginEpoch) {
        let first = decided.first_operation;
        if decided.job_id == u32::from(self.id) {
            // Operations from 0 start when all ranks attend.
            if first > 0 {
                // At once: the next message may prepare another change.
                self.epochs.starts_at(first);
                self.first.send_replace(Some(first));
            }
            return;
        }
        self.epochs.change(|state| {
            if let Some((number, _)) = &state.next
                && u32::from(*number) == decided.job_id
            {
                state.gate.decide(*number, first);
            }
        });
    }

    fn cancel(&mut self) {
        let dropped = self.epochs.change(|state| {
            state.gate.cancel();
            match state.gate.is_decided() {
                true => None,
                false => state.next.take(),
            }
        });
        // Sockets are closed without the lock.
        drop(dropped);
    }

    fn left(&mut self, ranks: &[u32]) {
        let ranks = ranks.iter().filter_map(|rank| u16::try_from(*rank).ok());
        (self.left)(ranks.collect());
    }

    fn cannot_begin(&mut self, reason: &str) {
        self.epochs
            .change(|state| state.cannot_begin = Some(reason.to_owned()));
    }

    fn suspects(&self) -> watch::Receiver<Vec<u32>> {
        self.suspects.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use member_session::Member as _;
    use ultima_api::v1::{self as api, JoinResponse};

    use super::*;

    fn seat(job_id: u32, rank: u32) -> JoinResponse {
        let member = |rank| api::Member {
            rank,
            host: format!("h{rank}"),
            mac: "02:00:00:00:00:01".into(),
            ip: "10.0.0.1".into(),
            udp_port: 21836 + rank,
            ..api::Member::default()
        };
        JoinResponse {
            rank,
            job_id,
            epoch: job_id,
            members: vec![member(0), member(1)],
            ..JoinResponse::default()
        }
    }

    fn change(job_id: u32, place: prepare_epoch::Place) -> PrepareEpoch {
        PrepareEpoch {
            epoch: 2,
            job_id,
            place: Some(place),
        }
    }

    fn follower() -> (Epochs<u16>, Follower<u16>) {
        let membership = Membership::read("train", &seat(1, 0)).unwrap();
        let epochs = Epochs::new();
        let open = Box::new(|membership: Membership| match membership.id {
            9 => Err("its socket is taken".to_owned()),
            id => Ok(id),
        });
        let follower = Follower::new(&membership, epochs.clone(), open, |_| {});
        (epochs, follower)
    }

    #[tokio::test]
    async fn operations_enter_the_next_epoch_when_it_is_decided() {
        let (epochs, mut follower) = follower();
        let run = |operation| {
            let epochs = epochs.clone();
            tokio::task::spawn_blocking(move || epochs.go(operation))
        };
        assert!(matches!(run(0).await.unwrap(), Go::Begin));
        let seat = |number| change(number, prepare_epoch::Place::Seat(seat(number, 1)));
        assert_eq!(
            follower.prepare(&seat(9)).unwrap_err(),
            "its socket is taken"
        );
        let until = follower.prepare(&seat(2)).unwrap();
        assert_eq!(follower.prepare(&seat(2)), Ok(until));
        let waits = run(until);
        follower.cancel();
        assert!(matches!(waits.await.unwrap(), Go::Begin));
        let until = follower.prepare(&seat(3)).unwrap();
        let waits = run(until);
        // For another change.
        follower.begin(&BeginEpoch {
            job_id: 2,
            first_operation: 1,
        });
        follower.begin(&BeginEpoch {
            job_id: 3,
            first_operation: until,
        });
        follower.cancel();
        // It was notified before.
        epochs.end("over".into());
        assert!(matches!(waits.await.unwrap(), Go::Over(Next::Place(3))));
    }

    #[tokio::test]
    async fn a_rank_without_a_place_gets_the_reason() {
        let (epochs, mut follower) = follower();
        let left_out = prepare_epoch::Place::LeftOut("evicted".into());
        assert_eq!(follower.prepare(&change(2, left_out)), Ok(0));
        follower.begin(&BeginEpoch {
            job_id: 2,
            first_operation: 0,
        });
        let over = epochs.over_before_it_began().await;
        assert!(matches!(over, Err(Departure::LeftOut(why)) if why == "evicted"));

        let (epochs, mut follower) = self::follower();
        follower.begin(&BeginEpoch {
            job_id: 1,
            first_operation: 0,
        });
        assert_eq!(*follower.first().borrow(), None);
        follower.begin(&BeginEpoch {
            job_id: 1,
            first_operation: 7,
        });
        assert_eq!(*follower.first().borrow(), Some(7));
        epochs.end("over".into());
        let over = epochs.over_before_it_began().await;
        assert!(matches!(over, Err(Departure::Ended(why)) if why == "over"));
    }

    /// Also if it reads both messages at once.
    #[tokio::test]
    async fn a_rank_with_a_place_in_the_next_epoch_stays_although_this_one_cannot_begin() {
        let (epochs, mut follower) = follower();
        let place = prepare_epoch::Place::Seat(seat(2, 1));
        assert_eq!(follower.prepare(&change(2, place)), Ok(0));
        follower.begin(&BeginEpoch {
            job_id: 2,
            first_operation: 0,
        });
        follower.cannot_begin("rank 1 on h2 left before the first operation");
        assert!(matches!(epochs.over_before_it_began().await, Ok(2)));
        let over = epochs.over_before_it_began().await;
        assert!(matches!(over, Err(Departure::CannotBegin(why)) if why.starts_with("rank 1 ")));
    }
}
