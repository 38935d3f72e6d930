//! The runtime of commands, and the end that a user asks for.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// A single-threaded runtime for commands that talk to servers.
///
/// # Errors
/// The kernel is out of resources.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Waits for Ctrl-C or a termination signal. The call itself sets the signal handlers.
///
/// # Panics
/// If the kernel does not let a signal handler be set.
pub fn interrupted() -> impl Future<Output = ()> {
    let signal = |kind| signal(kind).expect("signal handlers can be set");
    let mut interrupt = signal(SignalKind::interrupt());
    let mut terminate = signal(SignalKind::terminate());
    async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}
