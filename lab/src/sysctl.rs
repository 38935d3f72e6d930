//! What the kernel of a lab's hosts does otherwise than a machine's usually does. These are settings of the caller's
//! network namespace: the machine's own stay as they are.

use std::fs;
use std::io;

use crate::error::LabError;

const NETWORK: &str = "/proc/sys/net";

/// Turns IPv6 off: hosts' interfaces have IPv4 addresses only, and the kernel says nothing on switches' by itself.
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

/// Has a host's interface take packets that come from the host's own address.
///
/// Where a host has several ranks, the switch sends what one of them multicasts back to the others by the port that
/// it came from, and the address that it comes from is the host's own. Linux drops such packets as martians, without
/// a word, unless the interface's (or all interfaces') `accept_local` is set.
///
/// # Errors
/// There is no such interface, or it is not ours to set.
pub fn accept_local(interface: &str) -> Result<(), LabError> {
    let path = format!("{NETWORK}/ipv4/conf/{interface}/accept_local");
    fs::write(&path, "1").map_err(LabError::file(path))
}
