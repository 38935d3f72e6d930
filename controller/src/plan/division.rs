//! How jobs divide the ports that they share.

use std::collections::{BTreeMap, BTreeSet};

use super::VirtualQueue;
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::{Job, ShareIndex};
use crate::target::PortNumber;

/// The virtual queues of shares at one switch. A share without one has no limit of its own.
pub type Division = BTreeMap<ShareIndex, VirtualQueue>;

/// What each of `jobs` may send by the ports of `switch`: where several share a port with a rate, its virtual queue
/// by their weights. A job alone at a port has the port's own, which is the same and does not have to be kept twice. Two
/// epochs of a job are one job: members send in one of them at a time.
pub fn divide<'a>(
    fabric: &Fabric,
    switch: SwitchId,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> Division {
    let mut by_port: BTreeMap<PortNumber, Vec<(ShareIndex, &'a str, u64)>> = BTreeMap::new();
    for job in jobs {
        for (at, share) in job.shares.iter().filter(|(at, _)| at.switch == switch) {
            let sharing = by_port.entry(at.port).or_default();
            sharing.push((*share, &job.name, job.weight.get().into()));
        }
    }
    let mut division = Division::new();
    for (port, sharing) in by_port {
        let jobs: BTreeSet<(&str, u64)> = sharing
            .iter()
            .map(|(_, job, weight)| (*job, *weight))
            .collect();
        if jobs.len() < 2 {
            continue;
        }
        let Some(whole) = virtual_queue(fabric, SwitchPort { switch, port }) else {
            continue;
        };
        let total = jobs.iter().map(|(_, weight)| weight).sum();
        let part = |(share, _, weight)| (share, whole.part(weight, total));
        division.extend(sharing.into_iter().map(part));
    }
    division
}

/// The virtual queue of a port; none where its link has no rate.
pub(super) fn virtual_queue(fabric: &Fabric, port: SwitchPort) -> Option<VirtualQueue> {
    let (wire, mtu) = fabric.wire_out_of(port)?;
    VirtualQueue::of_link(wire, mtu)
}
