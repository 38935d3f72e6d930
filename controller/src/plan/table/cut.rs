//! `mirrors.session`: by which sessions packets that are cut go on.

use std::fmt;

use ultima_p4::names::cut;
use ultima_p4runtime::names::{EntryBuilder, EntryError};

use super::Row;
use crate::target::PortNumber;

/// What is cut at `egress` goes on by this session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Key: the port that the packet leaves by.
    pub egress: PortNumber,
    /// Key: whether it has digest and tag, which stay.
    pub sealed: bool,
    /// The mirror session.
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

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sealed = u8::from(self.sealed);
        write!(f, "{}[port {}, sealed {sealed}]", cut::TABLE, self.egress)
    }
}
