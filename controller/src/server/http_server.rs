//! HTTP on an admitted connection: TLS, the callers of requests, and the end of the connection. gRPC and metrics are routes of a router.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::codegen::Service as _;
use ultima_grpc::tls::{FileStates, ServerTls, TlsAcceptor, TlsError};

use super::access::{Caller, METRICS, admit};
use super::call_rates::CallRates;
use super::connections::{FIRST_REQUEST, LINGER, Peer, Place};

/// Interval of HTTP/2 keepalive pings to an idle client, and the timeout for their answer: the streams of a client end whose machine
/// has failed without closing them.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Most streams of one HTTP/2 connection: a client watches many jobs over one.
const STREAMS: u32 = 1 << 10;

/// A stream of bytes in both directions: TCP, a Unix socket, or TLS.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// The present certificates, if the server speaks TLS.
#[derive(Default)]
pub struct Certificates(Option<Loaded>);

struct Loaded {
    files: ServerTls,
    /// The files that were read last.
    read: FileStates,
    acceptor: TlsAcceptor,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content.
    pub fn load(files: Option<ServerTls>) -> Result<Self, TlsError> {
        let loaded = files.map(|files| {
            Ok(Loaded {
                read: files.states(),
                acceptor: files.acceptor()?,
                files,
            })
        });
        Ok(Certificates(loaded.transpose()?))
    }

    /// Returns the acceptor for a new connection, with the present content of the files.
    pub fn acceptor(&mut self) -> Option<TlsAcceptor> {
        let loaded = self.0.as_mut()?;
        let now = loaded.files.states();
        if now != loaded.read {
            loaded.read = now;
            match loaded.files.acceptor() {
                Ok(acceptor) => {
                    tracing::info!("new connections use the new certificates");
                    loaded.acceptor = acceptor;
                }
                Err(error) => {
                    tracing::warn!(%error, "new connections use the earlier certificates");
                }
            }
        }
        Some(loaded.acceptor.clone())
    }
}

/// The routes of a server, behind access control.
#[derive(Clone)]
pub struct Api {
    /// The routes.
    pub router: Router,
    /// The rates of clients' calls.
    pub rates: CallRates,
    /// True if a connection has one request, over HTTP/1.1, and ends with it or after [`FIRST_REQUEST`].
    pub one_request: bool,
}

impl Api {
    /// Serves a connection until it ends: it is closed, silent for too long, or the server stops.
    pub async fn serve(
        self,
        stream: Box<dyn Io>,
        is_remote: bool,
        tls: Option<TlsAcceptor>,
        place: Place,
        mut stop: watch::Receiver<()>,
    ) {
        let Some(tls) = tls else {
            let caller = Some(Caller::Trusted { is_remote });
            return self.serve_http(stream, caller, place, stop).await;
        };
        let handshake = timeout(FIRST_REQUEST, tls.accept(stream).into_fallible());
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            _ = stop.changed() => return,
        };
        match accepted {
            Ok(Ok(stream)) => {
                let caller = Caller::certified(stream.get_ref().1.peer_certificates());
                self.serve_http(Box::new(stream), caller, place, stop).await;
            }
            Ok(Err((_, stream))) => linger(stream).await,
            Err(_) => {}
        }
    }

    async fn serve_http(
        self,
        stream: Box<dyn Io>,
        caller: Option<Caller>,
        place: Place,
        mut stop: watch::Receiver<()>,
    ) {
        let one_request = self.one_request;
        let mut builder = Builder::new(TokioExecutor::new());
        if one_request {
            builder = builder.http1_only();
        }
        // Without any request, `place` ends a connection sooner.
        (builder.http1())
            .timer(TokioTimer::new())
            .keep_alive(!one_request)
            .header_read_timeout(place.idle());
        (builder.http2())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE);
        let peer = place.peer().clone();
        let service =
            service_fn(move |request| (self.clone()).answer(peer.clone(), caller.clone(), request));
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let is_silent = tokio::select! {
            // A client that ends or breaks it needs no answer.
            _ = connection.as_mut() => return,
            () = sleep(FIRST_REQUEST), if one_request => return,
            () = place.silent() => true,
            _ = stop.changed() => false,
        };
        // The client learns that it must make other requests elsewhere (GOAWAY).
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = place.drained(), if is_silent => {}
        }
    }

    async fn answer(
        mut self,
        peer: Peer,
        caller: Option<Caller>,
        mut request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let path = request.uri().path();
        let (caller, in_progress) = match admit(&self.rates, caller, &peer, path) {
            Ok(admitted) => admitted,
            Err(refused) if path == METRICS.0 => {
                let code = match refused.code() {
                    Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                    Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::FORBIDDEN,
                };
                return Ok((code, refused.message().to_owned()).into_response());
            }
            Err(refused) => return Ok(refused.into_http()),
        };
        request.extensions_mut().insert(caller);
        let answer = self.router.call(request).await?;
        // Until the answer's last frame is on its way.
        Ok(answer.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &in_progress;
                frame
            }))
        }))
    }
}

