//! The program's tables, one file each, as typed rows.

mod cut;
mod destination;
mod job;
mod neighbor;
mod queue_time;
mod replica;
mod route;
mod share;
mod source;

pub use cut::Cut;
pub use destination::Destination;
pub use job::JobRow;
pub use neighbor::Neighbor;
pub use queue_time::QueueTime;
pub use replica::Replica;
pub use route::Route;
pub use share::Share;
pub use source::Source;

use ultima_p4runtime::names::{EntryBuilder, EntryError, Names};
use ultima_p4runtime::v1::TableEntry;

use super::SchemaError;

/// The tables that every program has.
pub const NAMES: [&str; 8] = [
    JobRow::TABLE,
    Source::TABLE,
    Destination::TABLE,
    Route::TABLE,
    Neighbor::TABLE,
    Replica::TABLE,
    Share::TABLE,
    QueueTime::TABLE,
];

/// A row of a table.
pub(super) trait Row {
    /// The table's full name.
    const TABLE: &'static str;

    /// Adds the key.
    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError>;

    /// Adds the action.
    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError>;

    /// The whole entry, for writing.
    fn entry(&self, names: &Names) -> Result<TableEntry, SchemaError> {
        let entry = self.key(names.table(Self::TABLE)?.entry())?;
        Ok(self.action(entry)?.build()?)
    }

    /// The entry's key, for removing.
    fn bare_key(&self, names: &Names) -> Result<TableEntry, SchemaError> {
        Ok(self.key(names.table(Self::TABLE)?.entry())?.key()?)
    }
}
