//! Ports on Linux network interfaces: AF_PACKET sockets (packet(7)).
//!
//! Frames arrive through a ring that this process shares with the kernel. They leave through an AF_XDP ring where the
//! interface is a veth and the kernel has AF_XDP, and otherwise by sendmmsg through a second socket, which needs no offload
//! headers. Beside an AF_XDP ring, packets of a flow leave as one frame ([`merge`]). PACKET_TX_RING is no faster: the
//! kernel copies its frames anyway before a veth carries them.
//!
//! The interface keeps its own IP stack; what arrives there is seen by both. Frames that the host
//! itself sends through the interface are ignored, so that the switch does not see its own.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::epoll::{Epoll, EpollFlags};
use nix::sys::socket::{getsockopt, sockopt};

use super::links::{Details, Link};
use super::mmsg::{self, Frame, RxBatch};
use super::offload::{Refused, VNET_HEADER, VnetHeader};
use super::ring::{Content, RxRing};
use super::xdp::{self, Sent, TxRing};
use super::{FRAMES, Interest, PortIo, ROOM, Received, merge, packet_socket};
use crate::tm::{BATCH, Departure, Medium, Nanos};

/// Ethernet header and one VLAN tag: what a frame may have on top of the interface's MTU.
const VLAN_TAG: usize = 4;
const ETHERNET_HEADER: usize = 14;
/// Until another try when an interface's own queue is full, which nothing reports the end of: at
/// 10 Gbit/s, 60 kB leave it in that time.
const CONGESTION_PAUSE: Nanos = 50_000;

/// The time after which a frame that cannot leave is dropped: in that time an Ethernet frame of 1,500 bytes leaves at 120 kbit/s.
const GIVE_UP: Duration = Duration::from_millis(100);

/// Time between two tries to open an AF_XDP socket.
const RETRY_RING: Duration = Duration::from_secs(1);

/// Distinguishes a full queue from frames that the interface never takes, as a veth whose other end has a smaller MTU: the kernel
/// has ENOBUFS for both.
#[derive(Debug, Default)]
struct Refusals {
    /// Since when the frame that is to leave next has been tried.
    since: Option<Instant>,
    /// The shortest frame that was given up, while none as long has left since.
    given_up: Option<usize>,
}

pub(crate) struct RawPort {
    // Unmapped before the socket is closed.
    ring: RxRing,
    receiver: OwnedFd,
    sender: OwnedFd,
    send_rings: bool,
    /// Sends frames that have a length in `ring_takes`.
    tx_ring: Option<TxRing>,
    ring_takes: RangeInclusive<usize>,
    merges: bool,
    /// Time of the next try to open it.
    retry_ring: Option<Instant>,
    /// The kernel dropped the frame that must leave next. Later frames may be in the send ring.
    dropped: bool,
    /// Number of frames in the send ring when [`Medium::send`] last returned.
    staged: usize,
    receiving: Interest,
    sending: Interest,
    link: Link,
    /// The interface's own queue was full when a frame was last sent.
    congested: bool,
    refusals: Refusals,
    /// Frames that were longer than a slot, and for which there was no memory elsewhere.
    lost: u64,
    warned: bool,
    name: String,
    index: libc::c_uint,
}

impl RawPort {
    /// Attaches to the interface of this name.
    pub(crate) fn open(name: &str, send_rings: bool) -> io::Result<Self> {
        let index = if_nametoindex(name).map_err(|errno| match errno {
            Errno::ENODEV => io::Error::new(io::ErrorKind::NotFound, "there is no such interface"),
            other => other.into(),
        })?;
        let receiver = packet_socket::receiver()?;
        let ring = RxRing::map(&receiver)?;
        packet_socket::receive_from(&receiver, index)?;
        let sender = packet_socket::sender_to(index)?;
        let details = Details::of(index);
        let link = details.map_or(Link::Gone, |details| details.link);
        match link {
            Link::Down => tracing::warn!(
                "{name} is down: nothing comes or goes there until `ip link set {name} up`"
            ),
            Link::NoCarrier => tracing::info!("{name} has no carrier: its other end is down"),
            Link::Running | Link::Gone => {}
        }
        let mut port = RawPort {
            ring,
            receiver,
            sender,
            send_rings,
            tx_ring: None,
            ring_takes: RangeInclusive::new(1, 0),
            merges: false,
            retry_ring: None,
            dropped: false,
            staged: 0,
            receiving: Interest::none(),
            sending: Interest::none(),
            link,
            congested: false,
            refusals: Refusals::default(),
            lost: 0,
            warned: false,
            name: name.to_owned(),
            index,
        };
        port.choose_sender(details);
        Ok(port)
    }

