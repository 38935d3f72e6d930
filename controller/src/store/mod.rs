//! What a controller was asked for, on disk: it knows its jobs again when it is started again, whatever ended it.
//!
//! One file, kept by `redb`: a change is there whole or not at all, and is on the disk when the call returns. It holds what
//! was promised, not what switches hold: a job comes in when it is on all its switches, before anybody is told, and
//! goes before it is taken off them. What a controller was doing when it ended is therefore no job, and
//! [reconciliation](crate::reconcile) takes off what was there of it.
//!
//! It also says [how far](History) it is, so that of several controllers' stores the latest is known, and which [`Term`] it has
//! accepted.

mod change;
mod damage;
mod history;
mod origin;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata as _, Table,
    TableDefinition, WriteTransaction,
};

pub use change::Change;
pub use history::History;
pub use origin::OriginRecord;
pub use record::{JobRecord, MemberRecord, MulticastRecord, SeatRecord, ShareRecord, Unfit};

use crate::p4rt::Term;

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

/// In [`NUMBERS`]: which controller this is.
const CONTROLLER: &str = "controller";
/// In [`NUMBERS`]: how far it is, see [`History`].
const HISTORY: [&str; 3] = ["history_term", "history_by", "history_changes"];
/// In [`NUMBERS`]: the latest term that this controller has accepted.
const ACCEPTED: [&str; 2] = ["accepted_term", "accepted_by"];

/// The store.
pub struct Store {
    /// None while it is opened again.
    database: RwLock<Option<Database>>,
    open: Open,
    /// For errors.
    name: String,
    /// Which controller's it is.
    controller: u32,
}

/// Opens the database, also again after an error.
type Open = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.name).finish()
    }
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

impl Stored {
    /// Whether no job has ever been in it, and nothing is drained.
    pub fn is_new(&self) -> bool {
        self.last_id == 0 && self.drained.is_empty()
    }
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
    /// It was to take something from a term before the one that it has accepted.
    #[error("{name}: controllers have gone on to term {accepted}")]
    Outdated {
        /// The file.
        name: String,
        /// What it has accepted.
        accepted: Term,
    },
    /// It was to accept a term that nobody of ours can have claimed.
    #[error("{name}: term {term} is none, after term {accepted}; find out who speaks of it")]
    Leap {
        /// The file.
        name: String,
        /// The term.
        term: Term,
        /// What it has accepted.
        accepted: Term,
    },
    /// It was to take what it held before, in the place of what came since.
    #[error("{name}: {at} is older than {held}, which is stored; nothing was changed")]
    Older {
        /// The file.
        name: String,
        /// What was to be taken.
        at: History,
        /// What it holds.
        held: History,
    },
    /// It cannot be read or written: the disk is full, or broken.
    #[error("{name}: {reason}; see to the disk")]
    Io {
        /// The file.
        name: String,
        /// What happened.
        reason: Box<redb::Error>,
    },
}

