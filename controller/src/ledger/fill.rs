//! How full switches are.

use ultima_p4::names::counter;
use ultima_p4runtime::names::{NameError, Names};

use super::Ledger;
use crate::fabric::{Fabric, SwitchId};
use crate::plan::table;

/// How much is taken on a switch of what there is a limit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Of what: a table by its full name, [`GROUPS`], [`NODES`], or places in counter arrays.
    pub of: &'static str,
    /// How much is taken.
    pub used: u64,
    /// How much there is.
    pub limit: u64,
}

/// Multicast groups.
pub const GROUPS: &str = "multicast groups";
/// Nodes of the replication engine, over all groups.
pub const NODES: &str = "replication nodes";
/// Places in the counter arrays by job; all switches have the same taken.
const JOBS: &str = "counters by job";
/// Places in those by a job's share of a port.
const SHARES: &str = "counters by share";
/// Places in those by source.
const SOURCES: &str = "counters by source";

impl Ledger {
    /// How full a switch is, tables first.
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

/// Places that all of these arrays have but the first, which counts what is nobody's.
fn places(names: &Names, counters: &[&str]) -> Result<u64, NameError> {
    let mut least = u64::MAX;
    for name in counters {
        least = least.min(names.counter(name)?.size);
    }
    Ok(least.saturating_sub(1))
}
