//! A job's counters, which start at zero although an earlier job may have had the same index.

use std::fmt;

use ultima_p4::names::counter;

use crate::job::CounterIndex;

/// One cause's counter of one job, set to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterReset {
    /// The counter array's name.
    pub counter: &'static str,
    /// The job's place in it.
    pub index: CounterIndex,
}

impl CounterReset {
    /// All counters of the job with `index`.
    pub fn all(index: CounterIndex) -> impl Iterator<Item = CounterReset> {
        counter::BY_JOB
            .into_iter()
            .map(move |counter| CounterReset { counter, index })
    }
}

impl fmt::Display for CounterReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.counter, self.index.0)
    }
}