impl Store {
    /// The store in the file at `path`, which is made if there is none; nobody but its owner reads it, as it has the keys of
    /// sealed jobs.
    ///
    /// # Errors
    /// Another process has it, it is no store, a damaged one, or one of another version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let file = path.to_owned();
        let path = path.to_owned();
        let open = move || {
            make_for_its_owner(&path).map_err(|error| StoreError::Open {
                path: path.clone(),
                reason: error.to_string(),
            })?;
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
            // What cannot be read is found now.
            store.read()?;
            Ok(store)
        });
        opened.unwrap_or_else(|reason| Err(StoreError::Open { path: file, reason }))
    }

    /// One that is gone with its controller.
    ///
    /// # Errors
    /// There is no memory.
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
            // From 1: 0 is nobody.
            let controller = known.unwrap_or_else(|| rand::random::<u32>().max(1).into());
            numbers.insert(CONTROLLER, controller)?;
            // Of a version that did not count: it is further than one that is new.
            let has_jobs = !changes.open_table(JOBS)?.is_empty()?;
            let has_drained = !changes.open_table(DRAINED)?.is_empty()?;
            let mut at = history(&numbers)?;
            if at.is_new() && (has_jobs || has_drained) {
                at.changes = 1;
                put_history(&mut numbers, at)?;
            }
            Ok((form.unwrap_or(THIS_FORM), controller))
        })?;
        // More than a controller's number was never written.
        store.controller = u32::try_from(controller).unwrap_or(u32::MAX);
        match form {
            THIS_FORM => Ok(store),
            form => Err(StoreError::Form {
                name: store.name,
                form,
            }),
        }
    }

    /// The number of the controller whose store this is, drawn when it was made.
    pub fn controller(&self) -> u32 {
        self.controller
    }

    /// All that is in it.
    ///
    /// # Errors
    /// It cannot be read, or a job in it is none.
    pub fn read(&self) -> Result<Stored, StoreError> {
        self.snapshot().map(|(_, stored)| stored)
    }

    /// All that is in it, and how far that is.
    ///
    /// # Errors
    /// It cannot be read, or a job in it is none.
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
            // More than an id was never written.
            last_id: u16::try_from(last_id).unwrap_or(u16::MAX),
            jobs: jobs.collect::<Result<_, _>>()?,
            drained,
        };
        Ok((history, stored))
    }

    /// How far it is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn history(&self) -> Result<History, StoreError> {
        self.with_database(|database| {
            let numbers = database.begin_read()?.open_table(NUMBERS)?;
            history(&numbers)
        })
    }

    /// The latest term that this controller has accepted, as its own or another's: it takes nothing from earlier ones.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn accepted(&self) -> Result<Term, StoreError> {
        self.with_database(|database| {
            let numbers = database.begin_read()?.open_table(NUMBERS)?;
            accepted(&numbers)
        })
    }

    /// Accepts a term, unless it has accepted that or a later one: false then.
    ///
    /// # Errors
    /// Nobody can have claimed that one yet, or it cannot be written.
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

    /// Makes a change in the term of who leads; returns how far it is then.
    ///
    /// # Errors
    /// It has accepted a later term, or cannot be written.
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

    /// Makes the change that another store has made last, and accepts its term; false if that is not the one that comes next here.
    ///
    /// # Errors
    /// It has accepted a later term, or cannot be written.
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

    /// Takes another store's content, all of it, in the place of its own, and accepts `term`, which is that of who leads.
    ///
    /// # Errors
    /// It has accepted a later term, has had more from the same primary already, or cannot be written.
    pub fn replace(&self, term: Term, at: History, stored: &Stored) -> Result<(), StoreError> {
        let replaced = self.write_in(term, |changes| {
            let held = history(&changes.open_table(NUMBERS)?)?;
            // A primary never goes back. So this was sent before what is held, and has come in after it.
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

    /// The same as [`write`](Self::write), unless a later term than the one given is accepted, or that is none.
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

    /// Does what `make` says, whole or not at all.
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

    /// Uses the database. One that has met an error of the disk takes nothing more until it is opened again, which is done once:
    /// there may be room again.
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
        // Closed first: it holds the file's lock.
        *database = None;
        *database = Some((self.open)()?);
        tracing::info!(store = self.name, "opened again after an error of the disk");
        Ok(())
    }
}

/// Makes the file at `path`, empty, if there is none, so that only its owner reads it.
fn make_for_its_owner(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Lets only its owner read a store that an earlier version made.
fn keep_for_its_owner(path: &Path) {
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(0o600)) {
        tracing::warn!(store = %path.display(), %error, "others may read the keys of sealed jobs in it");
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
    // More than a controller's number was never written.
    let by = u32::try_from(by).unwrap_or(u32::MAX);
    Term { number, by }
}

/// Numbers by name, 0 where there is none.
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
