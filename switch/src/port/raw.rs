//! Ports on Linux network interfaces: AF_PACKET sockets (packet(7)).
//!
//! The interface keeps its own IP stack; what arrives there is seen by both. Frames that the host
//! itself sends through the interface are ignored, so that the switch does not see its own.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::epoll::Epoll;
use nix::sys::socket::{setsockopt, sockopt};

use super::mmsg::{self, RxBatch};
use super::offload::{VNET_HEADER, VnetHeader};
use super::{Interest, PortIo, Received};
use crate::tm::{Departure, Medium};

/// Frames that the kernel keeps for the switch between two reads. Beyond rmem_max only with
/// CAP_NET_ADMIN.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Ethernet header and one VLAN tag: what a frame may have on top of the interface's MTU.
const VLAN_TAG: usize = 4;
/// In front of each frame sent: nothing is left for the card to do.
const NO_OFFLOAD: [u8; VNET_HEADER] = [0; VNET_HEADER];
/// `linux/if_packet.h`; libc has it for fewer targets than it has the rest.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A port on a network interface.
pub(crate) struct RawPort {
    socket: OwnedFd,
    interest: Interest,
    /// Whether the last frame sent found the interface up, and no news came since that it went down.
    up: bool,
    warned: bool,
    name: String,
}

impl RawPort {
    /// Attaches to the interface of this name.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let index = if_nametoindex(name).map_err(|errno| match errno {
            Errno::ENODEV => io::Error::new(io::ErrorKind::NotFound, "there is no such interface"),
            other => other.into(),
        })?;
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing is received before the socket is bound to its interface.
        // SAFETY: takes integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(match Errno::last() {
                Errno::EPERM => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "attaching to an interface needs CAP_NET_RAW: be root, or use unix:PATH",
                ),
                other => other.into(),
            });
        }
        // SAFETY: socket() returned a new descriptor, which nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set_packet_option(&socket, PACKET_IGNORE_OUTGOING, &1i32)?;
        set_packet_option(&socket, libc::PACKET_AUXDATA, &1i32)?;
        set_packet_option(&socket, libc::PACKET_VNET_HDR, &1i32)?;
        let membership = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_packet_option(&socket, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        bind_to(&socket, index)?;
        Ok(RawPort {
            socket,
            interest: Interest::default(),
            up: true,
            warned: false,
            name: name.to_owned(),
        })
    }

    /// Puts back what the kernel took off a frame, finishes what it left undone.
    fn rework(&mut self, batch: &mut RxBatch) {
        for index in 0..batch.len() {
            let (slot, bytes, control) = batch.message(index);
            let tag = vlan_tag(control);
            let Some((vnet, frame)) = bytes[..slot.end].split_first_chunk_mut::<VNET_HEADER>()
            else {
                continue;
            };
            let mut vnet = VnetHeader::parse(vnet);
            slot.start = VNET_HEADER;
            if let Some(tag) = tag
                && frame.len() >= 12
            {
                // The tag belongs behind the addresses, which move into the room of the header read
                // above.
                slot.start -= VLAN_TAG;
                bytes.copy_within(VNET_HEADER..VNET_HEADER + 12, slot.start);
                bytes[slot.start + 12..slot.start + 16].copy_from_slice(&tag);
                vnet = vnet.shifted(VLAN_TAG);
            }
            match vnet.finish(&mut bytes[slot.start..slot.end]) {
                Ok(gso) => slot.gso = gso,
                Err(_) => {
                    slot.refused = true;
                    if !self.warned {
                        self.warned = true;
                        tracing::warn!(
                            "{}: refused a frame whose offloads cannot be finished here; turn them \
                             off at the sender: ethtool -K IFACE tso off gso off ufo off tx off",
                            self.name
                        );
                    }
                }
            }
        }
    }
}

impl PortIo for RawPort {
    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()> {
        self.interest.add(poller, self.socket.as_fd(), token)
    }

    fn want_writable(&mut self, poller: &Epoll, token: u64, want: bool) -> io::Result<()> {
        self.interest
            .set_writable(poller, self.socket.as_fd(), token, want)
    }

    fn receive(&mut self, _: &Epoll, _: u64, batch: &mut RxBatch) -> Received {
        match mmsg::recv(self.socket.as_fd(), batch) {
            Ok(()) => {
                // Says nothing of now: these may have come before the interface went down.
                self.rework(batch);
                Received::Frames
            }
            Err(error) => {
                // The interface went down or away: said once, read by this call.
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.up = false;
                    tracing::info!("{}: {error}", self.name);
                }
                Received::Empty
            }
        }
    }

    fn connected(&self) -> bool {
        self.up
    }

    fn take_overruns(&mut self) -> u64 {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the option fills a tpacket_stats, for which there is room of the stated length.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if rc == 0 {
            u64::from(stats.tp_drops)
        } else {
            0
        }
    }
}

impl Medium for RawPort {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        while reports.len() < frames.len() {
            let rest = &frames[reports.len()..];
            match mmsg::send(self.socket.as_fd(), &NO_OFFLOAD, rest) {
                Ok(taken) => {
                    self.up = true;
                    reports.extend((0..taken).map(|_| Departure::Left));
                }
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN | Errno::ENOBUFS) => return,
                    Some(Errno::EINTR) => {}
                    Some(Errno::EMSGSIZE) => reports.push(Departure::Oversize),
                    // A frame without an Ethernet header (EINVAL), or an interface that is down
                    // (ENETDOWN) or gone (ENXIO).
                    errno => {
                        self.up = errno == Some(Errno::EINVAL);
                        reports.push(Departure::NoPeer);
                    }
                },
            }
        }
    }
}

/// The VLAN tag that the kernel took off a frame: its four bytes.
fn vlan_tag(control: &[u64]) -> Option<[u8; 4]> {
    const HEADER_WORDS: usize = size_of::<libc::cmsghdr>().div_ceil(8);
    const AUXDATA: usize = size_of::<libc::tpacket_auxdata>();
    let data = control.get(HEADER_WORDS..)?;
    let byte = |at: usize| data.get(at / 8).map(|word| word.to_ne_bytes()[at % 8]);
    let half = |at: usize| Some(u16::from_ne_bytes([byte(at)?, byte(at + 1)?]));
    let status = u32::from(half(0)?) | u32::from(half(2)?) << 16;
    debug_assert!(data.len() * 8 >= AUXDATA);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let control = half(offset_of!(libc::tpacket_auxdata, tp_vlan_tci))?.to_be_bytes();
    let protocol = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        half(offset_of!(libc::tpacket_auxdata, tp_vlan_tpid))?
    } else {
        0x8100
    }
    .to_be_bytes();
    Some([protocol[0], protocol[1], control[0], control[1]])
}

fn set_packet_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is a plain C structure or integer, borrowed for the call, of the stated
    // length.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn bind_to(socket: &OwnedFd, index: libc::c_uint) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: a sockaddr_ll of its own length, borrowed for the call.
    let rc = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
