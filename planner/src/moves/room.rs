//! Finds jobs that must remove their old paths first because a switch has no room for old and new
//! paths at once.

use std::collections::BTreeMap;

use ultima_p4runtime::names::Names;

use super::{EntityChange, Moving};
use crate::fabric::{Fabric, SwitchId};
use crate::ledger::Ledger;
use crate::plan::Usage;

/// The room on switches.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The switches and their limits.
    pub fabric: &'a Fabric,
    /// The program's tables.
    pub names: &'a Names,
    /// The resources of all jobs after rerouting.
    pub ledger: &'a Ledger,
}

/// Makes jobs remove their old paths first until every switch has room for all others in the middle
/// of the rerouting. If all jobs do so, the ledger's own room suffices.
pub(super) fn make(room: Room<'_>, moving: &mut [Moving<'_>]) {
    // A job's extra entries on a switch during the rerouting.
    let mut extra: BTreeMap<SwitchId, BTreeMap<usize, Usage>> = BTreeMap::new();
    for (at, moving) in moving.iter().enumerate() {
        for switch in moving.switches() {
            let removed = moving.on(switch).removals();
            let going = removed.iter().filter_map(|change| match change {
                EntityChange::Delete(entity) => Some(entity),
                _ => None,
            });
            let usage = Usage::of(going);
            if usage != Usage::default() {
                extra.entry(switch).or_default().insert(at, usage);
            }
        }
    }
    loop {
        let is_full = |(switch, extra): (&SwitchId, &BTreeMap<usize, Usage>)| {
            let mut most = room.ledger.usage(*switch).clone();
            extra.values().for_each(|usage| most.add(usage));
            let is_full = most.check(room.fabric.switch(*switch), room.names).is_err();
            is_full.then(|| extra.keys().copied().collect::<Vec<_>>())
        };
        let mut full = extra.iter().filter(|(_, jobs)| !jobs.is_empty());
        let Some(remove_first) = full.find_map(is_full) else {
            return;
        };
        for at in remove_first {
            moving[at].remove_first();
            extra.values_mut().for_each(|jobs| drop(jobs.remove(&at)));
        }
    }
}
