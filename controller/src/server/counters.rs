//! Reading a job's counters from a switch.

use std::collections::{BTreeMap, HashMap};

use ultima_api::v1 as api;
use ultima_p4::names::counter;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{Entity, entity};
use ultima_planner::job::{CounterIndex, ShareIndex, SourceIndex};
use ultima_planner::plan::{CounterCell, SchemaError};

use crate::p4rt::{RpcError, SwitchClient};

/// Limit of jobs whose counters are read concurrently, so that switches can answer other requests.
pub const READS: usize = 16;

/// Counter cells to read from a switch.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    entities: Vec<Entity>,
    names: HashMap<u32, &'static str>,
}

impl Cells {
    /// Resolves the cells in the program.
    pub fn new(
        names: &Names,
        cells: impl IntoIterator<Item = CounterCell>,
    ) -> Result<Self, SchemaError> {
        let mut found = Cells::default();
        for CounterCell { counter, index } in cells {
            let array = names.counter(counter)?;
            found.names.insert(array.id, counter);
            found.entities.push(array.cell(index.into())?.into());
        }
        Ok(found)
    }

    /// Reads the cells from a switch.
    pub async fn read(self, client: &SwitchClient) -> Result<Counted, RpcError> {
        let mut counted = Counted::default();
        for read in client.read(self.entities).await? {
            let Some(entity::Entity::CounterEntry(entry)) = read.entity else {
                continue;
            };
            let index = entry
                .index
                .and_then(|index| u32::try_from(index.index).ok());
            if let (Some(counter), Some(index)) = (self.names.get(&entry.counter_id), index) {
                let data = entry.data.unwrap_or_default();
                // P4Runtime's counters are signed and never negative.
                let [packets, bytes] = [data.packet_count, data.byte_count]
                    .map(|count| u64::try_from(count).unwrap_or_default());
                let cell = CounterCell { counter, index };
                counted.0.insert(cell, api::Count { packets, bytes });
            }
        }
        Ok(counted)
    }
}

/// The counters that were read; zero for other cells.
#[derive(Clone, Debug, Default)]
pub struct Counted(BTreeMap<CounterCell, api::Count>);

impl Counted {
    /// The count of one cell.
    pub fn at(&self, counter: &'static str, index: u16) -> api::Count {
        let index = u32::from(index);
        let cell = CounterCell { counter, index };
        self.0.get(&cell).copied().unwrap_or_default()
    }

    /// A job's counters on a switch.
    pub fn of_job(&self, switch: &str, CounterIndex(index): CounterIndex) -> api::SwitchCounters {
        let count = |counter| Some(self.at(counter, index));
        api::SwitchCounters {
            switch: switch.to_owned(),
            received: count(counter::RECEIVED),
            rejected: count(counter::REJECTED),
            replicated: count(counter::REPLICATED),
            unicast: count(counter::UNICAST),
            delivered: count(counter::DELIVERED),
            own_copy: count(counter::OWN_COPY),
            unknown_rank: count(counter::UNKNOWN_RANK),
            reflected: count(counter::REFLECTED),
            late: count(counter::LATE),
            trimmed: count(counter::TRIMMED),
            cut_sealed: count(counter::CUT_SEALED),
            undeliverable: count(counter::UNDELIVERABLE),
            problem: String::new(),
        }
    }

    /// The counters of a job's share of a port. The caller adds the port.
    pub fn of_share(&self, share: ShareIndex) -> api::PortCounters {
        let count = |counter| Some(self.at(counter, share.0));
        api::PortCounters {
            sent: count(counter::SHARE_SENT),
            late: count(counter::SHARE_LATE),
            trimmed: count(counter::SHARE_TRIMMED),
            cut_sealed: count(counter::SHARE_CUT_SEALED),
            ..api::PortCounters::default()
        }
    }

    /// The counters of a member as a source.
    pub fn of_source(&self, rank: u32, source: SourceIndex) -> api::SourceCounters {
        let gaps = CounterCell::gaps(source)
            .map(|(cell, missing)| {
                let gaps = self.0.get(&cell).map_or(0, |count| count.packets);
                gaps.saturating_mul(missing)
            })
            .fold(0, u64::saturating_add);
        let overtaken = self.at(counter::OVERTAKEN, source.0).packets;
        api::SourceCounters {
            rank,
            lost: gaps.saturating_sub(overtaken),
            overtaken,
            renumbered: self.at(counter::RENUMBERED, source.0).packets,
            duplicated: self.at(counter::DUPLICATED, source.0).packets,
        }
    }
}

/// The answer for a switch that did not return its counters.
pub fn away(switch: &str, problem: String) -> api::SwitchCounters {
    api::SwitchCounters {
        switch: switch.to_owned(),
        problem,
        ..api::SwitchCounters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch that has counted `each` packets and bytes in each of these cells.
    fn counted(cells: impl IntoIterator<Item = CounterCell>, each: i64) -> Counted {
        let each = each.unsigned_abs();
        let count = api::Count {
            packets: each,
            bytes: each,
        };
        Counted(cells.into_iter().map(|cell| (cell, count)).collect())
    }

    #[test]
    fn gap_counters_are_weighted_by_cell() {
        let source = SourceIndex(2);
        // Each digit of each hexadecimal place once: 120 × 0x111.
        let cells: Vec<CounterCell> = CounterCell::gaps(source).map(|(cell, _)| cell).collect();
        assert_eq!(counted(cells, 1).of_source(0, source).lost, 120 * 0x111);
    }

    /// The largest values of P4Runtime's counters.
    #[test]
    fn the_largest_counts_do_not_overflow() {
        let source = SourceIndex(2);
        let most = counted(CounterCell::of_source(source), i64::MAX);
        let overtaken = i64::MAX.unsigned_abs();
        assert_eq!(most.of_source(0, source).lost, u64::MAX - overtaken);
    }
}
