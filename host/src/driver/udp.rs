//! Kernel UDP: segmentation offload for sending, batches and coalescing for receiving.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::libc::EMSGSIZE;
use socket2::SockRef;
use ultima_wire::frame::TTL;
use ultima_wire::{Credit, header_len};

use crate::config::Config;
use crate::core::{Destination, Transmit};

use super::inbox::{self, Inbox};
use super::numbers::PacketNumbers;
use super::{Link, LinkCounters, LinkError};

/// Bytes of datagrams staged before they are sent: a run of segments, or several short ones.
const STAGED: usize = 2 * MAX_RUN;
/// The most segments in one call (UDP_MAX_SEGMENTS).
const MOST_SEGMENTS: usize = 64;
/// With a rate limit, the time at that rate of datagrams that follow each other to one receiver.
const RUN_TIME: Duration = Duration::from_micros(20);
/// The longest run of segments in one call, headers included: one IPv4 packet.
const MAX_RUN: usize = 65_000;
/// Room for a grant of credit.
const SHORTEST: usize = header_len(true) + Credit::LEN;
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

impl UdpConfig {
    /// Bytes that the receive buffers of a job with this number of ranks have together, as the kernel counts them.
    /// Sets the sizes of `socket`'s buffers, as [`crate::Collective::over_udp`] does.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn receive_buffer(socket: &UdpSocket, ranks: u16) -> Result<usize, LinkError> {
        inbox::size(socket, usize::from(ranks).saturating_sub(1))
    }

    /// The ranks with this rank's address, this one included.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(crate) fn local_ranks(&self) -> Result<usize, LinkError> {
        let own = (self.socket.local_addr())
            .map_err(|error| LinkError::io("read the socket's address", error))?;
        let others = (self.peers.iter())
            .filter(|peer| SocketAddr::V4(**peer) != own && IpAddr::V4(*peer.ip()) == own.ip());
        Ok(1 + others.count())
    }
}

pub(crate) struct UdpLink {
    inbox: Inbox,
    /// By rank, then the group.
    destinations: Vec<Target>,
    numbers: PacketNumbers,
    /// Datagrams to send, one after the other in the core's order.
    staged: Vec<u8>,
    /// Bytes in use.
    end: usize,
    queued: Vec<Queued>,
    /// Number of queued datagrams that were sent.
    sent: usize,
    /// True if part of the batch waits for the kernel: nothing is added to it.
    blocked: bool,
    counters: LinkCounters,
}

#[derive(Clone, Copy)]
struct Target {
    address: SocketAddr,
    /// True for a rank on this host: the kernel delivers the packet, and no switch receives it.
    colocated: bool,
}

#[derive(Clone, Copy)]
struct Queued {
    destination: usize,
    start: usize,
    len: usize,
}

/// Datagrams of `config` that follow each other to one receiver: as many as share a system call. With a rate limit fewer,
/// because they queue in front of the receiver's link.
pub(crate) fn send_run(config: &Config) -> u16 {
    let datagram = config.header_len() + config.slot_bytes;
    let most = (MAX_RUN / datagram).clamp(1, MOST_SEGMENTS);
    let run = config.pacing.map_or(most, |pacing| {
        let bytes = pacing.bits_per_second / 8 * RUN_TIME.as_micros() as u64 / 1_000_000;
        most.min(bytes as usize / datagram)
    });
    run.max(1) as u16
}

impl UdpLink {
    /// Creates a link for datagrams up to `max_datagram`.
    pub(crate) fn new(config: UdpConfig, max_datagram: usize) -> Result<Self, LinkError> {
        let fail = |what| move |error: io::Error| LinkError::io(what, error);
        let UdpConfig {
            socket,
            peers,
            group,
        } = config;
        let options = SockRef::from(&socket);
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
        let inbox = Inbox::open(socket, &peers)?;
        Ok(Self {
            inbox,
            destinations: peers.into_iter().chain([group]).map(destination).collect(),
            numbers: PacketNumbers::default(),
            staged: vec![0; STAGED.max(max_datagram)],
            end: 0,
            queued: Vec::new(),
            sent: 0,
            blocked: false,
            counters: LinkCounters::default(),
        })
    }

