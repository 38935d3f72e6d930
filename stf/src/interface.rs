//! The far end of a port on a Linux network interface: an AF_PACKET socket (packet(7)).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, send};

use super::packet_socket;

/// Longest frame.
const MAX_FRAME: usize = 65_535;
/// Length of an Ethernet header before a VLAN tag.
const ADDRESSES: usize = 12;

/// An interface, for reading and writing whole frames.
pub struct Interface(OwnedFd);

impl Interface {
    /// Opens the interface of this name.
    ///
    /// # Errors
    /// There is no such interface, or this process has no CAP_NET_RAW.
    pub fn open(name: &str) -> io::Result<Interface> {
        let index = if_nametoindex(name)?;
        let socket = packet_socket::open()?;
        // The kernel removes VLAN tags from frames and passes them as control data.
        packet_socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        packet_socket::bind(&socket, index, libc::ETH_P_ALL as u16)?;
        Ok(Interface(socket))
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// Receives the next frame from the other end, if there is one.
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

    /// Receives a frame, with whether this host sent it, and its removed VLAN tag.
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
        let words = message.msg_controllen / size_of::<u64>();
        let tag = packet_socket::vlan_tag_of(&control[..words.min(control.len())]);
        Ok(Some((frame, own, tag)))
    }
}
