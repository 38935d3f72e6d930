//! The program's tables, one file each: typed rows, and how they become entries.

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

/// The names of those that every program has.
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

/// One row of one table.
pub(super) trait Row {
    /// The table's full name.
    const TABLE: &'static str;

    /// Adds the key.
    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError>;

    /// Adds what a hit does.
    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError>;

    /// The whole row, to be written.
    fn entry(&self, names: &Names) -> Result<TableEntry, SchemaError> {
        let entry = self.key(names.table(Self::TABLE)?.entry())?;
        Ok(self.action(entry)?.build()?)
    }

    /// The row's key alone, to be removed.
    fn bare_key(&self, names: &Names) -> Result<TableEntry, SchemaError> {
        Ok(self.key(names.table(Self::TABLE)?.entry())?.key()?)
    }
}
