//! Used and available resources of switches.

use ultima_p4::names::counter;
use ultima_p4runtime::names::{NameError, Names};

use super::Ledger;
use crate::fabric::{Fabric, SwitchId};
use crate::plan::table;

/// The used amount of a limited resource on a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The resource: a table by its full name, [`GROUPS`], [`NODES`], or indices of counter arrays.
    pub of: &'static str,
    /// The used amount.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// Multicast groups.
pub const GROUPS: &str = "multicast groups";
/// Nodes of the replication engine, over all groups.
pub const NODES: &str = "replication nodes";
/// Indices of the counter arrays by job; the same on all switches.
const JOBS: &str = "counters by job";
/// Indices of the counter arrays by a job's share of a port.
const SHARES: &str = "counters by share";
/// Indices of the counter arrays by source.
const SOURCES: &str = "counters by source";

impl Ledger {
    /// The used and available resources of a switch, tables first.
    ///
    /// # Errors
    /// The program lacks a table or a counter.
    pub fn fills(
        &self,
        fabric: &Fabric,
        names: &Names,
        switch: SwitchId,
    ) -> Result<Vec<Fill>, NameError> {
        let here = &self.switches[switch.0];
        let limits = fabric.switch(switch).limits;
        let mut fills = Vec::new();
        for of in table::NAMES {
            fills.push(Fill {
                of,
                used: here.usage.entries(of) as u64,
                limit: names.table(of)?.size,
            });
        }
        let (groups, nodes) = here.usage.replication();
        fills.extend([
            Fill {
                of: GROUPS,
                used: groups as u64,
                limit: limits.groups.into(),
            },
            Fill {
                of: NODES,
                used: nodes as u64,
                limit: limits.nodes.into(),
            },
        ]);
        for (of, taken, counters) in [
            (JOBS, &self.counters, &counter::BY_JOB[..]),
            (SHARES, &here.shares, &counter::BY_SHARE),
            (SOURCES, &here.sources, &counter::BY_SOURCE),
        ] {
            fills.push(Fill {
                of,
                used: taken.taken() as u64,
                limit: places(names, counters)?,
            });
        }
        Ok(fills)
    }
}

/// The indices that all of these arrays have, except the first one, which counts unknown packets.
fn places(names: &Names, counters: &[&str]) -> Result<u64, NameError> {
    let mut least = u64::MAX;
    for name in counters {
        least = least.min(names.counter(name)?.size);
    }
    Ok(least.saturating_sub(1))
}
