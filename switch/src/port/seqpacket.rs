//! Virtual ports: Unix sockets of type `SOCK_SEQPACKET`, one Ethernet frame per message.
//!
//! Two connected sockets of this type accept messages until the sender's send buffer is full, and then report that: a full
//! port causes backpressure, not loss. `net.unix.max_dgram_qlen` does not apply to sockets that are each other's peer.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt,
    listen, setsockopt, socket, sockopt,
};

use super::mmsg::{self, Frame, RxBatch};
use super::{FRAMES, Interest, PortIo, ROOM, Received};
use crate::tm::{BATCH, Departure, Medium};

/// Requested send buffer, in bytes. The kernel may grant less.
const SEND_BUFFER: usize = 4 * 1024 * 1024;
/// Number of peers that may wait for the current one to disconnect.
const WAITING_PEERS: i32 = 4;

pub(crate) struct SeqpacketPort {
    listener: Option<Listener>,
    peer: Option<OwnedFd>,
    listener_interest: Interest,
    peer_interest: Interest,
}

/// A listening socket and its file, which it removes when dropped.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}

impl SeqpacketPort {
    /// Listens at `path`. Replaces an abandoned socket file.
    pub(crate) fn listen(path: PathBuf) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let address = UnixAddr::new(&path)?;
        if let Err(errno) = bind(socket.as_raw_fd(), &address) {
            if errno != Errno::EADDRINUSE || !is_abandoned(&path, &address) {
                return Err(errno.into());
            }
            fs::remove_file(&path)?;
            bind(socket.as_raw_fd(), &address)?;
        }
        let listener = Listener { socket, path };
        listen(&listener.socket, Backlog::new(WAITING_PEERS)?)?;
        Ok(SeqpacketPort {
            listener: Some(listener),
            peer: None,
            listener_interest: Interest::none(),
            peer_interest: Interest::none(),
        })
    }

    /// Takes ownership of an inherited descriptor.
    pub(crate) fn inherit(fd: RawFd) -> io::Result<Self> {
        // Descriptors 0 to 2 belong to the process; a closed one has no owner.
        if fd <= 2 {
            return Err(io::Error::other("expected a descriptor above 2"));
        }
        // SAFETY: the call only asks about the number, whatever it stands for.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and the configuration that names it passes its ownership:
        // nothing else in this process refers to it.
        Self::connected_to(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Uses one end of a connected pair.
    pub(crate) fn connected_to(socket: OwnedFd) -> io::Result<Self> {
        if getsockopt(&socket, sockopt::SockType)? != SockType::SeqPacket {
            return Err(io::Error::other(
                "expected a Unix socket of type SOCK_SEQPACKET",
            ));
        }
        prepare(&socket)?;
        Ok(SeqpacketPort {
            listener: None,
            peer: Some(socket),
            listener_interest: Interest::none(),
            peer_interest: Interest::none(),
        })
    }

    /// Drops the peer's connection and waits for the next peer.
    fn hang_up(&mut self, poller: &Epoll, token: u64) {
        if let Some(peer) = self.peer.take() {
            // Closing removes a descriptor from every poller, so a failure here changes nothing.
            let _ = (self.peer_interest).set(poller, peer.as_fd(), token, EpollFlags::empty());
        }
        if let Err(error) = self.register(poller, token) {
            tracing::error!("port {token}: cannot wait for a peer: {error}");
        }
    }

    fn accept(&mut self, poller: &Epoll, token: u64) -> io::Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let fd = accept4(
            listener.socket.as_raw_fd(),
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        )?;
        // SAFETY: accept4 returned a new descriptor, which nothing else owns.
        let peer = unsafe { OwnedFd::from_raw_fd(fd) };
        prepare(&peer)?;
        // One peer at a time: the next one waits in the backlog, and nothing that it sends is lost.
        let fd = listener.socket.as_fd();
        (self.listener_interest).set(poller, fd, token, EpollFlags::empty())?;
        self.peer = Some(peer);
        self.register(poller, token)
    }
}

/// True if the file is a socket that refuses connections: its owner ended without removing it.
fn is_abandoned(path: &Path, address: &UnixAddr) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            // A listener whose backlog is full would make us wait.
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )
        .is_ok_and(|probe| connect(probe.as_raw_fd(), address) == Err(Errno::ECONNREFUSED))
}

fn prepare(socket: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
    fcntl(socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    setsockopt(socket, sockopt::SndBuf, &SEND_BUFFER)?;
    // With each message come its sender's credentials, and so the end of the connection, with which
    // none come, differs from a message of no bytes.
    setsockopt(socket, sockopt::PassCred, &true)?;
    Ok(())
}

impl PortIo for SeqpacketPort {
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()> {
        if let Some(peer) = &self.peer {
            return (self.peer_interest).set(poller, peer.as_fd(), token, FRAMES);
        }
        if let Some(listener) = &self.listener {
            let fd = listener.socket.as_fd();
            return self.listener_interest.set(poller, fd, token, FRAMES);
        }
        Ok(())
    }

    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()> {
        let wanted = if want { FRAMES | ROOM } else { FRAMES };
        match &self.peer {
            Some(peer) => (self.peer_interest).set(poller, peer.as_fd(), token, wanted),
            None => Ok(()),
        }
    }

    fn receive(
        &mut self,
        poller: &Epoll,
        token: u64,
        batch: &mut RxBatch,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Received {
        if self.peer.is_none()
            && let Err(error) = self.accept(poller, token)
        {
            if error.kind() != io::ErrorKind::WouldBlock {
                tracing::warn!("port {token}: cannot accept a peer: {error}");
            }
            return Received::Empty;
        }
        let Some(peer) = &self.peer else {
            return Received::Empty;
        };
        match mmsg::recv(peer.as_fd(), batch, BATCH) {
            Ok(()) => {
                // At the end of the connection recvmmsg fills what is left of the batch with what
                // looks like empty messages, but comes without credentials.
                if batch.keep_with_control() == 0 {
                    self.hang_up(poller, token);
                }
                batch.frames().for_each(each);
                Received::Frames
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Empty,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Received::Frames,
            // Said once, when the peer went with frames of ours unread, and before what it had sent
            // itself: that comes next, then the end.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Received::Frames,
            Err(error) => {
                tracing::info!("port {token}: peer lost: {error}");
                self.hang_up(poller, token);
                Received::Empty
            }
        }
    }

    fn connected(&self) -> bool {
        self.peer.is_some()
    }
}

impl Medium for SeqpacketPort {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        while reports.len() < frames.len() {
            let rest = &frames[reports.len()..];
            let Some(peer) = &self.peer else {
                reports.extend(rest.iter().map(|_| Departure::NoPeer));
                return;
            };
            match mmsg::send(peer.as_fd(), rest) {
                Ok(taken) => reports.extend((0..taken).map(|_| Departure::Left)),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return,
                    Some(Errno::EINTR) => {}
                    Some(Errno::EMSGSIZE) => reports.push(Departure::Oversize),
                    // EPIPE and the like: the reading side notices and looks for the next peer.
                    _ => reports.push(Departure::NoPeer),
                },
            }
        }
    }
}
