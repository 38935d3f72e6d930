//! Ports: where frames come from and go to.
//!
//! | attachment | module |
//! | --- | --- |
//! | Linux network interface, veth or physical | [`raw`] |
//! | Unix socket, listening or inherited | [`seqpacket`] |
//! | P4Runtime controllers | [`controller`] |

mod checksum;
pub(crate) mod controller;
pub(crate) mod mmsg;
mod offload;
pub(crate) mod raw;
pub(crate) mod seqpacket;

use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::config::Attach;
use crate::tm::Medium;
use mmsg::RxBatch;
use raw::RawPort;
use seqpacket::SeqpacketPort;

/// What a call of [`PortIo::receive`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Frames, and perhaps more to come.
    Frames,
    /// Nothing to read.
    Empty,
}

/// An attachment as the forwarding thread uses it.
pub(crate) trait PortIo: Medium + Send {
    /// Asks `poller` for the events that the port needs in its present state, under its `token`.
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()>;

    /// Also report when frames can be sent again, or stop doing so.
    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()>;

    /// Reads up to a batch of frames. A change of state (a peer came or went) is registered by
    /// itself.
    fn receive(&mut self, poller: &Epoll, token: u64, batch: &mut RxBatch) -> Received;

    /// Whether a frame sent now would reach somebody.
    fn connected(&self) -> bool;

    /// Frames that the kernel dropped since the last call because they were not read in time.
    fn take_overruns(&mut self) -> u64 {
        0
    }
}

/// Opens an attachment.
pub(crate) fn open(attach: Attach) -> io::Result<Box<dyn PortIo>> {
    Ok(match attach {
        Attach::Interface(name) => Box::new(RawPort::open(&name)?),
        Attach::Unix(path) => Box::new(SeqpacketPort::listen(path)?),
        Attach::Inherited(fd) => Box::new(SeqpacketPort::inherit(fd)?),
        Attach::Socket(socket) => Box::new(SeqpacketPort::connected_to(socket)?),
    })
}

/// One descriptor's registration with a poller.
#[derive(Debug, Default)]
struct Interest {
    registered: bool,
    writable: bool,
}

impl Interest {
    fn flags(&self) -> EpollFlags {
        let mut flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        flags.set(EpollFlags::EPOLLOUT, self.writable);
        flags
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
        if self.registered && self.writable != want {
            self.writable = want;
            poller.modify(fd, &mut EpollEvent::new(self.flags(), token))?;
        }
        self.writable = want;
        Ok(())
    }

    fn remove(&mut self, poller: &Epoll, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.registered {
            poller.delete(fd)?;
        }
        *self = Interest::default();
        Ok(())
    }
}
