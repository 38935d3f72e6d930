//! Requests that continue when their client disconnects.

use tonic::Status;

/// Runs `work` on a task of its own: a client that disconnects must not leave a job or a switch
/// half-changed.
///
/// # Errors
/// `work` has panicked.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| Status::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
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
    async fn a_panic_is_an_internal_error() {
        let panics = to_the_end(async { panic!("on purpose") }).await;
        assert_eq!(panics.unwrap_err().code(), Code::Internal);
    }
}
