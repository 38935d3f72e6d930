//! A job's counters, which start at zero although an earlier job may have had the same places.

use std::fmt;

use ultima_p4::names::counter;

use crate::job::{CounterIndex, ShareIndex, SourceIndex};

/// One cell of one counter array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterCell {
    /// The counter array's name.
    pub counter: &'static str,
    /// The place in it.
    pub index: u32,
}

impl CounterCell {
    /// All counters of the job with `index`.
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
        let others = [counter::OVERTAKEN, counter::RENUMBERED, counter::DUPLICATED];
        let index_of_all = index.0.into();
        CounterCell::gaps(index).chain(others.map(|counter| CounterCell {
            counter,
            index: index_of_all,
        }))
    }

    /// The cells that count a source's gaps: the *n*-th, from 0, weighs 2^*n*.
    pub fn gaps(index: SourceIndex) -> impl Iterator<Item = CounterCell> {
        let first = u32::from(index.0) * counter::GAP_CELLS;
        (first..first + counter::GAP_BITS).map(|index| CounterCell {
            counter: counter::GAPS,
            index,
        })
    }
}

impl fmt::Display for CounterCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.counter, self.index)
    }
}
