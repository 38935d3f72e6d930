//! The host's end of a link, which sends and receives frames.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socketpair, sockopt,
};
use nix::sys::time::TimeVal;
use pnet::datalink::{self, Channel, Config, DataLinkReceiver, DataLinkSender};

use crate::netns;

/// The deadline for sending or receiving a frame.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The length of the longest frame.
const MAX_FRAME: usize = 65_535;

/// The host's end of a link.
pub(crate) trait HostEnd: Send {
    /// Sends one frame.
    ///
    /// # Errors
    /// The frame cannot be sent in ten seconds.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Receives the next frame.
    ///
    /// # Errors
    /// No frame arrives in ten seconds.
    fn receive(&mut self) -> io::Result<Vec<u8>>;
}

/// An interface, through libpnet's AF_PACKET channel.
struct Interface {
    sender: Box<dyn DataLinkSender>,
    receiver: Box<dyn DataLinkReceiver>,
}

/// Makes a pair of interfaces, `host` and `switch`; returns the host's end.
///
/// # Errors
/// If the interface cannot be opened.
pub(crate) fn veth(host: &str, switch: &str) -> io::Result<Box<dyn HostEnd>> {
    netns::veth(host, switch);
    let interface = datalink::interfaces()
        .into_iter()
        .find(|interface| interface.name == host)
        .ok_or(io::ErrorKind::NotFound)?;
    let config = Config {
        read_buffer_size: MAX_FRAME,
        read_timeout: Some(TIMEOUT),
        write_timeout: Some(TIMEOUT),
        ..Config::default()
    };
    match datalink::channel(&interface, config)? {
        Channel::Ethernet(sender, receiver) => Ok(Box::new(Interface { sender, receiver })),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl HostEnd for Interface {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.sender
            .send_to(frame, None)
            .unwrap_or_else(|| Err(io::ErrorKind::InvalidInput.into()))
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        self.receiver.next().map(<[u8]>::to_vec)
    }
}

/// One of a pair of connected Unix sockets. Each message is a frame.
struct Socket(OwnedFd);

/// A pair of connected sockets: the host's end and the switch's.
///
/// # Errors
/// If there are no descriptors left.
pub(crate) fn socket_pair() -> io::Result<(Box<dyn HostEnd>, OwnedFd)> {
    let (host, switch) = sockets()?;
    let timeout = TimeVal::new(TIMEOUT.as_secs() as i64, 0);
    setsockopt(&host, sockopt::ReceiveTimeout, &timeout)?;
    setsockopt(&host, sockopt::SendTimeout, &timeout)?;
    Ok((Box::new(Socket(host)), switch))
}

/// A pair of connected sockets, for a link between two switches.
///
/// # Errors
/// If there are no descriptors left.
pub fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        flags,
    )?)
}

impl HostEnd for Socket {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; MAX_FRAME];
        let length = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty())?;
        if length == 0 {
            return Err(Errno::ENOTCONN.into());
        }
        frame.truncate(length);
        Ok(frame)
    }
}
