//! The sockets of the control API and of metrics.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, UnixSocket};
use tokio::sync::watch;
use ultima_api::address::Listen;
use ultima_grpc::connections::Connections;
use ultima_grpc::server::{self, Certificates, Protocol, Serve};

use super::error::ServeError;

/// Pending connections of a Unix socket.
const BACKLOG: u32 = 1024;

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
    match bind_for_owner(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match StdUnixStream::connect(path) {
                // A regular file refuses connections, too.
                Err(refused)
                    if refused.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) =>
                {
                    std::fs::remove_file(path)?;
                    bind_for_owner(path)
                }
                _ => Err(error),
            }
        }
        bound => bound,
    }
}

/// Binds a Unix socket whose file only its owner can open, whatever the umask is.
fn bind_for_owner(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // Before it is bound: Linux gives the file the socket's mode, so it is open to others at no time.
    let file = File::from(socket.as_fd().try_clone_to_owned()?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// True if a socket is at `path` itself, not behind a symbolic link.
fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

impl Listener {
    /// Serves until `stop`, and then until the requests in progress are answered.
    pub(super) async fn serve(
        self,
        certificates: Certificates,
        protocol: Protocol,
        service: impl Serve,
        connections: Connections,
        stop: watch::Receiver<()>,
    ) {
        let (listener, _file) = match self.socket {
            Socket::Tcp(listener) => (server::Listener::from(listener), None),
            Socket::Unix(listener, file) => (listener.into(), Some(file)),
        };
        (listener.serve(certificates, protocol, service, connections, stop)).await;
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
