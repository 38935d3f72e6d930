//! Waits that Python's signal handlers, such as that of Ctrl-C, can end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::error;

/// The longest wait without a look at signals.
const SLICE: Duration = Duration::from_millis(50);

/// The longest wait for the end of a job after an interrupt.
const GRACE: Duration = Duration::from_secs(1);

/// True once a signal handler's exception has ended a wait: the program is about to end. See [`was_interrupted`].
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

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
        py.check_signals()
            .inspect_err(|_| INTERRUPTED.store(true, Ordering::Relaxed))?;
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

/// True if an interrupt has ended a wait, or if the program handles or has died of a `KeyboardInterrupt`: one may come between
/// the start of an operation and the wait for it.
fn was_interrupted(py: Python<'_>) -> bool {
    let of = |sys: &Bound<'_, PyModule>| -> PyResult<bool> {
        let interrupt = py.get_type::<PyKeyboardInterrupt>();
        let handled = sys.call_method0("exc_info")?.get_item(0)?;
        // Set only after an exception that ended the program.
        let died = sys.getattr_opt("last_type")?;
        Ok(handled.is(&interrupt) || died.is_some_and(|died| died.is(&interrupt)))
    };
    INTERRUPTED.load(Ordering::Relaxed)
        || py.import("sys").and_then(|sys| of(&sys)).unwrap_or(false)
}

/// Drops a job, which ends when its operations have ended. After an interrupt it does so for at most [`GRACE`], and goes on
/// on its own thread: an exact operation may wait for a rank that never comes.
///
/// # Errors
/// As [`run`].
pub fn end<T: Send + 'static>(py: Python<'_>, job: T) -> PyResult<()> {
    if !was_interrupted(py) {
        return run(py, move || drop(job));
    }
    let (sender, receiver) = channel::<()>();
    thread::Builder::new()
        .name("ultima-python".into())
        .spawn(move || {
            drop(job);
            drop(sender);
        })?;
    // The sender's end is the news.
    py.detach(move || _ = receiver.recv_timeout(GRACE));
    Ok(())
}
