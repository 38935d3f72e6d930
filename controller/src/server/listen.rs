//! The sockets of the control API and of metrics.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use ultima_api::address::Listen;

use super::connections::{Connections, Evicted, Limits, Place};
use super::error::ServeError;
use super::http_server::{Api, Certificates, Io};

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

/// Binds a socket, whose address is the value of `option`.
pub(super) async fn bind(listen: &Listen, option: &'static str) -> Result<Listener, ServeError> {
    let failed = |source| ServeError::Listen {
        listen: listen.clone(),
        option,
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

impl Listener {
    /// Serves until `stop`, and then until the requests in progress are answered. Connections keep their certificates, also after the
    /// files have changed.
    pub(super) async fn serve(
        self,
        mut certificates: Certificates,
        api: Api,
        connections: Connections,
        mut stop: watch::Receiver<()>,
    ) {
        let (accept, _file): (Accept, _) = match self.socket {
            Socket::Tcp(listener) => {
                let accept = move |context: &mut Context<'_>| {
                    let (stream, from) = ready!(listener.poll_accept(context))?;
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
        let mut running = JoinSet::new();
        loop {
            let (stream, from, place, evicted) = tokio::select! {
                connection = incoming.next() => connection,
                _ = stop.changed() => break,
            };
            let is_remote = from.is_some_and(|from| !from.is_loopback());
            let tls = certificates.acceptor();
            let serve = api
                .clone()
                .serve(stream, is_remote, tls, place, stop.clone());
            running.spawn(async move {
                tokio::select! {
                    () = serve => {}
                    _ = evicted => {}
                }
            });
            // Connections that have ended.
            while running.try_join_next().is_some() {}
        }
        drop(incoming);
        while running.join_next().await.is_some() {}
    }
}

/// The limits of connections for the open files that the process may have.
pub(super) fn limits() -> Limits {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    Limits::of(usize::try_from(files).unwrap_or(usize::MAX))
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

#[cfg(test)]
mod tests {
    use super::*;

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
            let refused = bind(&Listen::Unix(path.clone()), "--listen")
                .await
                .err()
                .unwrap();
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

        let listener = bind(&Listen::Unix(socket.clone()), "--listen")
            .await
            .unwrap();
        assert!(StdUnixStream::connect(&socket).is_ok());
        drop(listener);
        assert!(!socket.exists());
    }
}
