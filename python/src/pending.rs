//! An operation in progress, as a Python object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use ultima_agent::job::{JobError, Pending as Operation, Reduced};
use ultima_host::ExactOutcome;

use crate::memory::Memory;
use crate::misfits::Misfits;
use crate::outcome::Outcome;
use crate::{error, signals};

/// An operation in progress.
#[pyclass(frozen, module = "ultima._native")]
pub struct Pending {
    rank: u16,
    state: Mutex<State>,
    /// None for an exact operation, whose error names such ranks itself.
    misfits: Option<Arc<Misfits>>,
}

enum State {
    Bounded(Operation),
    /// With the memory for the result.
    Exact(Operation<ExactOutcome>, Memory),
    Ended(Outcome),
}

impl State {
    /// Waits for the end for at most `limit`.
    fn wait(&mut self, rank: u16, limit: Duration) -> Option<Result<Outcome, JobError>> {
        let ended = match self {
            State::Bounded(operation) => {
                let ended = operation.wait_timeout(limit)?;
                ended.map(|reduced| Outcome::bounded(rank, &reduced.outcome))
            }
            State::Exact(operation, memory) => {
                let ended = operation.wait_timeout(limit)?;
                ended.and_then(|reduced| {
                    store(&reduced, memory)?;
                    Ok(Outcome::exact(&reduced.outcome))
                })
            }
            State::Ended(outcome) => Ok(outcome.clone()),
        };
        if let Ok(outcome) = &ended {
            *self = State::Ended(outcome.clone());
        }
        Some(ended)
    }
}

/// Copies a result to the caller's memory.
fn store(reduced: &Reduced<ExactOutcome>, memory: &mut Memory) -> Result<(), JobError> {
    let to = memory.as_mut();
    if reduced.values.len() != to.len() {
        return Err(JobError::Length {
            is: reduced.values.len(),
            buffer: to.len(),
        });
    }
    to.copy_from_slice(&reduced.values);
    Ok(())
}

impl Pending {
    /// A bounded operation of `rank`, whose result is in the caller's memory.
    pub fn bounded(rank: u16, operation: Operation, misfits: Arc<Misfits>) -> Self {
        Self {
            rank,
            state: Mutex::new(State::Bounded(operation)),
            misfits: Some(misfits),
        }
    }

    /// An exact operation of `rank`, with the memory for its result.
    pub fn exact(rank: u16, operation: Operation<ExactOutcome>, memory: Memory) -> Self {
        Self {
            rank,
            state: Mutex::new(State::Exact(operation, memory)),
            misfits: None,
        }
    }

    /// Returns an error if other ranks run another operation under this one's number.
    fn check(&self, py: Python<'_>, outcome: &Outcome) -> PyResult<()> {
        let misfits = self.misfits.as_ref();
        let latest = outcome.latest();
        let share = latest.map_or(0.0, |(_, share)| share);
        if !py.detach(|| misfits.is_some_and(|misfits| misfits.are_new(share))) {
            return Ok(());
        }
        let sender = latest.map_or("another rank".into(), |(rank, _)| format!("rank {rank}"));
        let message = format!(
            "{}: packets of {sender} belong to another operation; all ranks must make the same calls in the same order, \
             with arrays of the same length",
            outcome.name()
        );
        Err(error::new(py, "MismatchError", message))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pending {
    /// Waits for the end, for at most `seconds`. None if the operation is still in progress.
    #[pyo3(signature = (seconds = None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Outcome>> {
        let limit = match seconds.map(Duration::try_from_secs_f64).transpose() {
            Ok(limit) => limit,
            Err(_) => {
                let seconds = seconds.unwrap_or_default();
                let message = format!("seconds is {seconds}: expected 0 or more");
                return Err(error::new(py, "SettingError", message));
            }
        };
        let ended = signals::wait(py, limit, |slice| self.lock().wait(self.rank, slice))?;
        let ended = ended.transpose();
        let outcome = ended.map_err(|failed| error::of(py, &failed))?;
        if let Some(outcome) = &outcome {
            self.check(py, outcome)?;
        }
        Ok(outcome)
    }
}
