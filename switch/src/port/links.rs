//! Link states of network interfaces, and notifications of changes (rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Gone,
    Down,
    /// It is up without a carrier: an unplugged cable, or a veth whose peer is down.
    NoCarrier,
    /// It is up and has a carrier.
    Running,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) link: Link,
    pub(super) mtu: usize,
    /// True unless `gso_max_size` is below the default: frames that stand for several may leave.
    pub(super) gso: bool,
    /// True for one end of a veth pair without a queueing discipline.
    pub(super) plain_veth: bool,
}

impl Details {
    /// Asks for the interface with this index (RTM_GETLINK of rtnetlink(7)).
    pub(super) fn of(index: libc::c_uint) -> nix::Result<Self> {
        let socket = netlink(SockFlag::empty())?;
        // A nlmsghdr (length, type, flags, and two numbers that are not needed) and an ifinfomsg (family, type, index, flags).
        let mut request = [0; LINK_ATTRIBUTES];
        request[..4].copy_from_slice(&(LINK_ATTRIBUTES as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
        request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request[20..24].copy_from_slice(&index.to_ne_bytes());
        send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
        let mut answer = vec![0; 32 * 1024];
        let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        Details::read(&answer[..len]).ok_or(Errno::ENODEV)
    }

    /// Reads an RTM_NEWLINK message.
    fn read(message: &[u8]) -> Option<Self> {
        if message.get(4..6)? != libc::RTM_NEWLINK.to_ne_bytes() {
            return None;
        }
        let flags = i32::from_ne_bytes(*message.get(24..)?.first_chunk()?);
        let attributes = message.get(LINK_ATTRIBUTES..)?;
        let bytes = |kind| {
            let value = attribute(attributes, kind)?.first_chunk()?;
            Some(u32::from_ne_bytes(*value) as usize)
        };
        let link = attribute(attributes, IFLA_LINKINFO);
        let kind = link.and_then(|link| attribute(link, IFLA_INFO_KIND));
        let queue = attribute(attributes, IFLA_QDISC);
        Some(Details {
            link: match flags {
                flags if flags & libc::IFF_UP == 0 => Link::Down,
                flags if flags & libc::IFF_RUNNING == 0 => Link::NoCarrier,
                _ => Link::Running,
            },
            mtu: bytes(IFLA_MTU)?,
            gso: bytes(IFLA_GSO_MAX_SIZE)? > 0xffff,
            plain_veth: kind == Some(b"veth\0") && queue == Some(b"noqueue\0"),
        })
    }
}

// Attributes of a link, `linux/if_link.h`. libc has them for Android only.
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_INFO_KIND: u16 = 1;
/// Bytes of the headers in front of a link's attributes.
const LINK_ATTRIBUTES: usize = 32;

/// Finds an attribute: each has a length with its header, a type, and its value up to a multiple of four bytes.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    const HEADER: usize = 4;
    /// Bits of the type that describe the value.
    const FLAGS: u16 = 0xc000;
    loop {
        let half = |at: usize| Some(u16::from_ne_bytes(*attributes.get(at..)?.first_chunk()?));
        let len = usize::from(half(0)?);
        let value = attributes.get(HEADER..len)?;
        if half(2)? & !FLAGS == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

fn netlink(flags: SockFlag) -> nix::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::Netlink, flags | SockFlag::SOCK_CLOEXEC);
    socket(family, SockType::Raw, flags, SockProtocol::NetlinkRoute)
}

/// Notifies of changes of any interface and of any queueing discipline.
///
/// It ignores the contents of messages, because netlink may lose some (netlink(7)). After a notification, query the state of
/// the interfaces of interest.
pub(crate) struct LinkNews(OwnedFd);

impl LinkNews {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = netlink(SockFlag::SOCK_NONBLOCK)?;
        let groups = (libc::RTMGRP_LINK | libc::RTMGRP_TC).cast_unsigned();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute with padding.
    fn one(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = 4 + value.len();
        let mut bytes = (len as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(len.next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: &[u8], queue: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; LINK_ATTRIBUTES];
        bytes[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        // IFLA_IFNAME.
        bytes.extend(one(3, b"a\0"));
        bytes.extend(one(IFLA_MTU, &1500u32.to_ne_bytes()));
        bytes.extend(one(IFLA_QDISC, queue));
        bytes.extend(one(IFLA_GSO_MAX_SIZE, &65_536u32.to_ne_bytes()));
        // NLA_F_NESTED.
        let info = one(IFLA_INFO_KIND, kind);
        bytes.extend(one(IFLA_LINKINFO | 0x8000, &info));
        bytes
    }

    #[test]
    fn messages_have_link_mtu_kind_and_queueing_discipline() {
        let plain = |kind, queue| Details::read(&message(kind, queue)).map(|one| one.plain_veth);
        assert_eq!(plain(b"veth\0", b"noqueue\0"), Some(true));
        assert_eq!(plain(b"veth\0", b"htb\0"), Some(false));
        assert_eq!(plain(b"bridge\0", b"noqueue\0"), Some(false));
        let message = message(b"veth\0", b"noqueue\0");
        let details = Details::read(&message).expect("a link");
        assert_eq!((details.mtu, details.gso), (1500, true));
        let link = |flags: i32| {
            let mut message = message.clone();
            message[24..28].copy_from_slice(&flags.to_ne_bytes());
            Details::read(&message).map(|one| one.link)
        };
        assert_eq!(link(0), Some(Link::Down));
        assert_eq!(link(libc::IFF_UP), Some(Link::NoCarrier));
        let running = libc::IFF_UP | libc::IFF_RUNNING;
        assert_eq!(link(running), Some(Link::Running));
        for len in 0..LINK_ATTRIBUTES + 16 {
            assert_eq!(Details::read(&message[..len]), None, "{len} bytes");
        }
    }
}
