//! Streams of answers: they end with who reads them, and with the controller, and there are no more than are said.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

/// Room for so many who are told something at once.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    most: usize,
    /// What they do, as in "64 watch telemetry".
    what: &'static str,
}

impl Places {
    /// All of them free.
    pub fn new(most: usize, what: &'static str) -> Self {
        let free = Arc::new(Semaphore::new(most));
        Places { free, most, what }
    }

    /// One, until what this returns is dropped.
    ///
    /// # Errors
    /// All are taken.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Status> {
        let place = Arc::clone(&self.free).try_acquire_owned();
        place.map_err(|_| {
            let Places { most, what, .. } = self;
            Status::resource_exhausted(format!("{most} {what} already; stop one of them"))
        })
    }
}

/// Lets `work` send answers until it has no more to say, nobody reads them any more, or `stopped`. One whose connection stands and who
/// reads nothing holds up neither the controller's end nor what else `work` holds.
pub async fn tell<T>(
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
    fn a_place_is_free_again_when_its_taker_goes() {
        let places = Places::new(1, "watch jobs");
        let taken = places.take().unwrap();
        let refused = places.take().unwrap_err();
        let says = "1 watch jobs already; stop one of them";
        let exhausted = tonic::Code::ResourceExhausted;
        assert_eq!((refused.code(), refused.message()), (exhausted, says));
        drop(taken);
        drop(places.take().unwrap());
    }

    /// Has been told more than there is room for, and has taken nothing.
    #[tokio::test]
    async fn who_reads_nothing_holds_nothing_up() {
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
            tell(&answers, stopped, work).await;
        });
        while full.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        stop.send(()).expect("it is told");
        telling.await.expect("it ends");
        assert_eq!(Arc::strong_count(&held), 1);
        drop(unread);
    }

    #[tokio::test]
    async fn who_goes_is_told_nothing_more() {
        let (answers, reader) = mpsc::channel::<()>(1);
        drop(reader);
        let never = std::future::pending;
        tell(&answers, never(), never()).await;
    }
}
