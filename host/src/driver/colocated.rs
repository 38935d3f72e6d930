//! Ranks on this host, whose datagrams come through shared memory instead of the kernel's network.
//!
//! Each rank listens on a Unix socket that is named like its UDP socket. A rank connects to that of each colocated rank and
//! offers it a queue ([`super::queue`]), as a receive buffer for that rank's datagrams; the connection then only wakes its
//! reader, and shows when a process has ended. The rank that starts later is the first to connect, and the other
//! connects back. Until then, and if anything fails, datagrams go through UDP. Both ends are of the same user.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag,
    SockType, UnixAddr, accept4, bind, connect, getsockopt, listen, recv, recvmsg, send, sendmsg,
    shutdown, socket,
};
use nix::unistd::geteuid;

use super::inbox::Inbox;
use super::queue::{self, Reader, Writer};
use super::{HandleDatagram, LinkError};
use crate::config::{Config, Gather};
use crate::core::{Carrier, window};

/// Tokens of the listener, of UDP sockets and of the first connection.
const LISTENER: u64 = 0;
const INBOX: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// Events handled per call.
const EVENTS: usize = 16;
/// While queues have datagrams and all ranks send to them, sockets are looked at once in so many calls.
const CALLS: u32 = 16;
/// The time for which a rank lets other threads run before it sleeps: often those of the ranks that it waits for. To sleep and to be woken
/// takes a core as long as the copies of several packets.
pub(super) const YIELD: Duration = Duration::from_micros(30);
/// The number of the user `nobody`. A container shows it for every user that it does not know (user_namespaces(7)).
const OVERFLOW_USER: u32 = 65_534;
/// The most batches that are read from each queue before a packet of a socket is handled.
const MAX_QUEUE_BATCHES: usize = 64;

/// Connections of one rank.
pub(super) struct Colocated {
    own: SocketAddrV4,
    /// Bytes of a queue.
    capacity: usize,
    /// True if all ranks are colocated, and no packets come from the group.
    is_alone: bool,
    /// Readable when a datagram, a connection or the end of one has come.
    ready: Arc<Epoll>,
    /// None after the kernel refused to accept a connection.
    listener: Option<Watched>,
    /// By rank.
    ranks: Vec<Rank>,
    /// Connections whose offers have not come.
    pending: Vec<Watched>,
    next_token: u64,
    /// Calls of [`Colocated::receive`].
    calls: u32,
}

/// A Unix socket whose events an epoll instance reports with its token. Unlike its descriptor, no later one has the same.
struct Watched {
    socket: OwnedFd,
    token: u64,
    ready: Arc<Epoll>,
}

impl Watched {
    fn new(socket: OwnedFd, token: u64, ready: &Arc<Epoll>) -> nix::Result<Self> {
        ready.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(Self {
            socket,
            token,
            ready: Arc::clone(ready),
        })
    }
}

impl Drop for Watched {
    /// Ends the connection. A forked child, such as a PyTorch `DataLoader`'s worker, may still have a copy of the descriptor:
    /// closing alone would neither stop its events nor show the other end anything.
    fn drop(&mut self) {
        let _ = self.ready.delete(&self.socket);
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}

/// Another rank.
#[derive(Default)]
struct Rank {
    /// Its UDP address, if it is colocated.
    address: Option<SocketAddrV4>,
    incoming: Option<IncomingQueue>,
    outgoing: Option<OutgoingQueue>,
}

/// A queue that this rank reads.
struct IncomingQueue {
    connection: Watched,
    reader: Reader,
    /// True until it has been read: datagrams that came before over UDP are older.
    is_new: bool,
    has_ended: bool,
}

/// A queue that this rank writes.
struct OutgoingQueue {
    connection: Watched,
    writer: Writer,
    /// True if it was offered while this rank had an [`IncomingQueue`], perhaps of an earlier process.
    is_unanswered: bool,
}

/// The first message of a connection, with the queue's file.
#[derive(Debug, PartialEq)]
struct Offer {
    /// The reader's UDP address.
    reader: SocketAddrV4,
    capacity: u32,
}

impl Offer {
    const LEN: usize = 18;
    const VERSION: [u8; 8] = *b"ultima 2";

    fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&Self::VERSION);
        bytes[8..12].copy_from_slice(&self.reader.ip().octets());
        bytes[12..14].copy_from_slice(&self.reader.port().to_be_bytes());
        bytes[14..].copy_from_slice(&self.capacity.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let rest = bytes.strip_prefix(&Self::VERSION)?;
        let (ip, rest) = rest.split_first_chunk::<4>()?;
        let (port, capacity) = rest.split_first_chunk::<2>()?;
        Some(Self {
            reader: SocketAddrV4::new(Ipv4Addr::from(*ip), u16::from_be_bytes(*port)),
            capacity: u32::from_be_bytes(capacity.try_into().ok()?),
        })
    }
}

