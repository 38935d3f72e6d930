//! Parser value sets (§6.4.7, §9.6).

use super::{EntryError, KeyBuilder, MatchField, P4InfoError, array};
use crate::config::v1 as p4info;
use crate::v1;

/// A parser value set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSet {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Fields of members in the order of declaration. The only field of a set of plain numbers has an empty name.
    pub fields: Vec<MatchField>,
    /// Largest number of members.
    pub size: u64,
}

impl ValueSet {
    pub(super) fn new(id: u32, name: &str, set: &p4info::ValueSet) -> Result<Self, P4InfoError> {
        let place = format!("value set \"{name}\"");
        Ok(ValueSet {
            id,
            name: name.into(),
            fields: MatchField::all(&place, &set.r#match)?,
            size: array::size(&place, set.size.into())?,
        })
    }

    /// Starts a member.
    pub fn member(&self) -> KeyBuilder<'_> {
        KeyBuilder::new(format!("value set \"{}\"", self.name), &self.fields)
    }

    /// Returns the set with exactly these members, for a MODIFY.
    ///
    /// # Errors
    /// [`EntryError`] when a member lacks an exact field.
    pub fn entry<'a>(
        &self,
        members: impl IntoIterator<Item = KeyBuilder<'a>>,
    ) -> Result<v1::ValueSetEntry, EntryError> {
        let members = members.into_iter().map(|member| {
            let r#match = member.build()?;
            Ok::<_, EntryError>(v1::ValueSetMember { r#match })
        });
        Ok(v1::ValueSetEntry {
            value_set_id: self.id,
            members: members.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the entity for a read of the set.
    pub fn all_members(&self) -> v1::ValueSetEntry {
        v1::ValueSetEntry {
            value_set_id: self.id,
            members: Vec::new(),
        }
    }
}
