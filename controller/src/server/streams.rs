//! Streams of answers: they end with who reads them, and with the controller.

use tokio::sync::mpsc;

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
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;

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
