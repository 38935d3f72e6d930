//! A rank's UDP sockets.
//!
//! Where net.core.rmem_max is small and the rank has no privilege to exceed it, one socket's buffer has room for a
//! fraction of what the other ranks send at once: senders then wait for credit, and short runs of packets cost more
//! system calls. The rank then opens a further socket per source, at the same address, connected to that source: Linux
//! delivers a packet to the connected socket that matches it. Each has a buffer of its own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::{RcvBufForce, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, getsockopt, sendmsg, setsockopt};
use socket2::{Domain, SockRef, Type};

use crate::core::Carrier;

use super::{HandleDatagram, LinkError};

/// Requested receive buffer. It bounds the packets on their way to a rank, and so the queues of switches: the kernel
/// counts it twice, and then has room for 0.9 to 1.3 MB of values, 100 Gbit/s with a round trip of 70 µs.
const RECEIVE_BUFFER: usize = 1 << 20;
/// [`RECEIVE_BUFFER`] as the kernel counts it.
const COUNTED: usize = 2 * RECEIVE_BUFFER;
/// Requested send buffer. The kernel grants up to net.core.wmem_max.
const SEND_BUFFER: usize = 8 << 20;
/// The longest run of datagrams that the kernel coalesces.
const RUN_LEN: usize = 65_535;
/// Runs received per system call.
const BATCH: usize = 8;
/// The most segments that the kernel cuts a run into.
const MOST_SEGMENTS: usize = 64;
/// The most sockets of sources: a process has 1,024 descriptors by default.
const MOST_SOURCES: usize = 64;

/// Sets the sizes of a socket's buffers. Returns the size of the receive buffers that [`Inbox::open`] then has for this
/// number of sources, together, as the kernel counts them (SO_RCVBUF as read).
pub(super) fn size(socket: &UdpSocket, sources: usize) -> Result<usize, LinkError> {
    let fail = |what| move |error: io::Error| LinkError::io(what, error);
    let options = SockRef::from(socket);
    // Over net.core.rmem_max with CAP_NET_ADMIN, else up to it.
    if setsockopt(socket, RcvBufForce, &RECEIVE_BUFFER).is_err() {
        options
            .set_recv_buffer_size(RECEIVE_BUFFER)
            .map_err(fail("size the receive buffer"))?;
    }
    options
        .set_send_buffer_size(SEND_BUFFER)
        .map_err(fail("size the send buffer"))?;
    let each = options
        .recv_buffer_size()
        .map_err(fail("read the size of the receive buffer"))?;
    Ok(match is_divided(each, sources) {
        true => (each * sources).min(COUNTED),
        false => each,
    })
}

/// True if each source gets a socket of its own, where a socket's buffer has `each` bytes.
fn is_divided(each: usize, sources: usize) -> bool {
    each < COUNTED && (2..=MOST_SOURCES).contains(&sources)
}

/// A socket that does not block, with the offloads that the kernel has.
pub(super) struct Socket {
    socket: UdpSocket,
    segments: usize,
}

impl Socket {
    fn new(socket: UdpSocket) -> Result<Self, LinkError> {
        let fail = |error| LinkError::io("set up the UDP socket", error);
        socket.set_nonblocking(true).map_err(fail)?;
        // A kernel without one of these offloads sends and receives single datagrams.
        forbid_fragments(&socket);
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        let segments = match getsockopt(&socket, UdpGsoSegment) {
            Ok(_) => MOST_SEGMENTS,
            Err(_) => 1,
        };
        Ok(Self { socket, segments })
    }

    /// The most datagrams that one call can send.
    pub(super) fn max_gso_segments(&self) -> usize {
        self.segments
    }