    /// Decides which frames leave through a send ring, and opens it. Only a veth has one, because other drivers were not
    /// tested, and only without a queueing discipline, which a send ring would bypass. The packet socket takes longer frames
    /// than the MTU, and those without a payload: it knows which of them the interface carries.
    fn choose_sender(&mut self, details: nix::Result<Details>) {
        self.ring_takes = RangeInclusive::new(1, 0);
        self.retry_ring = None;
        let Ok(details) = details else {
            return;
        };
        if !details.plain_veth || !self.send_rings {
            return;
        }
        if self.tx_ring.is_none() {
            match TxRing::open(self.index) {
                Ok(ring) => self.tx_ring = Some(ring),
                Err(error) => {
                    tracing::debug!("{}: no AF_XDP socket: {error}", self.name);
                    // Memory, or the socket of another process, may become free.
                    if error.kind() != io::ErrorKind::Unsupported {
                        self.retry_ring = Some(Instant::now() + RETRY_RING);
                    }
                    return;
                }
            }
        }
        self.ring_takes = ETHERNET_HEADER + 1..=xdp::CHUNK.min(details.mtu + ETHERNET_HEADER);
        self.merges = details.gso;
    }

    /// True if a frame leaves through the send ring.
    fn ring_takes(&self, frame: &[u8]) -> bool {
        self.tx_ring.is_some() && self.ring_takes.contains(&frame.len())
    }

    /// Closes the send ring and drops the frames in it.
    fn close_tx_ring(&mut self) {
        self.tx_ring = None;
        self.staged = 0;
        self.dropped = false;
    }

    /// Sends frames through the ring, up to the first one that it does not take. Returns false if the interface is full.
    fn send_by_ring(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) -> bool {
        let limits = self.ring_takes.clone();
        let Some(ring) = &mut self.tx_ring else {
            return true;
        };
        let more = frames[self.staged..].iter();
        let put = more.take_while(|frame| limits.contains(&frame.len()) && ring.put(frame));
        let put = self.staged + put.count();
        let sent = ring.send();
        self.staged = ring.waiting();
        let taken = put - self.staged;
        let Some(left) = taken.checked_sub((sent == Sent::Dropped).into()) else {
            tracing::warn!(
                "{}: frames leave without AF_XDP: a dropped frame was not counted",
                self.name
            );
            self.send_rings = false;
            self.close_tx_ring();
            self.choose_sender(Details::of(self.index));
            return true;
        };
        if left > 0 {
            self.refusals.taken(&frames[..left]);
            reports.extend((0..left).map(|_| Departure::Left));
        }
        match sent {
            // A queue behind the other end still holds all chunks.
            Sent::All if left == 0 => {
                self.congested = true;
                false
            }
            Sent::All => true,
            Sent::Dropped => {
                self.dropped = true;
                true
            }
            Sent::Busy => {
                self.congested = true;
                false
            }
            Sent::Gone => {
                reports.extend((0..self.staged).map(|_| Departure::NoPeer));
                self.close_tx_ring();
                true
            }
        }
    }

