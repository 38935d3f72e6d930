//! AF_PACKET sockets for ports on network interfaces (packet(7)). The crate `ultima-stf` compiles this file too.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};

/// Bytes of frames that the kernel keeps in the socket's queue. Beyond rmem_max only with
/// CAP_NET_ADMIN.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// `linux/if_packet.h`; libc has it for fewer targets than it has the rest.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket whose frames have offload headers and come with their VLAN tags beside them. It has to
/// be told what to receive from.
pub(super) fn receiver() -> io::Result<OwnedFd> {
    let socket = open()?;
    set_option(&socket, PACKET_IGNORE_OUTGOING, &1i32)?;
    set_option(&socket, libc::PACKET_AUXDATA, &1i32)?;
    set_option(&socket, libc::PACKET_VNET_HDR, &1i32)?;
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
    let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Protocol 0: nothing.
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
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives from the interface with this index from now on, whatever the frames' addresses.
pub(super) fn receive_from(socket: &OwnedFd, index: libc::c_uint) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    bind(socket, index, libc::ETH_P_ALL as u16)
}

/// Frames dropped since the last call because there was no room for them.
pub(super) fn take_drops(socket: &OwnedFd) -> u64 {
    let mut stats = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the option fills a tpacket_stats, for which there is room of the stated length.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
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

/// The VLAN tag that the kernel took off a received message: its four bytes.
pub(super) fn vlan_tag(control: &[u64]) -> Option<[u8; 4]> {
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

/// Sets an option of SOL_PACKET.
pub(super) fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
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