    /// Sends `parts`, cut into datagrams of `segment` bytes if that is given.
    pub(super) fn send(
        &self,
        to: SocketAddrV4,
        parts: &[IoSlice<'_>],
        segment: Option<u16>,
    ) -> nix::Result<()> {
        let control = segment.as_ref().map(ControlMessage::UdpGsoSegments);
        let to = SockaddrIn::from(to);
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::empty());
        loop {
            match sendmsg(fd, parts, control.as_slice(), flags, Some(&to)) {
                Err(nix::Error::EINTR) => {}
                sent => return sent.map(|_| ()),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the IPv4 flag DF in what a socket sends, and ignores what the kernel has learned of the path's MTU.
fn forbid_fragments(socket: &UdpSocket) {
    let (fd, value) = (socket.as_raw_fd(), libc::IP_PMTUDISC_PROBE);
    // SAFETY: the value is an int, and the kernel only reads it.
    let _ = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
}

/// Reads the queues of shared memory until they are empty, and handles what they had with the function that it is given. Runs before
/// datagrams that were read from a socket are handled: those may be newer.
pub(super) type DrainQueues<'a> = dyn FnMut(&mut HandleDatagram) + 'a;

/// A rank's sockets, and a buffer for what they receive.
pub(super) struct Inbox {
    /// The first sends, and receives what no other matches.
    sockets: Vec<Socket>,
    /// Readable when one of several sockets is.
    ready: Option<Epoll>,
    /// True after the first of several was empty: all that came before the others were connected is handled.
    is_drained: bool,
    came: Vec<u8>,
}

impl Inbox {
    /// Opens further sockets beside `main` if [`size`] counts on them. `peers` may contain the socket's own address.
    pub(super) fn open(main: UdpSocket, peers: &[SocketAddrV4]) -> Result<Self, LinkError> {
        let fail = |what| move |error: io::Error| LinkError::io(what, error);
        let local = main
            .local_addr()
            .map_err(fail("read the socket's address"))?;
        let sources = peers.len().saturating_sub(1);
        let each = SockRef::from(&main)
            .recv_buffer_size()
            .map_err(fail("read the size of the receive buffer"))?;
        let mut inbox = Self {
            sockets: vec![Socket::new(main)?],
            ready: None,
            is_drained: false,
            came: vec![0; RUN_LEN * BATCH],
        };
        if is_divided(each, sources) {
            let others = peers.iter().filter(|peer| SocketAddr::V4(**peer) != local);
            let connected = others.map(|peer| connected(inbox.main(), local, *peer));
            let connected = connected.collect::<io::Result<Vec<_>>>();
            for socket in connected.map_err(fail("open a socket per source"))? {
                inbox.sockets.push(Socket::new(socket)?);
            }
            inbox.ready = Some(watch(&inbox.sockets).map_err(fail("watch the sockets"))?);
        }
        Ok(inbox)
    }

    /// The socket that sends.
    pub(super) fn main(&self) -> &Socket {
        &self.sockets[0]
    }

    /// Readable when datagrams have arrived.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.ready {
            Some(ready) => ready.0.as_fd(),
            None => self.main().as_fd(),
        }
    }

    /// Receives a batch from each socket that has datagrams. Returns false if none has. Packets of one source are
    /// handled in their order: those that came before its socket was connected are in the first, which is emptied once before
    /// the others are read. `drain_queues` handles packets of other paths that may have been sent before a batch, which has been read.
    pub(super) fn receive(
        &mut self,
        drain_queues: &mut DrainQueues<'_>,
        handle: &mut HandleDatagram,
    ) -> Result<bool, LinkError> {
        let Self {
            sockets,
            ready,
            is_drained,
            came,
        } = self;
        let mut receive = |socket: &Socket| {
            let mut runs = [Run::default(); BATCH];
            let count = read(socket, came, &mut runs)?;
            if count > 0 {
                drain_queues(handle);
            }
            handle_runs(came, &runs[..count], handle);
            Ok::<bool, LinkError>(count > 0)
        };
        let Some(ready) = ready else {
            return receive(&sockets[0]);
        };
        if !*is_drained {
            *is_drained = !receive(&sockets[0])?;
            return Ok(true);
        }
        let mut events = [EpollEvent::empty(); MOST_SOURCES + 1];
        let count = match ready.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(LinkError::io("wait for the sockets", error)),
        };
        let mut came = false;
        for event in &events[..count] {
            came |= receive(&sockets[event.data() as usize])?;
        }
        Ok(came)
    }
}

/// Opens a socket at `main`'s address `local` that receives what `peer` sends.
fn connected(main: &Socket, local: SocketAddr, peer: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(Domain::IPV4, Type::DGRAM.cloexec().nonblocking(), None)?;
    // Only sockets of the same user share an address this way.
    SockRef::from(&main.socket).set_reuse_port(true)?;
    socket.set_reuse_port(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&local.into())?;
    socket.connect(&peer.into())?;
    Ok(socket.into())
}

fn watch(sockets: &[Socket]) -> io::Result<Epoll> {
    let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (at, socket) in (0..).zip(sockets) {
        ready.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, at))?;
    }
    Ok(ready)
}

/// Reads a batch of runs from one socket. Returns their number.
fn read(socket: &Socket, came: &mut [u8], runs: &mut [Run; BATCH]) -> Result<usize, LinkError> {
    match receive_runs(socket.as_fd(), came, runs) {
        Ok(count) => Ok(count),
        // ECONNREFUSED is an ICMP error for a sent datagram: that peer has no socket.
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Ok(0),
        Err(error) => Err(LinkError::io("receive from the UDP socket", error)),
    }
}

fn handle_runs(came: &[u8], runs: &[Run], handle: &mut HandleDatagram) {
    for (bytes, run) in came.chunks_exact(RUN_LEN).zip(runs) {
        // An empty datagram has no segment.
        for datagram in bytes[..run.len].chunks(run.segment.max(1)) {
            handle(Carrier::Sockets, datagram);
        }
    }
}

