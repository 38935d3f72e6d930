//! The runtime of commands, and the end that a user asks for.

use std::io;
use std::ops::ControlFlow;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use ultima_console::output::{self, Unprinted};

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

/// Prints `text` without blocking the runtime's other tasks: a slow reader, such as a pager, delays only the caller. For
/// commands under [`run_beside`].
///
/// # Errors
/// Standard output cannot be written.
pub async fn print_beside(text: String) -> Result<ControlFlow<()>, Unprinted> {
    let printed = tokio::task::spawn_blocking(move || output::print_on(&text)).await;
    printed.map_err(io::Error::other)?
}

/// Runs a command that prints through [`print_beside`], and does not wait for output that its reader no longer reads.
///
/// # Errors
/// The command's.
pub fn run_beside<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}
