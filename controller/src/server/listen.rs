//! The control API's socket.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future;
use futures_util::stream::{StreamExt as _, once};
use nix::sys::resource::{Resource, getrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use ultima_api::address::Listen;
use ultima_grpc::tls::{FileStates, ServerTls};

use super::connections::{Connection, Connections, Io, Limits};
use super::error::ServeError;

/// Interval of HTTP/2 keepalive pings to an idle client, and the timeout for their answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound socket.
pub(super) struct Listener {
    /// The address, with the actual port.
    pub(super) address: Listen,
    socket: Socket,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A socket's file, removed on drop.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if is_socket(&self.0) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Binds a socket.
pub(super) async fn bind(listen: &Listen) -> Result<Listener, ServeError> {
    let failed = |source| ServeError::Listen {
        listen: listen.clone(),
        source,
    };
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?.into();
            let socket = Socket::Tcp(listener);
            Ok(Listener { address, socket })
        }
        Listen::Unix(path) => {
            let listener = match bind_file(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && !is_socket(path) => {
                    return Err(ServeError::NotASocket { path: path.clone() });
                }
                bound => bound.map_err(failed)?,
            };
            let socket = Socket::Unix(listener, SocketFile(path.clone()));
            let address = listen.clone();
            Ok(Listener { address, socket })
        }
    }
}

/// Binds a Unix socket. Replaces the file of a server that was killed, but not of one that answers.
fn bind_file(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match StdUnixStream::connect(path) {
                // A regular file refuses connections, too.
                Err(refused)
                    if refused.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) =>
                {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                _ => Err(error),
            }
        }
        bound => bound,
    }
}

/// True if a socket is at `path` itself, not behind a symbolic link.
fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// A server that speaks TLS with the present certificates. It ends the streams of clients whose machines have failed without
/// closing them.
pub(super) struct Secured {
    tls: Option<ServerTls>,
    /// The files that were read last.
    read: Option<FileStates>,
    server: Server,
}

impl Secured {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content.
    pub(super) fn new(tls: Option<ServerTls>) -> Result<Self, ServeError> {
        let read = tls.as_ref().map(ServerTls::states);
        let server = Self::read(tls.as_ref())?;
        Ok(Secured { tls, read, server })
    }

    fn read(tls: Option<&ServerTls>) -> Result<Server, ServeError> {
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE));
        match tls {
            Some(files) => Ok(files.secure(server)?),
            None => Ok(server),
        }
    }

    /// Reads files that have changed. Returns true if new connections need another server.
    fn renew(&mut self) -> bool {
        let now = self.tls.as_ref().map(ServerTls::states);
        if now == self.read {
            return false;
        }
        self.read = now;
        match Self::read(self.tls.as_ref()) {
            Ok(server) => {
                tracing::info!("new connections use the new certificates");
                self.server = server;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "new connections use the earlier certificates");
                false
            }
        }
    }
}

/// The running servers: the present one, and those of earlier certificates that still have connections.
struct Servers {
    routes: Routes,
    running: JoinSet<Result<(), tonic::transport::Error>>,
    stop: watch::Sender<()>,
}

/// The entrance of a running server. Without it the server takes no more connections, and ends with those that it has.
struct Entrance {
    connections: mpsc::Sender<Result<Connection, Infallible>>,
    /// Each connection holds a clone.
    in_use: mpsc::Sender<Infallible>,
}

impl Servers {
    fn new(routes: Routes) -> Self {
        Servers {
            routes,
            running: JoinSet::new(),
            stop: watch::Sender::default(),
        }
    }

    /// Starts a server.
    fn begin(&mut self, server: &mut Server) -> Entrance {
        let (connections, incoming) = mpsc::channel(1);
        let (in_use, mut all_closed) = mpsc::channel::<Infallible>(1);
        // A server whose stream ends closes its connections.
        let until_closed = once(async move { all_closed.recv().await });
        let incoming = ReceiverStream::new(incoming)
            .chain(until_closed.filter_map(|_: Option<Infallible>| future::ready(None)));
        let mut stopped = self.stop.subscribe();
        let router = server.add_routes(self.routes.clone());
        // Servers that have ended.
        while self.running.try_join_next().is_some() {}
        let run = router.serve_with_incoming_shutdown(incoming, async move {
            let _ = stopped.changed().await;
        });
        self.running.spawn(run);
        Entrance {
            connections,
            in_use,
        }
    }

    /// Stops all servers, after the requests in progress.
    async fn end(mut self) {
        drop(self.stop);
        while self.running.join_next().await.is_some() {}
    }
}

impl Entrance {
    /// Hands a connection to the server. Returns false if the server has panicked.
    async fn take(&self, connection: Connection) -> bool {
        let connection = connection.of_server(self.in_use.clone());
        self.connections.send(Ok(connection)).await.is_ok()
    }
}

