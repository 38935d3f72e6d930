//! Whether network interfaces reach their other ends, and news of that (rtnetlink(7), netdevice(7)).

use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// What stands between an interface and its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// The interface was removed.
    Gone,
    /// It is administratively down.
    Down,
    /// It is up, and its other end is not: a cable that is pulled, a veth whose peer is down.
    NoCarrier,
    /// Nothing.
    Running,
}

mod ioctl {
    nix::ioctl_readwrite_bad!(interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);
    nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);
}

impl Link {
    /// Of the interface with this index; any socket will do to ask.
    pub(super) fn of(index: libc::c_uint, socket: BorrowedFd<'_>) -> Link {
        // By index, for an interface may get another name.
        let flags = if_indextoname(index).and_then(|name| flags(&name, socket));
        match flags {
            Err(_) => Link::Gone,
            Ok(flags) if flags & libc::IFF_UP == 0 => Link::Down,
            Ok(flags) if flags & libc::IFF_RUNNING == 0 => Link::NoCarrier,
            Ok(_) => Link::Running,
        }
    }
}

/// Makes the interface with this index go up or down administratively; needs CAP_NET_ADMIN.
pub(super) fn enable(
    index: libc::c_uint,
    socket: BorrowedFd<'_>,
    enabled: bool,
) -> nix::Result<()> {
    let name = if_indextoname(index)?;
    let flags = flags(&name, socket)?;
    let flags = match enabled {
        true => flags | libc::IFF_UP,
        false => flags & !libc::IFF_UP,
    };
    let mut request = request(&name);
    // The kernel's field has 16 bits; higher flags are not set through it.
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: an ifreq with a name that ends with a zero and flags, borrowed for the call.
    unsafe { ioctl::set_interface_flags(socket.as_raw_fd(), &raw const request) }?;
    Ok(())
}

/// A request about the interface of this name.
fn request(name: &CStr) -> libc::ifreq {
    // SAFETY: a plain C structure for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let bytes = name.to_bytes().iter();
    // The last of them stays zero.
    let room = libc::IFNAMSIZ - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(bytes) {
        *to = from.cast_signed() as libc::c_char;
    }
    request
}

fn flags(name: &CStr, socket: BorrowedFd<'_>) -> nix::Result<libc::c_int> {
    let mut request = request(name);
    // SAFETY: an ifreq with a name that ends with a zero, borrowed for the call.
    unsafe { ioctl::interface_flags(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the call has filled in this member of the union, and any bits are an integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags))
}

/// Rings when something about any interface changes.
///
/// What the messages say is not read: some may be lost when many come at once (netlink(7)). Whoever
/// hears the bell asks for the present state of the interfaces of interest.
pub(crate) struct LinkNews(OwnedFd);

impl LinkNews {
    /// Listens from now on.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        let groups = libc::RTMGRP_LINK.cast_unsigned();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(LinkNews(socket))
    }

    /// Silences the bell; what comes afterwards rings it again.
    pub(crate) fn take(&self) {
        /// What comes in faster than this many can be taken rings again.
        const MOST: usize = 256;
        for _ in 0..MOST {
            match recv(self.0.as_raw_fd(), &mut [0; 16], MsgFlags::MSG_DONTWAIT) {
                // ENOBUFS: some were lost, which is said once.
                Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for LinkNews {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
