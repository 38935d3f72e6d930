//! HTTP servers: accepting connections, TLS, and the ends of connections. The requests belong to a [`Serve`].

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Body;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::codegen::{Bytes, StdError};
#[cfg(feature = "server")]
use {
    std::sync::Arc,
    tokio::sync::Semaphore,
    tonic::{Status, codegen::Service as _, service::Routes},
};

pub use hyper::body::Incoming;
pub use tokio_rustls::rustls::ServerConnection as TlsSession;

use crate::connections::{Connections, Evicted, FIRST_REQUEST, LINGER, Peer, Place};
use crate::tls::{FileStates, ServerTls, TlsAcceptor, TlsError};

/// Most streams of one HTTP/2 connection: a client watches many jobs over one.
const STREAMS: u32 = 1 << 10;

/// The longest head of a request, of connections with one request.
const HEAD: usize = 8 << 10;

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The requests of a server.
pub trait Serve: Clone + Send + Sync + 'static {
    /// The client of a connection.
    type Client: Clone + Send;
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<StdError>> + Send + 'static;

    /// Returns the client of a new connection from an IP address, or from a Unix socket, and of its TLS session.
    fn client(&self, from: Option<IpAddr>, tls: Option<&TlsSession>) -> Self::Client;

    /// Answers a request.
    fn answer(
        self,
        client: Self::Client,
        peer: Peer,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// gRPC services without access control. Requests have their [`Origin`](crate::fair::Origin) among their extensions.
#[cfg(feature = "server")]
#[derive(Clone)]
pub struct Services {
    routes: Routes,
    calls: usize,
}

#[cfg(feature = "server")]
impl Services {
    /// Returns these services. They serve `calls` calls of one connection at once; others wait.
    pub fn new(routes: Routes, calls: usize) -> Self {
        Services { routes, calls }
    }
}

#[cfg(feature = "server")]
impl Serve for Services {
    /// Room for the calls of a connection.
    type Client = Arc<Semaphore>;
    type Body = tonic::body::Body;

    fn client(&self, _: Option<IpAddr>, _: Option<&TlsSession>) -> Self::Client {
        Arc::new(Semaphore::new(self.calls))
    }

    async fn answer(
        mut self,
        room: Self::Client,
        peer: Peer,
        mut request: Request<Incoming>,
    ) -> Response<Self::Body> {
        let Some(in_progress) = peer.asks(true) else {
            return Status::unavailable("the connection has ended; connect again").into_http();
        };
        request.extensions_mut().insert(peer.origin());
        // The semaphore is never closed.
        let _permit = room.acquire().await;
        let Ok(answer) = self.routes.call(request).await;
        answer.map(|body| Self::Body::new(in_progress.until_sent(body)))
    }
}

/// A server's HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// The versions.
    pub version: Version,
    /// Interval of HTTP/2 keepalive pings to an idle client, and the timeout for their answer: the streams of a client end whose
    /// machine has failed without closing them.
    pub keepalive: Duration,
}

/// Versions of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/2.
    Http2,
    /// HTTP/2 and HTTP/1.1.
    Any,
    /// HTTP/1.1, with one request. The connection ends with it or after [`FIRST_REQUEST`].
    OneRequest,
}

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
    fn acceptor(&mut self) -> Option<TlsAcceptor> {
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

/// A listening socket.
pub struct Listener(Accept);

/// Accepts a connection.
type Accept = Box<dyn FnMut(&mut Context<'_>) -> Poll<io::Result<Accepted>> + Send>;

/// A connection, and the client's IP address.
type Accepted = (Box<dyn Io>, Option<IpAddr>);

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener(Box::new(move |context| {
            let (stream, from) = ready!(listener.poll_accept(context))?;
            // It fails if the client is gone, which the first read reports.
            let _ = stream.set_nodelay(true);
            Poll::Ready(Ok((Box::new(stream), Some(from.ip().to_canonical()))))
        }))
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener(Box::new(move |context| {
            let (stream, _) = ready!(listener.poll_accept(context))?;
            Poll::Ready(Ok((Box::new(stream), None)))
        }))
    }
}

