//! This host's addresses and the MTU of its interfaces.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::libc;

use super::JobError;

/// Linux's MTU of the loopback interface.
const LOOPBACK_MTU: u32 = 65_536;
/// The MTU of an interface that cannot be asked.
const USUAL_MTU: u32 = 1500;

/// The local address from which packets to `peer` leave.
pub(super) fn towards(peer: SocketAddrV4) -> Result<Ipv4Addr, JobError> {
    let fail = |error| JobError::Io {
        what: "find the local address that routes to the rendezvous",
        error,
    };
    // A connected UDP socket sends nothing, but the kernel chooses its route.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(fail)?;
    socket.connect(peer).map_err(fail)?;
    match socket.local_addr().map_err(fail)? {
        SocketAddr::V4(local) => Ok(*local.ip()),
        SocketAddr::V6(local) => Err(JobError::Ipv6 {
            what: "the local address".into(),
            address: local.ip().to_string(),
        }),
    }
}

/// The first IPv4 address of the interface `name`.
pub(super) fn address_of(name: &str) -> Result<Ipv4Addr, JobError> {
    let all = addresses();
    let found = all.iter().find(|(interface, _)| interface == name);
    found.map(|(_, ip)| *ip).ok_or_else(|| {
        let mut names: Vec<&str> = all.iter().map(|(interface, _)| &interface[..]).collect();
        names.dedup();
        JobError::Interface {
            name: name.to_owned(),
            present: names.join(", "),
        }
    })
}

/// The MTU of the interface with the address `ip`.
pub(super) fn mtu(ip: Ipv4Addr) -> u32 {
    if ip.is_loopback() {
        return LOOPBACK_MTU;
    }
    let all = addresses();
    let interface = all.iter().find(|(_, address)| *address == ip);
    let mtu = interface.and_then(|(name, _)| mtu_of(name).ok());
    mtu.unwrap_or(USUAL_MTU)
}

/// Interfaces with their IPv4 addresses.
fn addresses() -> Vec<(String, Ipv4Addr)> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let with_address = interfaces.filter_map(|interface| {
        let address = interface.address.as_ref()?.as_sockaddr_in()?.ip();
        Some((interface.interface_name, address))
    });
    with_address.collect()
}

fn mtu_of(name: &str) -> io::Result<u32> {
    // Any socket serves for the request.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let name = CString::new(name)?;
    // SAFETY: a plain C structure for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays zero.
    let room = libc::IFNAMSIZ - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // SAFETY: an ifreq with a name that ends with a zero, borrowed for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled in this member of the union, and any bits are an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(mtu.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_by_route() {
        assert_eq!(address_of("lo").unwrap(), Ipv4Addr::LOCALHOST);
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
        assert_eq!(towards(here).unwrap(), Ipv4Addr::LOCALHOST);
        assert!(mtu_of("lo").unwrap() >= USUAL_MTU);
        let error = address_of("eth77").unwrap_err().to_string();
        assert!(error.starts_with("interface eth77 has no IPv4 address; this host has lo"));
    }
}
