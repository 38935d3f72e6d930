//! Drivers: what carries the core's datagrams, and the thread that runs the two.

mod numbers;
pub(crate) mod port;
pub(crate) mod thread;
pub(crate) mod udp;

use std::io;
use std::os::fd::BorrowedFd;

use crate::core::Transmit;

/// Datagrams per system call.
pub(crate) const BATCH: usize = 32;

/// Moves datagrams between the core and a network, in batches, without waiting.
pub(crate) trait Link {
    /// What becomes readable when datagrams came, and writable when a blocked batch may go on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Room for the next datagram; none while a full batch waits to leave.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// The datagram written to the last [`Link::slot`] is complete.
    fn queue(&mut self, transmit: Transmit);

    /// Hands the batch to the network; false if some of it must wait.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Takes a batch of what came; false if there was nothing.
    fn receive(&mut self, handle: &mut dyn FnMut(&[u8])) -> Result<bool, LinkError>;

    /// What the core did not get to see.
    fn counters(&self) -> LinkCounters;
}

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The switch closed the virtual port.
    #[error("the switch closed this rank's port; is it still running?")]
    PortClosed,
    /// The kernel refused.
    #[error("cannot {what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
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

/// Frames and datagrams that a driver dealt with itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that are not whole UDP datagrams over IPv4.
    pub not_udp: u64,
    /// Frames with a wrong IPv4 or UDP checksum.
    pub checksum: u64,
    /// Datagrams for another address or UDP port.
    pub misdirected: u64,
    /// Datagrams that the kernel did not take, by reasons other than being busy or their length.
    pub send_errors: u64,
    /// Datagrams that are longer than the interface's MTU has room for.
    pub too_long: u64,
}
