//! Counters and settings of the kernel in this thread's network namespace.

use std::fs;
use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;

/// Datagrams that arrived at this host and reached no socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UdpCounts {
    /// No socket had their port.
    pub(crate) no_port: u64,
    /// Their socket's buffer was full.
    pub(crate) buffer_full: u64,
}

impl UdpCounts {
    /// The current counters; zero if the kernel has none.
    pub(crate) fn now() -> Self {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        Self::read(&snmp)
    }

    /// Parses the file's pairs of lines: names, then numbers (proc_net(5)).
    fn read(snmp: &str) -> Self {
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
        let (names, numbers) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let of = |wanted| {
            let mut pairs = names.split_whitespace().zip(numbers.split_whitespace());
            let number = pairs.find(|(name, _)| *name == wanted);
            number
                .and_then(|(_, number)| number.parse().ok())
                .unwrap_or(0)
        };
        Self {
            no_port: of("NoPorts"),
            buffer_full: of("RcvbufErrors"),
        }
    }
}

/// The interface with the address `own`, if it drops packets from that address, which is Linux's default
/// without `accept_local` (ip-sysctl.rst). None if it accepts them, or that is unknown.
pub(crate) fn deaf_to_itself(own: Ipv4Addr) -> Option<String> {
    let mut interfaces = getifaddrs().ok()?;
    let interface = interfaces.find(|interface| {
        let address = interface.address.as_ref().and_then(|a| a.as_sockaddr_in());
        address.is_some_and(|address| address.ip() == own)
    })?;
    let name = interface.interface_name;
    let accepts = |scope: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{scope}/accept_local");
        fs::read_to_string(path).map_or(true, |setting| setting.trim() != "0")
    };
    (!accepts("all") && !accepts(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_numbers() {
        let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\n\
                    Udp: 10 3 2 20 2\nUdpLite: NoPorts\nUdpLite: 9\n";
        let counts = UdpCounts {
            no_port: 3,
            buffer_full: 2,
        };
        assert_eq!(UdpCounts::read(snmp), counts);
        assert_eq!(UdpCounts::read(""), UdpCounts::default());
    }
}
