//! Jobs that were kept, on a fabric that may have changed since.

use std::collections::HashSet;

use crate::fabric::{Fabric, SwitchId};
use crate::job::{Job, ShareIndex, SourceIndex};

/// The jobs with numbers that no two of them have on one switch: where a host has moved to another switch its members'
/// sources may be those of others there. The first keeps such a number; of the others a source gets the lowest that is free, and
/// a share is left out, for [`refit`](super::Ledger::refit) to number again.
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
        // More members on one switch than there are numbers were never installed.
        if let Some(free) = free {
            jobs[at].sources[rank] = free;
        }
    }
    jobs
}
