//! A server of metrics: `GET /metrics` over HTTP/1.1, without TLS.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::Bytes;

use crate::connections::{Connections, FIRST_REQUEST, Limits, Peer};
use crate::server::{Incoming, Protocol, Serve, TlsSession, Version};

/// The path of metrics.
pub const PATH: &str = "/metrics";

/// The server's HTTP.
pub const PROTOCOL: Protocol = Protocol {
    version: Version::OneRequest,
    keepalive: Duration::MAX,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The most connections.
const LIMITS: Limits = Limits {
    total: 8,
    from_one: 4,
    shared: 8,
};

/// Requests that are answered at once: each takes a thread.
const TURNS: usize = 2;

/// Returns the connections of a server of metrics.
pub fn connections() -> Connections {
    Connections::new(LIMITS, FIRST_REQUEST)
}

/// The metrics of a process: a function for their present OpenMetrics text.
#[derive(Clone)]
pub struct Metrics<F> {
    text: F,
    turns: Arc<Semaphore>,
}

impl<F: Fn() -> String + Clone + Send + Sync + 'static> Metrics<F> {
    /// Returns the metrics of this function, which may block.
    pub fn new(text: F) -> Self {
        Metrics {
            text,
            turns: Arc::new(Semaphore::new(TURNS)),
        }
    }

    /// Answers `GET /metrics`.
    pub async fn get(&self) -> Response<Full<Bytes>> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        match tokio::task::spawn_blocking(self.text.clone()).await {
            Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
            Err(error) => {
                let error = format!("{error}\n");
                response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, error)
            }
        }
    }
}

impl<F: Fn() -> String + Clone + Send + Sync + 'static> Serve for Metrics<F> {
    type Client = ();
    type Body = Body;

    fn client(&self, _: Option<IpAddr>, _: Option<&TlsSession>) {}

    async fn answer(self, (): (), peer: Peer, request: Request<Incoming>) -> Response<Body> {
        // None if another connection has got the place of this one.
        let in_progress = peer.asks(true);
        let answer = match (request.method(), request.uri().path()) {
            (&Method::GET, PATH) => self.get().await,
            (_, PATH) => {
                let status = StatusCode::METHOD_NOT_ALLOWED;
                let mut answer = response(status, PLAIN, "expected GET\n");
                let get = HeaderValue::from_static("GET");
                answer.headers_mut().insert(ALLOW, get);
                answer
            }
            _ => response(
                StatusCode::NOT_FOUND,
                PLAIN,
                "the metrics are at /metrics\n",
            ),
        };
        answer.map(|body| match in_progress {
            Some(in_progress) => Body::new(in_progress.until_sent(body)),
            None => Body::new(body),
        })
    }
}

fn response(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let text = text.into();
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // The body that is in progress until it is sent does not say its length.
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
