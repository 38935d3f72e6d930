//! The far end of a port on a Linux network interface: an AF_PACKET socket (packet(7)).

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, send};

/// Longest frame.
const MAX_FRAME: usize = 65_535;
/// What an Ethernet header has in front of a VLAN tag.
const ADDRESSES: usize = 12;

/// An interface, from which whole frames are read and to which they are written.
pub struct Interface(OwnedFd);

impl Interface {
    /// Opens the interface of this name.
    ///
    /// # Errors
    /// There is none, or this process has no CAP_NET_RAW.
    pub fn open(name: &str) -> io::Result<Interface> {
        let index = if_nametoindex(name)?;
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: nothing is received before the socket is bound to its interface.
        // SAFETY: takes integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: socket() returned a new descriptor, which nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let on: libc::c_int = 1;
        // The kernel takes VLAN tags off frames and tells them beside.
        // SAFETY: an integer, borrowed for the call, of the stated length.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
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
            return Err(io::Error::last_os_error());
        }
        Ok(Interface(socket))
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// The next frame that came from the other end; `None` when there is none yet.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some((mut frame, own, tag)) = self.receive_any()? else {
                return Ok(None);
            };
            if own {
                continue;
            }
            if let Some(tag) = tag
                && frame.len() >= ADDRESSES
            {
                frame.splice(ADDRESSES..ADDRESSES, tag);
            }
            return Ok(Some(frame));
        }
    }

    /// A frame, whether it was this host that sent it, and the VLAN tag that was taken off.
    #[allow(clippy::type_complexity)]
    fn receive_any(&self) -> io::Result<Option<(Vec<u8>, bool, Option<[u8; 4]>)>> {
        let mut frame = vec![0; MAX_FRAME];
        // Aligned as a cmsghdr must be.
        let mut control = [0u64; 16];
        let mut part = libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: frame.len(),
        };
        // SAFETY: both structures are plain C data, for which all zeros are valid.
        let (mut address, mut message): (libc::sockaddr_ll, libc::msghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the message points to a frame, an address and control data of the stated lengths,
        // all of which outlive the call.
        let len = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0) };
        let Ok(len) = usize::try_from(len) else {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            };
        };
        frame.truncate(len);
        let own = address.sll_pkttype == libc::PACKET_OUTGOING;
        // SAFETY: recvmsg has filled in the message, whose control data is still there.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        let tag = if header.is_null() {
            None
        } else {
            // SAFETY: the kernel writes whole headers, and behind one of PACKET_AUXDATA, the only
            // kind that was asked for, a tpacket_auxdata, maybe unaligned.
            let auxdata =
                unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<Auxdata>()) };
            auxdata.vlan_tag()
        };
        Ok(Some((frame, own, tag)))
    }
}

/// What the kernel says beside a frame (`struct tpacket_auxdata`).
#[repr(transparent)]
struct Auxdata([u8; size_of::<libc::tpacket_auxdata>()]);

impl Auxdata {
    fn half(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.0[at], self.0[at + 1]])
    }

    fn vlan_tag(&self) -> Option<[u8; 4]> {
        let status = u32::from_ne_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]);
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let control = self.half(offset_of!(libc::tpacket_auxdata, tp_vlan_tci));
        let protocol = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            self.half(offset_of!(libc::tpacket_auxdata, tp_vlan_tpid))
        } else {
            0x8100
        };
        let [p0, p1] = protocol.to_be_bytes();
        let [c0, c1] = control.to_be_bytes();
        Some([p0, p1, c0, c1])
    }
}