/// Datagrams of one source that the kernel has coalesced.
#[derive(Clone, Copy, Default)]
struct Run {
    len: usize,
    /// Length of each datagram but the last.
    segment: usize,
}

/// Room for the length of a run's segments.
const CONTROL_LEN: usize = {
    // SAFETY: it computes a size.
    (unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) }) as usize
};

/// A buffer for control messages.
#[repr(C)]
union Control {
    align: libc::cmsghdr,
    bytes: [u8; CONTROL_LEN],
}

/// Receives up to [`BATCH`] runs into chunks of [`RUN_LEN`] bytes. Returns their number.
///
/// It does not ask for the source, the local address, the type of service and the arrival time of each, which
/// cost 0.2 of the 0.5 µs that the kernel needs to hand a short datagram over.
fn receive_runs(
    socket: BorrowedFd<'_>,
    came: &mut [u8],
    runs: &mut [Run; BATCH],
) -> nix::Result<usize> {
    let mut chunks = came.chunks_exact_mut(RUN_LEN);
    let mut buffers: [IoSliceMut<'_>; BATCH] =
        std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
    let mut controls = [const {
        Control {
            bytes: [0; CONTROL_LEN],
        }
    }; BATCH];
    // SAFETY: null pointers and zeros are valid values.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    for ((message, buffer), control) in messages.iter_mut().zip(&mut buffers).zip(&mut controls) {
        // An `IoSliceMut` has the layout of an iovec.
        message.msg_hdr.msg_iov = ptr::from_mut(buffer).cast();
        message.msg_hdr.msg_iovlen = 1;
        message.msg_hdr.msg_control = ptr::from_mut(control).cast();
        message.msg_hdr.msg_controllen = CONTROL_LEN;
    }
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: all pointers are to buffers of these lengths, which are borrowed until after the call.
    let count = unsafe {
        libc::recvmmsg(
            fd,
            messages.as_mut_ptr(),
            BATCH as u32,
            flags,
            ptr::null_mut(),
        )
    };
    let count = Errno::result(count)? as usize;
    for (run, message) in runs.iter_mut().zip(&messages[..count]) {
        let len = message.msg_len as usize;
        let segment = segment_len(&message.msg_hdr).unwrap_or(len);
        *run = Run { len, segment };
    }
    Ok(count)
}

/// The length of a run's segments, if it has several.
fn segment_len(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has written whole control messages, and their length.
    let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    let is_segment = message.cmsg_level == libc::SOL_UDP && message.cmsg_type == libc::UDP_GRO;
    // SAFETY: a message of this type has an int.
    let segment = || unsafe {
        libc::CMSG_DATA(message)
            .cast::<libc::c_int>()
            .read_unaligned()
    };
    is_segment
        .then(segment)
        .and_then(|len| usize::try_from(len).ok())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn bind() -> (UdpSocket, SocketAddrV4) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => (socket, address),
            other => panic!("an IPv4 socket: {other:?}"),
        }
    }

    /// First bytes of the datagrams that have arrived.
    fn arrived(inbox: &mut Inbox) -> Vec<u8> {
        let mut all = Vec::new();
        while inbox
            .receive(&mut |_| {}, &mut |_, it| all.push(it[0]))
            .expect("receives")
        {}
        all
    }

    /// Sockets of the default size, as of a rank that may not size them.
    #[test]
    fn sources_have_buffers_of_their_own_and_keep_their_order() {
        let ((main, own), (a, a_address), (b, b_address)) = (bind(), bind(), bind());
        let (stranger, _) = bind();
        let send = |socket: &UdpSocket, first: u8| {
            let mut datagram = [0; 1400];
            datagram[0] = first;
            socket.send_to(&datagram, own).expect("sends");
        };
        send(&a, 1);
        send(&b, 11);
        let mut inbox = Inbox::open(main, &[own, a_address, b_address]).expect("opens");
        assert_eq!(inbox.sockets.len(), 3);
        send(&a, 2);
        send(&b, 12);
        send(&stranger, 21);
        let all = arrived(&mut inbox);
        for mut source in [vec![1, 2], vec![11, 12], vec![21]] {
            source.retain(|it| !all.contains(it));
            assert!(source.is_empty(), "{source:?} are missing of {all:?}");
        }
        let at = |it| all.iter().position(|one| *one == it);
        assert!(at(1) < at(2) && at(11) < at(12), "{all:?}");

        // More than a buffer has room for, from one source.
        (0..2000).for_each(|_| send(&a, 3));
        send(&b, 13);
        let all = arrived(&mut inbox);
        assert!(all.len() < 2000, "{}", all.len());
        assert!(all.contains(&13));
    }
}