/// The name of a rank's Unix socket, in the namespace of its network.
fn name(rank: SocketAddrV4) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("ultima-{rank}").as_bytes())
}

fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// True if the other end is a process of this user.
fn is_own(connection: &OwnedFd) -> bool {
    let own = geteuid().as_raw();
    own != OVERFLOW_USER
        && getsockopt(connection, PeerCredentials).is_ok_and(|peer| peer.uid() == own)
}

impl Colocated {
    /// Shares memory with the colocated ranks, if there are any, [`Config::shared_memory`] allows it, and the kernel, too.
    pub(super) fn of(
        own: SocketAddrV4,
        peers: &[SocketAddrV4],
        config: &Config,
        inbox: BorrowedFd<'_>,
    ) -> Option<Self> {
        let is_colocated = |rank: u16| {
            let peer = peers[usize::from(rank)];
            // Packets to the group take another path than those to one rank: the core has to know that.
            let is_known = config.gather == Gather::Unicast || config.colocated.contains(&rank);
            peer.ip() == own.ip() && peer != own && is_known
        };
        if !config.shared_memory || !(0..peers.len() as u16).any(is_colocated) {
            return None;
        }
        // Without flow control any queue could overflow.
        config.receive_buffer?;
        let longest = config.header_len() + config.slot_bytes + config.counted_len();
        let capacity = queue::capacity(window(config).into(), longest);
        let has_own_address = |rank: &u16| peers[usize::from(*rank)] == own;
        let is_alone = config.gather == Gather::Unicast
            && (0..peers.len() as u16).all(|rank| is_colocated(rank) || has_own_address(&rank));
        Self::open(own, peers, is_colocated, is_alone, capacity, inbox)
            .inspect_err(|error| tracing::debug!(%error, "no shared memory with colocated ranks"))
            .ok()
    }

    /// Listens for the colocated ranks among `peers`, and connects to those that do so already. `inbox` is readable when
    /// UDP datagrams have come.
    fn open(
        own: SocketAddrV4,
        peers: &[SocketAddrV4],
        is_colocated: impl Fn(u16) -> bool,
        is_alone: bool,
        capacity: usize,
        inbox: BorrowedFd<'_>,
    ) -> nix::Result<Self> {
        let listener = unix_socket()?;
        bind(listener.as_raw_fd(), &name(own)?)?;
        listen(&listener, Backlog::MAXCONN)?;
        let ready = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        ready.add(inbox, EpollEvent::new(EpollFlags::EPOLLIN, INBOX))?;
        let ranks = (0u16..).zip(peers).map(|(rank, address)| Rank {
            address: is_colocated(rank).then_some(*address),
            ..Rank::default()
        });
        let mut colocated = Self {
            own,
            capacity,
            is_alone,
            listener: Some(Watched::new(listener, LISTENER, &ready)?),
            ready,
            ranks: ranks.collect(),
            pending: Vec::new(),
            next_token: FIRST_CONNECTION,
            calls: 0,
        };
        (0..peers.len()).for_each(|rank| colocated.offer(rank));
        Ok(colocated)
    }

    /// Readable when something has come.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }

    /// Offers a queue to a colocated rank, if it listens.
    fn offer(&mut self, rank: usize) {
        let Some(address) = self.ranks[rank].address else {
            return;
        };
        match self.connect(address) {
            Ok(incoming) => self.ranks[rank].incoming = Some(incoming),
            Err(error) => tracing::debug!(%address, %error, "no shared memory with this rank yet"),
        }
    }

