//! The division of shared ports among jobs.

use std::collections::{BTreeMap, BTreeSet};

use super::{VirtualQueue, ports_of};
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::{Job, ShareIndex};
use crate::target::PortNumber;

/// The virtual queues of the shares on one switch. A share without one has no limit of its own.
pub type Division = BTreeMap<ShareIndex, VirtualQueue>;

/// A job's share of a port: its index, the job's name and its weight.
type Sharing<'a> = (ShareIndex, &'a str, u64);

/// Divides the ports of `switch` among `jobs`: if several share a port with a rate, each gets a
/// virtual queue by weight. A single job at a port needs none, because the port's own queue is the
/// same. Two epochs of a job count as one job, because members send in one of them at a time.
pub fn divide<'a>(
    fabric: &Fabric,
    switch: SwitchId,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> Division {
    // By port: the queue to divide, and the shares; none for a port without a rate.
    let mut by_port: BTreeMap<PortNumber, Option<(VirtualQueue, Vec<Sharing<'a>>)>> =
        BTreeMap::new();
    for job in jobs {
        for (at, share) in job.shares.range(ports_of(switch)) {
            let sharing = by_port.entry(at.port).or_insert_with(|| {
                let whole = virtual_queue(fabric, *at)?;
                Some((whole, Vec::new()))
            });
            if let Some((_, sharing)) = sharing {
                sharing.push((*share, &job.name, job.policy.weight.get().into()));
            }
        }
    }
    let mut division = Division::new();
    for (whole, sharing) in by_port.into_values().flatten() {
        let jobs: BTreeSet<(&str, u64)> = sharing
            .iter()
            .map(|(_, job, weight)| (*job, *weight))
            .collect();
        if jobs.len() < 2 {
            continue;
        }
        let total = jobs.iter().map(|(_, weight)| weight).sum();
        let part = |(share, _, weight)| (share, whole.part(weight, total));
        division.extend(sharing.into_iter().map(part));
    }
    division
}

/// The virtual queue of a port; none if its link has no rate.
pub(super) fn virtual_queue(fabric: &Fabric, port: SwitchPort) -> Option<VirtualQueue> {
    let (wire, mtu) = fabric.wire_out_of(port)?;
    VirtualQueue::of_link(wire, mtu)
}
