//! Kernel UDP: segmentation offload for sending, batches and coalescing for receiving.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;
use ultima_wire::frame::TTL;

use crate::config::Config;
use crate::core::{Batch, Carrier, Core, Destination, Queued};

use super::colocated::Colocated;
use super::inbox::{self, Inbox};
use super::numbers::PacketNumbers;
use super::{HandleDatagram, Link, LinkCounters, LinkError};

/// The most segments in one call (UDP_MAX_SEGMENTS).
const MOST_SEGMENTS: usize = 64;
/// With a rate limit, the time at that rate of datagrams that follow each other to one receiver.
const RUN_TIME: Duration = Duration::from_micros(20);
/// The longest run of segments in one call, headers included: one IPv4 packet.
const MAX_RUN: usize = 65_000;

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
        let own = self.own()?;
        let others = (self.peers.iter())
            .filter(|peer| SocketAddr::V4(**peer) != own && IpAddr::V4(*peer.ip()) == own.ip());
        Ok(1 + others.count())
    }

    /// True if this rank has an address of loopback: no switch is between the ranks.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(crate) fn is_loopback(&self) -> Result<bool, LinkError> {
        Ok(self.own()?.ip().is_loopback())
    }

    fn own(&self) -> Result<SocketAddr, LinkError> {
        (self.socket.local_addr())
            .map_err(|error| LinkError::io("read the socket's address", error))
    }
}

pub(crate) struct UdpLink {
    inbox: Inbox,
    /// None if no other rank is on this host, or none may share memory.
    pub(super) colocated: Option<Colocated>,
    /// By rank, then the group.
    destinations: Vec<Target>,
    numbers: PacketNumbers,
    /// The most segments in one call: 1 if the kernel or the card cannot cut a run.
    segments: usize,
    counters: LinkCounters,
}

#[derive(Clone, Copy)]
struct Target {
    address: SocketAddrV4,
    /// True for a rank on this host: the kernel delivers the packet, and no switch receives it.
    colocated: bool,
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
    pub(crate) fn new(udp: UdpConfig, config: &Config) -> Result<Self, LinkError> {
        let fail = |what| move |error: io::Error| LinkError::io(what, error);
        let UdpConfig {
            socket,
            peers,
            group,
        } = udp;
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
            address,
            colocated: Some(*address.ip()) == local,
        };
        let own = socket.local_addr();
        let inbox = Inbox::open(socket, &peers)?;
        let colocated = match own {
            Ok(SocketAddr::V4(own)) => Colocated::of(own, &peers, config, inbox.fd()),
            _ => None,
        };
        Ok(Self {
            segments: inbox.main().max_gso_segments().clamp(1, MOST_SEGMENTS),
            inbox,
            colocated,
            destinations: peers.into_iter().chain([group]).map(destination).collect(),
            numbers: PacketNumbers::default(),
            counters: LinkCounters::default(),
        })
    }

    /// Number of the next datagrams that one call can send: for the same receiver, all as long as the first except
    /// the last.
    fn run_len(&self, unsent: &[Queued]) -> usize {
        let (mut count, mut total) = (0, 0);
        for next in unsent.iter().take(self.segments) {
            let Queued { to, len, .. } = unsent[0];
            total += next.len;
            let fits = total <= MAX_RUN || count == 0;
            if next.to != to || next.len > len || !fits {
                break;
            }
            count += 1;
            if next.len < len {
                break;
            }
        }
        count
    }

    /// Sends the next datagram through shared memory. Returns false if its receiver has none.
    fn share(&mut self, batch: &mut Batch, core: &Core) -> bool {
        let (Some(colocated), Destination::Rank(rank)) =
            (&mut self.colocated, batch.unsent()[0].to)
        else {
            return false;
        };
        if !colocated.reaches(rank) {
            return false;
        }
        let len = batch.unsent()[0].len;
        let sent = colocated.send(rank, len, |room| batch.write_next(core, room));
        if sent {
            batch.note_sent(1);
        }
        sent
    }

    /// Sends the next `count` datagrams.
    fn send_run(&mut self, batch: &mut Batch, count: usize, core: &Core) -> nix::Result<()> {
        let Queued { to, len, .. } = batch.unsent()[0];
        let Target { address, colocated } = self.destinations[match to {
            Destination::Rank(rank) => usize::from(rank),
            Destination::Group => self.destinations.len() - 1,
        }];
        if !colocated {
            let mut before = 0;
            batch.change_heads(count, |head| {
                self.numbers.stamp(before, head);
                before += 1;
            });
        }
        let mut parts = [IoSlice::new(&[]); 2 * MOST_SEGMENTS];
        let mut used = 0;
        if batch.has_values_in_core(count) && !core.config().element.is_in_place() {
            parts[0] = IoSlice::new(batch.copy(count, core));
            used = 1;
        } else {
            batch.slices(count, core, |part| {
                parts[used] = IoSlice::new(part);
                used += 1;
            });
        }
        // A datagram of a run is shorter than 2^16 bytes.
        let segment = (count > 1).then_some(len as u16);
        (self.inbox.main()).send(address, &parts[..used], segment)?;
        if !colocated {
            self.numbers.left(count);
        }
        Ok(())
    }
}

