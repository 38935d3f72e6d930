//! The places that a job takes on each switch beside others: for its ports, and for its sources.

use std::collections::{BTreeMap, BTreeSet};

use super::trunks_of;
use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::{Job, Member, ShareIndex, SourceIndex};

/// A job's places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// For each port that its packets leave by.
    pub shares: BTreeMap<SwitchPort, ShareIndex>,
    /// For each member, in rank order, on the switch of its host.
    pub sources: Vec<SourceIndex>,
}

/// The lowest places that no job of `others` has, for a job of `members`. Whether the program has as many
/// is for [`super::check_job`] to say; none if there are more than numbers.
pub fn number<'a>(
    fabric: &Fabric,
    members: &[Member],
    others: impl Iterator<Item = &'a Job> + Clone,
) -> Option<Numbers> {
    let at = |member: &Member| fabric.host(member.host).attached;
    let mut shares_taken: BTreeMap<SwitchId, BTreeSet<u16>> = BTreeMap::new();
    let mut sources_taken = shares_taken.clone();
    for other in others {
        for (port, ShareIndex(index)) in &other.shares {
            shares_taken.entry(port.switch).or_default().insert(*index);
        }
        for (member, SourceIndex(index)) in other.members.iter().zip(&other.sources) {
            sources_taken
                .entry(at(member).switch)
                .or_default()
                .insert(*index);
        }
    }

    let trunks = trunks_of(fabric, members);
    let trunks = trunks.iter().flat_map(|(switch, ports)| {
        ports.iter().map(|port| SwitchPort {
            switch: *switch,
            port: *port,
        })
    });
    let ports: BTreeSet<SwitchPort> = trunks.chain(members.iter().map(at)).collect();
    let mut numbers = Numbers::default();
    for port in ports {
        let index = take_lowest(shares_taken.entry(port.switch).or_default())?;
        numbers.shares.insert(port, ShareIndex(index));
    }
    for member in members {
        let index = take_lowest(sources_taken.entry(at(member).switch).or_default())?;
        numbers.sources.push(SourceIndex(index));
    }
    Some(numbers)
}

/// Takes the lowest number from 1 that is free.
fn take_lowest(taken: &mut BTreeSet<u16>) -> Option<u16> {
    // Those taken are in order: the first place where they skip a number is free.
    let gap = (1u16..)
        .zip(taken.iter())
        .find(|(free, taken)| free != *taken);
    let lowest = match gap {
        Some((free, _)) => free,
        None => u16::try_from(taken.len()).ok()?.checked_add(1)?,
    };
    taken.insert(lowest);
    Some(lowest)
}