    /// Number of datagrams from `first` on that one call can send: for the same receiver, all as long as the first except
    /// the last.
    fn run_at(&self, first: usize) -> usize {
        let Queued {
            destination, len, ..
        } = self.queued[first];
        let segments = self.inbox.main().max_gso_segments().max(1);
        let (mut count, mut total) = (0, 0);
        for next in self.queued[first..].iter().take(segments) {
            total += next.len;
            let fits = total <= MAX_RUN || count == 0;
            if next.destination != destination || next.len > len || !fits {
                break;
            }
            count += 1;
            if next.len < len {
                break;
            }
        }
        count
    }

    /// Sends `count` datagrams from `first` on.
    fn send_run(&mut self, first: usize, count: usize) -> io::Result<()> {
        let Queued {
            destination,
            start,
            len,
        } = self.queued[first];
        let last = &self.queued[first + count - 1];
        let run = &mut self.staged[start..last.start + last.len];
        let Target { address, colocated } = self.destinations[destination];
        if !colocated {
            self.numbers.stamp(run, len);
        }
        let transmit = quinn_udp::Transmit {
            destination: address,
            ecn: None,
            contents: run,
            segment_size: (count > 1).then_some(len),
            src_ip: None,
        };
        self.inbox.main().try_send(&transmit)?;
        if !colocated {
            self.numbers.left(count);
        }
        Ok(())
    }
}

impl Link for UdpLink {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inbox.fd()
    }

    fn out_fd(&self) -> BorrowedFd<'_> {
        self.inbox.main().as_fd()
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        let room = self.staged.get_mut(self.end..)?;
        (!self.blocked && room.len() >= SHORTEST).then_some(room)
    }

    fn queue(&mut self, transmit: Transmit) {
        let destination = match transmit.to {
            Destination::Rank(rank) => usize::from(rank),
            Destination::Group => self.destinations.len() - 1,
        };
        self.queued.push(Queued {
            destination,
            start: self.end,
            len: transmit.len,
        });
        self.end += transmit.len;
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        while self.sent < self.queued.len() {
            let count = self.run_at(self.sent);
            match self.send_run(self.sent, count) {
                Ok(()) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(false);
                }
                // The kernel or the card has no segmentation offload: quinn-udp continues without it.
                Err(_) if count > 1 && self.inbox.main().max_gso_segments() == 1 => {}
                // A peer or a route that is gone counts as loss.
                Err(error) => {
                    tracing::debug!(%error, "datagrams not sent");
                    let lost = match error.raw_os_error() {
                        Some(EMSGSIZE) => &mut self.counters.too_long,
                        _ => &mut self.counters.send_errors,
                    };
                    *lost += count as u64;
                    self.counters.last_send_error = error.raw_os_error();
                    self.sent += count;
                }
            }
        }
        self.queued.clear();
        (self.sent, self.end, self.blocked) = (0, 0, false);
        Ok(true)
    }

    fn receive(&mut self, handle: &mut dyn FnMut(&[u8])) -> Result<bool, LinkError> {
        self.inbox.receive(handle)
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn unsent_packets_are_counted_with_the_reason() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        // The kernel sends to it only with SO_BROADCAST.
        let broadcast = SocketAddrV4::new(Ipv4Addr::BROADCAST, 9);
        let config = UdpConfig {
            socket,
            peers: vec![broadcast],
            group: broadcast,
        };
        let mut link = UdpLink::new(config, 100).expect("sets up");
        link.slot().expect("room in the batch").fill(0);
        link.queue(Transmit {
            to: Destination::Rank(0),
            len: 100,
            head: 100,
        });
        assert!(link.flush().expect("goes on"));
        let counters = link.counters();
        assert_eq!(counters.send_errors, 1);
        assert_eq!(counters.last_send_error, Some(nix::libc::EACCES));
    }

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
