//! Port attachments.
//!
//! | attachment | module |
//! | --- | --- |
//! | Linux network interface, veth or physical | [`raw`], received through a [`ring`], sent to a veth through [`xdp`] |
//! | Unix socket, listening or inherited | [`seqpacket`] |
//! | P4Runtime controllers | [`controller`] |

pub(crate) mod controller;
pub(crate) mod links;
mod mapping;
mod merge;
pub(crate) mod mmsg;
mod offload;
mod packet_socket;
pub(crate) mod raw;
mod ring;
pub(crate) mod seqpacket;
mod xdp;

use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::config::Attach;
use crate::tm::{Medium, Nanos};
use mmsg::{Frame, RxBatch};
use raw::RawPort;
use seqpacket::SeqpacketPort;

/// The result of [`PortIo::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Frames; there may be more.
    Frames,
    /// All pending frames, possibly none.
    Empty,
}

/// An attachment, for the forwarding thread.
pub(crate) trait PortIo: Medium + Send {
    /// Registers the events that the port needs in its present state with `poller`, under `token`.
    fn register(&mut self, _poller: &Epoll, _token: u64) -> io::Result<()> {
        Ok(())
    }

    /// Starts or stops reports of room to send.
    fn want_writable(&mut self, _poller: &Epoll, _token: u64, _want: bool) -> io::Result<()> {
        Ok(())
    }

    /// Passes up to a batch of frames to `each`, in order. Registers changes of state itself, such as a new peer.
    fn receive(
        &mut self,
        _poller: &Epoll,
        _token: u64,
        _batch: &mut RxBatch,
        _each: &mut dyn FnMut(Frame<'_>),
    ) -> Received {
        Received::Empty
    }

    /// Handles an error that the poller reports and reading does not.
    fn failed(&mut self) {}

    /// Returns the index of its network interface, if it has one.
    fn interface(&self) -> Option<u32> {
        None
    }

    /// True unless the interface is administratively down.
    fn enabled(&self) -> bool {
        true
    }

    /// Handles a change of any network interface.
    fn link_changed(&mut self) {}

    /// Returns the time to wait before the next [`Medium::send`] after a partial one, if the poller does not report room.
    fn retry_after(&self) -> Option<Nanos> {
        None
    }

    /// True if the port has a peer that can receive frames.
    fn connected(&self) -> bool {
        true
    }

    /// Takes the number of frames that the kernel dropped since the last call because they were not read in time.
    fn take_overruns(&mut self) -> u64 {
        0
    }
}

/// Opens an attachment. With `send_rings`, frames to a veth may leave through AF_XDP.
pub(crate) fn open(attach: Attach, send_rings: bool) -> io::Result<Box<dyn PortIo>> {
    Ok(match attach {
        Attach::Interface(name) => Box::new(RawPort::open(&name, send_rings)?),
        Attach::Unix(path) => Box::new(SeqpacketPort::listen(path)?),
        Attach::Inherited(fd) => Box::new(SeqpacketPort::inherit(fd)?),
        Attach::Socket(socket) => Box::new(SeqpacketPort::connected_to(socket.try_clone()?)?),
    })
}

/// Interest in arriving frames and in the peer's disconnection.
const FRAMES: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP);
/// Interest in room to send.
const ROOM: EpollFlags = EpollFlags::EPOLLOUT;

/// The events of one descriptor that a poller reports; none if it is not registered.
#[derive(Debug)]
struct Interest(EpollFlags);

impl Interest {
    fn none() -> Self {
        Interest(EpollFlags::empty())
    }

    fn set(
        &mut self,
        poller: &Epoll,
        fd: BorrowedFd<'_>,
        token: u64,
        wanted: EpollFlags,
    ) -> io::Result<()> {
        let before = self.0;
        let mut event = EpollEvent::new(wanted, token);
        match (before.is_empty(), wanted.is_empty()) {
            _ if before == wanted => {}
            (true, _) => poller.add(fd, event)?,
            (_, true) => poller.delete(fd)?,
            _ => poller.modify(fd, &mut event)?,
        }
        self.0 = wanted;
        Ok(())
    }
}
