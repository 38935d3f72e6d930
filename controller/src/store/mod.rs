//! What a controller was asked for, on disk: it knows its jobs again when it is started again, whatever ended it.
//!
//! One file, kept by `redb`: a change is there whole or not at all, and is on the disk when the call returns. It holds what
//! was promised, not what switches hold: a job comes in when it is on all its switches, before anybody is told, and
//! goes before it is taken off them. What a controller was doing when it ended is therefore no job, and
//! [reconciliation](crate::reconcile) takes off what was there of it.

mod record;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

pub use record::{JobRecord, MemberRecord, MulticastRecord, SeatRecord, ShareRecord, Unfit};

use crate::job::JobId;

/// Jobs as JSON, by id.
const JOBS: TableDefinition<u16, &[u8]> = TableDefinition::new("jobs");
/// The names of parts of the fabric that an operator has drained.
const DRAINED: TableDefinition<&str, ()> = TableDefinition::new("drained");
/// Numbers by name.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// In [`NUMBERS`]: the form of everything else.
const FORM: &str = "form";
/// In [`NUMBERS`]: the id given out last.
const LAST_ID: &str = "last_id";
/// The form that this version writes.
const THIS_FORM: u64 = 1;

/// The store.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// For errors.
    name: String,
}

/// All that is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The id given out last, 0 if none was.
    pub last_id: u16,
    /// The jobs, by id.
    pub jobs: Vec<JobRecord>,
    /// What an operator has drained, by name.
    pub drained: Vec<String>,
}

/// Why the store does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Two controllers cannot share a file.
    #[error("{0} is open in another process; stop the other controller, or give this one another --state", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {reason}; name a file of a controller, or one that is to be made, with --state", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// It is of another version.
    #[error(
        "{name} has form {form}, and this controller knows form {THIS_FORM}; start the version that wrote it"
    )]
    Form {
        /// The file.
        name: String,
        /// What it says.
        form: u64,
    },
    /// A job in it is none.
    #[error("{name}: job {id} cannot be read: {reason}")]
    Job {
        /// The file.
        name: String,
        /// The job's id.
        id: u16,
        /// Why not.
        reason: serde_json::Error,
    },
    /// It cannot be read or written: the disk is full, or broken.
    #[error("{name}: {reason}; see to the disk, and start the controller again")]
    Io {
        /// The file.
        name: String,
        /// What happened.
        reason: Box<redb::Error>,
    },
}

impl Store {
    /// The store in the file at `path`, which is made if there is none.
    ///
    /// # Errors
    /// Another process has it, it is no store, or one of another version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::create(path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse {
                path: path.to_owned(),
            },
            error => StoreError::Open {
                path: path.to_owned(),
                reason: error.to_string(),
            },
        })?;
        Store::with(database, path.display().to_string())
    }

    /// One that is gone with its controller.
    ///
    /// # Errors
    /// There is no memory.
    pub fn in_memory() -> Result<Self, StoreError> {
        let name = "the store in memory".to_owned();
        let database = Database::builder().create_with_backend(InMemoryBackend::new());
        match database {
            Ok(database) => Store::with(database, name),
            Err(error) => Err(StoreError::Io {
                name,
                reason: Box::new(error.into()),
            }),
        }
    }

    fn with(database: Database, name: String) -> Result<Self, StoreError> {
        let store = Store { database, name };
        let form = store.change(|changes| {
            let mut numbers = changes.open_table(NUMBERS)?;
            let form = numbers.get(FORM)?.map(|form| form.value());
            if form.is_none() {
                numbers.insert(FORM, THIS_FORM)?;
            }
            changes.open_table(JOBS)?;
            changes.open_table(DRAINED)?;
            Ok(form.unwrap_or(THIS_FORM))
        })?;
        match form {
            THIS_FORM => Ok(store),
            form => Err(StoreError::Form {
                name: store.name,
                form,
            }),
        }
    }

    /// All that is in it.
    ///
    /// # Errors
    /// It cannot be read, or a job in it is none.
    pub fn read(&self) -> Result<Stored, StoreError> {
        let read = || {
            let now = self.database.begin_read()?;
            let last_id = now.open_table(NUMBERS)?.get(LAST_ID)?;
            let jobs = now.open_table(JOBS)?;
            let jobs = jobs.iter()?.map(|row| {
                let (id, job) = row?;
                Ok((id.value(), job.value().to_vec()))
            });
            let jobs: Result<_, redb::Error> = jobs.collect();
            let jobs: Vec<(u16, Vec<u8>)> = jobs?;
            let drained = now.open_table(DRAINED)?;
            let drained = drained.iter()?.map(|row| Ok(row?.0.value().to_owned()));
            let drained: Result<Vec<String>, redb::Error> = drained.collect();
            Ok((last_id.map_or(0, |id| id.value()), jobs, drained?))
        };
        let (last_id, jobs, drained) = read().map_err(|error| self.failed(error))?;
        let jobs = jobs.into_iter().map(|(id, job)| {
            serde_json::from_slice(&job).map_err(|reason| StoreError::Job {
                name: self.name.clone(),
                id,
                reason,
            })
        });
        Ok(Stored {
            // More than an id was never written.
            last_id: u16::try_from(last_id).unwrap_or(u16::MAX),
            jobs: jobs.collect::<Result<_, _>>()?,
            drained,
        })
    }

    /// Puts a job in, in the place of what there is with its id, which counts as given out.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, job: &JobRecord) -> Result<(), StoreError> {
        let text = serde_json::to_vec(job).expect("records are numbers, names and lists of these");
        self.change(|changes| {
            changes.open_table(JOBS)?.insert(job.id, text.as_slice())?;
            let mut numbers = changes.open_table(NUMBERS)?;
            numbers.insert(LAST_ID, u64::from(job.id))?;
            Ok(())
        })
    }

    /// The same for jobs that are in already, all of them or none; one that has gone meanwhile does not come back.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn update(&self, jobs: &[JobRecord]) -> Result<(), StoreError> {
        self.change(|changes| {
            let mut table = changes.open_table(JOBS)?;
            for job in jobs {
                let text = serde_json::to_vec(job);
                let text = text.expect("records are numbers, names and lists of these");
                if table.get(job.id)?.is_some() {
                    table.insert(job.id, text.as_slice())?;
                }
            }
            Ok(())
        })
    }

    /// A part of the fabric, by name, is drained from now on, or no more.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn drain(&self, part: &str, drained: bool) -> Result<(), StoreError> {
        self.change(|changes| {
            let mut table = changes.open_table(DRAINED)?;
            match drained {
                true => drop(table.insert(part, ())?),
                false => drop(table.remove(part)?),
            }
            Ok(())
        })
    }

    /// Takes a job out.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn remove(&self, id: JobId) -> Result<(), StoreError> {
        self.change(|changes| {
            changes.open_table(JOBS)?.remove(id.0)?;
            Ok(())
        })
    }

    /// Does what `make` says, whole or not at all.
    fn change<T>(
        &self,
        make: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let change = || {
            let changes = self.database.begin_write()?;
            let made = make(&changes)?;
            changes.commit()?;
            Ok(made)
        };
        change().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        StoreError::Io {
            name: self.name.clone(),
            reason: Box::new(error),
        }
    }
}
