//! Kernel UDP: segmentation offload for sending, batches and coalescing for receiving.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc::EMSGSIZE;
use quinn_udp::{RecvMeta, UdpSocketState};
use socket2::SockRef;
use ultima_wire::Key;
use ultima_wire::frame::TTL;

use crate::core::{Destination, Transmit};

use super::numbers::PacketNumbers;
use super::{Link, LinkCounters, LinkError};

/// Datagrams staged before they are sent: enough that each receiver gets several, whose segments share a
/// system call.
const STAGED: usize = 64;
/// The longest run of segments in one call, headers included: one IPv4 packet.
const MAX_RUN: usize = 65_000;
/// The longest run of datagrams that the kernel coalesces.
const RECEIVE_LEN: usize = 65_535;
/// Runs received per system call.
const RECEIVE_BATCH: usize = 8;
/// Requested socket buffer for each direction: some milliseconds of several senders at once. The kernel
/// grants up to net.core.rmem_max and wmem_max.
const SOCKET_BUFFER: usize = 8 << 20;

/// A rank with a kernel socket.
#[derive(Debug)]
pub struct UdpConfig {
    /// The bound socket of this rank.
    pub socket: UdpSocket,
    /// Every rank's address, by rank. This rank's own is unused.
    pub peers: Vec<SocketAddrV4>,
    /// The job's group, see [`ultima_wire::group_address`]. Unused with unicast gather.
    pub group: SocketAddrV4,
}

pub(crate) struct UdpLink {
    socket: UdpSocket,
    state: UdpSocketState,
    /// By rank, then the group.
    destinations: Vec<Target>,
    numbers: PacketNumbers,
    max_datagram: usize,
    /// Datagrams in the core's order, each `max_datagram` after the one before.
    staged: Vec<u8>,
    queued: Vec<Queued>,
    /// True if part of the batch waits for the kernel: nothing is added to it.
    blocked: bool,
    /// Segments for one receiver, concatenated.
    run: Vec<u8>,
    came: Vec<u8>,
    counters: LinkCounters,
}

struct Target {
    address: SocketAddr,
    /// True for a rank on this host: the kernel delivers the packet, and no switch receives it.
    colocated: bool,
}

struct Queued {
    destination: usize,
    len: usize,
    left: bool,
}

impl UdpLink {
    /// Creates a link for datagrams up to `max_datagram`, sealed with `key`.
    pub(crate) fn new(
        config: UdpConfig,
        max_datagram: usize,
        key: Option<Key>,
    ) -> Result<Self, LinkError> {
        let fail = |what| move |error: io::Error| LinkError::io(what, error);
        let UdpConfig {
            socket,
            peers,
            group,
        } = config;
        let state = UdpSocketState::new((&socket).into()).map_err(fail("set up the UDP socket"))?;
        let options = SockRef::from(&socket);
        options
            .set_recv_buffer_size(SOCKET_BUFFER)
            .map_err(fail("size the receive buffer"))?;
        options
            .set_send_buffer_size(SOCKET_BUFFER)
            .map_err(fail("size the send buffer"))?;
        options
            .set_multicast_ttl_v4(u32::from(TTL))
            .map_err(fail("set the multicast TTL"))?;
        // The switch sends each member a copy; a copy from the kernel would be a duplicate.
        options
            .set_multicast_loop_v4(false)
            .map_err(fail("turn multicast loopback off"))?;
        let local = match socket.local_addr() {
            Ok(SocketAddr::V4(local)) if !local.ip().is_unspecified() => Some(*local.ip()),
            _ => None,
        };
        if let Some(ip) = &local {
            options
                .set_multicast_if_v4(ip)
                .map_err(fail("choose the multicast interface"))?;
        }
        let destination = |address: SocketAddrV4| Target {
            address: SocketAddr::V4(address),
            colocated: Some(*address.ip()) == local,
        };
        Ok(Self {
            socket,
            state,
            destinations: peers.into_iter().chain([group]).map(destination).collect(),
            numbers: PacketNumbers::new(key),
            max_datagram,
            staged: vec![0; max_datagram * STAGED],
            queued: Vec::with_capacity(STAGED),
            blocked: false,
            run: Vec::with_capacity(RECEIVE_LEN),
            came: vec![0; RECEIVE_LEN * RECEIVE_BATCH],
            counters: LinkCounters::default(),
        })
    }

    /// Collects the datagrams that one call can send together with the one at `first`: for the same receiver,
    /// all as long as the first except the last. Returns their number.
    ///
    /// A run never passes a datagram that reaches the same receiver by another destination. Packets to a rank
    /// keep their order with packets to the group, because receivers detect losses by it.
    fn collect_run(&mut self, first: usize) -> usize {
        let Queued {
            destination, len, ..
        } = self.queued[first];
        let group = self.destinations.len() - 1;
        let most = self
            .state
            .max_gso_segments()
            .min(MAX_RUN / len.max(1))
            .max(1);
        self.run.clear();
        let mut count = 0;
        for (at, next) in self
            .queued
            .iter()
            .enumerate()
            .skip(first)
            .filter(|(_, q)| !q.left)
        {
            if next.destination != destination {
                if next.destination == group || destination == group {
                    break;
                }
                continue;
            }
            if next.len > len || count == most {
                break;
            }
            self.run
                .extend_from_slice(&self.staged[at * self.max_datagram..][..next.len]);
            count += 1;
            if next.len < len {
                break;
            }
        }
        if !self.destinations[destination].colocated {
            self.numbers.stamp(&mut self.run, len);
        }
        count
    }

