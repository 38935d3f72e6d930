//! What calls of P4Runtime may take: the length of a message, calls in hand at once, and the time in
//! which they must be over.
//!
//! What a message may take once it is decoded is bounded by `ultima_p4runtime::bounded`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use ultima_p4runtime::v1::p4_runtime_server::{P4Runtime, P4RuntimeServer};

/// Longest program with its P4Info, in bytes. P4Runtime's guidelines: enough for any device config
/// of the target.
const PIPELINE_CONFIG: usize = 64 << 20;
/// Longest message of a controller's stream: a packet of the longest frame, and its metadata.
const STREAM_MESSAGE: usize = 256 << 10;
/// Longest request of all other calls; gRPC's own default, so clients expect no more.
const REQUEST: usize = 4 << 20;

/// Programs that are received and loaded at once; others wait.
const PIPELINE_CONFIGS: usize = 2;
/// Reads that are received and carried out at once; others wait. What they have found has its own
/// bound.
const READS: usize = 8;
/// The same of all other calls, which never wait for reads to have their place.
const REQUESTS: usize = 16;
/// Time for a program.
const PIPELINE_CONFIG_TIME: Duration = Duration::from_secs(300);
/// Time for another call: one that sends half a request would keep its place for ever.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// Calls with one limit.
struct Class<T> {
    server: P4RuntimeServer<T>,
    places: Arc<Semaphore>,
    time: Duration,
}

impl<T> Clone for Class<T> {
    fn clone(&self) -> Self {
        Class {
            server: self.server.clone(),
            places: self.places.clone(),
            time: self.time,
        }
    }
}

/// P4Runtime's server with limits for each call.
pub(crate) struct Limited<T> {
    pipeline_config: Class<T>,
    /// Streams last; their number is bounded by arbitration.
    stream: P4RuntimeServer<T>,
    read: Class<T>,
    other: Class<T>,
}

impl<T> Clone for Limited<T> {
    fn clone(&self) -> Self {
        Limited {
            pipeline_config: self.pipeline_config.clone(),
            stream: self.stream.clone(),
            read: self.read.clone(),
            other: self.other.clone(),
        }
    }
}

impl<T: P4Runtime> Limited<T> {
    pub(super) fn new(calls: T) -> Limited<T> {
        let calls = Arc::new(calls);
        let server =
            |longest| P4RuntimeServer::from_arc(calls.clone()).max_decoding_message_size(longest);
        let class = |longest, places, time| Class {
            server: server(longest),
            places: Arc::new(Semaphore::new(places)),
            time,
        };
        Limited {
            pipeline_config: class(PIPELINE_CONFIG, PIPELINE_CONFIGS, PIPELINE_CONFIG_TIME),
            stream: server(STREAM_MESSAGE),
            read: class(REQUEST, READS, REQUEST_TIME),
            other: class(REQUEST, REQUESTS, REQUEST_TIME),
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl<T: P4Runtime> Class<T> {
    fn call(&self, request: http::Request<Body>) -> Answer {
        let Class {
            mut server,
            places,
            time,
        } = self.clone();
        Box::pin(async move {
            let answer = tokio::time::timeout(time, async {
                // Nobody closes the semaphore.
                let _place = places.acquire().await;
                server.call(request).await
            });
            answer.await.unwrap_or_else(|_| {
                let late = format!("the call took longer than {time:?}");
                Ok(Status::deadline_exceeded(late).into_http())
            })
        })
    }
}

impl<T: P4Runtime> Service<http::Request<Body>> for Limited<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        match request.uri().path().rsplit('/').next() {
            Some("SetForwardingPipelineConfig") => self.pipeline_config.call(request),
            Some("StreamChannel") => self.stream.call(request),
            Some("Read") => self.read.call(request),
            _ => self.other.call(request),
        }
    }
}

impl<T> NamedService for Limited<T> {
    const NAME: &'static str = <P4RuntimeServer<T> as NamedService>::NAME;
}