/// Reads what a client sends after a failed handshake, for at most [`LINGER`]: otherwise the system would reset the connection before the
/// client has read why (the alert).
async fn linger(mut stream: Box<dyn Io>) {
    let discard = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // An error is an end, too.
    let _ = timeout(LINGER, discard).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use futures_util::stream::{self, StreamExt as _};
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;
    use crate::server::call_rates::CallLimit;
    use crate::server::connections::{Connections, Limits};

    const LIMITS: Limits = Limits {
        total: 3,
        from_one: 3,
        shared: 1,
    };

    const IDLE: Duration = Duration::from_secs(30);

    /// A client that asks for metrics over HTTP/1.1.
    async fn client(connections: &Connections, metrics: Body) -> DuplexStream {
        let (ours, mut theirs) = duplex(1 << 16);
        let metrics = std::sync::Mutex::new(Some(metrics));
        let take = async move || metrics.lock().unwrap().take().expect("one request");
        let take = std::sync::Arc::new(take);
        let api = Api {
            router: Router::new().route(METRICS.0, get(async move || take().await)),
            rates: CallRates::new(CallLimit::default()),
            one_request: false,
        };
        let (place, _evicted) = connections.admit(None).expect("room");
        tokio::spawn(async move {
            let (_stop, stopped) = watch::channel(());
            api.serve(Box::new(ours), false, None, place, stopped).await;
        });
        let request = b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n";
        theirs.write_all(request).await.unwrap();
        theirs
    }

    async fn read(from: &mut DuplexStream) -> String {
        let mut bytes = [0; 4096];
        let count = from.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_in_progress_until_its_body_is_sent() {
        let connections = Connections::new(LIMITS, IDLE);
        let parts = stream::iter(["first", "second"]).then(async |part| {
            sleep(3 * IDLE).await;
            Ok::<_, Infallible>(part)
        });
        let mut client = client(&connections, Body::from_stream(parts)).await;
        let mut answer = String::new();
        while !answer.contains("second") {
            let more = read(&mut client).await;
            assert!(!more.is_empty(), "the connection has ended: {answer}");
            answer += &more;
        }
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_metrics_leave_places_to_operators() {
        let connections = Connections::new(LIMITS, IDLE);
        let mut first = client(&connections, Body::from("text")).await;
        assert!(read(&mut first).await.starts_with("HTTP/1.1 200 "));
        let mut second = client(&connections, Body::from("text")).await;
        let answer = read(&mut second).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("no place for another"), "{answer}");
        drop(first);
        sleep(Duration::from_millis(1)).await;
        let mut third = client(&connections, Body::from("text")).await;
        assert!(read(&mut third).await.starts_with("HTTP/1.1 200 "));
    }
}
