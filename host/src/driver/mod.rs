//! Drivers: links that carry the core's datagrams, and the thread that runs core and link.

mod colocated;
mod inbox;
mod numbers;
pub(crate) mod port;
mod queue;
mod rest;
pub(crate) mod thread;
pub(crate) mod udp;

use std::io;
use std::os::fd::BorrowedFd;

use crate::core::{Batch, Carrier, Core};

/// Handles a received datagram and what carried it.
pub(crate) type HandleDatagram<'a> = dyn FnMut(Carrier, &[u8]) + 'a;

/// Moves datagrams between the core and a network, in batches, without waiting.
pub(crate) trait Link {
    /// Readable when datagrams have arrived.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Writable when a blocked batch may continue.
    fn out_fd(&self) -> BorrowedFd<'_>;

    /// Sends a batch of the core's. Returns false if part of it must wait, for another call.
    fn send(&mut self, batch: &mut Batch, core: &Core) -> Result<bool, LinkError>;

    /// What carries all datagrams of the next batch.
    fn carrier(&self) -> Carrier;

    /// Receives a batch. Returns false if there was none.
    fn receive(&mut self, handle: &mut HandleDatagram) -> Result<bool, LinkError>;

    /// Prepares for a wait for [`Link::fd`]; datagrams may be expected `soon`. Returns false if they have arrived, which then may
    /// not show there.
    fn sleep(&mut self, _soon: bool) -> bool {
        true
    }

    /// True if some datagrams arrive in shared memory, which is as fast as the ranks.
    fn has_queues(&self) -> bool {
        false
    }

    /// Counters of datagrams that never reached the core.
    fn counters(&self) -> LinkCounters;
}

/// The reason that a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The switch closed the virtual port.
    #[error("the switch closed this rank's port; check that the switch is running")]
    PortClosed,
    /// A system call failed.
    #[error("cannot {what}: {error}")]
    Io {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl LinkError {
    fn io(what: &'static str, error: impl Into<io::Error>) -> Self {
        LinkError::Io {
            what,
            error: error.into(),
        }
    }
}

/// Frames and datagrams that a driver handled itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that are not whole UDP datagrams over IPv4.
    pub not_udp: u64,
    /// Frames with a wrong IPv4 or UDP checksum.
    pub checksum: u64,
    /// Datagrams for another address or UDP port.
    pub misdirected: u64,
    /// Datagrams that the kernel rejected for reasons other than load or length.
    pub send_errors: u64,
    /// Datagrams longer than the interface's MTU allows.
    pub too_long: u64,
    /// The kernel's last reason for one of the two (errno(3)).
    pub last_send_error: Option<i32>,
}
