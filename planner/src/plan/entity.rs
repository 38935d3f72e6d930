//! The entities that the controller writes.

use ultima_p4runtime::names::{EntryError, IndexError, NameError, Names};
use ultima_p4runtime::replication::ReplicationError;
use ultima_p4runtime::v1::{self, Update};

use super::table::{
    Cut, Destination, JobRow, Neighbor, QueueTime, Replica, Route, Row, Share, Source,
};
use super::{CounterCell, CutSession, Group, LossDigest, LossSession, MeterCell};

/// An entity of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The types are the documentation.
pub enum Entity {
    Route(Route),
    Neighbor(Neighbor),
    Job(JobRow),
    Source(Source),
    Destination(Destination),
    Replica(Replica),
    Share(Share),
    QueueTime(QueueTime),
    Group(Group),
    /// Set to zero.
    Counter(CounterCell),
    Meter(MeterCell),
    LossSession(LossSession),
    LossDigest(LossDigest),
    Cut(Cut),
    CutSession(CutSession),
}

/// The order of writes: earlier stages first, and removed in reverse, so that no packet is admitted
/// before it can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Groups, addresses, routes, meters.
    Prepare,
    /// Jobs: their packets are counted.
    Announce,
    /// Admissions of senders.
    Admit,
}

impl Stage {
    /// The stage of a table's entries.
    pub(crate) fn of_table(table: &str) -> Stage {
        match table {
            Source::TABLE => Stage::Admit,
            JobRow::TABLE => Stage::Announce,
            _ => Stage::Prepare,
        }
    }
}

/// Reason why the program does not support an entity: its P4Info lacks a name, or a field is too
/// narrow.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// An unknown table, counter or meter.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The table has another key or action.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The counter or meter array is too short.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The group is invalid.
    #[error(transparent)]
    Group(#[from] ReplicationError),
}

/// A kind of entity.
pub(super) trait Kind {
    /// The full name of the table, if it is a table entry.
    fn table(&self) -> Option<&'static str> {
        None
    }

    /// Its P4Runtime entity.
    fn entity(&self, names: &Names) -> Result<v1::Entity, SchemaError>;

    /// The update that writes it.
    fn creation(&self, names: &Names) -> Result<Update, SchemaError> {
        Ok(Update::insert(self.entity(names)?))
    }

    /// The update that removes it, if it can be removed.
    fn removal(&self, names: &Names) -> Result<Option<Update>, SchemaError> {
        Ok(Some(Update::delete(self.entity(names)?)))
    }
}

impl<R: Row> Kind for R {
    fn table(&self) -> Option<&'static str> {
        Some(R::TABLE)
    }

    fn entity(&self, names: &Names) -> Result<v1::Entity, SchemaError> {
        Ok(self.entry(names)?.into())
    }

    fn removal(&self, names: &Names) -> Result<Option<Update>, SchemaError> {
        Ok(Some(Update::delete(self.bare_key(names)?)))
    }
}

impl Entity {
    fn kind(&self) -> &dyn Kind {
        match self {
            Entity::Route(row) => row,
            Entity::Neighbor(row) => row,
            Entity::Job(row) => row,
            Entity::Source(row) => row,
            Entity::Destination(row) => row,
            Entity::Replica(row) => row,
            Entity::Share(row) => row,
            Entity::QueueTime(row) => row,
            Entity::Group(group) => group,
            Entity::Counter(cell) => cell,
            Entity::Meter(cell) => cell,
            Entity::LossSession(session) => session,
            Entity::LossDigest(digest) => digest,
            Entity::Cut(row) => row,
            Entity::CutSession(session) => session,
        }
    }

    /// The full name of the entity's table, if it is a table entry.
    pub fn table(&self) -> Option<&'static str> {
        self.kind().table()
    }

    /// The stage in which the entity is written.
    pub fn stage(&self) -> Stage {
        self.table().map_or(Stage::Prepare, Stage::of_table)
    }

    /// The update that writes the entity to a switch.
    ///
    /// # Errors
    /// The program does not support the entity.
    pub fn creation(&self, names: &Names) -> Result<Update, SchemaError> {
        self.kind().creation(names)
    }

    /// The update that removes the entity; none for a counter, which stays.
    ///
    /// # Errors
    /// The program does not support the entity.
    pub fn removal(&self, names: &Names) -> Result<Option<Update>, SchemaError> {
        self.kind().removal(names)
    }
}
