//! The entities that the controller writes.

use std::fmt;

use ultima_p4runtime::names::{EntryError, IndexError, NameError, Names};
use ultima_p4runtime::replication::{self, ReplicationError, multicast_group};
use ultima_p4runtime::v1::{CounterData, Update};

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

/// The parts of an entity that inserting and deleting need.
enum Form<'a> {
    Row(&'a dyn DynRow),
    Group(&'a Group),
    Counter(&'a CounterCell),
    Meter(MeterCell),
    LossSession(LossSession),
    LossDigest(LossDigest),
    CutSession(CutSession),
}

/// [`Row`] without its constant, as a trait object.
trait DynRow: fmt::Display {
    fn table(&self) -> &'static str;
    fn insert(&self, names: &Names) -> Result<Update, SchemaError>;
    fn delete(&self, names: &Names) -> Result<Update, SchemaError>;
}

impl<R: Row + fmt::Display> DynRow for R {
    fn table(&self) -> &'static str {
        R::TABLE
    }

    fn insert(&self, names: &Names) -> Result<Update, SchemaError> {
        Ok(Update::insert(self.entry(names)?))
    }

    fn delete(&self, names: &Names) -> Result<Update, SchemaError> {
        Ok(Update::delete(self.bare_key(names)?))
    }
}

impl Entity {
    fn form(&self) -> Form<'_> {
        match self {
            Entity::Route(row) => Form::Row(row),
            Entity::Neighbor(row) => Form::Row(row),
            Entity::Job(row) => Form::Row(row),
            Entity::Source(row) => Form::Row(row),
            Entity::Destination(row) => Form::Row(row),
            Entity::Replica(row) => Form::Row(row),
            Entity::Share(row) => Form::Row(row),
            Entity::QueueTime(row) => Form::Row(row),
            Entity::Group(group) => Form::Group(group),
            Entity::Counter(counter) => Form::Counter(counter),
            Entity::Meter(meter) => Form::Meter(*meter),
            Entity::LossSession(session) => Form::LossSession(*session),
            Entity::LossDigest(digest) => Form::LossDigest(*digest),
            Entity::Cut(row) => Form::Row(row),
            Entity::CutSession(session) => Form::CutSession(*session),
        }
    }

    /// The full name of the entity's table, if it is a table entry.
    pub fn table(&self) -> Option<&'static str> {
        match self.form() {
            Form::Row(row) => Some(row.table()),
            _ => None,
        }
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
        match self.form() {
            Form::Row(row) => row.insert(names),
            Form::Group(group) => {
                let copies = group.copies.iter().map(|copy| replication::Replica {
                    port: copy.port.0.into(),
                    instance: copy.rid.into(),
                });
                Ok(Update::insert(multicast_group(group.id.0.into(), copies)?))
            }
            Form::Counter(reset) => {
                let mut cell = names.counter(reset.counter)?.cell(reset.index.into())?;
                cell.data = Some(CounterData::default());
                Ok(Update::modify(cell))
            }
            Form::Meter(meter) => Ok(Update::modify(meter.entry(names)?)),
            Form::LossSession(session) => Ok(Update::insert(session.entry()?)),
            Form::LossDigest(digest) => Ok(Update::insert(digest.entry(names)?)),
            Form::CutSession(session) => Ok(Update::insert(session.entry()?)),
        }
    }

    /// The update that removes the entity; none for a counter, which stays.
    ///
    /// # Errors
    /// The program does not support the entity.
    pub fn removal(&self, names: &Names) -> Result<Option<Update>, SchemaError> {
        match self.form() {
            Form::Row(row) => row.delete(names).map(Some),
            Form::Group(group) => Ok(Some(Update::delete(multicast_group(
                group.id.0.into(),
                [],
            )?))),
            Form::Counter(_) => Ok(None),
            Form::Meter(meter) => Ok(Some(Update::modify(meter.cleared().entry(names)?))),
            Form::LossSession(session) => Ok(Some(Update::delete(session.entry()?))),
            Form::LossDigest(digest) => Ok(Some(Update::delete(digest.entry(names)?))),
            Form::CutSession(session) => Ok(Some(Update::delete(session.entry()?))),
        }
    }
}

/// The table and key, as in errors.
impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            Form::Row(row) => fmt::Display::fmt(row, f),
            Form::Group(group) => fmt::Display::fmt(group, f),
            Form::Counter(counter) => fmt::Display::fmt(counter, f),
            Form::Meter(meter) => fmt::Display::fmt(&meter, f),
            Form::LossSession(session) => fmt::Display::fmt(&session, f),
            Form::LossDigest(digest) => fmt::Display::fmt(&digest, f),
            Form::CutSession(session) => fmt::Display::fmt(&session, f),
        }
    }
}
