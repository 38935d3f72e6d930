//! A job's counters. They are reset when the job is created, because an earlier job may have used
//! the same indices.

use ultima_p4::names::counter;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, CounterData, Update};

use super::SchemaError;
use super::entity::Kind;
use crate::job::{CounterIndex, ShareIndex, SourceIndex};

/// A cell of a counter array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterCell {
    /// The counter array's name.
    pub counter: &'static str,
    /// The index.
    pub index: u32,
}

impl CounterCell {
    /// All counters of a job.
    pub fn of_job(index: CounterIndex) -> impl Iterator<Item = CounterCell> {
        let index = u32::from(index.0);
        (counter::BY_JOB.into_iter()).map(move |counter| CounterCell { counter, index })
    }

    /// All counters of a job's share of a port.
    pub fn of_share(index: ShareIndex) -> impl Iterator<Item = CounterCell> {
        let index = u32::from(index.0);
        (counter::BY_SHARE.into_iter()).map(move |counter| CounterCell { counter, index })
    }

    /// All counters of a source.
    pub fn of_source(index: SourceIndex) -> impl Iterator<Item = CounterCell> {
        let source = u32::from(index.0);
        let others = counter::BY_SOURCE.map(|counter| CounterCell {
            counter,
            index: source,
        });
        let gaps = CounterCell::gaps(index).map(|(cell, _)| cell);
        gaps.chain(others)
    }

    /// The cells that count a source's gaps, each with the number of packets missing in such a gap.
    pub fn gaps(source: SourceIndex) -> impl Iterator<Item = (CounterCell, u64)> {
        counter::gap_cells(source.0.into())
            .map(|(counter, index, missing)| (CounterCell { counter, index }, missing))
    }
}

impl Kind for CounterCell {
    /// The cell with the value zero.
    fn entity(&self, names: &Names) -> Result<v1::Entity, SchemaError> {
        let mut cell = names.counter(self.counter)?.cell(self.index.into())?;
        cell.data = Some(CounterData::default());
        Ok(cell.into())
    }

    fn creation(&self, names: &Names) -> Result<Update, SchemaError> {
        Ok(Update::modify(self.entity(names)?))
    }

    fn removal(&self, _: &Names) -> Result<Option<Update>, SchemaError> {
        Ok(None)
    }
}