    /// Sends the frames at the start of `rest` as one. Returns false if they leave one by one.
    fn send_merged(&self, done: &[&[u8]], rest: &[&[u8]], reports: &mut Vec<Departure>) -> bool {
        // The kernel compares a merged frame with no MTU, so a frame as long as each of its parts must have left right before it.
        let fits = done.last().is_some_and(|last| last.len() >= rest[0].len())
            && reports.last() == Some(&Departure::Left);
        // Messages of the receiving socket start with offload headers in both directions.
        let count = if fits {
            merge::send(rest, self.receiver.as_fd())
        } else {
            0
        };
        reports.extend((0..count).map(|_| Departure::Left));
        count > 0
    }

    /// Sends frames through the packet socket. Returns false if the interface is full.
    fn send_by_socket(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) -> bool {
        match mmsg::send(self.sender.as_fd(), frames) {
            Ok(taken) => {
                self.refusals.taken(&frames[..taken]);
                reports.extend((0..taken).map(|_| Departure::Left));
            }
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => return false,
                Some(Errno::ENOBUFS) if self.refusals.is_final(frames[0], Instant::now()) => {
                    reports.push(Departure::Oversize);
                }
                Some(Errno::ENOBUFS) => {
                    self.congested = true;
                    return false;
                }
                Some(Errno::EINTR) => {}
                Some(Errno::EMSGSIZE) => reports.push(Departure::Oversize),
                // A frame without an Ethernet header (EINVAL), or an interface that is down
                // (ENETDOWN) or gone (ENXIO). The kernel reports that soon.
                _ => reports.push(Departure::NoPeer),
            },
        }
        true
    }
}

impl Refusals {
    fn taken(&mut self, frames: &[&[u8]]) {
        self.since = None;
        if let Some(len) = self.given_up
            && frames.iter().any(|frame| frame.len() >= len)
        {
            self.given_up = None;
        }
    }

    /// A frame was not taken: whether it is not to be tried again.
    fn is_final(&mut self, frame: &[u8], now: Instant) -> bool {
        let known = self.given_up.is_some_and(|len| frame.len() >= len);
        if !known && now - *self.since.get_or_insert(now) < GIVE_UP {
            return false;
        }
        self.since = None;
        let shortest = self.given_up.unwrap_or(usize::MAX);
        self.given_up = Some(shortest.min(frame.len()));
        true
    }
}

/// Puts a VLAN tag that the kernel removed back into a frame, and completes a checksum that it left open. `bytes` are the offload header and the frame.
fn restored(bytes: &mut [u8], tag: Option<[u8; 4]>) -> Frame<'_> {
    let Some((vnet, frame)) = bytes.split_first_chunk_mut::<VNET_HEADER>() else {
        return Frame::Refused(&[]);
    };
    let mut vnet = VnetHeader::parse(vnet);
    let mut start = VNET_HEADER;
    if let Some(tag) = tag
        && frame.len() >= 12
    {
        // The tag belongs behind the addresses, which move into the room of the header read above.
        start -= VLAN_TAG;
        bytes.copy_within(VNET_HEADER..VNET_HEADER + 12, start);
        bytes[start + 12..start + 16].copy_from_slice(&tag);
        vnet = vnet.shifted(VLAN_TAG);
    }
    let frame = &mut bytes[start..];
    match vnet.finish(frame) {
        Ok(None) => Frame::whole(frame),
        Ok(Some(gso)) => Frame::Segments(frame, gso),
        Err(Refused) => Frame::Refused(frame),
    }
}

impl PortIo for RawPort {
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()> {
        let fd = self.receiver.as_fd();
        self.receiving.set(poller, fd, token, FRAMES)
    }

    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()> {
        let wanted = if want { ROOM } else { EpollFlags::empty() };
        let fd = self.sender.as_fd();
        self.sending.set(poller, fd, token, wanted)
    }