    fn connect(&mut self, address: SocketAddrV4) -> nix::Result<IncomingQueue> {
        let connection = unix_socket()?;
        connect(connection.as_raw_fd(), &name(address)?)?;
        if !is_own(&connection) {
            return Err(Errno::EACCES);
        }
        let (reader, file) = Reader::create(self.capacity)?;
        let offer = Offer {
            reader: self.own,
            capacity: reader.capacity() as u32,
        };
        let files = [file.as_raw_fd()];
        sendmsg::<()>(
            connection.as_raw_fd(),
            &[IoSlice::new(&offer.to_bytes())],
            &[ControlMessage::ScmRights(&files)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        Ok(IncomingQueue {
            connection: self.watch(connection)?,
            reader,
            is_new: true,
            has_ended: false,
        })
    }

    fn watch(&mut self, connection: OwnedFd) -> nix::Result<Watched> {
        let token = self.next_token;
        self.next_token += 1;
        Watched::new(connection, token, &self.ready)
    }

    /// Sends a datagram of `len` bytes, which `write` writes, to a rank. Returns false if it shares no memory with this one. A full
    /// queue drops the datagram, as a full receive buffer does.
    pub(super) fn send(&mut self, rank: u16, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let rank = self.ranks.get_mut(usize::from(rank));
        let Some(outgoing) = rank.and_then(|rank| rank.outgoing.as_mut()) else {
            return false;
        };
        outgoing.writer.push(len, write);
        if outgoing.writer.must_wake() {
            // An error shows that its process has ended, or that it has not read earlier ones, and will.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = send(outgoing.connection.socket.as_raw_fd(), &[0], flags);
        }
        true
    }

    /// True if this rank sends to `rank` through shared memory.
    pub(super) fn reaches(&self, rank: u16) -> bool {
        (self.ranks.get(usize::from(rank))).is_some_and(|rank| rank.outgoing.is_some())
    }

    /// Receives a batch from each queue and from `inbox`. Returns false if nothing has come.
    pub(super) fn receive(
        &mut self,
        inbox: &mut Inbox,
        handle: &mut HandleDatagram,
    ) -> Result<bool, LinkError> {
        let mut came = false;
        for rank in &mut self.ranks {
            came |= rank.receive(inbox, handle)?;
        }
        self.calls = self.calls.wrapping_add(1);
        // Otherwise packets from UDP would seem late, or be overtaken by the grants that cover them.
        if came && self.needs_no_socket() && !self.calls.is_multiple_of(CALLS) {
            return Ok(true);
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.ready.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(LinkError::io("wait for the sockets", error)),
        };
        for event in &events[..count] {
            match event.data() {
                INBOX => {
                    came |= inbox.receive(&mut |handle| drain(&mut self.ranks, handle), handle)?
                }
                LISTENER => self.accept(),
                connection => self.on_readable(connection),
            }
        }
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].drop_ended() {
                self.offer(rank);
            }
        }
        Ok(came)
    }

    /// Has every queue wake this rank from now on. Returns false if it must not sleep, because datagrams have come. If they are
    /// expected `soon`, other threads run first.
    pub(super) fn sleep(&self, soon: bool) -> bool {
        let mut incoming = self.ranks.iter().filter_map(|rank| rank.incoming.as_ref());
        if soon && self.needs_no_socket() {
            let start = Instant::now();
            while start.elapsed() < YIELD {
                std::thread::yield_now();
                if !incoming.clone().all(|incoming| incoming.reader.is_empty()) {
                    return false;
                }
            }
        }
        incoming.all(|incoming| incoming.reader.sleep())
    }

    /// True if all packets come and leave through queues.
    pub(super) fn uses_only_queues(&self) -> bool {
        let mut others = self.ranks.iter().filter(|rank| rank.address.is_some());
        self.needs_no_socket() && others.all(|rank| rank.outgoing.is_some())
    }

    /// True if all packets come through queues.
    pub(super) fn needs_no_socket(&self) -> bool {
        self.is_alone && self.ranks.iter().all(Rank::uses_queue)
    }

    fn accept(&mut self) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        while let Some(listener) = &self.listener {
            match accept4(listener.socket.as_raw_fd(), flags) {
                Ok(connection) => {
                    // SAFETY: new, and owned by nothing else.
                    let connection = unsafe { OwnedFd::from_raw_fd(connection) };
                    if is_own(&connection)
                        && let Ok(connection) = self.watch(connection)
                    {
                        self.take_offer(connection);
                    }
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // Out of descriptors or memory. The listener would stay readable.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections of colocated ranks; those that start from now on use UDP");
                    self.listener = None;
                }
            }
        }
    }

    /// Takes the offer of a new connection, or waits for it.
    fn take_offer(&mut self, connection: Watched) {
        match read_offer(&connection.socket) {
            Ok((offer, file)) => {
                if let Err(error) = self.take(connection, &offer, &file) {
                    tracing::debug!(?offer, %error, "an offer of shared memory is refused");
                }
            }
            Err(Errno::EAGAIN) => self.pending.push(connection),
            Err(error) => tracing::debug!(%error, "not an offer of shared memory"),
        }
    }

    /// Handles a message on a connection, or its end. An earlier event of the same batch may have ended it.
    fn on_readable(&mut self, token: u64) {
        if let Some(at) = self.pending.iter().position(|it| it.token == token) {
            let connection = self.pending.swap_remove(at);
            return self.take_offer(connection);
        }
        for rank in &mut self.ranks {
            if let Some(incoming) = &mut rank.incoming
                && incoming.connection.token == token
            {
                incoming.has_ended = has_ended(&incoming.connection);
            }
            (rank.outgoing).take_if(|it| it.connection.token == token && has_ended(&it.connection));
        }
    }

    /// Takes an offer, and offers its sender a queue in return.
    fn take(&mut self, connection: Watched, offer: &Offer, file: &OwnedFd) -> nix::Result<()> {
        let mut ranks = self.ranks.iter();
        let rank = ranks.position(|rank| rank.address == Some(offer.reader));
        let rank = rank.ok_or(Errno::EADDRNOTAVAIL)?;
        let writer = Writer::open(file, offer.capacity as usize)?;
        let is_unanswered = self.ranks[rank].incoming.is_some();
        self.ranks[rank].outgoing = Some(OutgoingQueue {
            connection,
            writer,
            is_unanswered,
        });
        if !is_unanswered {
            self.offer(rank);
        }
        Ok(())
    }
}