impl Listener {
    /// Serves until `stop`, and then until the requests in progress are answered. Connections keep their certificates, also after the
    /// files have changed.
    pub async fn serve(
        self,
        mut certificates: Certificates,
        protocol: Protocol,
        service: impl Serve,
        connections: Connections,
        mut stop: watch::Receiver<()>,
    ) {
        let mut admission = Admission {
            connections,
            accept: self.0,
            has_failed: false,
        };
        let mut running = JoinSet::new();
        loop {
            let (stream, from, place, evicted) = tokio::select! {
                connection = admission.next() => connection,
                _ = stop.changed() => break,
            };
            let connection = Connection {
                service: service.clone(),
                protocol,
                from,
                place,
                stop: stop.clone(),
            };
            let serve = connection.serve(stream, certificates.acceptor());
            running.spawn(async move {
                tokio::select! {
                    () = serve => {}
                    _ = evicted => {}
                }
            });
            // Connections that have ended.
            while running.try_join_next().is_some() {}
        }
        drop(admission);
        while running.join_next().await.is_some() {}
    }
}

/// The connections that are accepted and have room.
struct Admission {
    connections: Connections,
    accept: Accept,
    has_failed: bool,
}

impl Admission {
    /// Waits for a connection. Accepting never fails for good: where files run out, it ends an idle connection and pauses.
    async fn next(&mut self) -> (Box<dyn Io>, Option<IpAddr>, Place, Evicted) {
        loop {
            match poll_fn(&mut self.accept).await {
                Ok((stream, from)) => match self.connections.admit(from) {
                    Some((place, evicted)) => return (stream, from, place, evicted),
                    None => tracing::debug!(?from, "no room for another connection"),
                },
                // The client is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Once: clients must not fill the log.
                    if !std::mem::replace(&mut self.has_failed, true) {
                        tracing::warn!(%error, "cannot accept connections; retrying");
                    }
                    self.connections.evict();
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// An admitted connection.
pub struct Connection<S> {
    /// The requests.
    pub service: S,
    /// The server's HTTP.
    pub protocol: Protocol,
    /// The client's IP address, if it did not connect to a Unix socket.
    pub from: Option<IpAddr>,
    /// The place among the connections.
    pub place: Place,
    /// The end of the server.
    pub stop: watch::Receiver<()>,
}

impl<S: Serve> Connection<S> {
    /// Serves a connection until it ends: it is closed, silent for too long, or the server stops.
    pub async fn serve(mut self, stream: Box<dyn Io>, tls: Option<TlsAcceptor>) {
        let Some(tls) = tls else {
            let client = self.service.client(self.from, None);
            return self.serve_http(stream, client).await;
        };
        let handshake = timeout(FIRST_REQUEST, tls.accept(stream).into_fallible());
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            _ = self.stop.changed() => return,
        };
        match accepted {
            Ok(Ok(stream)) => {
                let client = self.service.client(self.from, Some(stream.get_ref().1));
                self.serve_http(Box::new(stream), client).await;
            }
            Ok(Err((_, stream))) => linger(stream).await,
            Err(_) => {}
        }
    }

    async fn serve_http(self, stream: Box<dyn Io>, client: S::Client) {
        let Connection {
            service,
            protocol,
            place,
            mut stop,
            ..
        } = self;
        let one_request = protocol.version == Version::OneRequest;
        let mut builder = Builder::new(TokioExecutor::new());
        builder = match protocol.version {
            Version::Http2 => builder.http2_only(),
            Version::Any => builder,
            Version::OneRequest => builder.http1_only(),
        };
        // Without any request, `place` ends a connection sooner.
        (builder.http1())
            .timer(TokioTimer::new())
            .keep_alive(!one_request)
            .header_read_timeout(place.idle());
        if one_request {
            builder.http1().max_buf_size(HEAD);
        }
        (builder.http2())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(protocol.keepalive)
            .keep_alive_timeout(protocol.keepalive);
        let peer = place.peer().clone();
        let answer = service_fn(move |request| {
            let answer = service
                .clone()
                .answer(client.clone(), peer.clone(), request);
            async { Ok::<_, Infallible>(answer.await) }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer));
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