impl Listener {
    /// Serves until `stopped`. Connections keep the server that accepted them, also after the certificates have changed.
    pub(super) async fn serve(
        self,
        mut secured: Secured,
        routes: Routes,
        idle: Duration,
        stopped: impl Future<Output = ()>,
    ) {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let limits = Limits::of(usize::try_from(files).unwrap_or(usize::MAX));
        let connections = Connections::new(limits, idle);
        let (accept, _file): (Accept, _) = match self.socket {
            Socket::Tcp(listener) => {
                let accept = move |context: &mut Context<'_>| {
                    let (stream, from) = ready!(listener.poll_accept(context))?;
                    // The server's own option of this name applies only to listeners that it
                    // binds itself.
                    // It fails if the client is gone, which the first read reports.
                    let _ = stream.set_nodelay(true);
                    let stream: Box<dyn Io> = Box::new(stream);
                    Poll::Ready(Ok((stream, Some(from.ip().to_canonical()))))
                };
                (Box::new(accept), None)
            }
            Socket::Unix(listener, file) => {
                let accept = move |context: &mut Context<'_>| {
                    let (stream, _) = ready!(listener.poll_accept(context))?;
                    let stream: Box<dyn Io> = Box::new(stream);
                    Poll::Ready(Ok((stream, None)))
                };
                (Box::new(accept), Some(file))
            }
        };
        let mut incoming = Incoming {
            connections,
            accept,
            has_failed: false,
        };
        let mut servers = Servers::new(routes);
        let mut present = servers.begin(&mut secured.server);
        let mut stopped = pin!(stopped);
        loop {
            let connection = tokio::select! {
                connection = incoming.next() => connection,
                () = &mut stopped => break,
            };
            if secured.renew() {
                present = servers.begin(&mut secured.server);
            }
            if !present.take(connection).await {
                break;
            }
        }
        drop((incoming, present));
        servers.end().await;
    }
}

/// Accepts a connection.
type Accept =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<io::Result<(Box<dyn Io>, Option<IpAddr>)>> + Send>;

/// The connections that are accepted and have room.
struct Incoming {
    connections: Connections,
    accept: Accept,
    has_failed: bool,
}

impl Incoming {
    /// Waits for a connection. Accepting never fails for good: where files run out, it ends an idle connection and pauses.
    async fn next(&mut self) -> Connection {
        loop {
            match poll_fn(&mut self.accept).await {
                Ok((stream, from)) => match self.connections.admit(stream, from) {
                    Some(connection) => return connection,
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

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tonic::transport::Endpoint;
    use ultima_api::v1::ListJobsRequest;
    use ultima_api::v1::control_client::ControlClient;

    use super::*;

    /// A server of earlier certificates.
    #[tokio::test]
    async fn a_replaced_server_ends_with_its_last_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let endpoint = Endpoint::from_shared(endpoint).unwrap();
        let connections = Connections::new(Limits::of(1024), KEEPALIVE);
        let mut servers = Servers::new(Routes::default());
        let replaced = servers.begin(&mut Server::builder());
        let mut clients = Vec::new();
        for _ in 0..2 {
            let (channel, accepted) = tokio::join!(endpoint.connect(), listener.accept());
            let stream = Box::new(accepted.unwrap().0);
            let connection = connections.admit(stream, None).expect("room");
            assert!(replaced.take(connection).await);
            clients.push(ControlClient::new(channel.unwrap()));
        }
        drop(replaced);
        while let Some(mut client) = clients.pop() {
            let answer = client.list_jobs(ListJobsRequest::default()).await;
            assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
            assert!(servers.running.try_join_next().is_none());
        }
        servers.running.join_next().await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn only_sockets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (notes, socket) = (at("notes"), at("socket"));
        std::fs::write(&notes, "mine").unwrap();
        // Left by a server that was killed.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let links = [("to_notes", &notes), ("to_socket", &socket)].map(|(name, target)| {
            std::os::unix::fs::symlink(target, at(name)).unwrap();
            at(name)
        });
        for path in [&notes, &links[0], &links[1]] {
            let refused = bind(&Listen::Unix(path.clone())).await.err().unwrap();
            assert_eq!(
                refused.to_string(),
                format!(
                    "cannot listen on unix:{0}: {0} exists and is not a socket; move it, or choose another path with --listen",
                    path.display()
                )
            );
        }
        assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
        assert!(links.iter().all(|link| link.is_symlink()));

        let listener = bind(&Listen::Unix(socket.clone())).await.unwrap();
        assert!(StdUnixStream::connect(&socket).is_ok());
        drop(listener);
        assert!(!socket.exists());
    }
}
