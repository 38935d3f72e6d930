//! Waits that Python's signal handlers, such as that of Ctrl-C, can end.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error;

/// The longest wait without a look at signals.
const SLICE: Duration = Duration::from_millis(50);

/// Calls `attempt`, without the interpreter's lock, with the time that it may wait, until it returns a value or
/// `limit` has passed.
///
/// # Errors
/// The exception of a signal handler.
pub fn wait<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    mut attempt: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let mut left = limit;
    loop {
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        if let Some(value) = py.detach(|| attempt(slice)) {
            return Ok(Some(value));
        }
        py.check_signals()?;
        left = left.map(|left| left.saturating_sub(slice));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
    }
}

/// Runs `work` on a thread of its own and waits for it. A signal handler's exception ends the wait; the work
/// goes on and its result is dropped.
///
/// # Errors
/// The exception of a signal handler, or an error if the thread cannot start or panics.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("ultima-python".into())
        .spawn(move || {
            // A caller that was interrupted needs no result.
            let _ = sender.send(work());
        })?;
    let mut receiver = Some(receiver);
    let ended = wait(py, None, move |slice| {
        let ours = receiver.take()?;
        match ours.recv_timeout(slice) {
            Err(RecvTimeoutError::Timeout) => {
                receiver = Some(ours);
                None
            }
            ended => Some(ended),
        }
    })?;
    match ended {
        Some(Ok(value)) => Ok(value),
        _ => Err(error::new(py, "Error", "a thread of Ultima has panicked")),
    }
}
