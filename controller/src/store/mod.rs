//! A controller's committed state on disk, so that a restarted controller knows its jobs.
//!
//! The store is one `redb` file. A change is applied as a whole or not at all, and is on disk when
//! the call returns. The store holds what the controller committed, not what switches hold: a job
//! is added after all its switches have it and before the client gets an answer, and it is removed
//! before its switches are cleared. An operation that a crash interrupted is therefore not in the
//! store, and [reconciliation](crate::reconcile) removes its entries from the switches.
//!
//! The store also records [how far](History) it is, which orders the stores of several controllers,
//! and the [`Term`] that its controller has accepted.

mod change;
mod damage;
mod history;
mod origin;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};

pub use change::Change;
pub use history::History;
pub use origin::OriginRecord;
pub use record::{JobRecord, MemberRecord, MulticastRecord, SeatRecord, ShareRecord, Unfit};

use crate::p4rt::Term;

/// Jobs as JSON, by id.
const JOBS: TableDefinition<u16, &[u8]> = TableDefinition::new("jobs");
/// The names of the elements that an operator has drained.
const DRAINED: TableDefinition<&str, ()> = TableDefinition::new("drained");
/// Numbers by name.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// In [`NUMBERS`]: the version of the format.
const FORM: &str = "form";
/// In [`NUMBERS`]: the last id that was given out.
const LAST_ID: &str = "last_id";
/// The format version that this program reads and writes.
const THIS_FORM: u64 = 1;

/// In [`NUMBERS`]: the controller's number.
const CONTROLLER: &str = "controller";
/// In [`NUMBERS`]: the [`History`].
const HISTORY: [&str; 3] = ["history_term", "history_by", "history_changes"];
/// In [`NUMBERS`]: the latest term that this controller has accepted.
const ACCEPTED: [&str; 2] = ["accepted_term", "accepted_by"];

/// A controller's store.
pub struct Store {
    /// None while the file is being reopened.
    database: RwLock<Option<Database>>,
    open: Open,
    /// The name in errors.
    name: String,
    /// The number of the controller that owns the store.
    controller: u32,
}

/// Opens the database; also used to reopen it after an error.
type Open = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.name).finish()
    }
}

/// A store's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The last id that was given out, 0 if none.
    pub last_id: u16,
    /// The jobs, by id.
    pub jobs: Vec<JobRecord>,
    /// The drained elements, by name.
    pub drained: Vec<String>,
}

impl Stored {
    /// True if the store never had a job and nothing is drained.
    pub fn is_new(&self) -> bool {
        self.last_id == 0 && self.drained.is_empty()
    }
}

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is open in another process.
    #[error("{}: open in another process; stop the other controller, or pass another file with --state", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {reason}; pass --state with a controller's store or a new file", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file is not a database.
    #[error("{} is not a store of Ultima; pass --state with a controller's store or a new file", path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// The file has another format version.
    #[error(
        "{name}: store format {form} is unknown (this controller reads format {THIS_FORM}); start the version that wrote the file, or pass another --state"
    )]
    Form {
        /// The file.
        name: String,
        /// Its format version.
        form: u64,
    },
    /// A stored job cannot be read.
    #[error("{name}: job {id} cannot be read: {reason}")]
    Job {
        /// The file.
        name: String,
        /// The job's id.
        id: u16,
        /// The reason.
        reason: serde_json::Error,
    },
    /// The store has accepted a later term than the caller's.
    #[error("{name}: the term is over: the controllers are in term {accepted}")]
    Outdated {
        /// The file.
        name: String,
        /// The accepted term.
        accepted: Term,
    },
    /// The term is too far ahead for any controller of this group to have claimed it.
    #[error(
        "{name}: term {term} is too far ahead of the accepted term {accepted}; find the controller that sends it"
    )]
    Leap {
        /// The file.
        name: String,
        /// The rejected term.
        term: Term,
        /// The accepted term.
        accepted: Term,
    },
    /// The copy is older than the store's content.
    #[error("{name}: rejected {at}: older than the stored {held}")]
    Older {
        /// The file.
        name: String,
        /// The copy's history.
        at: History,
        /// The store's history.
        held: History,
    },
    /// The file cannot be read or written.
    #[error("{name}: {reason}; check the disk")]
    Io {
        /// The file.
        name: String,
        /// The reason.
        reason: Box<redb::Error>,
    },
}

