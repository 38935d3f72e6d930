//! The HTTP server for metrics.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::metrics::Metrics;

/// Maximum number of connections. Others wait in the kernel's queue.
const CONNECTIONS: usize = 8;
/// Maximum bytes of a request's head.
const REQUEST: usize = 8 << 10;
/// Maximum time from a connection's start to the end of its answer. Each has one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The content type of [`Metrics::text`].
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `GET /metrics` until it is dropped.
pub struct Exporter {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Exporter {
    /// Serves `metrics` at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The kernel rejects the address.
    pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            address: listener.local_addr()?,
            serving: tokio::spawn(accept(listener, metrics)),
        })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn accept(listener: TcpListener, metrics: Arc<Metrics>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "no connection for metrics");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            // A client that is too slow or sends an invalid request must retry.
            let _ = timeout(TIMEOUT, connected(connection, metrics)).await;
            drop(place);
        });
    }
}

async fn connected(connection: TcpStream, metrics: Arc<Metrics>) -> Result<(), hyper::Error> {
    let service = service_fn(|request| answer(request, metrics.clone()));
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST)
        .serve_connection(TokioIo::new(connection), service)
        .await
}

async fn answer(
    request: Request<Incoming>,
    metrics: Arc<Metrics>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            // It waits for the data threads, so it must not block the runtime.
            match tokio::task::spawn_blocking(move || metrics.text()).await {
                Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
                Err(error) => (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "text/plain",
                    format!("{error}\n"),
                ),
            }
        }
        (_, "/metrics") => (
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "expected GET\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "the metrics are at /metrics\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET"));
    }
    Ok(response)
}
