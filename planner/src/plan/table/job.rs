//! Table `jobs.job`: the jobs that the switch knows.

use ultima_p4::names::job;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::job::{CounterIndex, GroupId, JobId};

/// Packets of `job` are counted at `counter`, and its multicast goes to `group`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRow {
    /// Key: the job in the packet.
    pub job: JobId,
    /// The index in the counter arrays.
    pub counter: CounterIndex,
    /// The multicast group; without one, multicast packets are dropped.
    pub group: Option<GroupId>,
    /// Losses of one operation at one hop at which the switch reports it; 0 for never.
    pub loss_threshold: u32,
}

impl Row for JobRow {
    const TABLE: &'static str = job::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.exact(job::JOB, self.job.0)
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        let group = self.group.map_or(0, |group| group.0);
        let values = [
            (job::INDEX, self.counter.0.into()),
            (job::GROUP, group.into()),
            (job::LOSS_THRESHOLD, self.loss_threshold.into()),
        ];
        entry.action(job::SET_JOB, &values)
    }
}
