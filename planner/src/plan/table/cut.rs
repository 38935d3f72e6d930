//! Table `mirrors.session`: the mirror sessions of trimmed packets.

use ultima_p4::names::cut;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::target::PortNumber;

/// Trimmed packets at `egress` use this session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Key: the egress port.
    pub egress: PortNumber,
    /// Key: true if the packet has digest and tag, which are kept.
    pub sealed: bool,
    /// The mirror session's id.
    pub session: u32,
}

impl Row for Cut {
    const TABLE: &'static str = cut::TABLE;

    fn key<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry
            .exact(cut::EGRESS_PORT, self.egress.0)?
            .exact(cut::SEALED, u8::from(self.sealed))
    }

    fn action<'a>(&self, entry: EntryBuilder<'a>) -> Result<EntryBuilder<'a>, EntryError> {
        entry.action(cut::SET_SESSION, &[(cut::SESSION, self.session.into())])
    }
}
