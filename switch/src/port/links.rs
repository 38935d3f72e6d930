//! Link states of network interfaces, and notifications of changes (rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage, LinkMessageBuffer,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

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
    /// Asks for the interface with this index.
    pub(super) fn of(index: u32) -> nix::Result<Self> {
        let ask = || {
            let mut link = LinkMessage::default();
            link.header.index = index;
            let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
            request.header.flags = NLM_F_REQUEST;
            request.finalize();
            let mut bytes = vec![0; request.buffer_len()];
            request.serialize(&mut bytes);
            let socket = Socket::new(NETLINK_ROUTE)?;
            socket.send(&bytes, 0)?;
            let mut answer = Vec::with_capacity(32 * 1024);
            socket.recv(&mut answer, 0)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error: io::Error| {
            Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        Details::read(&answer).ok_or(Errno::ENODEV)
    }

    /// Reads an RTM_NEWLINK message.
    fn read(message: &[u8]) -> Option<Self> {
        let message = NetlinkBuffer::new_checked(message).ok()?;
        if message.message_type() != libc::RTM_NEWLINK {
            return None;
        }
        let header = size_of::<LinkMessageBuffer>();
        let (header, attributes) = message.payload().split_at_checked(header)?;
        let flags = LinkHeader::parse(header).ok()?.flags;
        let (mut mtu, mut gso, mut no_queue, mut veth) = (None, None, false, false);
        for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
            // An attribute that cannot be decoded, such as one of a later kernel, does not hide the others.
            match LinkAttribute::parse_with_param(&attribute, AddressFamily::Unspec) {
                Ok(LinkAttribute::Mtu(bytes)) => mtu = Some(bytes as usize),
                Ok(LinkAttribute::GsoMaxSize(bytes)) => gso = Some(bytes > 0xffff),
                Ok(LinkAttribute::Qdisc(name)) => no_queue = name == "noqueue",
                Ok(LinkAttribute::LinkInfo(info)) => {
                    veth = info.contains(&LinkInfo::Kind(InfoKind::Veth));
                }
                _ => {}
            }
        }
        Some(Details {
            link: match flags {
                flags if !flags.contains(LinkFlags::Up) => Link::Down,
                flags if !flags.contains(LinkFlags::Running) => Link::NoCarrier,
                _ => Link::Running,
            },
            mtu: mtu?,
            gso: gso?,
            plain_veth: veth && no_queue,
        })
    }
}

/// Notifies of changes of any interface and of any queueing discipline.
///
/// It ignores the contents of messages, because netlink may lose some (netlink(7)). After a notification, query the state of
/// the interfaces of interest.
pub(crate) struct LinkEvents(Socket);

impl LinkEvents {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let groups = (libc::RTMGRP_LINK | libc::RTMGRP_TC).cast_unsigned();
        socket.bind(&SocketAddr::new(0, groups))?;
        Ok(LinkEvents(socket))
    }

    /// Takes pending notifications. Later ones notify again.
    pub(crate) fn take(&self) {
        /// Largest number of messages per call; further ones notify again.
        const MOST: usize = 256;
        for _ in 0..MOST {
            match self.0.recv(&mut &mut [0; 16][..], libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // ENOBUFS: some were lost, which is said once. EINTR.
                _ => {}
            }
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flags: LinkFlags, kind: InfoKind, queue: &str) -> Vec<u8> {
        let mut link = LinkMessage::default();
        link.header.flags = flags;
        link.attributes = vec![
            LinkAttribute::IfName("a".to_owned()),
            LinkAttribute::Mtu(1500),
            LinkAttribute::Qdisc(queue.to_owned()),
            LinkAttribute::GsoMaxSize(65_536),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
        ];
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::NewLink(link));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn messages_have_link_mtu_kind_and_queueing_discipline() {
        let up = LinkFlags::Up | LinkFlags::Running;
        let read = |flags, kind, queue| Details::read(&message(flags, kind, queue));
        let veth = |flags| read(flags, InfoKind::Veth, "noqueue").expect("a link");
        let running = Details {
            link: Link::Running,
            mtu: 1500,
            gso: true,
            plain_veth: true,
        };
        assert_eq!(veth(up), running);
        assert_eq!(veth(LinkFlags::Up).link, Link::NoCarrier);
        assert_eq!(veth(LinkFlags::empty()).link, Link::Down);
        for (kind, queue) in [(InfoKind::Veth, "htb"), (InfoKind::Bridge, "noqueue")] {
            let details = read(up, kind, queue).expect("a link");
            assert!(!details.plain_veth, "{queue}");
        }
        let message = message(up, InfoKind::Veth, "noqueue");
        for len in 0..message.len() {
            assert_eq!(Details::read(&message[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn an_attribute_that_cannot_be_decoded_hides_no_other() {
        let mut message = message(LinkFlags::Up, InfoKind::Veth, "noqueue");
        // IFLA_LINK_NETNSID with two bytes instead of four.
        message.extend([6, 0, 37, 0, 1, 0, 0, 0]);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        let link: Result<NetlinkMessage<RouteNetlinkMessage>, _> =
            NetlinkMessage::deserialize(&message);
        link.expect_err("the attribute cannot be decoded");
        assert_eq!(Details::read(&message).map(|one| one.mtu), Some(1500));
    }

    #[test]
    fn the_kernel_knows_its_interfaces() {
        let lo = nix::net::if_::if_nametoindex("lo").expect("every namespace has one");
        let details = Details::of(lo).expect("an interface");
        assert!(!details.plain_veth && details.mtu > 0, "{details:?}");
        assert_eq!(Details::of(u32::MAX >> 1), Err(Errno::ENODEV));
    }
}