impl Link for UdpLink {
    fn fd(&self) -> BorrowedFd<'_> {
        match &self.colocated {
            Some(colocated) => colocated.fd(),
            None => self.inbox.fd(),
        }
    }

    fn out_fd(&self) -> BorrowedFd<'_> {
        self.inbox.main().as_fd()
    }

    fn send(&mut self, batch: &mut Batch, core: &Core) -> Result<bool, LinkError> {
        while !batch.is_empty() {
            if self.share(batch, core) {
                continue;
            }
            let count = self.run_len(batch.unsent());
            match self.send_run(batch, count, core) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => {
                    batch.detach(core);
                    return Ok(false);
                }
                // The kernel or the card has no segmentation offload.
                Err(Errno::EIO | Errno::EINVAL) if count > 1 => {
                    self.segments = 1;
                    continue;
                }
                // A peer that has closed its socket, or a route that was removed, counts as loss.
                Err(error) => {
                    tracing::debug!(%error, "datagrams not sent");
                    let lost = match error {
                        Errno::EMSGSIZE => &mut self.counters.too_long,
                        _ => &mut self.counters.send_errors,
                    };
                    *lost += count as u64;
                    self.counters.last_send_error = Some(error as i32);
                }
            }
            batch.note_sent(count);
        }
        Ok(true)
    }

    fn carrier(&self) -> Carrier {
        match &self.colocated {
            Some(colocated) if colocated.uses_only_queues() => Carrier::SharedMemory,
            _ => Carrier::Sockets,
        }
    }

    fn receive(&mut self, handle: &mut HandleDatagram) -> Result<bool, LinkError> {
        match &mut self.colocated {
            Some(colocated) => colocated.receive(&mut self.inbox, handle),
            None => self.inbox.receive(&mut |_| {}, handle),
        }
    }

    fn sleep(&mut self, soon: bool) -> bool {
        (self.colocated.as_ref()).is_none_or(|colocated| colocated.sleep(soon))
    }

    fn has_queues(&self) -> bool {
        self.colocated.is_some()
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A core that sends nothing.
    fn core() -> Core {
        Core::new(Config::new(1, 1, 0, 2, 7, Duration::from_secs(1)))
            .expect("a valid configuration")
    }

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
        let (core, mut batch) = (core(), Batch::new(100));
        let mut link = UdpLink::new(config, core.config()).expect("sets up");
        batch.add(Destination::Rank(0), &[0; 100]);
        assert!(link.send(&mut batch, &core).expect("goes on"));
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
        let udp = UdpConfig {
            socket: socket(),
            peers,
            group,
        };
        let (core, mut batch) = (core(), Batch::new(100));
        let mut link = UdpLink::new(udp, core.config()).expect("sets up");
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
            let mut datagram = vec![0; len];
            datagram[0] = number;
            batch.add(to, &datagram);
        }
        assert!(link.send(&mut batch, &core).expect("sends"));
        assert!(batch.is_empty());
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