impl Store {
    /// Opens the store at `path`, or creates it. Only the file's owner may read it, because it
    /// holds the keys of sealed jobs.
    ///
    /// # Errors
    /// The file is open in another process, damaged, not a store, or of another format version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let file = path.to_owned();
        let path = path.to_owned();
        let open = move || {
            make_for_its_owner(&path).map_err(|error| StoreError::Open {
                path: path.clone(),
                reason: error.to_string(),
            })?;
            if is_of_another_kind(&path) {
                return Err(StoreError::NotAStore { path: path.clone() });
            }
            let database = Database::create(&path).map_err(|error| match error {
                DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: path.clone() },
                error => StoreError::Open {
                    path: path.clone(),
                    reason: error.to_string(),
                },
            })?;
            keep_for_its_owner(&path);
            Ok(database)
        };
        let opened = damage::told(|| {
            let store = Store::with(Box::new(open), name)?;
            // Finds records that cannot be read now rather than later.
            store.read()?;
            Ok(store)
        });
        opened.unwrap_or_else(|reason| Err(StoreError::Open { path: file, reason }))
    }

    /// Returns a store in memory, for a controller without `--state`.
    ///
    /// # Errors
    /// Memory cannot be allocated.
    pub fn in_memory() -> Result<Self, StoreError> {
        let name = "the store in memory";
        let open = move || {
            let database = Database::builder().create_with_backend(InMemoryBackend::new());
            database.map_err(|error| StoreError::Io {
                name: name.to_owned(),
                reason: Box::new(error.into()),
            })
        };
        Store::with(Box::new(open), name.to_owned())
    }

    fn with(open: Open, name: String) -> Result<Self, StoreError> {
        let mut store = Store {
            database: RwLock::new(Some(open()?)),
            open,
            name,
            controller: 0,
        };
        let (form, controller) = store.write(|changes| {
            let mut numbers = changes.open_table(NUMBERS)?;
            let form = numbers.get(FORM)?.map(|form| form.value());
            if form.is_none() {
                numbers.insert(FORM, THIS_FORM)?;
            }
            let known = numbers.get(CONTROLLER)?.map(|number| number.value());
            // 0 means no controller.
            let controller = known.unwrap_or_else(|| rand::random::<u32>().max(1).into());
            numbers.insert(CONTROLLER, controller)?;
            // Creates the tables, so that reads find them.
            changes.open_table(JOBS)?;
            changes.open_table(DRAINED)?;
            Ok((form.unwrap_or(THIS_FORM), controller))
        })?;
        // Only u32 values are written.
        store.controller = u32::try_from(controller).unwrap_or(u32::MAX);
        match form {
            THIS_FORM => Ok(store),
            form => Err(StoreError::Form {
                name: store.name,
                form,
            }),
        }
    }

    /// The number of the controller that owns this store, drawn when the file was created.
    pub fn controller(&self) -> u32 {
        self.controller
    }

    /// Reads the content.
    ///
    /// # Errors
    /// The file or a job's record cannot be read.
    pub fn read(&self) -> Result<Stored, StoreError> {
        self.snapshot().map(|(_, stored)| stored)
    }

    /// Reads the content and how far it is.
    ///
    /// # Errors
    /// The file or a job's record cannot be read.
    pub fn snapshot(&self) -> Result<(History, Stored), StoreError> {
        let (history, last_id, jobs, drained) = self.with_database(|database| {
            let now = database.begin_read()?;
            let numbers = now.open_table(NUMBERS)?;
            let last_id = numbers.get(LAST_ID)?;
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
            let last_id = last_id.map_or(0, |id| id.value());
            Ok((history(&numbers)?, last_id, jobs, drained?))
        })?;
        let jobs = jobs.into_iter().map(|(id, job)| {
            serde_json::from_slice(&job).map_err(|reason| StoreError::Job {
                name: self.name.clone(),
                id,
                reason,
            })
        });
        let stored = Stored {
            // Only u16 values are written.
            last_id: u16::try_from(last_id).unwrap_or(u16::MAX),
            jobs: jobs.collect::<Result<_, _>>()?,
            drained,
        };
        Ok((history, stored))
    }

    /// Reads how far the store is.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn history(&self) -> Result<History, StoreError> {
        self.with_database(|database| {
            let numbers = database.begin_read()?.open_table(NUMBERS)?;
            history(&numbers)
        })
    }

    /// The latest term that this controller has accepted, its own or another's. It takes nothing
    /// from earlier terms.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn accepted(&self) -> Result<Term, StoreError> {
        self.with_database(|database| {
            let numbers = database.begin_read()?.open_table(NUMBERS)?;
            accepted(&numbers)
        })
    }

    /// Accepts a term. Returns false if this term or a later one was accepted before.
    ///
    /// # Errors
    /// The term is too far ahead, or the file cannot be written.
    pub fn accept(&self, term: Term) -> Result<bool, StoreError> {
        let accepted = self.write_in(term, |changes| {
            let mut numbers = changes.open_table(NUMBERS)?;
            let is_later = term > accepted(&numbers)?;
            put_accepted(&mut numbers, term)?;
            Ok(is_later)
        });
        match accepted {
            Err(StoreError::Outdated { .. }) => Ok(false),
            accepted => accepted,
        }
    }

    /// Applies a change in the primary's term. Returns the new history.
    ///
    /// # Errors
    /// The store has accepted a later term, or the file cannot be written.
    pub fn commit(&self, term: Term, change: &Change) -> Result<History, StoreError> {
        self.write_in(term, |changes| {
            change.make(changes)?;
            let mut numbers = changes.open_table(NUMBERS)?;
            let changes = history(&numbers)?.changes + 1;
            let now = History { term, changes };
            put_history(&mut numbers, now)?;
            Ok(now)
        })
    }

    /// Applies the primary's latest change and accepts its term. Returns false if the change is not
    /// the next one here.
    ///
    /// # Errors
    /// The store has accepted a later term, or the file cannot be written.
    pub fn follow(&self, at: History, change: &Change) -> Result<bool, StoreError> {
        self.write_in(at.term, |changes| {
            put_accepted(&mut changes.open_table(NUMBERS)?, at.term)?;
            let is_next = {
                let numbers = changes.open_table(NUMBERS)?;
                history(&numbers)?.changes + 1 == at.changes
            };
            if is_next {
                change.make(changes)?;
                put_history(&mut changes.open_table(NUMBERS)?, at)?;
            }
            Ok(is_next)
        })
    }

    /// Replaces the content with a copy of the primary's and accepts the primary's `term`.
    ///
    /// # Errors
    /// The store has accepted a later term, already holds later changes of the same primary, or
    /// cannot be written.
    pub fn replace(&self, term: Term, at: History, stored: &Stored) -> Result<(), StoreError> {
        let replaced = self.write_in(term, |changes| {
            let held = history(&changes.open_table(NUMBERS)?)?;
            // A primary's history never decreases, so an older copy in the same term was overtaken
            // on the way.
            if held.term == at.term && held > at {
                return Ok(Err(held));
            }
            changes.delete_table(JOBS)?;
            let mut jobs = changes.open_table(JOBS)?;
            for job in &stored.jobs {
                jobs.insert(job.id, change::text(job).as_slice())?;
            }
            changes.delete_table(DRAINED)?;
            let mut drained = changes.open_table(DRAINED)?;
            for part in &stored.drained {
                drained.insert(part.as_str(), ())?;
            }
            let mut numbers = changes.open_table(NUMBERS)?;
            numbers.insert(LAST_ID, u64::from(stored.last_id))?;
            put_accepted(&mut numbers, term)?;
            put_history(&mut numbers, at).map(Ok)
        })?;
        replaced.map_err(|held| StoreError::Older {
            name: self.name.clone(),
            at,
            held,
        })
    }

    /// Writes like [`write`](Self::write), unless a later term is accepted or `term` is too far
    /// ahead.
    fn write_in<T>(
        &self,
        term: Term,
        make: impl Fn(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let made = self.write(|changes| {
            let accepted = accepted(&changes.open_table(NUMBERS)?)?;
            match accepted > term || term.is_leap_from(accepted) {
                true => Ok(Err(accepted)),
                false => make(changes).map(Ok),
            }
        })?;
        let name = || self.name.clone();
        made.map_err(|accepted| match accepted > term {
            true => StoreError::Outdated {
                name: name(),
                accepted,
            },
            false => StoreError::Leap {
                name: name(),
                term,
                accepted,
            },
        })
    }

    /// Applies `make` as a whole or not at all.
    fn write<T>(
        &self,
        make: impl Fn(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.with_database(|database| {
            let changes = database.begin_write()?;
            let made = make(&changes)?;
            changes.commit()?;
            Ok(made)
        })
    }

    /// Uses the database. After a disk error `redb` rejects every call until the file is reopened,
    /// so this reopens it once: the disk may have room again.
    fn with_database<T>(
        &self,
        use_it: impl Fn(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let once = || {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            database
                .as_ref()
                .map_or(Err(redb::Error::PreviousIo), &use_it)
        };
        let used = match once() {
            Err(redb::Error::PreviousIo) => {
                self.reopen()?;
                once()
            }
            used => used,
        };
        used.map_err(|error| StoreError::Io {
            name: self.name.clone(),
            reason: Box::new(error),
        })
    }

    fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Closed first, because the open database holds the file's lock.
        *database = None;
        *database = Some((self.open)()?);
        tracing::info!(store = self.name, "reopened the store after a disk error");
        Ok(())
    }
}

/// Creates an empty file at `path` if there is none, readable only by its owner.
fn make_for_its_owner(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// True if a file has content that is no database of `redb`. False if it cannot be read.
fn is_of_another_kind(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    read.is_ok() && !start.is_empty() && start != *b"redb"
}

/// Restricts an existing file to its owner: a file restored from a backup may be readable by
/// others.
fn keep_for_its_owner(path: &Path) {
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(0o600)) {
        tracing::warn!(store = %path.display(), %error, "cannot restrict the store to its owner: other users may read the keys of sealed jobs");
    }
}

fn history(numbers: &impl ReadableTable<&'static str, u64>) -> Result<History, redb::Error> {
    let [number, by, changes] = get(numbers, HISTORY)?;
    let term = term(number, by);
    Ok(History { term, changes })
}

fn put_history(numbers: &mut Table<'_, &'static str, u64>, at: History) -> Result<(), redb::Error> {
    let History { term, changes } = at;
    put(numbers, HISTORY, [term.number, term.by.into(), changes])
}

fn accepted(numbers: &impl ReadableTable<&'static str, u64>) -> Result<Term, redb::Error> {
    let [number, by] = get(numbers, ACCEPTED)?;
    Ok(term(number, by))
}

fn put_accepted(numbers: &mut Table<'_, &'static str, u64>, term: Term) -> Result<(), redb::Error> {
    put(numbers, ACCEPTED, [term.number, term.by.into()])
}

fn term(number: u64, by: u64) -> Term {
    // Only u32 values are written.
    let by = u32::try_from(by).unwrap_or(u32::MAX);
    Term { number, by }
}

/// Numbers by name, 0 for a missing one.
fn get<const N: usize>(
    numbers: &impl ReadableTable<&'static str, u64>,
    names: [&'static str; N],
) -> Result<[u64; N], redb::Error> {
    let mut values = [0; N];
    for (value, name) in values.iter_mut().zip(names) {
        *value = numbers.get(name)?.map_or(0, |number| number.value());
    }
    Ok(values)
}

fn put<const N: usize>(
    numbers: &mut Table<'_, &'static str, u64>,
    names: [&'static str; N],
    values: [u64; N],
) -> Result<(), redb::Error> {
    for (name, value) in names.into_iter().zip(values) {
        numbers.insert(name, value)?;
    }
    Ok(())
}
