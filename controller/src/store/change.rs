//! Changes to the store. Each is applied as a whole or not at all, on the primary's disk and on
//! every standby's.

use redb::{ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::{DRAINED, JOBS, JobRecord, LAST_ID, NUMBERS};

/// A change to the committed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Adds jobs, all or none. Their ids count as given out in this order.
    Put(Vec<JobRecord>),
    /// Replaces the records of stored jobs. A job that was removed meanwhile is not added again.
    Update(Vec<JobRecord>),
    /// Removes the jobs with these ids.
    Remove(Vec<u16>),
    /// Puts back a job whose removal could not be committed on enough controllers.
    Restore(JobRecord),
    /// Drains an element of the fabric, or ends its drain.
    Drain {
        /// The element's name.
        part: String,
        /// True to drain it, false to end the drain.
        drained: bool,
    },
}

/// A job's record as JSON.
pub(super) fn text(job: &JobRecord) -> Vec<u8> {
    serde_json::to_vec(job).expect("records are numbers, names and lists of these")
}

impl Change {
    pub(super) fn make(&self, changes: &WriteTransaction) -> Result<(), redb::Error> {
        match self {
            Change::Put(jobs) => {
                let mut table = changes.open_table(JOBS)?;
                let mut numbers = changes.open_table(NUMBERS)?;
                for job in jobs {
                    table.insert(job.id, text(job).as_slice())?;
                    numbers.insert(LAST_ID, u64::from(job.id))?;
                }
            }
            Change::Update(jobs) => {
                let mut table = changes.open_table(JOBS)?;
                for job in jobs {
                    if table.get(job.id)?.is_some() {
                        table.insert(job.id, text(job).as_slice())?;
                    }
                }
            }
            Change::Remove(ids) => {
                let mut table = changes.open_table(JOBS)?;
                for id in ids {
                    table.remove(id)?;
                }
            }
            Change::Restore(job) => {
                let mut table = changes.open_table(JOBS)?;
                table.insert(job.id, text(job).as_slice())?;
            }
            Change::Drain { part, drained } => {
                let mut table = changes.open_table(DRAINED)?;
                match drained {
                    true => drop(table.insert(part.as_str(), ())?),
                    false => drop(table.remove(part.as_str())?),
                }
            }
        }
        Ok(())
    }
}