    fn send_run(&self, first: usize, count: usize) -> io::Result<()> {
        let Queued {
            destination, len, ..
        } = self.queued[first];
        let transmit = quinn_udp::Transmit {
            destination: self.destinations[destination].address,
            ecn: None,
            contents: &self.run,
            segment_size: (count > 1).then_some(len),
            src_ip: None,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Notes that the kernel accepted a run.
    fn run_sent(&mut self, first: usize, count: usize) {
        if !self.destinations[self.queued[first].destination].colocated {
            self.numbers.left(count);
        }
        self.run_left(first, count);
    }

    /// Removes a run from the batch, whether the kernel accepted it or not.
    fn run_left(&mut self, first: usize, count: usize) {
        let destination = self.queued[first].destination;
        self.queued[first..]
            .iter_mut()
            .filter(|queued| !queued.left && queued.destination == destination)
            .take(count)
            .for_each(|queued| queued.left = true);
    }
}

impl Link for UdpLink {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        let at = self.queued.len();
        (at < STAGED && !self.blocked)
            .then(|| &mut self.staged[at * self.max_datagram..][..self.max_datagram])
    }

    fn queue(&mut self, transmit: Transmit) {
        let destination = match transmit.to {
            Destination::Rank(rank) => usize::from(rank),
            Destination::Group => self.destinations.len() - 1,
        };
        self.queued.push(Queued {
            destination,
            len: transmit.len,
            left: false,
        });
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        for first in 0..self.queued.len() {
            while !self.queued[first].left {
                let count = self.collect_run(first);
                match self.send_run(first, count) {
                    Ok(()) => self.run_sent(first, count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.blocked = true;
                        return Ok(false);
                    }
                    // The kernel or the card has no segmentation offload: quinn-udp continues without it.
                    Err(_) if count > 1 && self.state.max_gso_segments() == 1 => {}
                    // A peer or a route that is gone counts as loss.
                    Err(error) => {
                        tracing::debug!(%error, "datagrams not sent");
                        let lost = match error.raw_os_error() {
                            Some(EMSGSIZE) => &mut self.counters.too_long,
                            _ => &mut self.counters.send_errors,
                        };
                        *lost += count as u64;
                        self.run_left(first, count);
                    }
                }
            }
        }
        self.queued.clear();
        self.blocked = false;
        Ok(true)
    }

    fn receive(&mut self, handle: &mut dyn FnMut(&[u8])) -> Result<bool, LinkError> {
        let mut meta = [RecvMeta::default(); RECEIVE_BATCH];
        let mut chunks = self.came.chunks_exact_mut(RECEIVE_LEN);
        let mut buffers: [IoSliceMut<'_>; RECEIVE_BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let count = match self
            .state
            .recv((&self.socket).into(), &mut buffers, &mut meta)
        {
            Ok(count) => count,
            // An ICMP error for a sent datagram: that peer has no socket.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(LinkError::io("receive from the UDP socket", error)),
        };
        for (bytes, meta) in self.came.chunks_exact(RECEIVE_LEN).zip(&meta[..count]) {
            // An empty datagram has no stride.
            for datagram in bytes[..meta.len].chunks(meta.stride.max(1)) {
                handle(datagram);
            }
        }
        Ok(count > 0)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Two "ranks" and a "group" that are all the same socket, which therefore receives all packets in order,
    /// and numbered as they are sent. A third rank, on the sender's host, takes no numbers.
    #[test]
    fn runs_keep_every_receivers_order() {
        let on = |ip: Ipv4Addr| UdpSocket::bind((ip, 0)).expect("binds");
        let socket = || on(Ipv4Addr::LOCALHOST);
        let address = |socket: &UdpSocket| match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => address,
            other => panic!("an IPv4 socket: {other:?}"),
        };
        let (receiver, other) = (on(Ipv4Addr::new(127, 0, 0, 2)), socket());
        let peers = vec![address(&other), address(&receiver), address(&receiver)];
        let group = address(&receiver);
        let mut link = UdpLink::new(
            UdpConfig {
                socket: socket(),
                peers,
                group,
            },
            100,
            None,
        )
        .expect("sets up");
        // Datagrams by destination (0 is elsewhere, 3 the group) and length. The first byte numbers them.
        let (one, all) = (Destination::Rank(1), Destination::Group);
        let queued = [
            (one, 100),
            (Destination::Rank(0), 100),
            (one, 100),
            (one, 60),
            (one, 100),
            (all, 100),
            (one, 50),
            (one, 80),
            (all, 80),
            (all, 80),
            (one, 80),
            (Destination::Rank(0), 9),
        ];
        for (number, (to, len)) in (0u8..).zip(queued) {
            let slot = link.slot().expect("room in the batch");
            slot[0] = number;
            link.queue(Transmit { to, len, head: len });
        }
        assert!(link.flush().expect("sends"));
        let mut buf = [0; 200];
        let mut left = 0u32;
        for (number, (to, len)) in (0u8..).zip(queued) {
            if to != Destination::Rank(0) {
                assert_eq!(receiver.recv(&mut buf).expect("receives"), len);
                assert_eq!(buf[0], number);
                assert_eq!(buf[20..24], left.to_be_bytes());
                left += 1;
            }
        }
        assert_eq!(link.counters(), LinkCounters::default());
    }
}
