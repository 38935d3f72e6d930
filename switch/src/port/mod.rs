//! Port attachments.
//!
//! | attachment | module |
//! | --- | --- |
//! | Linux network interface, veth or physical | [`raw`], received through a [`ring`], sent to a veth through [`xdp`] |
//! | Unix socket, listening or inherited | [`seqpacket`] |
//! | P4Runtime controllers | [`controller`] |

mod checksum;
pub(crate) mod controller;
pub(crate) mod links;
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
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()>;

    /// Starts or stops reports of room to send.
    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()>;

    /// Passes up to a batch of frames to `each`, in order. Registers changes of state itself, such as a new peer.
    fn receive(
        &mut self,
        poller: &Epoll,
        token: u64,
        batch: &mut RxBatch,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Received;

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

    /// Sets the administrative state.
    fn enable(&mut self, _enabled: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Handles a change of any network interface.
    fn link_changed(&mut self) {}

    /// Returns the time to wait before the next [`Medium::send`] after a partial one, if the poller does not report room.
    fn retry_after(&self) -> Option<Nanos> {
        None
    }

    /// True if the port has a peer that can receive frames.
    fn connected(&self) -> bool;

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
        Attach::Socket(socket) => Box::new(SeqpacketPort::connected_to(socket)?),
    })
}

/// One descriptor's registration with a poller.
#[derive(Debug)]
struct Interest {
    always: EpollFlags,
    registered: bool,
    writable: bool,
}

impl Interest {
    /// Interest in arriving frames and in the peer's disconnection.
    fn in_frames() -> Self {
        Self::of(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP)
    }

    /// Interest in room to send.
    fn in_room() -> Self {
        Self::of(EpollFlags::EPOLLOUT)
    }

    fn of(always: EpollFlags) -> Self {
        Interest {
            always,
            registered: false,
            writable: false,
        }
    }

    fn flags(&self) -> EpollFlags {
        if self.writable {
            self.always | EpollFlags::EPOLLOUT
        } else {
            self.always
        }
    }

    fn add(&mut self, poller: &Epoll, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        if !self.registered {
            poller.add(fd, EpollEvent::new(self.flags(), token))?;
            self.registered = true;
        }
        Ok(())
    }

    fn set_writable(
        &mut self,
        poller: &Epoll,
        fd: BorrowedFd<'_>,
        token: u64,
        want: bool,
    ) -> io::Result<()> {
        let changed = self.writable != want;
        self.writable = want;
        if self.registered && changed {
            poller.modify(fd, &mut EpollEvent::new(self.flags(), token))?;
        }
        Ok(())
    }

    fn remove(&mut self, poller: &Epoll, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.writable = false;
        if std::mem::take(&mut self.registered) {
            poller.delete(fd)?;
        }
        Ok(())
    }
}
