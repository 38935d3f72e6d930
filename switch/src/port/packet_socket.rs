//! AF_PACKET sockets for ports on network interfaces (packet(7)). The crate `ultima-stf` compiles this file too.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};

/// Bytes of frames that the kernel keeps in the socket's queue. Beyond rmem_max only with
/// CAP_NET_ADMIN.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// `linux/if_packet.h`; libc has it for fewer targets than it has the rest.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Opens a socket whose frames have offload headers, with VLAN tags as ancillary data. It receives nothing before
/// [`receive_from`].
pub(super) fn receiver() -> io::Result<OwnedFd> {
    let socket = open()?;
    set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    Ok(socket)
}

/// A socket that sends finished frames to the interface with this index, and receives nothing.
pub(super) fn sender_to(index: libc::c_uint) -> io::Result<OwnedFd> {
    let socket = open()?;
    bind(&socket, index, 0)?;
    Ok(socket)
}

/// A socket that receives nothing before it is bound to an interface.
pub(super) fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let opened = socket(AddressFamily::Packet, SockType::Raw, flags, None);
    opened.map_err(|errno| match errno {
        Errno::EPERM => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "attaching to an interface needs CAP_NET_RAW: be root, or use unix:PATH",
        ),
        other => other.into(),
    })
}

/// Starts to receive all frames of the interface with this index, in promiscuous mode.
pub(super) fn receive_from(socket: &OwnedFd, index: libc::c_uint) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &membership,
    )?;
    bind(socket, index, libc::ETH_P_ALL as u16)
}

/// Frames dropped since the last call because there was no room for them.
pub(super) fn take_drops(socket: &OwnedFd) -> u64 {
    // SAFETY: the option is such a structure.
    let stats: io::Result<libc::tpacket_stats> =
        unsafe { get_option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS) };
    stats.map_or(0, |stats| stats.tp_drops.into())
}

/// The VLAN tag that the kernel took off a received message, from the message's ancillary data.
pub(super) fn vlan_tag_of(control: &[u64]) -> Option<[u8; 4]> {
    const HEADER_WORDS: usize = size_of::<libc::cmsghdr>().div_ceil(8);
    let data = control.get(HEADER_WORDS..)?;
    let byte = |at: usize| data.get(at / 8).map(|word| word.to_ne_bytes()[at % 8]);
    let half = |at: usize| Some(u16::from_ne_bytes([byte(at)?, byte(at + 1)?]));
    let status = u32::from(half(0)?) | u32::from(half(2)?) << 16;
    let control = half(offset_of!(libc::tpacket_auxdata, tp_vlan_tci))?;
    vlan_tag(
        status,
        control,
        half(offset_of!(libc::tpacket_auxdata, tp_vlan_tpid))?,
    )
}

/// The four bytes of a VLAN tag that the kernel took off a frame of this status.
pub(super) fn vlan_tag(status: u32, control: u16, protocol: u16) -> Option<[u8; 4]> {
    let [control_high, control_low] = control.to_be_bytes();
    let [high, low] = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => [0x81, 0x00],
        _ => protocol.to_be_bytes(),
    };
    let is_tagged = status & libc::TP_STATUS_VLAN_VALID != 0;
    is_tagged.then_some([high, low, control_high, control_low])
}

/// Sets an option to a plain C structure or integer.
pub(super) fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (fd, value) = (socket.as_raw_fd(), std::ptr::from_ref(value).cast());
    // SAFETY: the value has the stated length and is borrowed for the call.
    let result =
        unsafe { libc::setsockopt(fd, level, option, value, size_of::<T>() as libc::socklen_t) };
    Errno::result(result)?;
    Ok(())
}

/// Returns an option.
///
/// # Safety
/// `T` is the plain C structure or integer that the option is.
pub(super) unsafe fn get_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let (mut len, at) = (size_of::<T>() as libc::socklen_t, value.as_mut_ptr());
    // SAFETY: there is room of the stated length.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at.cast(), &raw mut len) };
    Errno::result(result)?;
    match len as usize == size_of::<T>() {
        // SAFETY: the kernel has filled it in.
        true => Ok(unsafe { value.assume_init() }),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Binds to the interface with this index, to receive frames of this protocol.
pub(super) fn bind(socket: &OwnedFd, index: libc::c_uint, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    bind_to(socket, &address)
}

/// Binds to an address, which is a plain C structure of its family.
pub(super) fn bind_to<T>(socket: &OwnedFd, address: &T) -> io::Result<()> {
    let (fd, address) = (socket.as_raw_fd(), std::ptr::from_ref(address).cast());
    // SAFETY: the address has the stated length and is borrowed for the call.
    let result = unsafe { libc::bind(fd, address, size_of::<T>() as libc::socklen_t) };
    Errno::result(result)?;
    Ok(())
}