    fn receive(
        &mut self,
        _: &Epoll,
        _: u64,
        batch: &mut RxBatch,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Received {
        for _ in 0..BATCH {
            let Some(mut slot) = self.ring.next() else {
                return Received::Empty;
            };
            let frame = match &mut slot.content {
                Content::Frame(bytes, tag) => restored(bytes, *tag),
                Content::Queued => match mmsg::recv(self.receiver.as_fd(), batch, 1) {
                    Ok(()) => batch.first(|bytes, control| {
                        restored(bytes, packet_socket::vlan_tag_of(control))
                    }),
                    Err(_) => {
                        self.lost += 1;
                        continue;
                    }
                },
                Content::Lost => {
                    self.lost += 1;
                    continue;
                }
            };
            if !self.warned && matches!(frame, Frame::Refused(_)) {
                self.warned = true;
                tracing::warn!(
                    "{0}: refused a frame whose offloads cannot be finished here; turn them off where \
                     it comes from (on {0}'s peer, or on {0} itself if it is a card): \
                     ethtool -K IFACE gro off lro off tso off gso off tx off",
                    self.name
                );
            }
            each(frame);
        }
        Received::Frames
    }

    fn failed(&mut self) {
        // The interface went down or away: said once, taken by this call.
        if let Ok(error @ 1..) = getsockopt(&self.receiver, sockopt::SocketError) {
            tracing::debug!("{}: {}", self.name, Errno::from_raw(error).desc());
        }
        self.link_changed();
    }

    fn interface(&self) -> Option<u32> {
        Some(self.index)
    }

    fn enabled(&self) -> bool {
        !matches!(self.link, Link::Gone | Link::Down)
    }

    fn link_changed(&mut self) {
        let details = Details::of(self.index);
        let link = match details {
            Ok(details) => details.link,
            Err(Errno::ENODEV) => Link::Gone,
            Err(_) => self.link,
        };
        if link != self.link {
            tracing::info!("{}: {:?}, now {link:?}", self.name, self.link);
            self.link = link;
        }
        self.choose_sender(details);
    }

    fn retry_after(&self) -> Option<Nanos> {
        self.congested.then_some(CONGESTION_PAUSE)
    }

    fn connected(&self) -> bool {
        self.link == Link::Running
    }

    fn take_overruns(&mut self) -> u64 {
        std::mem::take(&mut self.lost) + packet_socket::take_drops(&self.receiver)
    }
}

impl Medium for RawPort {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        self.congested = false;
        if !self.connected() {
            // Without a carrier the kernel accepts frames and drops them silently.
            reports.extend(frames[reports.len()..].iter().map(|_| Departure::NoPeer));
            if self.staged > 0 || self.dropped {
                self.close_tx_ring();
            }
            return;
        }
        if self.retry_ring.is_some_and(|at| at <= Instant::now()) {
            self.choose_sender(Details::of(self.index));
        }
        while reports.len() < frames.len() {
            let (done, rest) = frames.split_at(reports.len());
            let more = if self.dropped {
                let reported = reports.len();
                let more = self.send_by_socket(&rest[..1], reports);
                self.dropped = reports.len() == reported;
                more
            } else if self.staged > 0 || self.ring_takes(rest[0]) {
                let mut alone = rest.len();
                if self.merges && self.staged == 0 {
                    if self.send_merged(done, rest, reports) {
                        continue;
                    }
                    alone = merge::before_run(rest);
                }
                self.send_by_ring(&rest[..alone], reports)
            } else {
                let not_ring = rest.iter().take_while(|frame| !self.ring_takes(frame));
                self.send_by_socket(&rest[..not_ring.count()], reports)
            };
            if !more {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_never_leave_are_given_up_and_then_known() {
        let mut refusals = Refusals::default();
        let (short, long) = ([0; 60], [0; 1500]);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!refusals.is_final(&long, at(0)));
        assert!(!refusals.is_final(&long, at(99)));
        assert!(refusals.is_final(&long, at(100)));
        assert!(refusals.is_final(&long, at(100)));
        // A full queue takes short ones later.
        assert!(!refusals.is_final(&short, at(150)));
        refusals.taken(&[&short]);
        assert!(refusals.is_final(&long, at(200)));
        // And long ones, if it was full for very long.
        refusals.taken(&[&short, &long]);
        assert!(!refusals.is_final(&long, at(300)));
    }
}
