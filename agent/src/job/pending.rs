//! An operation's result, before and after it is there.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ultima_host::Outcome;

use super::JobError;

/// The values and the outcome of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced<O = Outcome> {
    /// The result.
    pub values: Vec<f32>,
    /// The operation's outcome: its duration, its losses.
    pub outcome: O,
}

/// The result of an operation in progress.
///
/// It is a [`Future`] that needs no runtime: the job's thread wakes the task. A thread without one calls
/// [`Pending::wait`]. The operation continues if its `Pending` is dropped, because other ranks wait for this
/// rank's part.
#[derive(Debug)]
#[must_use = "the result is lost without a call of wait"]
pub struct Pending<O = Outcome> {
    shared: Arc<Shared<O>>,
}

/// The job's end of a [`Pending`].
#[derive(Debug)]
pub(super) struct Completer<O> {
    shared: Arc<Shared<O>>,
}

#[derive(Debug)]
struct Shared<O> {
    state: Mutex<State<O>>,
    ended: Condvar,
}

#[derive(Debug)]
enum State<O> {
    /// With the task to wake.
    InProgress(Option<Waker>),
    Ended(Result<Reduced<O>, JobError>),
    Taken,
}

impl<O> Shared<O> {
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O> State<O> {
    /// The result, unless the operation is in progress.
    fn take(&mut self) -> Option<Result<Reduced<O>, JobError>> {
        match std::mem::replace(self, State::Taken) {
            State::Ended(result) => Some(result),
            State::Taken => Some(Err(JobError::Taken)),
            in_progress => {
                *self = in_progress;
                None
            }
        }
    }
}

impl<O> Pending<O> {
    /// Creates both ends.
    pub(super) fn new() -> (Self, Completer<O>) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::InProgress(None)),
            ended: Condvar::new(),
        });
        let pending = Self {
            shared: shared.clone(),
        };
        (pending, Completer { shared })
    }

    /// Returns the result if it is there, without waiting. [`JobError::Taken`] after the first time.
    pub fn try_wait(&mut self) -> Option<Result<Reduced<O>, JobError>> {
        self.shared.lock().take()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`JobError`]: the operation could not start, or the job has ended.
    pub fn wait(self) -> Result<Reduced<O>, JobError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.take() {
                return result;
            }
            let woken = self.shared.ended.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the result for at most `limit`. None if the operation is still in progress: call this in a
    /// loop to handle signals in between.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<Reduced<O>, JobError>> {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.take() {
                return Some(result);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let woken = self.shared.ended.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the result and copies it to `buffer`.
    ///
    /// # Errors
    /// As [`Pending::wait`], and [`JobError::Length`]; `buffer` is unchanged.
    pub fn wait_into(self, buffer: &mut [f32]) -> Result<O, JobError> {
        let Reduced { values, outcome } = self.wait()?;
        if values.len() != buffer.len() {
            return Err(JobError::Length {
                is: values.len(),
                buffer: buffer.len(),
            });
        }
        buffer.copy_from_slice(&values);
        Ok(outcome)
    }
}

impl<O> Future for Pending<O> {
    type Output = Result<Reduced<O>, JobError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match state.take() {
            Some(result) => Poll::Ready(result),
            None => {
                *state = State::InProgress(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<O> Completer<O> {
    /// Hands the result over, and wakes the waiting thread or task.
    pub(super) fn complete(self, result: Result<Reduced<O>, JobError>) {
        self.end(|| result);
    }

    fn end(&self, result: impl FnOnce() -> Result<Reduced<O>, JobError>) {
        let mut state = self.shared.lock();
        let waker = match &mut *state {
            State::InProgress(waker) => waker.take(),
            State::Ended(_) | State::Taken => return,
        };
        *state = State::Ended(result());
        drop(state);
        self.shared.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<O> Drop for Completer<O> {
    /// A job that ends before the operation leaves no caller waiting.
    fn drop(&mut self) {
        self.end(|| Err(JobError::Ended("its thread has stopped".into())));
    }
}
