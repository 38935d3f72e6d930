//! Limits on the calls of a server: how many run at once, and for how long. Their requests are received first ([`Receiver`]).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};

use crate::receive::{Limits, Receiver};

/// The response to a call.
pub type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// Limits that some calls share. Clones share them, too.
#[derive(Clone, Debug)]
pub struct CallLimits {
    receiver: Receiver,
    places: Arc<Semaphore>,
    time: Duration,
}

impl CallLimits {
    /// Limits calls to `places` at once; others wait. A call ends after `time`, which includes the receipt of its request.
    pub fn new(places: usize, time: Duration, requests: Limits) -> Self {
        CallLimits {
            receiver: Receiver::new(requests),
            places: Arc::new(Semaphore::new(places)),
            time,
        }
    }

    /// Receives a request and runs its call.
    pub fn run<E: Send, F: Future<Output = Result<Response<Body>, E>> + Send>(
        &self,
        request: Request<Body>,
        call: impl FnOnce(Request<Body>) -> F + Send + 'static,
    ) -> Answer<E> {
        let CallLimits {
            receiver,
            places,
            time,
        } = self.clone();
        Box::pin(async move {
            let answer = timeout(time, async {
                let (request, _received) = match receiver.receive(request).await {
                    Ok(received) => received,
                    Err(status) => return Ok(status.into_http()),
                };
                // The semaphore is never closed.
                let _place = places.acquire().await;
                call(request).await
            });
            answer.await.unwrap_or_else(|_| {
                let late = format!("the call took longer than {time:?}");
                Ok(Status::deadline_exceeded(late).into_http())
            })
        })
    }
}
