//! The embedded store: a `redb` file that one controller uses, or the same in memory.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use super::change::{text, text_over};
use super::{Change, Store, StoreError, Stored, THIS_FORM, damage};

/// Jobs as JSON, by id.
const JOBS: TableDefinition<u16, &[u8]> = TableDefinition::new("jobs");
/// The names of the elements that an operator has drained.
const DRAINED: TableDefinition<&str, ()> = TableDefinition::new("drained");
/// The recent events.
const EVENTS: TableDefinition<(), &[u8]> = TableDefinition::new("events");
/// Numbers by name.
pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// In [`NUMBERS`]: the version of the format.
pub(super) const FORM: &str = "form";
/// In [`NUMBERS`]: the store's own id.
const ID: &str = "id";
/// In [`NUMBERS`]: the last id that was given out.
const LAST_ID: &str = "last_id";
/// In [`NUMBERS`]: the name of the last change, a random number.
const CHANGE: &str = "change";

/// The store of a single controller.
#[derive(Clone)]
pub struct Embedded(Arc<Opened>);

struct Opened {
    /// None while the file is being reopened.
    database: RwLock<Option<Database>>,
    open: Open,
    /// The name in errors.
    name: String,
}

/// Opens the database; also used to reopen it after an error.
pub(super) type Open = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Embedded").field(&self.0.name).finish()
    }
}

#[tonic::async_trait]
impl Store for Embedded {
    async fn load(&self) -> Result<Stored, StoreError> {
        self.on_its_thread(|store| store.read()).await
    }

    async fn apply(&self, change: &Change) -> Result<(), StoreError> {
        let change = change.clone();
        self.on_its_thread(move |store| store.write(|changes| Embedded::execute(&change, changes)))
            .await
    }
}

impl Embedded {
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
        let opened = damage::catch_panic(|| {
            let store = Embedded::with(Box::new(open), name)?;
            // Finds records that cannot be read now rather than later.
            store.read()?;
            Ok(store)
        });
        opened.unwrap_or_else(|reason| Err(StoreError::Open { path: file, reason }))
    }

    /// Returns a store in memory.
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
        Embedded::with(Box::new(open), name.to_owned())
    }

    pub(super) fn with(open: Open, name: String) -> Result<Self, StoreError> {
        let store = Embedded(Arc::new(Opened {
            database: RwLock::new(Some(open()?)),
            open,
            name,
        }));
        let form = store.write(|changes| {
            let mut numbers = changes.open_table(NUMBERS)?;
            let form = numbers.get(FORM)?.map(|form| form.value());
            if form.is_none() {
                numbers.insert(FORM, THIS_FORM)?;
            }
            let is_ours = form.is_none_or(|form| form == THIS_FORM);
            if is_ours && numbers.get(ID)?.is_none() {
                numbers.insert(ID, super::new_id())?;
            }
            // Creates the tables, so that reads find them.
            changes.open_table(JOBS)?;
            changes.open_table(DRAINED)?;
            changes.open_table(EVENTS)?;
            Ok(form.unwrap_or(THIS_FORM))
        })?;
        match form {
            THIS_FORM => Ok(store),
            form => Err(StoreError::Form {
                name: store.0.name.clone(),
                form: form.to_string(),
            }),
        }
    }

    /// Uses the store on a thread for blocking work.
    async fn on_its_thread<T: Send + 'static>(
        &self,
        use_it: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let used = tokio::task::spawn_blocking(move || use_it(&store)).await;
        used.expect("the store does not panic, and nothing cancels it")
    }

    pub(super) fn read(&self) -> Result<Stored, StoreError> {
        let (id, last_id, jobs, drained, events) = self.with_database(|database| {
            let now = database.begin_read()?;
            let numbers = now.open_table(NUMBERS)?;
            let id = numbers.get(ID)?.map_or(0, |id| id.value());
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
            let events = now.open_table(EVENTS)?.get(())?;
            let events = events.map(|events| events.value().to_vec());
            let last_id = last_id.map_or(0, |id| id.value());
            Ok((id, last_id, jobs, drained?, events.unwrap_or_default()))
        })?;
        let jobs = jobs.into_iter().map(|(id, job)| {
            serde_json::from_slice(&job).map_err(|reason| StoreError::Job {
                name: self.0.name.clone(),
                id,
                reason,
            })
        });
        Ok(Stored {
            id,
            // Only u16 values are written.
            last_id: u16::try_from(last_id).unwrap_or(u16::MAX),
            jobs: jobs.collect::<Result<_, _>>()?,
            drained,
            events,
        })
    }

    /// Applies `make` as a whole or not at all.
    pub(super) fn write<T>(
        &self,
        make: impl Fn(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let name = rand::random::<u64>();
        let (made, committed) = self.with_database(|database| {
            let changes = database.begin_write()?;
            let made = make(&changes)?;
            changes.open_table(NUMBERS)?.insert(CHANGE, name)?;
            Ok((made, changes.commit()))
        })?;
        let Err(error) = committed else {
            return Ok(made);
        };
        // The commit may be on the disk although it failed. The open database does not know that.
        let last = self.reopen().and_then(|()| {
            self.with_database(|database| {
                let numbers = database.begin_read()?.open_table(NUMBERS)?;
                Ok(numbers.get(CHANGE)?.map(|change| change.value()))
            })
        });
        match last {
            Ok(Some(last)) if last == name => return Ok(made),
            Ok(_) => {}
            Err(reason) => {
                tracing::warn!(%reason, %error, "a change that failed may be stored all the same");
            }
        }
        Err(self.failed(error.into()))
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        StoreError::Io {
            name: self.0.name.clone(),
            reason: Box::new(error),
        }
    }

    /// Uses the database. After a disk error `redb` rejects every call until the file is reopened,
    /// so this reopens it once: the disk may have room again.
    fn with_database<T>(
        &self,
        use_it: impl Fn(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let once = || {
            let database = self
                .0
                .database
                .read()
                .unwrap_or_else(PoisonError::into_inner);
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
        used.map_err(|error| self.failed(error))
    }

    fn reopen(&self) -> Result<(), StoreError> {
        let Opened {
            database,
            open,
            name,
            ..
        } = &*self.0;
        let mut database = database.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first, because the open database holds the file's lock.
        *database = None;
        *database = Some(open()?);
        tracing::info!(store = name, "reopened the store after a disk error");
        Ok(())
    }

    /// Executes a change in a transaction.
    fn execute(change: &Change, changes: &WriteTransaction) -> Result<(), redb::Error> {
        match change {
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
                    let former = table.get(job.id)?.map(|former| former.value().to_vec());
                    if let Some(former) = former {
                        table.insert(job.id, text_over(&former, job).as_slice())?;
                    }
                }
            }
            Change::Remove(ids) => {
                let mut table = changes.open_table(JOBS)?;
                for id in ids {
                    table.remove(id)?;
                }
            }
            Change::Drain { element, drained } => {
                let mut table = changes.open_table(DRAINED)?;
                match drained {
                    true => drop(table.insert(element.as_str(), ())?),
                    false => drop(table.remove(element.as_str())?),
                }
            }
            Change::Events(events) => {
                let mut table = changes.open_table(EVENTS)?;
                table.insert((), events.as_slice())?;
            }
        }
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
