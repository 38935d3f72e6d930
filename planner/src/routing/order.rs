//! The reordering that a member's packets can undergo.

use std::collections::BTreeSet;

use super::Routes;
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::Job;

/// The lead in packets of one path over another without queues: what a switch's process handles at
/// once.
const SLACK: u32 = 32;
/// Bytes of an Ethernet header.
const ETHERNET_HEADER: u64 = 14;

/// The number of one member's packets by which its multicast packets and its unicast packets to one
/// member can overtake each other. It is 0 if all take one path: in a fabric without cycles, on one
/// switch, or without a group. Otherwise it is the number of full frames in the queues of a path's
/// trunks, plus [`SLACK`]; a trunk without a rate has no queue.
///
/// The bound holds for all members, and for all later routes and trees that are no longer than the
/// current ones. If a failure makes paths longer, members that join later get a larger bound;
/// earlier members may take late packets for lost.
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

/// The most full frames in a trunk's queue.
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
