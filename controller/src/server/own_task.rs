//! Requests that continue when their client disconnects, and tasks that continue after a panic.

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use futures_util::FutureExt as _;
use tokio::sync::watch;
use tonic::Status;

tokio::task_local! {
    /// Closed when the client of the request has gone.
    static CLIENT: watch::Receiver<()>;
}

/// Runs `work` on a task of its own: a client that disconnects must not leave a job or a switch
/// half-changed. Before it has changed anything, `work` may end when the [client has
/// gone](client_gone).
///
/// # Errors
/// `work` has panicked.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Status> {
    let (_client, gone) = watch::channel(());
    let done = tokio::spawn(CLIENT.scope(gone, work)).await;
    done.map_err(|error| Status::internal(error.to_string()))
}

/// Completes when the client of this task's request has gone; never on other tasks.
pub async fn client_gone() {
    match CLIENT.try_with(Clone::clone) {
        Ok(mut client) => while client.changed().await.is_ok() {},
        Err(_) => pending().await,
    }
}

/// The pause after a panic, whose cause may persist.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Runs a task until it ends. Calls `panicked` after each panic, and runs it again.
pub async fn restarted<F: Future<Output = ()>>(mut task: impl FnMut() -> F, panicked: impl Fn()) {
    let pauses = ConstantBuilder::new().with_delay(PANIC_PAUSE);
    let run = || AssertUnwindSafe(task()).catch_unwind();
    let run = run.retry(pauses.without_max_times());
    // No attempt is the last one.
    let _ = run.notify(|_, _| panicked()).await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn work_is_completed_after_its_caller_is_cancelled() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let waiting = tokio::spawn(to_the_end(async move {
            gone.await.unwrap();
            done.send(()).unwrap();
        }));
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        go.send(()).unwrap();
        is_done.await.unwrap();
    }

    #[tokio::test]
    async fn work_can_end_with_its_caller() {
        let (done, is_done) = oneshot::channel();
        let waiting = tokio::spawn(to_the_end(async move {
            client_gone().await;
            done.send(()).unwrap();
        }));
        tokio::task::yield_now().await;
        assert!(client_gone().now_or_never().is_none(), "no request");
        waiting.abort();
        is_done.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_panicked_runs_again() {
        let (runs, panics) = (Cell::new(0), Cell::new(0));
        let task = async || {
            runs.set(runs.get() + 1);
            assert!(runs.get() > 5, "on purpose");
        };
        restarted(task, || panics.set(panics.get() + 1)).await;
        assert_eq!((runs.get(), panics.get()), (6, 5));
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_error() {
        let panics = to_the_end(async { panic!("on purpose") }).await;
        assert_eq!(panics.unwrap_err().code(), Code::Internal);
    }
}
