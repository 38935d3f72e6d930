//! Ports: where frames come from and go to.
//!
//! | attachment | module |
//! | --- | --- |
//! | Linux network interface, veth or physical | [`raw`], received through a [`ring`] |
//! | Unix socket, listening or inherited | [`seqpacket`] |
//! | pcap files | [`replay`] |
//! | P4Runtime controllers | [`controller`] |

mod checksum;
pub(crate) mod controller;
pub(crate) mod links;
pub(crate) mod mmsg;
mod offload;
mod packet_socket;
pub(crate) mod raw;
pub(crate) mod replay;
mod ring;
pub(crate) mod seqpacket;

use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::config::Attach;
use crate::tm::{Medium, Nanos};
use mmsg::{Frame, RxBatch};
use raw::RawPort;
use replay::{ReplayPlan, ReplayPort};
use seqpacket::SeqpacketPort;

/// What a call of [`PortIo::receive`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Frames, and perhaps more to come.
    Frames,
    /// All there was to read, perhaps nothing.
    Empty,
}

/// How far the replay of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay<'a> {
    /// There is none.
    None,
    /// There are frames left.
    Running,
    /// All frames have entered.
    Ended,
    /// The rest of the file cannot be read, for this reason.
    Failed(&'a str),
}

/// An attachment as the forwarding thread uses it.
pub(crate) trait PortIo: Medium + Send {
    /// Makes its files ready to be written.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Asks `poller` for the events that the port needs in its present state, under its `token`.
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()>;

    /// Also report when frames can be sent again, or stop doing so.
    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()>;

    /// Hands up to a batch of frames to `each`, in order. A change of state (a peer came or went) is
    /// registered by itself.
    fn receive(
        &mut self,
        poller: &Epoll,
        token: u64,
        batch: &mut RxBatch,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Received;

    /// The poller reports an error, which reading does not tell.
    fn failed(&mut self) {}

    /// Index of the network interface that it is attached to, if it is one.
    fn interface(&self) -> Option<u32> {
        None
    }

    /// Whether it is to be up: an interface may be administratively down.
    fn enabled(&self) -> bool {
        true
    }

    /// Makes it go up or down administratively.
    fn enable(&mut self, _enabled: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Something about some network interface has changed.
    fn link_changed(&mut self) {}

    /// How long to wait before the next try when the last [`Medium::send`] stopped short, if the
    /// poller will not report that there is room again.
    fn retry_after(&self) -> Option<Nanos> {
        None
    }

    /// Whether a frame sent now would reach somebody.
    fn connected(&self) -> bool;

    /// The queues are long: what comes in here can wait a little without being lost. False: it
    /// cannot.
    fn hold_back(&mut self) -> bool {
        false
    }

    /// How far the replay of a file is, if this is one.
    fn replay(&self) -> Replay<'_> {
        Replay::None
    }

    /// Whether what is sent stays in memory until it is flushed.
    fn buffers(&self) -> bool {
        false
    }

    /// Writes out what is buffered.
    fn flush(&mut self) {}

    /// Frames that the kernel dropped since the last call because they were not read in time.
    fn take_overruns(&mut self) -> u64 {
        0
    }
}

/// Opens an attachment. No file has changed by it.
pub(crate) fn open(attach: Attach, replay: ReplayPlan) -> io::Result<Box<dyn PortIo>> {
    Ok(match attach {
        Attach::Interface(name) => Box::new(RawPort::open(&name)?),
        Attach::Unix(path) => Box::new(SeqpacketPort::listen(path)?),
        Attach::Inherited(fd) => Box::new(SeqpacketPort::inherit(fd)?),
        Attach::Socket(socket) => Box::new(SeqpacketPort::connected_to(socket)?),
        Attach::Pcap(files) => Box::new(ReplayPort::open(files, replay)?),
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
    /// In what comes in, and in the peer's going.
    fn in_frames() -> Self {
        Self::of(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP)
    }

    /// In room to send.
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
