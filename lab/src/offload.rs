//! Offloads of interfaces. BMv2 reads frames unchanged, so veths must not leave checksums or segmentation to
//! a network card that they do not have.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::ptr;

use crate::error::LabError;

mod call {
    nix::ioctl_readwrite_bad!(ethtool, libc::SIOCETHTOOL, libc::ifreq);
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO of linux/ethtool.h.
const COMMANDS: [u32; 5] = [0x17, 0x19, 0x1f, 0x24, 0x2c];

/// Turns checksum and segmentation offloads of an interface in the caller's namespace off.
///
/// # Errors
/// There is no such interface, or the caller may not change it.
pub fn turn_off(interface: &str) -> Result<(), LabError> {
    let failed = |source| LabError::System {
        what: format!("cannot turn the offloads of {interface} off"),
        source,
    };
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
    if interface.len() >= libc::IFNAMSIZ {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    for command in COMMANDS {
        let mut value = EthtoolValue { command, data: 0 };
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_data: ptr::from_mut(&mut value).cast(),
            },
        };
        // SAFETY: the request names an interface, zero-terminated, and points to a value that is valid until the call returns
        // and is of the form that all these commands take.
        match unsafe { call::ethtool(socket.as_raw_fd(), &mut request) } {
            // The driver does not have this offload.
            Ok(_) | Err(nix::errno::Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    Ok(())
}
