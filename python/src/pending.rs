//! An operation in progress, as a Python object.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use ultima_agent::job::{JobError, Pending as Operation, Reduced};
use ultima_host::ExactOutcome;

use crate::memory::Memory;
use crate::outcome::Outcome;
use crate::{error, signals};

/// An operation in progress.
#[pyclass(frozen, module = "ultima._native")]
pub struct Pending {
    rank: u16,
    state: Mutex<State>,
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
    pub fn bounded(rank: u16, operation: Operation) -> Self {
        Self {
            rank,
            state: Mutex::new(State::Bounded(operation)),
        }
    }

    /// An exact operation of `rank`, with the memory for its result.
    pub fn exact(rank: u16, operation: Operation<ExactOutcome>, memory: Memory) -> Self {
        Self {
            rank,
            state: Mutex::new(State::Exact(operation, memory)),
        }
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
        ended.map_err(|failed| error::of(py, &failed))
    }
}
