//! Streams of answers to clients: their number is limited, and they end with the client and with
//! the controller.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

/// Limit of concurrent watches of jobs' members: one for each job that a switch has room for.
pub const JOB_WATCHES: usize = 1024;
/// Limit of concurrent watches of telemetry.
pub const TELEMETRY_WATCHES: usize = 64;

/// The limit of streams of one kind.
#[derive(Debug)]
pub struct StreamLimit {
    free: Arc<Semaphore>,
    most: usize,
    /// The clients' activity, as in "64 clients watch telemetry".
    what: &'static str,
}

impl StreamLimit {
    /// A limit of `most` streams, none of them open.
    pub fn new(most: usize, what: &'static str) -> Self {
        let free = Arc::new(Semaphore::new(most));
        StreamLimit { free, most, what }
    }

    /// Counts a stream until the permit is dropped.
    ///
    /// # Errors
    /// As many streams are open as the limit allows.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = Arc::clone(&self.free).try_acquire_owned();
        permit.map_err(|_| {
            let StreamLimit { most, what, .. } = self;
            Status::resource_exhausted(format!("{most} clients {what} already; stop one of them"))
        })
    }
}

/// Runs `work`, which sends answers, until it ends, the client disconnects, or `stopped`. A client
/// that stays connected and reads nothing thus delays neither the controller's stop nor anything
/// else.
pub async fn run<T>(
    answers: &mpsc::Sender<T>,
    stopped: impl Future<Output = ()>,
    work: impl Future<Output = ()>,
) {
    tokio::select! {
        () = work => {}
        () = answers.closed() => {}
        () = stopped => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_dropped_permit_frees_its_stream() {
        let limit = StreamLimit::new(1, "watch jobs");
        let taken = limit.take().unwrap();
        let refused = limit.take().unwrap_err();
        let says = "1 clients watch jobs already; stop one of them";
        let exhausted = tonic::Code::ResourceExhausted;
        assert_eq!((refused.code(), refused.message()), (exhausted, says));
        drop(taken);
        drop(limit.take().unwrap());
    }

    /// A client with a full channel that reads nothing.
    #[tokio::test]
    async fn a_client_that_reads_nothing_delays_nothing() {
        let (answers, unread) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let held = Arc::new(());
        let (holds, full) = (Arc::clone(&held), answers.clone());
        let telling = tokio::spawn(async move {
            let work = async {
                let _holds = holds;
                while answers.send(()).await.is_ok() {}
            };
            let stopped = async {
                let _ = stopped.await;
            };
            run(&answers, stopped, work).await;
        });
        while full.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        stop.send(()).expect("the task waits for it");
        telling.await.expect("the task ends");
        assert_eq!(Arc::strong_count(&held), 1);
        drop(unread);
    }

    #[tokio::test]
    async fn a_stream_ends_when_its_client_disconnects() {
        let (answers, reader) = mpsc::channel::<()>(1);
        drop(reader);
        let never = std::future::pending;
        run(&answers, never(), never()).await;
    }
}
