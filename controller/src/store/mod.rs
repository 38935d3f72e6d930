//! Stores: a controller's committed state, so that a restarted controller, or another one, knows its jobs.
//!
//! A [`Store`] applies each [`Change`] as a whole, durably, before it returns. It holds what the
//! controller committed, not what switches hold: a job is added before its switches get it, and
//! removed before they are cleared. [Reconciliation](ultima_planner::reconcile) makes them match after a crash.
//!
//! There are two: [`Embedded`], a `redb` file of one controller, and [`etcd`], which several
//! controllers share.

mod change;
mod damage;
mod embedded;
pub mod etcd;
mod key;
mod origin;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub use change::Change;
pub use embedded::Embedded;
pub use origin::OriginRecord;
pub use record::{JobRecord, MemberRecord, MulticastRecord, SeatRecord, ShareRecord, Unfit};

/// The format version that this program reads and writes.
const THIS_FORM: u64 = 1;

/// A controller's store. Only one controller writes to it at a time.
#[tonic::async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Reads the whole content.
    ///
    /// # Errors
    /// The store or a job's record cannot be read.
    async fn load(&self) -> Result<Stored, StoreError>;

    /// Applies a change as a whole or not at all; it is durable when this returns. Fields of a
    /// replaced record that this version does not know are kept. The caller makes one call at a time.
    ///
    /// # Errors
    /// The change is not applied, except after [`StoreError::Unknown`].
    async fn apply(&self, change: &Change) -> Result<(), StoreError>;
}

/// A store's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The random id of the store, which the switches keep with its jobs; 0 for none.
    pub id: u64,
    /// The last id that was given out, 0 if none.
    pub last_id: u16,
    /// The jobs, by id.
    pub jobs: Vec<JobRecord>,
    /// The drained elements, by name.
    pub drained: Vec<String>,
    /// The recent events; empty for none.
    pub events: Vec<u8>,
}

impl Stored {
    /// True if the store never had a job and nothing is drained.
    pub fn is_new(&self) -> bool {
        self.last_id == 0 && self.drained.is_empty()
    }
}

/// A random id for a new store, which is not 0.
fn new_id() -> u64 {
    rand::random::<u64>().max(1)
}

/// Error of a store.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum StoreError {
    /// The file is open in another process.
    #[error("{}: open in another process; stop the other controller, or pass another file with --state", path.display())]
    InUse { path: PathBuf },
    /// The file cannot be opened.
    #[error("cannot open {}: {reason}; pass --state with a controller's store or a new file", path.display())]
    Open { path: PathBuf, reason: String },
    /// The file is not a database.
    #[error("{} is not a store of Ultima; pass --state with a controller's store or a new file", path.display())]
    NotAStore { path: PathBuf },
    /// The store has another format version.
    #[error(
        "{name}: store format {form} is unknown (this controller reads format {THIS_FORM}); start the version that wrote it, or pass another --state"
    )]
    Form { name: String, form: String },
    /// A stored job cannot be read.
    #[error("{name}: job {id} cannot be read: {reason}")]
    Job {
        name: String,
        id: u16,
        reason: serde_json::Error,
    },
    /// A stored job is encrypted with another secret.
    #[error("{name}: job {id} is encrypted; pass the --etcd-secret with which it was stored")]
    Secret { name: String, id: u16 },
    /// The file cannot be read or written.
    #[error("{name}: {reason}; check the disk")]
    Io {
        name: String,
        reason: Box<redb::Error>,
    },
    /// etcd does not answer, or rejects the request.
    #[error(transparent)]
    Etcd(#[from] etcd::EtcdError),
    /// Another controller leads, or may. Nothing was written.
    #[error("this controller no longer leads; ask the leader")]
    NotLeader,
    /// The controller lost the lead before etcd answered. The next leader may have the change.
    #[error(
        "another controller may have taken over, with or without this change; ask the leader whether it has it"
    )]
    Unknown,
}

impl StoreError {
    /// True if the store has refused the change: it is not committed, and the controller leads on.
    pub fn is_final(&self) -> bool {
        !matches!(self, StoreError::NotLeader | StoreError::Unknown)
    }
}
