//! Restores stored jobs on a fabric that may have changed.

use std::collections::HashSet;

use crate::fabric::{Fabric, SwitchId};
use crate::job::{Job, ShareIndex, SourceIndex};

/// Makes the indices of stored jobs unique on each switch. They can collide after a host moved to
/// another switch. The first job keeps a colliding index; another job's source gets the lowest free
/// one, and a share is left out, so that [`refit`](super::Ledger::refit) assigns it again.
pub(super) fn unique(fabric: &Fabric, jobs: &[Job]) -> Vec<Job> {
    let mut jobs = jobs.to_vec();
    let mut shares: HashSet<(SwitchId, ShareIndex)> = HashSet::new();
    let mut sources: HashSet<(SwitchId, SourceIndex)> = HashSet::new();
    let mut again = Vec::new();
    for (at, job) in jobs.iter_mut().enumerate() {
        job.shares
            .retain(|port, share| shares.insert((port.switch, *share)));
        for (rank, (member, source)) in job.members.iter().zip(&job.sources).enumerate() {
            let switch = fabric.host(member.host).attached.switch;
            if !sources.insert((switch, *source)) {
                again.push((at, rank, switch));
            }
        }
    }
    for (at, rank, switch) in again {
        let free = (1..=u16::MAX)
            .map(SourceIndex)
            .find(|free| sources.insert((switch, *free)));
        // More members on a switch than indices are never installed.
        if let Some(free) = free {
            jobs[at].sources[rank] = free;
        }
    }
    jobs
}
