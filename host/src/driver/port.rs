//! A virtual switch port: Ethernet frames over a Unix socket of type SOCK_SEQPACKET, one message each.
//!
//! A full socket is backpressure: the batch waits while the driver keeps receiving.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};
use ultima_wire::frame::{self, Endpoints, FRAME_OVERHEAD, FrameError, Mac};

use crate::core::{Batch, Carrier, Core, Destination};

use super::numbers::PacketNumbers;
use super::{HandleDatagram, Link, LinkCounters, LinkError};

/// Frames per system call.
const BATCH: usize = 32;

/// A host's address on a network of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortAddress {
    /// Its MAC address.
    pub mac: Mac,
    /// Its address and the rank's UDP port.
    pub socket: SocketAddrV4,
}

/// A rank behind a virtual switch port.
#[derive(Debug)]
pub struct PortConfig {
    /// The connected SOCK_SEQPACKET socket whose other end is the switch's port.
    pub fd: OwnedFd,
    /// This rank.
    pub local: PortAddress,
    /// Every rank's address, by rank. This rank's own is unused.
    pub peers: Vec<PortAddress>,
    /// The job's group, see [`ultima_wire::group_address`]. Switches rewrite the UDP port, so it is
    /// arbitrary.
    pub group: SocketAddrV4,
}

pub(crate) struct PortLink {
    fd: OwnedFd,
    local: SocketAddrV4,
    /// By rank, then the group.
    endpoints: Vec<Endpoints>,
    numbers: PacketNumbers,
    frame_len: usize,
    /// Frames to send, each `frame_len` after the one before.
    out: Vec<u8>,
    out_lens: [usize; BATCH],
    /// Frames that wait: first and end.
    waiting: (usize, usize),
    out_headers: MultiHeaders<()>,
    /// A batch of received frames.
    came: Vec<u8>,
    came_headers: MultiHeaders<()>,
    counters: LinkCounters,
}

impl PortLink {
    /// Creates a link for datagrams up to `max_datagram`.
    pub(crate) fn new(config: PortConfig, max_datagram: usize) -> Self {
        let to = |mac, socket| Endpoints {
            src_mac: config.local.mac,
            dst_mac: mac,
            src: config.local.socket,
            dst: socket,
        };
        let group = to(frame::group_mac(*config.group.ip()), config.group);
        let ranks = config.peers.iter().map(|peer| to(peer.mac, peer.socket));
        let endpoints = ranks.chain([group]).collect();
        // Ethernet pads short frames to 60 bytes.
        let frame_len = (FRAME_OVERHEAD + max_datagram).max(60);
        Self {
            fd: config.fd,
            local: config.local.socket,
            endpoints,
            numbers: PacketNumbers::default(),
            frame_len,
            out: vec![0; frame_len * BATCH],
            out_lens: [0; BATCH],
            waiting: (0, 0),
            out_headers: MultiHeaders::preallocate(BATCH, None),
            came: vec![0; frame_len * BATCH],
            came_headers: MultiHeaders::preallocate(BATCH, None),
            counters: LinkCounters::default(),
        }
    }

    /// Makes frames of the next datagrams, as many as there is room for.
    fn fill(&mut self, batch: &mut Batch, core: &Core) {
        let (first, end) = self.waiting;
        if first == end {
            self.waiting = (0, 0);
        }
        while self.waiting.1 < BATCH
            && let Some(datagram) = batch.unsent().first()
        {
            let endpoints = match datagram.to {
                Destination::Rank(rank) => usize::from(rank),
                Destination::Group => self.endpoints.len() - 1,
            };
            let at = self.waiting.1;
            let len = FRAME_OVERHEAD + datagram.len;
            let frame = &mut self.out[at * self.frame_len..][..len];
            batch.write_next(core, &mut frame[FRAME_OVERHEAD..]);
            self.numbers.stamp(0, &mut frame[FRAME_OVERHEAD..]);
            self.numbers.left(1);
            self.endpoints[endpoints].emit(frame);
            self.out_lens[at] = len;
            self.waiting.1 += 1;
            batch.note_sent(1);
        }
    }

    /// Sends frames that wait. Returns the number of sent frames.
    fn send_frames(&mut self) -> nix::Result<usize> {
        let (first, end) = self.waiting;
        let slices: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|at| {
            let len = if at < end { self.out_lens[at] } else { 0 };
            [IoSlice::new(&self.out[at * self.frame_len..][..len])]
        });
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let fd = self.fd.as_raw_fd();
        let none = [None; BATCH];
        let sent = sendmmsg(
            fd,
            &mut self.out_headers,
            &slices[first..end],
            &none[first..end],
            [],
            flags,
        )?;
        Ok(sent.count())
    }

    /// Receives a batch. Returns the lengths of its frames, 0 for those that were too long.
    fn recv(&mut self) -> Result<([usize; BATCH], usize), LinkError> {
        let mut buffers = self.came.chunks_exact_mut(self.frame_len);
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(buffers.next().unwrap_or_default())]);
        let fd = self.fd.as_raw_fd();
        let headers = &mut self.came_headers;
        let came = match recvmmsg(fd, headers, &mut slices, MsgFlags::MSG_DONTWAIT, None) {
            Ok(came) => came,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(([0; BATCH], 0)),
            Err(Errno::ECONNRESET) => return Err(LinkError::PortClosed),
            Err(error) => return Err(LinkError::io("receive from the switch's port", error)),
        };
        let (mut lens, mut count) = ([0; BATCH], 0);
        for message in came {
            // The switch sends no empty messages: this is the end of the connection.
            if message.bytes == 0 {
                return Err(LinkError::PortClosed);
            }
            let whole = !message.flags.contains(MsgFlags::MSG_TRUNC);
            lens[count] = if whole { message.bytes } else { 0 };
            count += 1;
        }
        Ok((lens, count))
    }
}

impl Link for PortLink {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn out_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn send(&mut self, batch: &mut Batch, core: &Core) -> Result<bool, LinkError> {
        loop {
            self.fill(batch, core);
            if self.waiting.0 == self.waiting.1 {
                return Ok(true);
            }
            match self.send_frames() {
                Ok(sent) => self.waiting.0 += sent,
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    batch.detach(core);
                    return Ok(false);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => {
                    return Err(LinkError::PortClosed);
                }
                Err(error) => return Err(LinkError::io("send to the switch's port", error)),
            }
        }
    }

    fn carrier(&self) -> Carrier {
        Carrier::Copies
    }

    fn receive(&mut self, handle: &mut HandleDatagram) -> Result<bool, LinkError> {
        let (lens, count) = self.recv()?;
        for (bytes, len) in self.came.chunks_exact(self.frame_len).zip(&lens[..count]) {
            match frame::parse(&bytes[..*len]) {
                Ok((endpoints, _)) if endpoints.dst != self.local => self.counters.misdirected += 1,
                Ok((_, datagram)) => handle(Carrier::Copies, datagram),
                Err(FrameError::NotUdp) => self.counters.not_udp += 1,
                Err(FrameError::Checksum(_)) => self.counters.checksum += 1,
            }
        }
        Ok(count > 0)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