/// Reads all messages, which only wake this rank. Returns true if the other end is closed.
fn has_ended(connection: &Watched) -> bool {
    let fd = connection.socket.as_raw_fd();
    loop {
        match recv(fd, &mut [0; 64], MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return error != Errno::EAGAIN,
        }
    }
}

/// Reads the offer that comes first on a connection, and the queue's file.
fn read_offer(connection: &OwnedFd) -> nix::Result<(Offer, OwnedFd)> {
    // One more, so that a longer message is not taken for an offer.
    let mut bytes = [0; Offer::LEN + 1];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    // The kernel passes no more at once (SCM_MAX_FD); those without room would stay open in this process.
    let mut space = nix::cmsg_space!([i32; 253]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let fd = connection.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut slices, Some(&mut space), flags)?;
    let mut file = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(files) = control {
            // SAFETY: received just now, and owned by nothing else.
            let files = (files.into_iter()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            // All are owned, and closed but for the first.
            file = files.collect::<Vec<_>>().into_iter().next();
        }
    }
    let len = message.bytes;
    match (Offer::parse(&bytes[..len]), file) {
        (Some(offer), Some(file)) => Ok((offer, file)),
        _ => Err(Errno::EPROTO),
    }
}

/// Reads all queues, up to [`MAX_QUEUE_BATCHES`] batches of each. A rank sends its packets for one rank before those for the group: where one
/// of the group has come through a switch, these are in its queue.
fn drain(ranks: &mut [Rank], handle: &mut HandleDatagram) {
    for rank in ranks.iter_mut().filter(|rank| rank.uses_queue()) {
        for _ in 0..MAX_QUEUE_BATCHES {
            if !rank.read(handle) {
                break;
            }
        }
    }
}

impl Rank {
    /// True unless it is colocated and has not sent through its queue yet.
    fn uses_queue(&self) -> bool {
        let incoming = self.incoming.as_ref();
        self.address.is_none() || incoming.is_some_and(|incoming| !incoming.is_new)
    }

    /// Drops a queue that has ended and is read. Returns true if a process that took the rank's place has to get an offer.
    fn drop_ended(&mut self) -> bool {
        let ended = (self.incoming).take_if(|it| it.has_ended && it.reader.is_empty());
        let outgoing = self.outgoing.as_mut().filter(|_| ended.is_some());
        outgoing.is_some_and(|it| std::mem::take(&mut it.is_unanswered))
    }

    /// Receives a batch from its queue.
    fn receive(
        &mut self,
        inbox: &mut Inbox,
        handle: &mut HandleDatagram,
    ) -> Result<bool, LinkError> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(false);
        };
        incoming.reader.wake();
        if incoming.reader.is_empty() {
            return Ok(false);
        }
        if std::mem::take(&mut incoming.is_new) {
            for _ in 0..MAX_QUEUE_BATCHES {
                if !inbox.receive(&mut |_| {}, handle)? {
                    break;
                }
            }
        }
        Ok(self.read(handle))
    }

    /// Reads a batch from its queue. Returns false if it has none.
    fn read(&mut self, handle: &mut HandleDatagram) -> bool {
        let Some(incoming) = &mut self.incoming else {
            return false;
        };
        let mut handle = |datagram: &[u8]| handle(Carrier::SharedMemory, datagram);
        incoming.reader.read(&mut handle).unwrap_or_else(|_| {
            tracing::warn!(
                address = ?self.address,
                "invalid length or position in the queue in shared memory of this rank; it sends by UDP from now on"
            );
            self.incoming = None;
            false
        })
    }
}

#[cfg(test)]
mod tests;
