//! What can happen to a store: one thing, whole or not at all, on its own disk and on those of who follows.

use redb::{ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::{DRAINED, JOBS, JobRecord, LAST_ID, NUMBERS};

/// A change of what was promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// New jobs, all of them or none, whose ids count as given out in this order.
    Put(Vec<JobRecord>),
    /// Jobs that are in already stand otherwise; one that has gone meanwhile does not come back.
    Update(Vec<JobRecord>),
    /// The jobs of these ids go.
    Remove(Vec<u16>),
    /// A job that went is in again, as that could not be promised.
    Restore(JobRecord),
    /// A part of the fabric, by name, is left alone from now on, or no more.
    Drain {
        /// Its name.
        part: String,
        /// Whether it is left alone.
        drained: bool,
    },
}

/// A job's record as the store has it.
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
