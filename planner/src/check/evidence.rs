//! The evidence about check packets that were sent on one path and not received.

use std::fmt;

use ultima_api::v1::RoundReport;

use super::Path;

/// The evidence about `packets` lost check packets.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The packets' path.
    pub path: Path,
    /// The number of packets sent.
    pub packets: u64,
    /// Bytes of each packet from the IPv4 header on.
    pub length: usize,
    /// True if shorter packets arrive on this path.
    pub short_ones_pass: bool,
    /// The sender.
    pub sender: End<'a>,
    /// The receiver.
    pub receiver: End<'a>,
    /// True if the sender was also asked to send PROBEs, as many and as long.
    pub probed: bool,
    /// True if the sender's host receives packets over a switch.
    pub sender_hears: bool,
    /// True if the receiver's host receives packets over a switch.
    pub receiver_hears: bool,
    /// The switches on the path, the sender's first.
    pub steps: Vec<PathSwitch<'a>>,
}

/// A member at an end of the path.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The host's name.
    pub host: &'a str,
    /// The host's address.
    pub ip: std::net::Ipv4Addr,
    /// The member's UDP port.
    pub udp_port: u16,
    /// The member's report; none if it did not answer.
    pub report: Option<&'a RoundReport>,
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The port's number.
    pub number: u16,
    /// The port's name in the fabric's file, without the switch.
    pub label: String,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// A switch on the path.
#[derive(Clone, Debug)]
pub struct PathSwitch<'a> {
    /// The switch's name.
    pub switch: &'a str,
    /// The ingress port.
    pub in_port: Port,
    /// The egress port.
    pub out_port: Port,
    /// The replicas that its group makes of each packet.
    pub replicas: u64,
    /// The counters of the check, or why they are unknown.
    pub counted: Result<Counted, &'a str>,
}

/// A switch's counters of a job, and of the port where its packets arrive, in packets. The fields
/// are the program's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Admitted packets of the job.
    pub received: u64,
    /// Rejected packets that claimed to be the job's.
    pub rejected: u64,
    /// Packets of jobs that the switch does not know.
    pub unknown_job: u64,
    /// Packets sent to the group.
    pub replicated: u64,
    /// Packets with a route.
    pub unicast: u64,
    /// Replicas and unicast packets sent out.
    pub delivered: u64,
    /// Replicas dropped because they would have returned to their sender.
    pub own_copy: u64,
    /// Replicas dropped because the switch has no address for their rank.
    pub unknown_rank: u64,
    /// At the port: malformed frames.
    pub malformed: u64,
    /// At the port: packets without a route, a group or time to live.
    pub unrouted: u64,
}

impl Counted {
    /// Returns the difference to `before`. Counters that were reset count from zero.
    pub fn since(&self, before: &Counted) -> Counted {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Counted {
            received: since(self.received, before.received),
            rejected: since(self.rejected, before.rejected),
            unknown_job: since(self.unknown_job, before.unknown_job),
            replicated: since(self.replicated, before.replicated),
            unicast: since(self.unicast, before.unicast),
            delivered: since(self.delivered, before.delivered),
            own_copy: since(self.own_copy, before.own_copy),
            unknown_rank: since(self.unknown_rank, before.unknown_rank),
            malformed: since(self.malformed, before.malformed),
            unrouted: since(self.unrouted, before.unrouted),
        }
    }
}
