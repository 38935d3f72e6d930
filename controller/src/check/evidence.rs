//! What is known of a few packets that were sent by one way and that nobody heard.

use std::fmt;

use super::Path;
use crate::api::RoundReport;

/// What was seen of `packets` check packets that did not come.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The way that they should have taken.
    pub path: Path,
    /// How many were sent.
    pub packets: u64,
    /// Bytes of each from IPv4 on.
    pub length: usize,
    /// Shorter ones do come by this way.
    pub short_ones_pass: bool,
    /// The sender.
    pub sender: End<'a>,
    /// The receiver.
    pub receiver: End<'a>,
    /// The sender was told to send PROBEs too, as many and as long.
    pub probed: bool,
    /// Something comes to the sender's host over a switch.
    pub sender_hears: bool,
    /// Something comes to the receiver's host over a switch.
    pub receiver_hears: bool,
    /// The switches on the way, the sender's first.
    pub steps: Vec<Step<'a>>,
}

/// A member at its end of the way.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Its host's name.
    pub host: &'a str,
    /// Its host's address.
    pub ip: std::net::Ipv4Addr,
    /// Where it listens.
    pub udp_port: u16,
    /// What it saw; none if it did not answer.
    pub report: Option<&'a RoundReport>,
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The switch's own number of it.
    pub number: u16,
    /// What the fabric's file calls it, without the switch: how it is written.
    pub label: String,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// A switch on the way.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Its name.
    pub switch: &'a str,
    /// Where the packets come in.
    pub in_port: Port,
    /// Where they should go out.
    pub out_port: Port,
    /// Copies that its group should make of each.
    pub copies: u64,
    /// What it counted meanwhile, or why it did not say.
    pub counted: Result<Counted, &'a str>,
}

/// What one switch counts of a job, and at the port where its packets come in, in packets. The
/// fields are the program's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Admitted packets of the job.
    pub received: u64,
    /// Packets that claimed to be the job's and were refused.
    pub rejected: u64,
    /// Packets of jobs that the switch doesn't know.
    pub unknown_job: u64,
    /// Packets handed to the group.
    pub replicated: u64,
    /// Packets with a route.
    pub unicast: u64,
    /// Copies and unicast packets sent out.
    pub delivered: u64,
    /// Copies dropped because they would have returned.
    pub own_copy: u64,
    /// Copies dropped because the switch has no address for their rank.
    pub unknown_rank: u64,
    /// At the port: broken frames.
    pub malformed: u64,
    /// At the port: packets without route, group or time to live.
    pub unrouted: u64,
}

impl Counted {
    /// What was counted since `before`. Counters that were set back count from zero.
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
