//! Kernel settings of a lab's hosts, in the caller's network namespace. The machine's own settings stay the
//! same.

use std::fs;
use std::io;

use crate::error::LabError;

const NETWORK: &str = "/proc/sys/net";

/// Turns IPv6 off: hosts' interfaces have IPv4 addresses only, and the kernel sends no packets of its own on
/// switches' interfaces.
pub fn turn_ipv6_off() -> Result<(), LabError> {
    for of in ["all", "default"] {
        let path = format!("{NETWORK}/ipv6/conf/{of}/disable_ipv6");
        match fs::write(&path, "1") {
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written.map_err(LabError::file(path))?,
        }
    }
    Ok(())
}

/// Makes a host's interface accept packets from the host's own address.
///
/// If a host has several ranks, the switch sends one rank's multicast back to the others on the port that it
/// came from, with the host's own address as its source. Linux silently drops such packets as martians unless
/// `accept_local` of the interface (or of all interfaces) is set.
///
/// # Errors
/// There is no such interface, or the caller may not change it.
pub fn accept_local(interface: &str) -> Result<(), LabError> {
    let path = format!("{NETWORK}/ipv4/conf/{interface}/accept_local");
    fs::write(&path, "1").map_err(LabError::file(path))
}
