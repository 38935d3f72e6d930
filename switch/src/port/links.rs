//! Link states of network interfaces, and notifications of changes (rtnetlink(7), netdevice(7)).

use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// The link state of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// The interface was removed.
    Gone,
    /// It is administratively down.
    Down,
    /// It is up without a carrier: an unplugged cable, or a veth whose peer is down.
    NoCarrier,
    /// It is up and has a carrier.
    Running,
}

mod ioctl {
    nix::ioctl_readwrite_bad!(interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);
    nix::ioctl_readwrite_bad!(interface_mtu, libc::SIOCGIFMTU, libc::ifreq);
    nix::ioctl_readwrite_bad!(interface_driver, libc::SIOCETHTOOL, libc::ifreq);
    nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);
}

impl Link {
    /// Returns the state of the interface with this index. Any socket serves for the request.
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

/// Sets the administrative state of the interface with this index. Needs CAP_NET_ADMIN.
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

/// Returns the MTU of the interface with this index.
pub(super) fn mtu(index: libc::c_uint, socket: BorrowedFd<'_>) -> nix::Result<usize> {
    let mut request = request(&if_indextoname(index)?);
    // SAFETY: an ifreq with a name that ends with a zero, borrowed for the call.
    unsafe { ioctl::interface_mtu(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the call has filled in this member of the union, and any bits are an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// True if the interface with this index is one end of a veth pair.
pub(super) fn is_veth(index: libc::c_uint, socket: BorrowedFd<'_>) -> bool {
    /// ETHTOOL_GDRVINFO and the size of its answer, `ethtool_drvinfo` (`linux/ethtool.h`), which libc does not have.
    const GET_DRIVER: u32 = 3;
    const ANSWER: usize = 196;
    /// Where the driver's name begins in it.
    const NAME: usize = 4;
    let Ok(name) = if_indextoname(index) else {
        return false;
    };
    let mut answer = [0; ANSWER / 4];
    answer[0] = GET_DRIVER;
    let mut request = request(&name);
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: an ifreq with a name that ends with a zero, and with the address of as many bytes as the kernel writes.
    let done = unsafe { ioctl::interface_driver(socket.as_raw_fd(), &raw mut request) };
    let bytes = answer.iter().flat_map(|word| word.to_ne_bytes());
    done.is_ok() && bytes.skip(NAME).take(5).eq(*b"veth\0")
}

/// Returns a request for the interface of this name.
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

/// Notifies of changes of any interface.
///
/// It ignores the contents of messages, because netlink may lose some (netlink(7)). After a notification, query the state of
/// the interfaces of interest.
pub(crate) struct LinkNews(OwnedFd);

impl LinkNews {
    /// Starts listening.
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

    /// Takes pending notifications. Later ones notify again.
    pub(crate) fn take(&self) {
        /// Largest number of messages per call; further ones notify again.
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
