//! Tables and actions.

use super::entry::EntryBuilder;
use super::field::check_field_id;
use super::{Catalog, Field, FieldError, FieldList, NameError, P4InfoError};
use crate::bytestring::Bytestring;
use crate::config::v1 as p4info;
use crate::v1;
use p4info::match_field::{Match, MatchType};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The match kind of a field (§6.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchKind {
    /// Equal to a value.
    Exact,
    /// Longest-prefix match.
    Lpm,
    /// Equal to a value under a mask.
    Ternary,
    /// Between two bounds, both included.
    Range,
    /// Equal to a value, or any value.
    Optional,
    /// A match kind of the architecture.
    Other(String),
}

impl MatchKind {
    /// True if entries of a table with such a field need a priority (§9.1).
    pub fn needs_priority(&self) -> bool {
        matches!(
            self,
            MatchKind::Ternary | MatchKind::Range | MatchKind::Optional
        )
    }
}

/// Prints the name in P4.
impl fmt::Display for MatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatchKind::Exact => "exact",
            MatchKind::Lpm => "lpm",
            MatchKind::Ternary => "ternary",
            MatchKind::Range => "range",
            MatchKind::Optional => "optional",
            MatchKind::Other(name) => name,
        })
    }
}

/// One field of a table's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchField {
    /// Id, name and width.
    pub field: Field,
    /// Match kind.
    pub kind: MatchKind,
}

impl MatchField {
    /// Reads the match fields of an object.
    pub(super) fn all(
        place: &str,
        fields: &[p4info::MatchField],
    ) -> Result<Vec<Self>, P4InfoError> {
        let mut ids = HashSet::new();
        let mut key = Vec::new();
        for field in fields {
            let kind = match &field.r#match {
                Some(Match::OtherMatchType(name)) => Some(MatchKind::Other(name.clone())),
                Some(Match::MatchType(number)) => match MatchType::try_from(*number) {
                    Ok(MatchType::Exact) => Some(MatchKind::Exact),
                    Ok(MatchType::Lpm) => Some(MatchKind::Lpm),
                    Ok(MatchType::Ternary) => Some(MatchKind::Ternary),
                    Ok(MatchType::Range) => Some(MatchKind::Range),
                    Ok(MatchType::Optional) => Some(MatchKind::Optional),
                    Ok(MatchType::Unspecified) | Err(_) => None,
                },
                None => None,
            };
            let Some(kind) = kind else {
                return Err(P4InfoError::NoMatchType {
                    place: place.into(),
                    field: field.name.clone(),
                });
            };
            check_field_id(place, &field.name, field.id)?;
            if !ids.insert(field.id) {
                return Err(P4InfoError::RepeatedId {
                    place: place.into(),
                    id: field.id,
                });
            }
            let field = Field::new(place, field.id, &field.name, field.bitwidth)?;
            key.push(MatchField { field, kind });
        }
        Ok(key)
    }
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Shortest unambiguous name.
    pub alias: String,
    /// Parameters.
    pub params: FieldList,
}

impl Action {
    pub(super) fn new(id: u32, name: &str, action: &p4info::Action) -> Result<Self, P4InfoError> {
        let place = format!("action \"{name}\"");
        let params = action
            .params
            .iter()
            .map(|param| Field::new(&place, param.id, &param.name, param.bitwidth));
        let params = FieldList::new(place.clone(), "parameter", params)?;
        let alias = action
            .preamble
            .as_ref()
            .map_or_else(String::new, |p| p.alias.clone());
        Ok(Action {
            id,
            name: name.into(),
            alias,
            params,
        })
    }

    /// Returns the action with one value for each parameter.
    ///
    /// # Errors
    /// [`FieldError`] when a parameter is unknown, missing, given twice or too narrow.
    pub fn call(&self, values: &[(&str, Bytestring)]) -> Result<v1::Action, FieldError> {
        let params = self.params.encode(values)?.into_iter();
        let params = params.map(|(param_id, value)| v1::action::Param { param_id, value });
        Ok(v1::Action {
            action_id: self.id,
            params: params.collect(),
        })
    }
}

/// The use of an action in a table (§6.4.1): in entries, as the default, or both.
pub use p4info::action_ref::Scope as ActionScope;

/// A match-action table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Number in messages.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// Match fields in the order of declaration.
    pub key: Vec<MatchField>,
    /// Actions of entries and the default entry.
    pub actions: Vec<(ActionScope, Arc<Action>)>,
    /// Number of entries that the program reserves.
    pub size: u64,
    /// True if entries refer to members or groups of an action profile instead of actions.
    pub is_indirect: bool,
}

impl Table {
    pub(super) fn new(
        id: u32,
        name: &str,
        table: &p4info::Table,
        actions: &Catalog<Arc<Action>>,
    ) -> Result<Self, P4InfoError> {
        let place = format!("table \"{name}\"");
        let key = MatchField::all(&place, &table.match_fields)?;
        let actions = table
            .action_refs
            .iter()
            .map(|reference| match actions.by_id(reference.id) {
                Some(action) => Ok((reference.scope(), Arc::clone(action))),
                None => Err(P4InfoError::NoAction {
                    place: place.clone(),
                    id: reference.id,
                }),
            });
        Ok(Table {
            id,
            name: name.into(),
            key,
            actions: actions.collect::<Result<_, _>>()?,
            size: super::array::size(&place, table.size)?,
            is_indirect: table.implementation_id != 0,
        })
    }

    /// Starts an entry.
    pub fn entry(&self) -> EntryBuilder<'_> {
        EntryBuilder::new(self, false)
    }

    /// Starts the default entry, which has an action and no key (§9.1.3).
    pub fn default_entry(&self) -> EntryBuilder<'_> {
        EntryBuilder::new(self, true)
    }

    /// Returns the entity for a read of all entries (§9.1.6).
    pub fn all_entries(&self) -> v1::TableEntry {
        v1::TableEntry {
            table_id: self.id,
            ..Default::default()
        }
    }

    /// Returns the match field of this name.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn field(&self, name: &str) -> Result<&MatchField, NameError> {
        super::key::find(&self.key, &self.place(), name)
    }

    /// Returns the action of this name or alias, and where the table may use it.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names of the table's own actions.
    pub fn action(&self, name: &str) -> Result<&(ActionScope, Arc<Action>), NameError> {
        let found = self
            .actions
            .iter()
            .find(|(_, action)| action.name == name || action.alias == name);
        found.ok_or_else(|| {
            let existing = self.actions.iter().map(|(_, action)| action.name.as_str());
            NameError::new(self.place(), "action", name, existing)
        })
    }

    /// True if entries need a priority (§9.1).
    pub fn needs_priority(&self) -> bool {
        self.key.iter().any(|field| field.kind.needs_priority())
    }

    /// Returns the table's name for errors.
    pub(super) fn place(&self) -> String {
        format!("table \"{}\"", self.name)
    }
}
