//! Whether a member's packets keep their order.

use std::collections::BTreeSet;

use super::Routes;
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::Job;

/// Packets that one way may be ahead of another without any queue: what a switch's process takes at once.
const SLACK: u32 = 32;
/// What an Ethernet frame has before its packet.
const ETHERNET_HEADER: u64 = 14;

/// By how many packets of one member the fabric may let what goes to the job's group and what goes to one other member
/// overtake each other. 0 where all of it takes one way: in a fabric without circles, on one switch, or without a
/// group. Else as many full frames as the queues of a way's trunks hold, and [`SLACK`]: a trunk without a rate has no
/// queue.
///
/// It is a bound for all members, and for whichever of the ways that are no longer than those of now the routes and the job's tree go
/// by later. Where something fails and ways become longer, who joins then is told more; whoever has joined before may take for lost
/// what is only late.
pub fn reorder(fabric: &Fabric, routes: &Routes, job: &Job) -> u32 {
    let has_circles = fabric.trunks().len() >= fabric.switches().len();
    let home = |member: &crate::job::Member| fabric.host(member.host).attached.switch;
    let homes: BTreeSet<SwitchId> = job.members.iter().map(home).collect();
    if job.multicast.is_none() || homes.len() < 2 || !has_circles {
        return 0;
    }
    let pairs = homes
        .iter()
        .flat_map(|from| homes.iter().map(move |to| (from, to)));
    let longest = pairs
        .filter_map(|(from, to)| routes.distance(*from, *to))
        .max();
    let ends = fabric.trunks().iter().flat_map(|trunk| trunk.ends);
    let deepest = ends.map(|end| frames(fabric, end)).max();
    let queues = longest
        .unwrap_or_default()
        .saturating_mul(deepest.unwrap_or_default());
    queues.saturating_add(SLACK)
}

/// How many full frames wait at most where a trunk begins.
fn frames(fabric: &Fabric, port: SwitchPort) -> u32 {
    match fabric.wire_out_of(port) {
        Some((wire, mtu)) if wire.rate.is_some() => {
            let in_bytes = wire.queue_bytes / (u64::from(mtu) + ETHERNET_HEADER);
            let in_packets = wire.queue_packets.unwrap_or(u32::MAX);
            u32::try_from(in_bytes).unwrap_or(u32::MAX).min(in_packets)
        }
        _ => 0,
    }
}
